//! The conformance suite on real mounts, named by the environment; nothing is done without it.
//!
//! `KAAS_CONFORMANCE_DIRS=/mnt/a[:/mnt/b]`: one directory through one mount, or through two mounts of the same volume, which
//! then stand for two hosts. It must be empty or not there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_substrate::conformance::{Hosts, checks};
use kaas_substrate::recognise::{self, Choice};
use kaas_substrate::{Substrate, remove_tree};

fn open(dir: &Path) -> Arc<dyn Substrate> {
    recognise::open(dir, Choice::Recognise).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_mounts_that_are_named() {
    let Ok(dirs) = std::env::var("KAAS_CONFORMANCE_DIRS") else { return };
    let roots: Vec<PathBuf> = dirs.split(':').map(PathBuf::from).collect();
    let (first, second) = (roots.first().unwrap(), roots.last().unwrap());
    let above = open(first);
    println!("{}: {:?}, {:?}", above.root().display(), above.kind(), above.sharing());
    let mut failed = 0;
    for (number, check) in checks().into_iter().enumerate() {
        let name = format!("check-{number}");
        above.create_dir(Path::new(&name)).unwrap();
        // Read through the second mount too, so that it knows of it.
        open(second).list(Path::new("")).unwrap();
        let hosts = Hosts { first: open(&first.join(&name)), second: open(&second.join(&name)) };
        let began = std::time::Instant::now();
        let report = check.run(&hosts);
        let took_ms = began.elapsed().as_millis();
        match report.failure {
            None => println!("ok   {} ({took_ms} ms)", report.name),
            Some(failure) => {
                failed += 1;
                println!("FAIL {}: {failure} ({took_ms} ms)", report.name);
            }
        }
        // What a check leaves on purpose, an NFS client may hold on to.
        let _ = remove_tree(above.as_ref(), Path::new(&name));
    }
    assert_eq!(failed, 0, "rules that do not hold");
}
