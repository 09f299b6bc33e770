//! Whether a command that is to restart the volume has restarted anything, as far as its clients can tell.
//!
//! A client sees its own mount, and on NFS its connection to the server. If neither has changed, what it reads afterwards may come
//! from memory that was never lost, and shows nothing. What it cannot see is said to be unseen: how the volume went down, and, on
//! CephFS and file systems that kaas does not know, whether its servers went down at all.

use std::time::Instant;

use super::check::{Check, Outcome};
use super::pair::Pair;
use super::peer::Trouble;
use super::protocol::{Ask, Family, Mounting};

/// What both processes knew of their mounts before the command ran.
pub struct Witness {
    before: [Mounting; 2],
    family: Family,
    since: Instant,
}

/// What can be told of a restart; the strongest evidence last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Restart {
    /// There was none.
    None,
    Unseen,
    MountedAnew,
    ConnectedAnew,
}

impl Witness {
    /// Before the command.
    pub fn of(pair: &Pair) -> Result<Self, Trouble> {
        Ok(Self { before: look(pair)?, family: pair.facts.volume_a.family, since: Instant::now() })
    }

    /// Adds to a finding what can be told of the restart that it is about; both processes have read since.
    pub fn testify(&self, pair: &Pair, check: Check) -> Result<Check, Trouble> {
        let (after, elapsed_s) = (look(pair)?, self.since.elapsed().as_secs());
        let seen = self
            .before
            .iter()
            .zip(&after)
            .map(|(before, after)| compare(self.family, before, after, elapsed_s))
            .max()
            .unwrap_or(Restart::Unseen);
        Ok(testified(check, seen, self.family))
    }
}

fn look(pair: &Pair) -> Result<[Mounting; 2], Trouble> {
    Ok([pair.a.mounting(Ask::Mounting)?, pair.b.mounting(Ask::Mounting)?])
}

/// What one process saw, between two looks that lie so many seconds apart.
fn compare(family: Family, before: &Mounting, after: &Mounting, elapsed_s: u64) -> Restart {
    let same_id = before.unique_id.zip(after.unique_id).map(|(before, after)| before == after);
    // A mount grows older by the time that has passed, to a second or two.
    let aged = before.age_s.zip(after.age_s).map(|(before, after)| after + 2 >= before + elapsed_s);
    match (same_id, aged) {
        (Some(false), _) | (_, Some(false)) => return Restart::MountedAnew,
        (None, None) => return Restart::Unseen,
        _ => {}
    }
    match family {
        Family::Nfs if after.connections > before.connections => Restart::ConnectedAnew,
        // A connection does not outlive the power of either end.
        Family::Nfs if after.connections.is_some() => Restart::None,
        // What a host holds in its memory stays until it unmounts.
        Family::Local => Restart::None,
        Family::Nfs | Family::CephFs | Family::Unknown => Restart::Unseen,
    }
}

fn testified(mut check: Check, seen: Restart, family: Family) -> Check {
    if check.outcome != Outcome::Passed {
        return check;
    }
    let what = match seen {
        Restart::None => {
            check.outcome = Outcome::NotTested;
            match family {
                Family::Nfs => {
                    "which shows nothing: the command has restarted nothing; the mounts are the same, and their \
                     connections to the server never broke"
                }
                _ => {
                    "which shows nothing: the command has restarted nothing; the volume stayed mounted, so that what was \
                     read may never have left this host's memory"
                }
            }
        }
        Restart::Unseen => "whether anything was restarted cannot be seen from here",
        Restart::MountedAnew => {
            "the volume was mounted anew; whether what holds it lost its power cannot be seen from here"
        }
        Restart::ConnectedAnew => "the connection to the server broke and was made anew",
    };
    check.detail = format!("{}; {what}", check.detail);
    check
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qualify::check::{Basis, Probe};

    fn mounting(unique_id: Option<u64>, nfs: Option<(u64, u64)>) -> Mounting {
        let (age_s, connections) = nfs.unzip();
        Mounting { unique_id, age_s, connections }
    }

    #[test]
    fn a_restart_is_seen_where_a_client_can_see_it() {
        use Family::{CephFs, Local, Nfs, Unknown};
        let (id, no_id) = (Some(7), None);
        for (family, before, after, expected) in [
            (Local, mounting(id, None), mounting(id, None), Restart::None),
            (Local, mounting(id, None), mounting(Some(8), None), Restart::MountedAnew),
            (Local, mounting(no_id, None), mounting(no_id, None), Restart::Unseen),
            (Nfs, mounting(id, Some((100, 1))), mounting(id, Some((130, 1))), Restart::None),
            (Nfs, mounting(no_id, Some((100, 1))), mounting(no_id, Some((129, 1))), Restart::None),
            (Nfs, mounting(no_id, Some((100, 1))), mounting(no_id, Some((130, 2))), Restart::ConnectedAnew),
            // Mounted long after it was mounted first, and right after.
            (Nfs, mounting(no_id, Some((100, 2))), mounting(no_id, Some((5, 1))), Restart::MountedAnew),
            (Nfs, mounting(no_id, Some((1, 1))), mounting(no_id, Some((20, 1))), Restart::MountedAnew),
            (CephFs, mounting(id, None), mounting(id, None), Restart::Unseen),
            (CephFs, mounting(id, None), mounting(Some(8), None), Restart::MountedAnew),
            (Unknown, mounting(id, None), mounting(id, None), Restart::Unseen),
        ] {
            assert_eq!(compare(family, &before, &after, 30), expected, "{family:?}: {before:?}, {after:?}");
        }
    }

    #[test]
    fn what_was_not_restarted_is_not_tested_and_what_was_lost_is_lost() {
        let check = || Probe::new("x", "x", Basis::P4).end("16 files, all there");
        for family in [Family::Local, Family::Nfs] {
            let nothing = testified(check(), Restart::None, family);
            assert_eq!(nothing.outcome, Outcome::NotTested);
            assert!(nothing.detail.starts_with("16 files, all there; which shows nothing"), "{nothing:?}");
        }
        for seen in [Restart::Unseen, Restart::MountedAnew, Restart::ConnectedAnew] {
            let passed = testified(check(), seen, Family::Nfs);
            assert!(passed.outcome == Outcome::Passed && passed.detail.len() > 30, "{passed:?}");
        }
        let mut lost = Probe::new("x", "x", Basis::P4);
        lost.violation("loses fsync");
        let lost = testified(lost.end(""), Restart::None, Family::Local);
        assert_eq!((lost.outcome, lost.detail.as_str()), (Outcome::Failed, "loses fsync"));
    }
}
