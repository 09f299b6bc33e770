//! `kaas-engine verify --repair` where the manifest says that the log goes on for more offsets than one batch can take up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::sync::Arc;
use std::time::Duration;

use kaas_engine::{AppendOptions, leadership};
use kaas_fault_injection::faulty::{Faulty, Point, Stall, Verdict};
use kaas_substrate::Substrate;
use looking::{closed, edit_json, files};
use mending::{assert_serves, mend, open, placed, served, values};
use support::{Volume, batch, decode};

/// A closed partition whose manifest says that its last segment ends at `end`.
fn said_to_end_at(end: i64) -> Volume {
    let volume = closed();
    edit_json(&files(&volume, "manifest.", ".json").pop().unwrap(), |manifest| {
        manifest["next_offset"] = end.into();
        manifest["high_watermark"] = end.into();
        manifest["producer_state"]["offset"] = end.into();
        manifest["segments"].as_array_mut().unwrap().last_mut().unwrap()["end_offset"] = end.into();
    });
    volume
}

#[test]
fn readers_come_past_a_lost_end_of_more_offsets_than_a_batch_has() {
    let end = 5_000_000_000;
    let volume = said_to_end_at(end);
    let expected = values(&placed(&volume));
    let repaired = mend(&volume);
    let lost: i64 = repaired.lost.iter().map(|lost| lost.to - lost.from).sum();
    assert!(lost > i64::from(u32::MAX), "{repaired:#?}");
    let written = repaired.steps.iter().filter(|step| step.contains("no record, in place of"));
    assert_eq!(written.count(), 3, "{repaired:#?}");
    assert_serves(&volume, &expected, end);
}

/// What stands behind what is committed is nobody's yet, also for a reader that comes there across a batch without records.
#[test]
fn readers_of_a_lost_end_do_not_meet_the_first_append_behind_it_on_its_way() {
    let volume = said_to_end_at(1000);
    mend(&volume);
    let stall = Stall::new(Point::Write, ".log");
    let held: Arc<dyn Substrate> =
        Arc::new(Faulty::new(Arc::clone(&volume.substrate), Arc::clone(&stall) as _));
    let through = volume.seen_through(held);
    let log =
        through.open_at(leadership::highest(&*volume.substrate, &volume.dir).unwrap().get() + 1).unwrap();
    stall.close();
    let ticket = log.partition.append(&batch(&["behind it all"]), AppendOptions::default()).unwrap();
    assert!(stall.wait_until_held(1, Duration::from_secs(60)), "the append is on its way");
    // The end of the log as it was: the batch without records, and nothing else.
    let read = log.read(999);
    stall.release(Verdict::Pass);
    let read = read.unwrap();
    assert_eq!((read.status.high_watermark.0, decode(&read)), (1000, vec![]));
    assert_eq!(ticket.wait().unwrap().unwrap().base_offset.0, 1000);
}

#[test]
fn where_the_end_is_beyond_what_any_log_loses_nothing_is_put_in_its_place() {
    let end = 1 << 60;
    let volume = said_to_end_at(end);
    let expected = values(&placed(&volume));
    let repaired = mend(&volume);
    assert!(!repaired.steps.iter().any(|step| step.contains("no record, in place of")), "{repaired:#?}");
    // No offset is given out twice; readers wait in front of what is lost.
    let log = open(&volume);
    assert_eq!(log.append(&["behind it all"]).unwrap().base_offset.0, end);
    log.close();
    let log = open(&volume);
    let last = *expected.keys().next_back().unwrap();
    let found = served(&log);
    assert!(
        expected.keys().all(|offset| found.contains_key(offset)) && found[&end] == "behind it all",
        "{last}"
    );
}
