//! The probes: each tries one thing that kaas relies on, or that is worth knowing, with two processes.
//!
//! Order between the two comes from messages alone: "after" means that one process has answered before the other was
//! asked. So clocks do not matter, and a violation is one whatever the machine's load.

mod create;
mod durable;
mod listing;
mod notes;
mod record;
mod rename;
mod visible;

use std::thread;
use std::time::{Duration, Instant};

pub use self::durable::{not_asked_for, plant};

use super::check::Check;
use super::pair::Pair;
use super::peer::Trouble;

/// One probe.
pub type Run = fn(&Pair) -> Result<Check, Trouble>;

/// What kaas relies on, in the order in which it is tried; repeated for as long as the run lasts.
pub const REQUIRED: &[(&str, Run)] = &[
    ("exclusive create", create::files),
    ("exclusive mkdir", create::dirs),
    ("rename: one winner", rename::one_winner),
    ("rename: never neither nor both", rename::replaced),
    ("directories born whole", rename::births),
    ("records are never late", record::never_late),
    ("fsynced data seen by a fresh open", visible::plain),
    ("the same, uncached", visible::uncached),
    ("a fresh listing is complete", listing::fresh),
];

/// What kaas copes with, once a run.
pub const NOTED: &[(&str, Run)] = &[
    ("direct I/O", notes::direct),
    ("names that were absent", notes::absent_names),
    ("names that were there", notes::present_names),
    ("attributes", notes::attributes),
    ("reads right after an open", notes::unasked_read),
    ("removed while open", notes::removed_while_open),
    ("held opens and delegations", notes::held_opens),
    ("locks", notes::locks),
    ("clocks", notes::clocks),
    ("space", notes::space),
];

/// Waits until `seen`, at most `limit`: how long it took, or none.
fn until(
    limit: Duration,
    mut seen: impl FnMut() -> Result<bool, Trouble>,
) -> Result<Option<Duration>, Trouble> {
    let began = Instant::now();
    loop {
        if seen()? {
            return Ok(Some(began.elapsed()));
        }
        if began.elapsed() > limit {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// A duration for a sentence.
fn words(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{:.1} ms", duration.as_secs_f64() * 1e3)
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

/// How late something that had to be seen at once was seen, for a sentence.
fn late(seen: Option<Duration>, limit: Duration) -> String {
    seen.map_or_else(
        || format!("was still not seen {} later", words(limit)),
        |after| format!("was seen only {} later", words(after)),
    )
}

/// How long something took to be seen, for a sentence.
fn lag(seen: Option<Duration>, limit: Duration) -> String {
    seen.map_or_else(|| format!("not within {}", words(limit)), |after| format!("after {}", words(after)))
}
