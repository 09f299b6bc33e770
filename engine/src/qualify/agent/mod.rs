//! The process that touches the mount: reads requests from standard input, one JSON object a line, and answers on
//! standard output.
//!
//! Each request runs on a thread of its own, so that one that hangs holds up no other. It works only below the run's own
//! directory, whatever it is asked. When its input ends (the command was interrupted or has died) it removes the
//! directory, if it made it, and goes; a volume that does not answer cannot keep it.

mod files;
mod measure;
mod own;
mod spin;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kaas_substrate::probing::{self, ProbeDir, ProbeFile, delegations_returned, host_facts};
use kaas_substrate::{Error, ErrorClass, recognise};
use parking_lot::Mutex;

use self::own::Own;
use super::protocol::{
    Answer, Ask, Failure, FailureClass, Family, Host, MAX_LINE_BYTES, Mounting, Outcome, PROTOCOL, Request,
    Response, Volume,
};

/// Most requests at one time.
const MAX_RUNNING: u32 = 64;

/// How long the removal of the directory may take once nobody waits for it any more.
const LAST_REMOVAL: Duration = Duration::from_secs(20);

/// Outcome of a request.
type Answered = Result<Answer, Failure>;

/// What the threads share.
#[derive(Default)]
struct Agent {
    dir: OnceLock<ProbeDir>,
    mounted_on: OnceLock<PathBuf>,
    own: Mutex<Option<Own>>,
    files: Mutex<HashMap<u32, Arc<ProbeFile>>>,
    spinning: Mutex<HashMap<u64, Arc<AtomicBool>>>,
    running: AtomicU32,
}

/// Serves until `input` ends or [`Ask::Leave`] comes.
pub fn serve<W: Write + Send + 'static>(input: impl Read, output: W) {
    let agent = Arc::new(Agent::default());
    let output = Arc::new(Mutex::new(output));
    let mut input = BufReader::new(input);
    loop {
        let mut line = Vec::new();
        match input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let request = match serde_json::from_slice::<Request>(&line) {
            Ok(request) => request,
            Err(error) => {
                respond(&output, 0, Err(other(format!("not a request: {error}"))));
                continue;
            }
        };
        match request.ask {
            Ask::Leave => return,
            Ask::Stop { id } => {
                if let Some(stop) = agent.spinning.lock().get(&id) {
                    stop.store(true, Ordering::Relaxed);
                }
                respond(&output, request.id, Ok(Answer::Done));
            }
            ask => {
                if let Ask::Spin(_) = ask {
                    agent.spinning.lock().insert(request.id, Arc::default());
                }
                start(&agent, &output, request.id, ask);
            }
        }
    }
    // Nobody listens any more. The directory goes if the volume lets it, in the time there is.
    let ended = thread::spawn(move || agent.end());
    for _ in 0..LAST_REMOVAL.as_millis() / 20 {
        if ended.is_finished() {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn start<W: Write + Send + 'static>(agent: &Arc<Agent>, output: &Arc<Mutex<W>>, id: u64, ask: Ask) {
    if agent.running.fetch_add(1, Ordering::Relaxed) >= MAX_RUNNING {
        agent.running.fetch_sub(1, Ordering::Relaxed);
        respond(output, id, Err(other(format!("more than {MAX_RUNNING} requests at one time"))));
        return;
    }
    let (for_thread, answers) = (Arc::clone(agent), Arc::clone(output));
    let started = thread::Builder::new().spawn(move || {
        let answered = for_thread.answer(id, ask);
        for_thread.running.fetch_sub(1, Ordering::Relaxed);
        respond(&answers, id, answered);
    });
    if let Err(error) = started {
        agent.running.fetch_sub(1, Ordering::Relaxed);
        respond(output, id, Err(other(format!("no thread: {error}"))));
    }
}

fn respond<W: Write>(output: &Mutex<W>, id: u64, answered: Answered) {
    let outcome = match answered {
        Ok(answer) => Outcome::Answer(answer),
        Err(failure) => Outcome::Error(failure),
    };
    let Ok(mut line) = serde_json::to_vec(&Response { id, outcome }) else { return };
    line.push(b'\n');
    let mut output = output.lock();
    // If nobody reads, the input ends too.
    let _ = output.write_all(&line).and_then(|()| output.flush());
}

fn other(message: impl Into<String>) -> Failure {
    Failure { class: FailureClass::Other, message: message.into() }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let class = match error.class {
            ErrorClass::NotFound => FailureClass::NotFound,
            ErrorClass::Exists => FailureClass::Exists,
            ErrorClass::NoSpace => FailureClass::NoSpace,
            ErrorClass::Stale => FailureClass::Stale,
            _ => FailureClass::Other,
        };
        Self { class, message: error.to_string() }
    }
}

