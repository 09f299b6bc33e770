//! The actor's side: takes requests from its input, each on a thread of its own so that a call that hangs holds up no other,
//! and writes answers and events to standard output.

mod leader;
mod volume;
mod workload;

use std::io::{BufRead, Write};
use std::sync::Arc;

use std::path::{Path, PathBuf};

use kaas_substrate::recognise::{self, Choice};
use kaas_substrate::{Adoption, Local, Sharing, Substrate, create_root};
use parking_lot::Mutex;

use crate::protocol::{Call, Event, Failure, Request, Said, Value, VolumeIs};
use leader::Leader;
use volume::Volumes;

/// Where everything is told. One line at a time; in the kernel's hands on return.
#[derive(Debug, Clone, Default)]
pub(crate) struct Voice(Arc<Mutex<()>>);

impl Voice {
    pub(crate) fn tell(&self, event: Event) {
        self.say(&Said::Event(event));
    }

    fn say(&self, said: &Said) {
        let mut line = serde_json::to_string(said).expect("strings and numbers");
        line.push('\n');
        let _one_at_a_time = self.0.lock();
        let mut out = std::io::stdout().lock();
        // Nobody listens any more: the test is over, and so is this process soon.
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }
}

/// How an actor opens its directories.
#[derive(Debug, Clone)]
pub struct Opener {
    pub root: PathBuf,
    /// Not by what the directory is on but, against better knowledge, as if it were of this host alone.
    pub as_local: bool,
}

impl Opener {
    fn open(&self, below: &str) -> Result<Arc<dyn Substrate>, Failure> {
        let dir = if below.is_empty() { self.root.clone() } else { self.root.join(Path::new(below)) };
        if !self.as_local {
            return recognise::open(&dir, Choice::Recognise).map_err(Failure::of);
        }
        create_root(&dir)?;
        Ok(Arc::new(Local::open(&dir)?))
    }
}

/// Serves requests until the input ends.
///
/// # Errors
///
/// If the root cannot be opened.
pub fn run(opener: Opener, input: impl BufRead) -> Result<(), Failure> {
    let substrate = opener.open("")?;
    let voice = Voice::default();
    voice.say(&Said::Hello {
        pid: std::process::id(),
        root: substrate.root().to_owned(),
        volume: VolumeIs {
            kind: format!("{:?}", substrate.kind()),
            many_hosts: substrate.sharing() == Sharing::ManyHosts,
            rewrites: substrate.adoption() == Adoption::Rewrite,
        },
    });
    let leader = Arc::new(Leader::new(Arc::clone(&substrate), voice.clone()));
    let volumes = Arc::new(Volumes::new(opener, substrate));
    for line in input.lines() {
        let Ok(line) = line else { break };
        let request: Request = serde_json::from_str(&line).expect("both sides are of one build");
        let (leader, volumes, voice) = (Arc::clone(&leader), Arc::clone(&volumes), voice.clone());
        std::thread::spawn(move || {
            let outcome = serve(&leader, &volumes, request.call);
            voice.say(&Said::Answer { id: request.id, outcome });
        });
    }
    Ok(())
}

fn serve(leader: &Leader, volumes: &Volumes, call: Call) -> Result<Value, Failure> {
    match call {
        Call::Make { dir } => leader.make(&dir),
        Call::Open { dir, epoch } => leader.open(&dir, epoch),
        Call::Lead { tag } => leader.lead(&tag),
        Call::Halt => leader.halt(),
        Call::Append { tag } => leader.append(&tag),
        Call::Read => leader.read(),
        Call::Status => leader.status(),
        Call::Close => leader.close(),
        Call::Abandon => leader.abandon(),
        Call::Verify { dir } => leader.verify(&dir),
        Call::Volume { dir } => volumes.open(&dir),
        Call::On { volume, call } => volumes.get(volume).serve(call),
    }
}
