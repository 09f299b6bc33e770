//! What actors told, and whether it is still true.

use std::collections::{BTreeMap, BTreeSet};

use crate::client::Actor;
use crate::protocol::{Event, Failure};

/// Most promises that a report lists.
const REPORTED_MAX: usize = 20;

/// Every acknowledgement and every read of all actors of a test.
#[derive(Debug, Default)]
pub struct History {
    /// Acknowledged: tag to offset.
    acknowledged: BTreeMap<String, i64>,
    /// Read: offset to tag.
    read: BTreeMap<i64, String>,
    problems: Vec<String>,
}

/// What the comparison came to.
#[derive(Debug)]
pub struct Checked {
    /// Records that were acknowledged, that were read, and that the log holds.
    pub acknowledged: usize,
    pub read: usize,
    pub in_log: usize,
    /// Promises that are not kept.
    pub broken: Vec<String>,
}

impl History {
    /// Adds what `actor` has told so far. Once for each actor, after its work.
    pub fn add(&mut self, actor: &Actor) {
        for event in actor.events() {
            match event {
                Event::Acknowledged { offset, tags } => {
                    for (offset, tag) in (offset..).zip(tags) {
                        self.acknowledged(offset, tag);
                    }
                }
                Event::Read { offset, tag } => {
                    let known = self.read.entry(offset).or_insert_with(|| tag.clone());
                    if *known != tag {
                        let problem =
                            format!("{known} was read at {offset}, and then {tag} by {}", actor.name());
                        self.problems.push(problem);
                    }
                }
                Event::Wrong { what } => self.problems.push(format!("{}: {what}", actor.name())),
                Event::Refused { .. } | Event::Ended { .. } => {}
            }
        }
    }

    /// Adds an acknowledgement.
    pub fn acknowledged(&mut self, offset: i64, tag: String) {
        if let Some(before) = self.acknowledged.insert(tag.clone(), offset) {
            self.problems.push(format!("{tag} was acknowledged at {before} and at {offset}"));
        }
    }

    /// Compares everything with what a fresh reader finds in the log.
    pub fn check(&self, log: &[(i64, String)]) -> Checked {
        let mut broken = self.problems.clone();
        let found: BTreeMap<i64, &String> = log.iter().map(|(offset, tag)| (*offset, tag)).collect();
        let places: BTreeMap<&String, i64> = log.iter().map(|(offset, tag)| (tag, *offset)).collect();
        if places.len() != log.len() {
            let mut seen = BTreeSet::new();
            let twice: Vec<_> = log.iter().filter(|(_, tag)| !seen.insert(tag)).take(REPORTED_MAX).collect();
            broken.push(format!("in the log more than once: {twice:?}"));
        }
        for (tag, offset) in &self.acknowledged {
            if places.get(tag) != Some(offset) {
                let (is_at, there) = (places.get(tag), found.get(offset));
                broken.push(format!(
                    "{tag} was acknowledged at {offset}; it is at {is_at:?}, and {there:?} is there"
                ));
            }
        }
        for (offset, tag) in &self.read {
            if found.get(offset) != Some(&tag) {
                broken.push(format!("{tag} was read at {offset}, where {:?} is now", found.get(offset)));
            }
        }
        Checked { acknowledged: self.acknowledged.len(), read: self.read.len(), in_log: log.len(), broken }
    }
}

/// Whether `failure`, of opening a partition that may have lost something, says that it has: any other failure says nothing of it.
///
/// # Errors
///
/// What it says instead.
pub fn tells_loss(failure: &Failure, partition: &str) -> Result<(), String> {
    match &failure.damaged {
        Some(path) if path.starts_with(partition) => Ok(()),
        _ => Err(format!("not because of what {partition} lost: {}", failure.text)),
    }
}

impl Checked {
    /// Fails with a report if a promise is broken, and if there was nothing to promise.
    pub fn assert_kept(&self) {
        let (broken, shown) = (self.broken.len(), self.broken.iter().take(REPORTED_MAX));
        let report: String = shown.map(|line| format!("\n  {line}")).collect();
        assert!(self.broken.is_empty(), "{broken} promises are broken, of {self}:{report}");
        assert!(self.acknowledged > 0, "nothing was acknowledged");
    }
}

impl std::fmt::Display for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { acknowledged, read, in_log, .. } = self;
        write!(f, "{acknowledged} records acknowledged, {read} read, {in_log} in the log")
    }
}

#[cfg(test)]
mod tests {
    use kaas_engine::EngineError;

    use super::*;

    fn log(records: &[(i64, &str)]) -> Vec<(i64, String)> {
        records.iter().map(|(offset, tag)| (*offset, (*tag).to_owned())).collect()
    }

    #[test]
    fn only_damage_of_the_partition_tells_a_loss() {
        let damaged = |path: &str| {
            Failure::from(EngineError::Damaged { path: path.into(), reason: "it has 7 bytes".into() })
        };
        assert_eq!(tells_loss(&damaged("orders/00000001-00000000000000000000.log"), "orders"), Ok(()));
        let missing = kaas_substrate::Error::new(
            kaas_substrate::Operation::Open,
            std::path::Path::new("orders/fence"),
            std::io::ErrorKind::NotFound.into(),
        );
        for other in [
            damaged("orders-of-others/manifest.00000001.1.json"),
            Failure::from(EngineError::Closed),
            Failure::from(EngineError::Poisoned { reason: "orders is damaged".into() }),
            Failure::from(missing),
            Failure::of("orders/manifest is damaged"),
        ] {
            assert!(tells_loss(&other, "orders").unwrap_err().contains(&other.text), "{other:?}");
        }
    }

    #[test]
    fn what_is_lost_moved_doubled_or_replaced_is_found() {
        let mut history = History::default();
        history.acknowledged(0, "a".into());
        history.acknowledged(2, "b".into());
        history.read.insert(0, "a".into());
        history.read.insert(1, "x".into());
        history.check(&log(&[(0, "a"), (1, "x"), (2, "b"), (3, "more")])).assert_kept();
        for (wrong, count) in [
            (log(&[(0, "a"), (1, "x")]), 1),
            (log(&[(0, "a"), (1, "x"), (2, "y"), (3, "b")]), 1),
            (log(&[(0, "a"), (1, "x"), (2, "b"), (3, "y"), (4, "y")]), 1),
            (log(&[(0, "a"), (1, "y"), (2, "b")]), 1),
            (log(&[]), 4),
        ] {
            assert_eq!(history.check(&wrong).broken.len(), count, "{wrong:?}");
        }
        history.acknowledged(5, "a".into());
        assert!(!history.check(&log(&[(0, "a"), (1, "x"), (2, "b"), (5, "a")])).broken.is_empty());
    }
}
