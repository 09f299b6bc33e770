//! The coordinator's side of one process that touches the mount: starting it, asking it, and giving it up.
//!
//! The coordinator itself makes no call on the volume, so one that hangs cannot hold it: every answer is waited for with
//! a deadline, and a process that does not answer is killed and left to the kernel.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::protocol::{
    Answer, Ask, Begun, Failure, FailureClass, Glance, Host, MAX_LINE_BYTES, Measure, Mounting, Outcome,
    Request, Response, Volume,
};
use super::{content::Seen, protocol::Spun};

/// How long a process may take to go once its input has ended.
const GOING: Duration = Duration::from_secs(5);

/// How often it is looked whether an answer is still waited for.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Why something was not answered as hoped.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// The volume, or the connection to the peer, does not answer.
    #[error("{who}: {what} did not return within {seconds} s")]
    Hung { who: String, what: String, seconds: u64 },
    /// The process has ended.
    #[error("{who} has ended ({how}) while {what} was waited for")]
    Gone { who: String, what: String, how: String },
    /// The file system refused.
    #[error("{who}: {what}: {}", failure.message)]
    Refused { who: String, what: String, failure: Failure },
    /// It does not speak the protocol.
    #[error("{who} gave no proper answer to {what}{}", noise.as_ref().map(|n| format!("; it said: {n}")).unwrap_or_default())]
    Garbled { who: String, what: String, noise: Option<String> },
    /// `Options::cancelled` was set.
    #[error("interrupted")]
    Interrupted,
    /// It could not be started.
    #[error("{who} cannot be started: {source}")]
    NotStarted { who: String, source: std::io::Error },
}

impl Trouble {
    /// The class of what the file system refused.
    pub fn class(&self) -> Option<FailureClass> {
        match self {
            Self::Refused { failure, .. } => Some(failure.class),
            _ => None,
        }
    }
}

#[derive(Default)]
struct Waiting {
    answers: HashMap<u64, Sender<Outcome>>,
    ended: bool,
    noise: Option<String>,
}

/// One process that touches the mount.
pub struct Peer {
    who: String,
    child: Mutex<Child>,
    input: Mutex<Option<ChildStdin>>,
    waiting: Arc<Mutex<Waiting>>,
    next: AtomicU64,
    patience: Duration,
    cancelled: Arc<AtomicBool>,
}

/// A request that was sent.
pub struct Pending<'a> {
    peer: &'a Peer,
    id: u64,
    what: String,
    answer: Receiver<Outcome>,
}

impl Peer {
    /// Starts `command`, which speaks the protocol on its standard input and output. `who` names it in errors; answers
    /// are waited for as long as `patience`, and until `cancelled` is set.
    pub fn start(
        who: &str,
        mut command: Command,
        patience: Duration,
        cancelled: &Arc<AtomicBool>,
    ) -> Result<Self, Trouble> {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut child = spawned.map_err(|source| Trouble::NotStarted { who: who.to_owned(), source })?;
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        if let Some(output) = child.stdout.take() {
            let waiting = Arc::clone(&waiting);
            thread::spawn(move || listen(output, &waiting));
        }
        let input = Mutex::new(child.stdin.take());
        Ok(Self {
            who: who.to_owned(),
            child: Mutex::new(child),
            input,
            waiting,
            next: AtomicU64::new(1),
            patience,
            cancelled: Arc::clone(cancelled),
        })
    }

