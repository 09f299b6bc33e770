//! What the tests of `docs/storage-errors.md` share: the rows of the document, and a walk through cases and errors.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kaas_fault_injection::faulty::{Effect, Point, Rule, Rules, Verdict};

/// What came of an operation that failed; the words of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    GoesOn,
    Refused,
    RequestFails,
    Waits,
    LedAnew,
    DoesNotOpen,
    DoesNotStart,
    NotCompacted,
}

impl Outcome {
    fn parse(word: &str) -> Self {
        match word {
            "goes on" => Self::GoesOn,
            "refused" => Self::Refused,
            "request fails" => Self::RequestFails,
            "waits" => Self::Waits,
            "led anew" => Self::LedAnew,
            "does not open" => Self::DoesNotOpen,
            "does not start" => Self::DoesNotStart,
            "not compacted" => Self::NotCompacted,
            other => panic!("the document says {other:?}"),
        }
    }
}

/// An operation that is to fail.
pub struct Case {
    /// As in the first column of the document.
    pub name: &'static str,
    pub point: Point,
    /// Part of the path.
    pub path: &'static str,
    /// From which call on it fails, from 1, counted from the beginning of `run`'s action.
    pub nth: u64,
    pub run: fn(&Fault) -> Outcome,
}

/// A case, in a line.
pub const fn case(
    name: &'static str,
    point: Point,
    path: &'static str,
    nth: u64,
    run: fn(&Fault) -> Outcome,
) -> Case {
    Case { name, point, path, nth, run }
}

/// A case with one of its errors.
pub struct Fault<'a> {
    pub case: &'a Case,
    pub verdict: Verdict,
    pub rules: Arc<Rules>,
}

impl Fault<'_> {
    /// From now on the operation fails, until [`Fault::mend`].
    pub fn arm(&self) {
        self.rules.add(
            Rule::nth(self.case.point, self.case.nth, self.verdict).on(self.case.path).times(u64::MAX / 2),
        );
    }

    /// The call does what it is to do, and fails all the same.
    pub fn has_its_effect(&self) -> bool {
        matches!(self.verdict, Verdict::Errno { effect: Effect::Everything, .. })
    }

    /// Too many files are open.
    pub fn is_no_descriptors(&self) -> bool {
        matches!(self.verdict, Verdict::Errno { number: EMFILE, .. })
    }

    /// The error has gone.
    pub fn mend(&self) {
        self.rules.clear();
    }
}

const EMFILE: i32 = 24;
const NO_SPACE: [(&str, i32); 2] = [("ENOSPC", 28), ("EDQUOT", 122)];
const STALE: [(&str, i32); 1] = [("ESTALE", 116)];
const OTHER: [(&str, i32); 8] = [
    ("EIO", 5),
    ("ESHUTDOWN", 108),
    ("EINTR", 4),
    ("EAGAIN", 11),
    ("ETIMEDOUT", 110),
    ("EMFILE", EMFILE),
    ("EACCES", 13),
    ("EROFS", 30),
];

/// A cell of the document: what comes of an operation that fails with an error of its column.
struct Said {
    usually: Outcome,
    /// Of one error something else is said.
    of_one: Option<(String, Outcome)>,
}

impl Said {
    /// Parses `waits`, or `waits (ESHUTDOWN: led anew)`.
    fn parse(cell: &str) -> Self {
        let (usually, of_one) = match cell.split_once(" (") {
            None => (cell, None),
            Some((usually, exception)) => {
                let (error, outcome) = exception.trim_end_matches(')').split_once(": ").unwrap();
                (usually, Some((error.trim_matches('`').to_owned(), Outcome::parse(outcome))))
            }
        };
        Self { usually: Outcome::parse(usually), of_one }
    }

    fn of(&self, error: &str) -> Outcome {
        match &self.of_one {
            Some((one, outcome)) if one == error => *outcome,
            _ => self.usually,
        }
    }
}

/// The rows of the tables under `heading`: the operation, and what is said of each group of errors.
fn document(heading: &str) -> BTreeMap<String, [Said; 3]> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/storage-errors.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, section) = text.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut rows = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---")) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, no_space, stale, other] = cells[..] else { panic!("{line}") };
        if name == "operation" {
            continue;
        }
        let said = [no_space, stale, other].map(Said::parse);
        assert!(rows.insert(name.to_owned(), said).is_none(), "twice in the document: {name}");
    }
    rows
}

/// Runs every case of a section with every error, and compares what came of it with the document.
pub fn walk(heading: &str, cases: &[Case]) {
    let mut rows = document(heading);
    let mut wrong = Vec::new();
    for case in cases {
        let Some(said) = rows.remove(case.name) else {
            wrong.push(format!("{}: not in the document", case.name));
            continue;
        };
        let groups = [&NO_SPACE[..], &STALE[..], &OTHER[..]];
        for ((name, number), said) in
            groups.iter().zip(&said).flat_map(|(errors, said)| errors.iter().map(move |error| (*error, said)))
        {
            let said = said.of(name);
            let mut effects = vec![Effect::Nothing, Effect::Everything];
            if matches!(case.point, Point::Write | Point::WriteRecords) {
                effects.push(Effect::Part { bytes: 50 });
            }
            for effect in effects {
                let fault = Fault { case, verdict: Verdict::Errno { number, effect }, rules: Rules::new([]) };
                let context = format!("{}: {name}, {effect:?}", case.name);
                println!("{context}");
                let found = (case.run)(&fault);
                assert!(fault.rules.hits() > 0, "{context}: the operation was not reached");
                // An error after the effect may be noticed later or not at all: then the invariants are what is checked.
                if effect != Effect::Everything && found != said {
                    wrong.push(format!("{context}: the document says {said:?}, it was {found:?}"));
                }
            }
        }
    }
    wrong.extend(rows.keys().map(|row| format!("{row}: in the document, but no case")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

pub fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
