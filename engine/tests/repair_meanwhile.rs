//! `kaas-engine verify --repair` where what was found is not so any more: a topic that was deleted meanwhile and that its old
//! name still leads to, as on NFS; a fence that somebody else has made.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/data.rs"]
mod data;
#[path = "support/looking.rs"]
mod looking;
#[path = "support/mending.rs"]
mod mending;
mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use data::Data;
use kaas_engine::identity::{Identity, write_partition};
use kaas_engine::leadership::{self, ClaimError};
use kaas_engine::types::Epoch;
use kaas_engine::verify::repair::{Mode, Outcome, Repaired, repair};
use kaas_engine::verify::{Kind, Options, Progress, Report, verify};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Verdict};
use kaas_fault_injection::simulated::{Profile, Simulation};
use kaas_substrate::{Local, Substrate, write_small};
use looking::options;
use mending::{claimant, contents};

const ASIDE: &str = "topics/~deleted-00000001-orders-x";

fn epoch(epoch: u32) -> Epoch {
    Epoch::new(epoch).unwrap()
}

fn look(volume: &Arc<dyn Substrate>, target: &str) -> Report {
    verify(&**volume, Path::new(target), &options(), &Progress::default()).unwrap()
}

fn mend(volume: &Arc<dyn Substrate>, report: &Report, options: &Options) -> Vec<Repaired> {
    repair(volume, report, options, &Mode::Repair(claimant()), &Progress::default())
}

#[track_caller]
fn assert_refused(repaired: &[Repaired], reason: &str) {
    assert_eq!(repaired.len(), 1, "{repaired:#?}");
    assert_eq!(repaired[0].outcome, Outcome::Refused, "{repaired:#?}");
    assert!(repaired[0].reason.as_ref().unwrap().contains(reason), "{repaired:#?}");
}

/// Does something before the first call of a kind on a path.
struct Meanwhile<F> {
    point: Point,
    path: &'static str,
    done: AtomicBool,
    act: F,
}

impl<F> std::fmt::Debug for Meanwhile<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.path)
    }
}

impl<F: Fn() + Send + Sync> Hook for Meanwhile<F> {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        if point == self.point && path == Path::new(self.path) && !self.done.swap(true, Ordering::SeqCst) {
            (self.act)();
        }
        Verdict::Pass
    }
}

fn meanwhile(
    volume: Arc<dyn Substrate>,
    point: Point,
    path: &'static str,
    act: impl Fn() + Send + Sync + 'static,
) -> Arc<dyn Substrate> {
    let hook = Meanwhile { point, path, done: AtomicBool::new(false), act };
    Arc::new(Faulty::new(volume, Arc::new(hook)))
}

/// A data directory on a simulated NFS as two hosts see it. Each opens what it knows a name to lead to for as long as it may.
fn on_nfs() -> [Arc<dyn Substrate>; 2] {
    let data = Data::new();
    let hosts = Simulation::new(Profile::nfs(), Box::new(|below| below - 1));
    let volume = hosts.host(0);
    for (name, bytes) in contents(data.root()) {
        match data.path(&name).is_dir() {
            true => volume.create_dir(Path::new(&name)).unwrap(),
            false => write_small(&*volume, Path::new(&name), &bytes).unwrap(),
        }
    }
    [volume, hosts.host(1)]
}

/// A deletion up to the controller's decision, but for the claims.
fn delete(volume: &dyn Substrate) {
    volume.rename(Path::new("topics/orders"), Path::new(ASIDE)).unwrap();
    leadership::take_away(volume, &Path::new(ASIDE).join("1"), epoch(1)).unwrap();
}

/// Makes the topic once more, under its name and with another id.
fn make_again(volume: &dyn Substrate) {
    let topic = Path::new("topics/orders");
    volume.create_dir(topic).unwrap();
    let topic_id = [9; 16];
    for partition in 0..3 {
        let dir = topic.join(partition.to_string());
        volume.create_dir(&dir).unwrap();
        let identity = Identity { topic: "orders".to_owned(), partition, topic_id };
        write_partition(volume, &dir, &identity, epoch(1)).unwrap();
    }
    let id = serde_json::json!({ "format": 1, "topic": "orders", "topic_id": "CQkJCQkJCQkJCQkJCQkJCQ" });
    write_small(volume, &topic.join("topic-id.json"), &serde_json::to_vec(&id).unwrap()).unwrap();
}

#[track_caller]
fn assert_cannot_be_claimed(volume: &Arc<dyn Substrate>, dir: &Path) {
    let refused = leadership::claim(volume, dir, epoch(9), &claimant()).unwrap_err();
    assert!(matches!(refused, ClaimError::TakenAway { .. }), "{refused}");
}

// A mark of a deletion.

#[test]
fn the_old_name_of_a_deleted_topic_shows_a_deletion() {
    let [deletes, looks] = on_nfs();
    let target = "topics/orders/1";
    assert!(look(&looks, target).is_clean());
    delete(&*deletes);
    assert!(looks.list(Path::new(target)).is_ok(), "the name leads there still");
    let report = look(&looks, target);
    assert!(report.is_clean(), "{:#?}", report.findings);
    // The listing has shown where the name leads now.
    assert!(report.findings.iter().any(|finding| finding.kind == Kind::InProgress), "{:#?}", report.findings);
}

