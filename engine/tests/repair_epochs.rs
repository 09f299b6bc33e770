//! `kaas-engine verify --repair` of compacted segments in which a batch has another leader epoch than the manifest says.
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
use kaas_engine::batch::BatchHeader;
use kaas_engine::verify::Kind;
use looking::{assert_found, change, files};
use mending::{mend, open};
use support::Volume;

/// Where a batch has its leader epoch, outside of the checksum.
const LEADER_EPOCH_AT: usize = 12;

/// Its offset is the right one: it ends where the manifest says that the segment does, though offsets are missing in front of it.
#[test]
fn the_last_batch_of_a_compacted_segment_gets_its_leader_epoch_back() {
    let volume = compacted(Volume::local());
    let log = volume.open();
    for n in 0..12 {
        log.put("again", &n.to_string());
    }
    log.roll();
    log.partition.compact_now().unwrap();
    let seen = consume(&log, Isolation::ReadUncommitted);
    log.close();
    let has_one = |bytes: &[u8]| {
        let header = BatchHeader::parse(&bytes::Bytes::copy_from_slice(bytes)).unwrap();
        header.batch_bytes == bytes.len() && header.base_offset.0 > 0
    };
    let logs = files(&volume, "00000001-00000000000000000000-", ".log");
    assert!(has_one(&std::fs::read(&logs[0]).unwrap()), "one batch is left, behind a gap");
    change(&logs[0], |bytes| bytes[LEADER_EPOCH_AT + 3] = 33);
    assert_found(&volume, Kind::OutOfSequence);
    let repaired = mend(&volume);
    assert!(repaired.lost.is_empty(), "{repaired:#?}");
    assert_eq!(consume(&open(&volume), Isolation::ReadUncommitted), seen);
}