    /// Sends a request.
    pub fn begin(&self, ask: Ask) -> Result<Pending<'_>, Trouble> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let what = ask.to_string();
        let (sender, answer) = mpsc::channel();
        if !self.expect(id, sender) {
            return Err(self.gone(&what));
        }
        let garbled = || Trouble::Garbled { who: self.who.clone(), what: what.clone(), noise: None };
        let mut line = serde_json::to_vec(&Request { id, ask }).map_err(|_| garbled())?;
        line.push(b'\n');
        let written =
            self.input.lock().as_mut().map(|input| input.write_all(&line).and_then(|()| input.flush()));
        match written {
            Some(Ok(())) => Ok(Pending { peer: self, id, what, answer }),
            _ => Err(self.gone(&what)),
        }
    }

    /// Registers who waits for answer `id`; false if none will come any more.
    fn expect(&self, id: u64, sender: Sender<Outcome>) -> bool {
        let mut waiting = self.waiting.lock();
        if !waiting.ended {
            waiting.answers.insert(id, sender);
        }
        !waiting.ended
    }

    fn ask(&self, ask: Ask) -> Result<Answer, Trouble> {
        self.begin(ask)?.wait(Duration::ZERO)
    }

    fn gone(&self, what: &str) -> Trouble {
        let until = Instant::now() + Duration::from_secs(1);
        let mut how = "its output was closed".to_owned();
        while Instant::now() < until {
            if let Ok(Some(status)) = self.child.lock().try_wait() {
                how = status.to_string();
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        if let Some(noise) = &self.waiting.lock().noise {
            how = format!("{how}; it said: {noise}");
        }
        Trouble::Gone { who: self.who.clone(), what: what.to_owned(), how }
    }

    fn garbled(&self, what: &str) -> Trouble {
        let noise = self.waiting.lock().noise.clone();
        Trouble::Garbled { who: self.who.clone(), what: what.to_owned(), noise }
    }

    /// Ends the process, its directory left as it is.
    pub fn leave(self) {
        // It goes without an answer; if it does not, it is killed.
        let _ = self.begin(Ask::Leave);
    }

    /// Measures; waits for as long as that may take, and then as long as for anything else.
    pub fn measure(&self, measure: Measure) -> Result<Vec<u64>, Trouble> {
        let planned = Duration::from_millis(measure.at_most_ms);
        let pending = self.begin(Ask::Measure(measure))?;
        let what = pending.what.clone();
        match pending.wait(planned)? {
            Answer::Samples(nanos) => Ok(nanos),
            _ => Err(self.garbled(&what)),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input tells it to go.
        *self.input.lock() = None;
        let until = Instant::now() + GOING;
        let mut child = self.child.lock();
        while Instant::now() < until {
            if let Ok(Some(_)) = child.try_wait() {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        // A process that the volume holds dies when the volume answers.
        let _ = child.kill();
        let _ = child.try_wait();
    }
}

impl Pending<'_> {
    /// The answer, unless it is not waited for any more.
    fn receive(&self, patience: Duration) -> Result<Result<Outcome, RecvTimeoutError>, Trouble> {
        let until = Instant::now() + patience;
        loop {
            if self.peer.cancelled.load(Ordering::Relaxed) {
                return Err(Trouble::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.answer.recv_timeout(left.min(BETWEEN_LOOKS)) {
                Err(RecvTimeoutError::Timeout) if left > BETWEEN_LOOKS => {}
                outcome => return Ok(outcome),
            }
        }
    }

    /// Waits for the answer, `more` longer than for most.
    pub fn wait(self, more: Duration) -> Result<Answer, Trouble> {
        let patience = self.peer.patience + more;
        match self.receive(patience)? {
            Ok(Outcome::Answer(answer)) => Ok(answer),
            Ok(Outcome::Error(failure)) => {
                Err(Trouble::Refused { who: self.peer.who.clone(), what: self.what, failure })
            }
            Err(RecvTimeoutError::Timeout) => {
                let noise = self.peer.waiting.lock().noise.clone();
                if noise.is_some() {
                    return Err(self.peer.garbled(&self.what));
                }
                let seconds = patience.as_secs();
                Err(Trouble::Hung { who: self.peer.who.clone(), what: self.what, seconds })
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.peer.gone(&self.what)),
        }
    }

    /// Ends what was begun as [`Ask::Spin`]; what was seen.
    pub fn stop(self) -> Result<Spun, Trouble> {
        self.peer.done(Ask::Stop { id: self.id })?;
        let (peer, what) = (self.peer, self.what.clone());
        match self.wait(Duration::ZERO)? {
            Answer::Spun(spun) => Ok(spun),
            _ => Err(peer.garbled(&what)),
        }
    }

    /// Which races were won.
    pub fn won(self) -> Result<Vec<bool>, Trouble> {
        let (peer, what) = (self.peer, self.what.clone());
        match self.wait(Duration::ZERO)? {
            Answer::Won(won) => Ok(won),
            _ => Err(peer.garbled(&what)),
        }
    }
}

/// One method a kind of answer.
macro_rules! answers {
    ($($(#[$doc:meta])* $method:ident: $pattern:pat => $value:expr, $kind:ty;)*) => {
        impl Peer {
            $($(#[$doc])*
            pub fn $method(&self, ask: Ask) -> Result<$kind, Trouble> {
                let what = ask.to_string();
                match self.ask(ask)? {
                    $pattern => Ok($value),
                    _ => Err(self.garbled(&what)),
                }
            })*
        }
    };
}

answers! {
    /// For requests that are answered with [`Answer::Done`].
    done: Answer::Done => (), ();
    /// For requests that are answered with [`Answer::Flag`].
    flag: Answer::Flag(flag) => flag, bool;
    /// For requests that are answered with [`Answer::Number`].
    number: Answer::Number(number) => number, Option<u64>;
    /// For requests that are answered with [`Answer::Names`].
    names: Answer::Names(names) => names, Vec<String>;
    /// For requests that are answered with [`Answer::Length`].
    length: Answer::Length(length) => length, u64;
    /// For requests that are answered with [`Answer::Seen`].
    seen: Answer::Seen(seen) => seen, Seen;
    /// For requests that are answered with [`Answer::Glance`].
    glance: Answer::Glance(glance) => glance, Glance;
    /// For [`Ask::Hello`].
    host: Answer::Host(host) => host, Host;
    /// For [`Ask::Attach`].
    volume: Answer::Volume(volume) => volume, Volume;
    /// For [`Ask::Begin`].
    begun: Answer::Begun(begun) => begun, Begun;
    /// For [`Ask::Mounting`].
    mounting: Answer::Mounting(mounting) => mounting, Mounting;
}

/// Hands answers to who waits for them; other lines (the greeting of a login, say) are kept for an error message.
fn listen(output: ChildStdout, waiting: &Mutex<Waiting>) {
    let mut output = BufReader::new(output);
    loop {
        let mut line = Vec::new();
        match output.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        match serde_json::from_slice::<Response>(&line) {
            Ok(response) => {
                let mut waiting = waiting.lock();
                waiting.noise = None;
                if let Some(sender) = waiting.answers.remove(&response.id) {
                    // Whoever asked may have given up.
                    let _ = sender.send(response.outcome);
                }
            }
            Err(_) => {
                let text = String::from_utf8_lossy(&line);
                let text = text.trim();
                if !text.is_empty() {
                    waiting.lock().noise = Some(text.chars().take(120).collect());
                }
            }
        }
    }
    let mut waiting = waiting.lock();
    waiting.ended = true;
    waiting.answers.clear();
}
