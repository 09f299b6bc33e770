//! What a repair gives up is told by that repair, also if it fails once that has happened: the next one finds nothing wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/data.rs"]
mod data;
#[path = "support/looking.rs"]
mod looking;
mod support;

use std::sync::Arc;

use data::{Data, SLOT};
use kaas_engine::leadership::Claimant;
use kaas_engine::verify::Options;
use kaas_engine::verify::repair::{Mode, Outcome, Repaired};
use kaas_fault_injection::faulty::{Faulty, Point, Rule, Rules, Verdict};
use kaas_substrate::{ErrorClass, Substrate};
use looking::{change, options};

/// Repairs what is wrong in `dir`, and fails when the first file whose path contains `name` is to be removed: what takes its place
/// counts by then. Nothing is wrong afterwards.
#[track_caller]
fn fails_at_the_end(data: &Data, dir: &str, name: &str) -> Repaired {
    let rule = Rule::nth(Point::RemoveFile, 1, Verdict::Fail(ErrorClass::Io)).on(name);
    let rules = Rules::new([rule]);
    let volume: Arc<dyn Substrate> = Arc::new(Faulty::new(data.volume(), Arc::clone(&rules) as _));
    let claimant = Claimant { broker_id: -1, incarnation: "repair".into(), assignment_version: 0 };
    let options = Options { accept_loss: true, ..options() };
    let mut repaired = data.repair_through(&volume, &options, &Mode::Repair(claimant));
    assert_eq!((rules.hits(), repaired.len()), (1, 1), "{repaired:#?}");
    data.assert_clean();
    assert_eq!(data.repair(&options), [], "nobody else can tell");
    let repaired = repaired.remove(0);
    assert_eq!((repaired.outcome, repaired.directory.to_str()), (Outcome::Refused, Some(dir)));
    repaired
}

#[test]
fn appends_to_a_slot() {
    let data = Data::new();
    change(&data.path(SLOT).join("journal.00000001.0.jsonl"), |bytes| bytes[200] ^= 1);
    let repaired = fails_at_the_end(&data, SLOT, "/journal.00000001.0.jsonl");
    assert_eq!(repaired.given_up.len(), 1, "{repaired:#?}");
    assert!(repaired.reason.unwrap().contains("may be gone already"));
}

#[test]
fn configs_of_a_topic() {
    let data = Data::new();
    data.write("topics/orders/config.00000001.2.json", "?");
    let repaired = fails_at_the_end(&data, "topics/orders", "/config.00000001.2.json");
    assert_eq!(repaired.given_up, ["configs that were changed after config.00000001.1.json"]);
    assert!(repaired.reason.unwrap().contains("may be gone already"));
}

#[test]
fn records_of_a_partition() {
    let data = Data::new();
    let log = std::fs::read_dir(data.path("topics/orders/1")).unwrap().map(|entry| entry.unwrap().path());
    let log = log.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "log")).unwrap();
    change(&log, |bytes| bytes[70] ^= 1);
    let name = format!("/{}", log.file_name().unwrap().to_str().unwrap());
    let repaired = fails_at_the_end(&data, "topics/orders/1", &name);
    assert_eq!(repaired.lost.iter().map(|lost| (lost.from, lost.to)).collect::<Vec<_>>(), [(0, 2)]);
    assert!(repaired.reason.unwrap().contains("may be gone already"));
}

/// Where nothing is given up, nothing is said to be.
#[test]
fn what_counted_still_does_where_nothing_is_lost() {
    let data = Data::new();
    data.write("topics/orders/notes", "mine");
    let rules = Rules::new([Rule::nth(Point::Rename, 1, Verdict::Fail(ErrorClass::Io)).on("/notes")]);
    let volume: Arc<dyn Substrate> = Arc::new(Faulty::new(data.volume(), Arc::clone(&rules) as _));
    let claimant = Claimant { broker_id: -1, incarnation: "repair".into(), assignment_version: 0 };
    let repaired = data.repair_through(&volume, &options(), &Mode::Repair(claimant));
    assert_eq!(repaired[0].outcome, Outcome::Refused);
    assert!(repaired[0].given_up.is_empty() && repaired[0].reason.as_ref().unwrap().contains("still does"));
}
