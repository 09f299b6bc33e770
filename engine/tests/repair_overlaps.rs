//! `kaas-engine verify --repair` of compacted segments whose names say that they overlap.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/compacting.rs"]
mod compacting;
#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use compacting::{compacted, consume};
use kaas_engine::Isolation;
use looking::{dir, files};
use mending::{mend, open};
use support::Volume;

/// Without a manifest the names decide. A compacted segment has no batch at the offset in its name, so that another name does not
/// contradict what is in it.
#[test]
fn a_compacted_segment_that_was_renamed_below_the_end_of_the_one_before_is_written_anew() {
    let volume = compacted(Volume::local());
    let log = volume.open();
    for n in 0..12 {
        log.put(&format!("once-{n}"), "1");
        log.put("again", "2");
    }
    log.roll();
    let rounds = log.partition.compact_now().unwrap();
    assert!(rounds.segments_after >= 2, "{rounds:?}");
    let seen = consume(&log, Isolation::ReadUncommitted);
    log.close();
    let compacted = files(&volume, "", ".log");
    assert!(compacted.len() > 2, "{compacted:?}");
    // <epoch>-<base offset>-<generation>.log
    let name = compacted[1].file_name().unwrap().to_str().unwrap();
    let before = &compacted[0].file_name().unwrap().to_str().unwrap()[9..29];
    let below = before.parse::<i64>().unwrap() + 1;
    // Of the same generation neither is the later one.
    let renamed = dir(&volume).join(format!("{}{below:020}-00000001.log", &name[..9]));
    std::fs::rename(&compacted[1], renamed).unwrap();
    for manifest in files(&volume, "manifest.", ".json") {
        std::fs::remove_file(manifest).unwrap();
    }
    let repaired = mend(&volume);
    assert!(repaired.lost.is_empty(), "{repaired:#?}");
    assert_eq!(consume(&open(&volume), Isolation::ReadUncommitted), seen);
}
