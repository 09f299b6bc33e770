//! The substrates' conformance suite with two actors as its two hosts.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kaas_substrate::conformance::{Hosts, checks};
use kaas_substrate::{OpenMode, Substrate as _};

use crate::client::Actor;
use crate::remote::Remote;

/// Larger than any block of a file system.
const HOLE_BYTES: u64 = 8 << 20;

/// The suite lets pass what cannot do this; all file systems that kaas knows can.
const MOVES: &str = "a file can be moved";

/// Moves a file from one directory to another; whether the volume knows where it has a hole.
fn optional(volume: &Remote) -> kaas_substrate::Result<bool> {
    volume.create_dir(Path::new("to"))?;
    let file = volume.open(Path::new("f"), OpenMode::CreateNew)?;
    file.write_all_at(&[IoSlice::new(b"end")], HOLE_BYTES)?;
    file.sync_data()?;
    volume.move_file(Path::new("f"), Path::new("to/f"))?;
    Ok(file.next_data(0)?.is_some_and(|(begin, _)| begin > 0))
}

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
    let holes = match optional(&Remote::open(&first, "optional")) {
        Ok(holes) => holes,
        Err(error) => {
            broken.extend(wanted(MOVES).then(|| format!("{MOVES}: {error}")));
            false
        }
    };
    let (on, seconds) = (&first.volume().kind, started.elapsed().as_secs());
    eprintln!(
        "conformance, {} and {} ({on}): {run} checks, holes are {}; {seconds} s",
        first.name(),
        second.name(),
        if holes { "known" } else { "not known" }
    );
    broken
}
