//! The substrates' conformance suite with two actors as its two hosts.

use std::sync::Arc;
use std::time::Instant;

use kaas_substrate::conformance::{Hosts, checks};

use crate::client::Actor;
use crate::remote::Remote;

/// The rules that do not hold between the directories of two actors, which must be one directory. Each check gets a
/// directory of its own below it.
pub fn broken_rules(first: Actor, second: Actor) -> Vec<String> {
    broken_rules_of(first, second, |_| true)
}

/// As [`broken_rules`], of the rules whose names are `wanted`.
pub fn broken_rules_of(first: Actor, second: Actor, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let started = Instant::now();
    let (first, second) = (Arc::new(first), Arc::new(second));
    assert!(checks().len() > 30, "the suite is empty");
    let (mut broken, mut run) = (Vec::new(), 0);
    for (number, check) in checks().iter().enumerate().filter(|(_, check)| wanted(check.name)) {
        run += 1;
        let dir = format!("check-{number}");
        let hosts = Hosts {
            first: Arc::new(Remote::open(&first, &dir)),
            second: Arc::new(Remote::open(&second, &dir)),
        };
        let report = check.run(&hosts);
        if let Some(failure) = report.failure {
            broken.push(format!("{}: {failure}", report.name));
        }
    }
    assert!(run > 0, "no such rule");
    let (on, seconds) = (&first.volume().kind, started.elapsed().as_secs());
    eprintln!("conformance, {} and {} ({on}): {run} checks; {seconds} s", first.name(), second.name());
    broken
}