impl Agent {
    fn answer(&self, id: u64, ask: Ask) -> Answered {
        match ask {
            Ask::Hello => Ok(Answer::Host(host())),
            Ask::Attach { dir } => self.attach(Path::new(&dir)).map(Answer::Volume),
            Ask::Begin { name } => self.begin(&name).map(Answer::Begun),
            Ask::Join { name } => self.join(&name).map(Answer::Flag),
            Ask::End => self.end().map(|()| Answer::Done),
            Ask::Spin(spin) => {
                let stop = self.spinning.lock().get(&id).cloned().unwrap_or_default();
                let spun = self.spin(&spin, &stop);
                self.spinning.lock().remove(&id);
                spun.map(Answer::Spun)
            }
            Ask::Measure(measure) => self.measure(&measure).map(Answer::Samples),
            Ask::Delegations => {
                Ok(Answer::Number(self.mounted_on.get().and_then(|point| delegations_returned(point))))
            }
            Ask::Clock => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Ok(Answer::Number(u64::try_from(now.as_micros()).ok()))
            }
            Ask::Mounting => self.mounting().map(Answer::Mounting),
            // Answered where requests are read.
            Ask::Leave | Ask::Stop { .. } => Ok(Answer::Done),
            ask => self.on_files(ask),
        }
    }

    fn dir(&self) -> Result<&ProbeDir, Failure> {
        self.dir.get().ok_or_else(|| other("no directory was attached"))
    }

    fn attach(&self, path: &Path) -> Result<Volume, Failure> {
        let mount = recognise::recognise(path)?;
        let opened = ProbeDir::open(path)?;
        let space = opened.space()?;
        let volume = Volume {
            refused: recognise::check_options(&mount).err().map(|refusal| refusal.to_string()),
            family: match mount.family {
                recognise::Family::Local => Family::Local,
                recognise::Family::Nfs => Family::Nfs,
                recognise::Family::CephFs => Family::CephFs,
                recognise::Family::Unknown => Family::Unknown,
            },
            file_system: mount.file_system,
            source: mount.source,
            mounted_on: mount.point.to_string_lossy().into_owned(),
            options: mount.options,
            device: opened.device()?,
            total_bytes: space.total_bytes,
            available_bytes: space.available_bytes,
        };
        let _ = self.mounted_on.set(mount.point);
        self.dir.set(opened).map_err(|_| other("a directory is attached already"))?;
        Ok(volume)
    }

    fn mounting(&self) -> Result<Mounting, Failure> {
        let point = self.mounted_on.get().ok_or_else(|| other("no directory was attached"))?;
        let probing::Mounting { unique_id, age_s, connections } = probing::mounting(point);
        Ok(Mounting { unique_id, age_s, connections })
    }

    /// `path` if it lies below the run's own directory.
    fn inside(&self, path: &str) -> Result<PathBuf, Failure> {
        let own = self.own.lock();
        let own = own.as_ref().ok_or_else(|| other("no run was begun or joined"))?;
        let path = Path::new(path);
        let mut parts = path.components();
        let first = parts.next();
        if first != Some(Component::Normal(own.name().as_ref()))
            || parts.any(|part| part == Component::ParentDir)
        {
            return Err(other(format!("{} is not below {}", path.display(), own.name())));
        }
        Ok(path.to_owned())
    }

    fn file(&self, number: u32) -> Result<Arc<ProbeFile>, Failure> {
        self.files.lock().get(&number).cloned().ok_or_else(|| other(format!("no file {number} is open")))
    }
}

fn host() -> Host {
    let facts = host_facts();
    Host {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        name: facts.name,
        boot_id: facts.boot_id,
        kernel: facts.kernel,
    }
}
