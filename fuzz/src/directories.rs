//! Whole directories: `kaas-engine verify` on one, `kaas-engine import` of one.
//!
//! Asserted: both end with a report or an error, and leave what they look at as it is; what an import has made is clean, and a
//! second import finds it there.

use std::path::Path;
use std::sync::Arc;

use kaas_engine::import::{self, Source};
use kaas_engine::verify;
use kaas_substrate::{Memory, Substrate};

use crate::Archive;

/// A data directory, or anything else.
pub fn verify(data: &[u8]) {
    let volume = Archive::unpack(data).volume();
    let before = Archive::of(&volume, Path::new(""));
    let options = verify::Options { threads: 1, ..verify::Options::default() };
    if let Ok(report) = verify::verify(&volume, Path::new(""), &options, &verify::Progress::default()) {
        let _ = verify::render(&report, std::time::Duration::ZERO, true);
        let _ = report.to_json(0).expect("a report is JSON");
    }
    assert_eq!(Archive::of(&volume, Path::new("")), before, "verify has changed something");
}

/// A log directory of Kafka, or anything else.
pub fn import(data: &[u8]) {
    let kafka = Archive::unpack(data).volume();
    let before = Archive::of(&kafka, Path::new(""));
    let sources = [Source { volume: Arc::new(kafka.clone()), only: None }];
    let target: Arc<dyn Substrate> = Arc::new(Memory::with_capacity(64 << 20));
    let options = import::Options { node_id: 1, ..import::Options::default() };
    let progress = import::Progress::default();
    let run = || -> Result<import::Report, import::ImportError> {
        let plan = import::plan(&sources, Some(&*target), &options, &progress)?;
        let _ = plan.report().to_text();
        plan.carry_out(&target, &progress)
    };
    let first = run();
    assert_eq!(Archive::of(&kafka, Path::new("")), before, "the import has changed Kafka's files");
    let Ok(first) = first else { return };
    if !first.problems.is_empty() {
        assert!(
            target.list(Path::new("")).expect("a root").is_empty(),
            "something was written in spite of problems"
        );
        return;
    }
    let options = verify::Options { threads: 1, ..verify::Options::default() };
    let verified = verify::verify(&*target, Path::new(""), &options, &verify::Progress::default());
    let verified = verified.expect("what was imported can be looked at");
    assert!(verified.is_clean(), "{:?}", verified.findings);
}
