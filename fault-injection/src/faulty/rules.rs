//! Faults by rule: the nth call of a kind, perhaps on paths that contain a word.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Hook, Point, Verdict};

/// When a [`Rules`] entry applies, and what it does then.
#[derive(Debug, Clone)]
pub struct Rule {
    /// The call; `None` is any that [`Point::changes_something`].
    pub point: Option<Point>,
    /// Part of the path; empty is any.
    pub path_contains: String,
    /// The first matching call that is hit, from 1.
    pub nth: u64,
    /// How many calls from the nth on are hit.
    pub times: u64,
    pub verdict: Verdict,
}

impl Rule {
    /// The nth call of `point` (from 1) gets `verdict`, once.
    pub fn nth(point: Point, nth: u64, verdict: Verdict) -> Self {
        Self { point: Some(point), path_contains: String::new(), nth, times: 1, verdict }
    }

    /// The nth call that changes anything (from 1) gets `verdict`.
    pub fn nth_change(nth: u64, verdict: Verdict) -> Self {
        Self { point: None, path_contains: String::new(), nth, times: 1, verdict }
    }

    /// Only for paths that contain `part`.
    pub fn on(mut self, part: &str) -> Self {
        part.clone_into(&mut self.path_contains);
        self
    }

    /// Hits this many calls in a row.
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    fn matches(&self, point: Point, path: &Path) -> bool {
        self.point.map_or(point.changes_something(), |wanted| wanted == point)
            && path.to_string_lossy().contains(&self.path_contains)
    }
}

/// A list of rules; the first that is due decides.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Mutex<Vec<(Rule, u64)>>,
    changes: AtomicU64,
    hits: AtomicU64,
}

impl Rules {
    /// Hooks that let everything pass until rules are added.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Arc<Self> {
        let made = Self::default();
        made.rules.lock().extend(rules.into_iter().map(|rule| (rule, 0)));
        Arc::new(made)
    }

    /// Adds a rule; it counts calls from now on.
    pub fn add(&self, rule: Rule) {
        self.rules.lock().push((rule, 0));
    }

    /// Forgets all rules.
    pub fn clear(&self) {
        self.rules.lock().clear();
    }

    /// Calls that changed something, so far.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Calls that a rule hit, so far.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::SeqCst)
    }
}

impl Hook for Rules {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        if point.changes_something() {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        let mut verdict = Verdict::Pass;
        for (rule, seen) in self.rules.lock().iter_mut().filter(|(rule, _)| rule.matches(point, path)) {
            *seen += 1;
            let due = *seen >= rule.nth && *seen - rule.nth < rule.times;
            if due && verdict == Verdict::Pass {
                verdict = rule.verdict;
            }
        }
        if verdict != Verdict::Pass {
            self.hits.fetch_add(1, Ordering::SeqCst);
        }
        verdict
    }
}
