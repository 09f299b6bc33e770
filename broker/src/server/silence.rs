//! Tells the log when the volume does not answer, and when it does again: nothing fails meanwhile that would.
//!
//! A thread of its own from before the data directory is opened, since a start waits for the volume as well. It looks at the
//! calls that are being made ([`Calls`]), and makes none.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::watched::{Calls, Waiting};

/// How often it is looked.
const INTERVAL: Duration = Duration::from_secs(2);

/// A call that takes longer has not been answered.
const SILENT_AFTER: Duration = Duration::from_secs(30);

/// How often the log is told while it lasts.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Tells of `calls` for as long as somebody else has them; `root` is the volume's.
///
/// # Errors
///
/// If there is no thread to be had.
pub(super) fn tell_silence(calls: &Arc<Calls>, root: &Path) -> std::io::Result<()> {
    let (calls, root) = (Arc::downgrade(calls), root.to_owned());
    let tell = move || {
        let mut silence = Silence::default();
        loop {
            std::thread::sleep(INTERVAL);
            let Some(waiting) = Weak::upgrade(&calls).map(|calls| calls.waiting(SILENT_AFTER)) else {
                return;
            };
            match silence.look(waiting.as_ref(), Instant::now()) {
                Say::Nothing => {}
                Say::Over { lasted } => info!(seconds = lasted.as_secs(), "the volume answers again"),
                Say::Silent => {
                    if let Some(Waiting { calls, operation, path, waited }) = waiting {
                        warn!(
                            path = %root.join(path).display(), %operation, seconds = waited.as_secs(), calls,
                            "the volume does not answer: what needs it waits, appends are refused until it does"
                        );
                    }
                }
            }
        }
    };
    std::thread::Builder::new().name("kaas-silence".to_owned()).spawn(tell).map(|_| ())
}

/// What the log was told of a silence.
#[derive(Debug, Default)]
struct Silence {
    /// Since when it lasts, and when the log was last told.
    told: Option<(Instant, Instant)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Say {
    Nothing,
    Silent,
    Over { lasted: Duration },
}

impl Silence {
    fn look(&mut self, waiting: Option<&Waiting>, now: Instant) -> Say {
        let Some(waiting) = waiting else {
            return match self.told.take() {
                Some((since, _)) => Say::Over { lasted: now.duration_since(since) },
                None => Say::Nothing,
            };
        };
        match &mut self.told {
            Some((_, told)) if now.duration_since(*told) < TOLD_EVERY => return Say::Nothing,
            Some((_, told)) => *told = now,
            None => self.told = Some((now.checked_sub(waiting.waited).unwrap_or(now), now)),
        }
        Say::Silent
    }
}

#[cfg(test)]
mod tests {
    use kaas_substrate::Operation;

    use super::*;

    #[test]
    fn a_silence_is_told_at_once_then_once_a_minute_and_its_end() {
        let waiting = Waiting {
            calls: 1,
            operation: Operation::Sync,
            path: "topics/orders/0/fence".into(),
            waited: SILENT_AFTER,
        };
        let mut silence = Silence::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(silence.look(None, start), Say::Nothing);
        let said: Vec<_> = (0..=120).step_by(2).map(|at| silence.look(Some(&waiting), after(at))).collect();
        assert_eq!(said.iter().filter(|said| **said == Say::Silent).count(), 3);
        assert_eq!(said.first(), Some(&Say::Silent));
        assert_eq!(silence.look(None, after(122)), Say::Over { lasted: Duration::from_secs(152) });
        assert_eq!(silence.look(None, after(124)), Say::Nothing);
    }
}
