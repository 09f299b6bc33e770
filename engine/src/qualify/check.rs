//! What one probe found.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::peer::Trouble;
use super::protocol::FailureClass;

/// Most violations that are told word by word; the rest is counted.
const MAX_TOLD: usize = 3;

/// How long a probe goes on before it is content with fewer rounds; some volumes take seconds for a single rename that
/// two clients want.
const LONG_ENOUGH: Duration = Duration::from_secs(16);

/// What kaas relies on a probed behaviour for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Basis {
    /// A rename within one directory is atomic.
    P1,
    /// An exclusive create has one winner.
    P2,
    /// A record written uncached and synced is what a later uncached read returns.
    P3,
    /// fdatasync is honest.
    P4,
    /// How the volume is mounted.
    #[serde(rename = "mount")]
    Mount,
    /// Nothing: kaas copes with whatever it is.
    #[serde(rename = "none")]
    Nothing,
}

/// How a probe ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Passed,
    Failed,
    /// A fact, neither good nor bad.
    Noted,
    NotTested,
}

/// The finding of one probe.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Stable, for programs.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    pub basis: Basis,
    pub outcome: Outcome,
    /// What was found, in a sentence.
    pub detail: String,
    /// Times it was tried, and times that it went wrong.
    pub rounds: u64,
    pub violations: u64,
    /// Measured figures, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<&'static str, f64>,
}

impl Check {
    /// Adds what a later pass found: a failure stays one.
    pub fn merge(&mut self, later: Self) {
        self.rounds += later.rounds;
        self.violations += later.violations;
        if self.outcome != Outcome::Failed {
            let Self { outcome, detail, figures, .. } = later;
            (self.outcome, self.detail, self.figures) = (outcome, detail, figures);
        }
    }
}

/// A half of a probe that is done in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    First,
    Second,
}

/// A probe as it goes on.
#[derive(Debug)]
pub struct Probe {
    check: Check,
    told: Vec<String>,
    began: Instant,
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::P1 => "P1",
            Self::P2 => "P2",
            Self::P3 => "P3",
            Self::P4 => "P4",
            Self::Mount => "mount",
            Self::Nothing => "",
        })
    }
}

impl Probe {
    pub fn new(name: &'static str, title: &'static str, basis: Basis) -> Self {
        let check = Check {
            name,
            title,
            basis,
            outcome: Outcome::Passed,
            detail: String::new(),
            rounds: 0,
            violations: 0,
            figures: BTreeMap::new(),
        };
        Self { check, told: Vec::new(), began: Instant::now() }
    }

    /// Whether there is time for another round in the first half of a probe, or in all of it.
    pub fn has_time(&self, half: Half) -> bool {
        let part = match half {
            Half::First => LONG_ENOUGH / 2,
            Half::Second => LONG_ENOUGH,
        };
        self.began.elapsed() < part
    }

    /// Times it was tried so far.
    pub fn tried(&self) -> u64 {
        self.check.rounds
    }

    /// One more try.
    pub fn round(&mut self) {
        self.check.rounds += 1;
    }

    /// So many more tries.
    pub fn rounds(&mut self, rounds: u64) {
        self.check.rounds += rounds;
    }

    /// Something that must not happen.
    pub fn violation(&mut self, what: impl Into<String>) {
        self.violations(1, what);
    }

    /// Something that must not happen, so many times; nothing if none.
    pub fn violations(&mut self, count: u64, what: impl Into<String>) {
        if count > 0 {
            self.check.violations += count;
            let what = what.into();
            if self.told.len() < MAX_TOLD && !self.told.contains(&what) {
                self.told.push(what);
            }
        }
    }

    /// How often it went wrong so far.
    pub fn violated(&self) -> u64 {
        self.check.violations
    }

    /// A measured figure.
    pub fn figure(&mut self, name: &'static str, value: f64) {
        self.check.figures.insert(name, value);
    }

    /// The finding; `well` is what is said if nothing went wrong.
    pub fn end(mut self, well: impl Into<String>) -> Check {
        if self.check.violations == 0 {
            self.check.detail = well.into();
        } else {
            self.check.outcome = Outcome::Failed;
            let rounds = if self.check.rounds > 0 {
                let (violations, rounds) = (self.check.violations, self.check.rounds);
                let times = if violations == 1 { "once".to_owned() } else { format!("{violations} times") };
                format!(" ({times} in {rounds} round{})", if rounds == 1 { "" } else { "s" })
            } else {
                String::new()
            };
            self.check.detail = format!("{}{rounds}", self.told.join("; "));
        }
        self.check
    }

    /// A finding that is neither good nor bad.
    pub fn note(mut self, detail: impl Into<String>) -> Check {
        self.check.outcome = Outcome::Noted;
        self.check.detail = detail.into();
        self.check
    }

    /// Nothing was found out, and why.
    pub fn not_tested(mut self, why: impl Into<String>) -> Check {
        self.check.outcome = Outcome::NotTested;
        self.check.detail = why.into();
        self.check
    }

    /// Ends a probe that ran into `trouble`: what the file system refuses is a finding about it, all else (no space, a
    /// process that has gone or does not answer) ends the run.
    pub fn broken(mut self, trouble: Trouble) -> Result<Check, Trouble> {
        match trouble.class() {
            None | Some(FailureClass::NoSpace) => Err(trouble),
            Some(_) if self.check.basis == Basis::Nothing => {
                Ok(self.note(format!("not found out: {trouble}")))
            }
            Some(_) => {
                self.violation(trouble.to_string());
                Ok(self.end(""))
            }
        }
    }
}

/// Runs the body of a probe and ends it, whatever happens in it.
pub fn probe(
    mut probe: Probe,
    body: impl FnOnce(&mut Probe) -> Result<String, Trouble>,
) -> Result<Check, Trouble> {
    match body(&mut probe) {
        Ok(words) if probe.check.basis == Basis::Nothing => Ok(probe.note(words)),
        Ok(words) => Ok(probe.end(words)),
        Err(trouble) => probe.broken(trouble),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_often_it_went_wrong_is_told_in_words_that_fit() {
        for (rounds, violations, expected) in [
            (1, 1, "late (once in 1 round)"),
            (5, 1, "late (once in 5 rounds)"),
            (5, 7, "late (7 times in 5 rounds)"),
            (0, 2, "late"),
        ] {
            let mut probe = Probe::new("x", "x", Basis::P3);
            probe.rounds(rounds);
            probe.violations(violations, "late");
            assert_eq!(probe.end("").detail, expected);
        }
    }
}