#[test]
fn a_mark_is_not_taken_back_if_the_topic_is_deleted_meanwhile() {
    let [deletes, repairs] = on_nfs();
    leadership::take_away(&*deletes, Path::new("topics/orders/1"), epoch(1)).unwrap();
    let report = look(&repairs, "");
    assert_eq!(report.errors, 1, "{:#?}", report.findings);
    let (by, knows) = (Arc::clone(&deletes), Arc::clone(&repairs));
    let volume = meanwhile(repairs, Point::List, "cluster", move || {
        knows.list(Path::new("topics/orders/1")).unwrap();
        delete(&*by);
    });
    assert_refused(&mend(&volume, &report, &options()), "it was deleted");
    assert_cannot_be_claimed(&deletes, &Path::new(ASIDE).join("1"));
}

#[test]
fn a_topic_that_is_made_again_meanwhile_is_not_taken_for_the_one_that_was_marked() {
    let [controls, repairs] = on_nfs();
    let dir = Path::new("topics/orders/1");
    leadership::take_away(&*controls, dir, epoch(1)).unwrap();
    let report = look(&repairs, "");
    assert_eq!(report.errors, 1, "{:#?}", report.findings);
    let (by, knows) = (Arc::clone(&controls), Arc::clone(&repairs));
    let volume = meanwhile(repairs, Point::List, "cluster", move || {
        knows.list(Path::new("topics/orders/1")).unwrap();
        delete(&*by);
        make_again(&*by);
    });
    assert_refused(&mend(&volume, &report, &options()), "foreign-directory");
    // The old one goes, and the new one is as it was.
    assert_cannot_be_claimed(&controls, &Path::new(ASIDE).join("1"));
    let report = look(&controls, "topics/orders");
    assert!(report.is_clean(), "{:#?}", report.findings);
    let highest = leadership::highest(&*controls, dir).unwrap();
    leadership::claim(&controls, dir, highest.next(), &claimant()).unwrap();
}

#[test]
fn a_mark_is_taken_back_only_with_the_lock() {
    let data = Data::new();
    let (volume, dir) = (data.volume(), Path::new("topics/orders/1"));
    leadership::take_away(&*volume, dir, epoch(1)).unwrap();
    let lock = volume.try_lock(Path::new("cluster/lock")).unwrap().unwrap();
    assert_refused(&data.repair(&options()), "a broker runs");
    assert_cannot_be_claimed(&volume, dir);
    drop(lock);
    // Not where there is none either.
    let topics: Arc<dyn Substrate> = Arc::new(Local::open(&data.path("topics")).unwrap());
    let report = look(&topics, "orders/1");
    assert_refused(&mend(&topics, &report, &options()), "there is no cluster/");
    assert_cannot_be_claimed(&volume, dir);
    assert_eq!(data.repair(&options())[0].outcome, Outcome::Repaired);
}

#[test]
fn a_deleted_topic_is_left_to_the_controller() {
    let data = Data::new();
    data.write("topics/orders/notes", "mine");
    data.write("topics/orders/1/notes", "mine");
    std::fs::rename(data.path("topics/orders"), data.path(ASIDE)).unwrap();
    let before = contents(data.root());
    let volume = data.volume();
    assert_refused(&mend(&volume, &look(&volume, &format!("{ASIDE}/1")), &options()), "its topic is deleted");
    let repaired = mend(&volume, &look(&volume, ASIDE), &options());
    assert!(repaired.iter().all(|repaired| repaired.outcome == Outcome::Refused), "{repaired:#?}");
    let topic = repaired.iter().position(|repaired| repaired.directory == Path::new(ASIDE)).unwrap();
    assert_refused(&repaired[topic..=topic], "its topic is deleted");
    assert_eq!(contents(data.root()), before);
}

// A fence that is gone.

#[test]
fn a_fence_that_somebody_else_has_made_meanwhile_is_kept() {
    let data = Data::new();
    let fence = data.path("topics/orders/1/fence");
    std::fs::remove_file(&fence).unwrap();
    let options = Options { brokers_stopped: true, ..options() };
    let report = data.verify("");
    let by = data.volume();
    let volume = meanwhile(data.volume(), Point::List, "cluster", move || {
        leadership::birth(&*by, Path::new("topics/orders/1"), epoch(5)).unwrap();
    });
    assert_refused(&mend(&volume, &report, &options), "run verify again");
    let highest = leadership::highest(&*data.volume(), Path::new("topics/orders/1")).unwrap();
    assert_eq!(highest, epoch(5));
    assert_eq!(data.verify("").errors, 0);

    // Nothing would keep a second repair, or a broker, from it.
    std::fs::remove_file(&fence).unwrap();
    let topics: Arc<dyn Substrate> = Arc::new(Local::open(&data.path("topics")).unwrap());
    assert_refused(&mend(&topics, &look(&topics, "orders/1"), &options), "there is no cluster/");
    assert!(!fence.exists());
}
