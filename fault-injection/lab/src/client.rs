//! The test's side of an actor.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::protocol::{Call, Event, Failure, Request, Said, Value, VolumeCall, VolumeIs};

/// How long anything may take that is expected to happen. Longer than any lease or grace period of a lab, and than Ceph
/// takes to evict a silent client.
pub const PATIENCE: Duration = Duration::from_secs(150);

/// How long a killed process is waited for.
const GOING: Duration = Duration::from_secs(5);

/// A running actor. Killed when dropped.
#[derive(Debug)]
pub struct Actor {
    name: String,
    child: Mutex<Child>,
    stdin: Mutex<ChildStdin>,
    shared: Arc<Shared>,
    /// What it said first.
    pid: u32,
    root: PathBuf,
    volume: VolumeIs,
}

#[derive(Debug, Default)]
struct Shared {
    heard: Mutex<Heard>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Heard {
    last_id: u64,
    waiting: HashMap<u64, Sender<Result<Value, Failure>>>,
    events: Vec<Event>,
    /// Why its current workload ended, once it has.
    ended: Option<String>,
    gone: bool,
}

/// An answer that is yet to come.
#[derive(Debug)]
pub struct Answer {
    of: String,
    receiver: Receiver<Result<Value, Failure>>,
}

impl Actor {
    /// Starts an actor; `command` runs `kaas-lab-actor` on a directory, wherever that is.
    pub fn start(name: &str, mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {command:?} cannot be run: {error}"));
        let stdin = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first =
            lines.next().and_then(Result::ok).unwrap_or_else(|| panic!("{name}: no actor, see above"));
        let Ok(Said::Hello { pid, root, volume }) = serde_json::from_str(&first) else {
            panic!("{name}: not an actor: {first}");
        };
        let shared = Arc::new(Shared::default());
        let heard_by = Arc::clone(&shared);
        std::thread::spawn(move || {
            for line in lines {
                let Ok(line) = line else { break };
                // The last line of an actor that lost its power may be torn: nobody was told what it says.
                let Ok(said) = serde_json::from_str(&line) else { continue };
                heard_by.hear(said);
            }
            let mut heard = heard_by.heard.lock();
            heard.gone = true;
            heard.waiting.clear();
            heard_by.changed.notify_all();
        });
        Self {
            name: name.to_owned(),
            child: Mutex::new(child),
            stdin: Mutex::new(stdin),
            shared,
            pid,
            root,
            volume,
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id, on its host.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What its substrate says of itself.
    pub fn volume(&self) -> &VolumeIs {
        &self.volume
    }

    /// The root directory, on its host.
    pub fn root(&self) -> &std::path::Path {
        &self.root
    }

    /// Asks for something, without waiting for the answer.
    pub fn ask(&self, call: Call) -> Answer {
        let (sender, receiver) = channel();
        let of = format!("{}: {call:?}", self.name);
        let mut line = {
            let mut heard = self.shared.heard.lock();
            heard.last_id += 1;
            let id = heard.last_id;
            if matches!(call, Call::Lead { .. }) {
                heard.ended = None;
            }
            if !heard.gone {
                heard.waiting.insert(id, sender);
            }
            serde_json::to_string(&Request { id, call }).unwrap()
        };
        line.push('\n');
        // An actor that is gone does not answer, which is noticed there.
        let _ = self.stdin.lock().write_all(line.as_bytes());
        Answer { of, receiver }
    }

    /// Asks, and waits for success.
    pub fn call(&self, call: Call) -> Value {
        self.ask(call).get()
    }

    pub fn try_call(&self, call: Call) -> Result<Value, Failure> {
        self.ask(call).outcome()
    }

    pub fn open(&self, dir: &str, epoch: u32) {
        self.call(Call::Open { dir: dir.into(), epoch });
    }

    pub fn lead(&self, tag: &str) {
        self.call(Call::Lead { tag: tag.into() });
    }

    /// A call to the substrate of one of its volumes.
    pub(crate) fn volume_call(&self, volume: u64, call: VolumeCall) -> kaas_substrate::Result<Value> {
        self.try_call(Call::On { volume, call }).map_err(Failure::into_error)
    }

    /// All events so far, in order.
    pub fn events(&self) -> Vec<Event> {
        self.shared.heard.lock().events.clone()
    }

    pub fn acknowledged(&self) -> usize {
        let heard = self.shared.heard.lock();
        heard.events.iter().filter(|event| matches!(event, Event::Acknowledged { .. })).count()
    }

    /// Waits until `count` more batches were acknowledged than now.
    pub fn until_acknowledged(&self, count: usize) {
        let target = self.acknowledged() + count;
        self.until(&format!("{count} acknowledgements"), |heard| {
            heard.events.iter().filter(|event| matches!(event, Event::Acknowledged { .. })).count() >= target
        });
    }

    /// Waits until its workload has ended; why.
    pub fn until_ended(&self) -> String {
        self.until("the end of its workload", |heard| heard.ended.is_some());
        self.shared.heard.lock().ended.clone().unwrap()
    }

    /// Why its workload has ended, if it does within `limit`.
    pub fn ended_within(&self, limit: Duration) -> Option<String> {
        self.within(limit, "the end of its workload", |heard| heard.ended.is_some());
        self.shared.heard.lock().ended.clone()
    }

    fn until(&self, what: &str, holds: impl Fn(&Heard) -> bool) {
        if !self.within(PATIENCE, what, holds) {
            let heard = self.shared.heard.lock();
            panic!("{}: waited in vain for {what}; its last event: {:?}", self.name, heard.events.last());
        }
    }

    /// Whether `holds` comes true within `limit`.
    fn within(&self, limit: Duration, what: &str, holds: impl Fn(&Heard) -> bool) -> bool {
        let deadline = Instant::now() + limit;
        let mut heard = self.shared.heard.lock();
        while !holds(&heard) {
            assert!(!heard.gone, "{}: gone, before {what}", self.name);
            if self.shared.changed.wait_until(&mut heard, deadline).timed_out() {
                return holds(&heard);
            }
        }
        true
    }

    /// Ends the process on this machine that the actor speaks through: for a host that is gone.
    pub fn hang_up(&self) {
        let mut child = self.child.lock();
        // Already gone is as good.
        let _ = child.kill();
        // One that a dead volume holds goes with the volume, which its site takes down after the actors.
        let deadline = Instant::now() + GOING;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl Shared {
    fn hear(&self, said: Said) {
        let mut heard = self.heard.lock();
        match said {
            Said::Answer { id, outcome } => {
                if let Some(waiting) = heard.waiting.remove(&id) {
                    // Whoever asked may have given up.
                    let _ = waiting.send(outcome);
                }
            }
            Said::Event(event) => {
                if let Event::Ended { reason } = &event {
                    heard.ended = Some(reason.clone());
                }
                heard.events.push(event);
            }
            Said::Hello { .. } => {}
        }
        drop(heard);
        self.changed.notify_all();
    }
}

impl Answer {
    pub fn get(self) -> Value {
        let of = self.of.clone();
        self.outcome().unwrap_or_else(|failure| panic!("{of}: {}", failure.text))
    }

    pub fn outcome(self) -> Result<Value, Failure> {
        match self.receiver.recv_timeout(PATIENCE) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => panic!("{}: no answer within {PATIENCE:?}", self.of),
            Err(RecvTimeoutError::Disconnected) => Err(Failure::of("the actor is gone")),
        }
    }

    /// Whether it is still to come after `pause`.
    pub fn hangs_for(&self, pause: Duration) -> bool {
        matches!(self.receiver.recv_timeout(pause), Err(RecvTimeoutError::Timeout))
    }
}
