//! `kaas-engine verify --repair` where the manifest says that the log goes on for more offsets than one batch can take up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use looking::{closed, edit_json, files};
use mending::{assert_serves, mend, open, placed, served, values};
use support::Volume;

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
