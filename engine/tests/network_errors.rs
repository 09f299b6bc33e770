//! What only a network file system answers: a handle that it has forgotten, and room that it finds missing later.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::sync::Arc;

use kaas_engine::{AppendError, LogConfig, ReadError, State};
use kaas_fault_injection::faulty::{Faulty, Point, Rule, Rules, Verdict};
use kaas_substrate::ErrorClass;
use support::Volume;

fn seen_through(volume: &Volume, rules: &Arc<Rules>) -> Volume {
    volume.seen_through(Arc::new(Faulty::new(Arc::clone(&volume.substrate), rules.clone())))
}

#[test]
fn a_stale_handle_is_opened_again_by_its_name_once() {
    let mut volume = Volume::memory();
    volume.config = LogConfig { segment_bytes: 300, ..LogConfig::default() };
    let log = volume.open();
    for n in 0..20 {
        log.append(&[&format!("value {n}")]).unwrap();
    }
    log.close();
    let rules = Rules::new([]);
    let log = seen_through(&volume, &rules).open();
    let values = log.values();
    assert_eq!(values.len(), 20);

    let stale = |times| Rule::nth(Point::Read, 1, Verdict::Fail(ErrorClass::Stale)).on(".log").times(times);
    rules.add(stale(1));
    assert_eq!(log.values(), values);
    assert_eq!(rules.hits(), 1);
    // It stays so: the reader is told, and the next one tries again.
    rules.clear();
    rules.add(stale(2));
    let Err(ReadError::Storage(error)) = log.read(0) else { panic!("it was read") };
    assert_eq!(error.class, ErrorClass::Stale);
    assert_eq!(log.values(), values);
}

/// The volume says "no space" of the write before: what that one wrote is lost, so nothing may be appended behind it.
#[test]
fn no_space_is_final_if_it_may_be_about_an_earlier_write() {
    let mut volume = Volume::memory();
    volume.config.flush_messages = 100;
    let rules = Rules::new([]);
    let log = seen_through(&volume, &rules).open();
    log.append(&["written, not synced"]).unwrap();
    rules.add(Rule::nth(Point::Write, 1, Verdict::Fail(ErrorClass::NoSpace)).on(".log"));
    let error = log.append(&["too much"]).unwrap_err();
    assert!(!matches!(error, AppendError::NoSpace(_)), "{error}");
    assert!(matches!(log.partition.status().state, State::Poisoned { .. }));
    log.append(&["more"]).unwrap_err();
}
