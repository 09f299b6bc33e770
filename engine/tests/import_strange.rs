//! Something strange in place of each file and directory of Kafka's: what counts is refused by its name, and what does not is in
//! nobody's way. Nothing hangs, and nothing is written before all of it is known.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

#[path = "support/kafka.rs"]
mod kafka;
#[path = "support/place.rs"]
mod place;
mod support;

use std::fs;
use std::io::IoSlice;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kaas_engine::import::{Progress, Source, plan};
use kaas_fault_injection::faulty::{Faulty, Hook, Point, Rule, Rules, Verdict};
use kaas_substrate::{EntryKind, ErrorClass, Memory, OpenMode, Substrate};

use kafka::{ID, Kafka, assert_clean, compact, empty, metadata_record, options, values};
use place::{Place, make_pipe, names, text};

const SNAPSHOT: &str = "00000000000000000002-0000000001.checkpoint";

/// Every file that Kafka has; those that count, and what may be told of one that is empty.
const COUNTS: &[(&str, Option<&str>)] = &[
    (".kafka_cleanshutdown", None),
    ("meta.properties", Some("it has no cluster.id")),
    ("cleaner-offset-checkpoint", None),
    ("log-start-offset-checkpoint", None),
    ("recovery-point-offset-checkpoint", None),
    (
        "__cluster_metadata-0/00000000000000000002.log",
        Some("offsets 2 to 3 are missing: the log had reached 4"),
    ),
    (
        "__cluster_metadata-0/00000000000000000002-0000000001.checkpoint",
        Some("the metadata log cannot be read: the snapshot has no end"),
    ),
    ("__consumer_offsets-0/00000000000000000000.log", None),
    ("orders-0/00000000000000000000.log", Some("offsets 0 to 2 are missing")),
    ("orders-0/00000000000000000003.log", Some("offsets 3 to 5 are missing")),
    ("orders-0/00000000000000000006.log", Some("offset 6 is missing")),
    // Kafka, too, builds it anew from the log.
    ("orders-0/00000000000000000007.snapshot", None),
    ("orders-0/leader-epoch-checkpoint", None),
    ("orders-0/partition.metadata", Some("it has no topic_id")),
    ("orders-1/00000000000000000000.log", None),
    ("orders-1/partition.metadata", Some("it has no topic_id")),
];

const DOES_NOT_COUNT: &[&str] = &[
    ".lock",
    "bootstrap.checkpoint",
    "replication-offset-checkpoint",
    "__cluster_metadata-0/00000000000000000002.index",
    "__cluster_metadata-0/00000000000000000002.timeindex",
    "__cluster_metadata-0/00000000000000000004.snapshot",
    "__cluster_metadata-0/leader-epoch-checkpoint",
    "__cluster_metadata-0/partition.metadata",
    "__cluster_metadata-0/quorum-state",
    "__consumer_offsets-0/00000000000000000000.index",
    "__consumer_offsets-0/leader-epoch-checkpoint",
    "__consumer_offsets-0/partition.metadata",
    "orders-0/00000000000000000000.index",
    "orders-0/00000000000000000000.timeindex",
    "orders-0/00000000000000000000.txnindex",
];

const DIRECTORIES: &[&str] = &["__cluster_metadata-0", "__consumer_offsets-0", "orders-0", "orders-1"];

/// A log directory with all of them.
fn kafka() -> Kafka {
    let kafka = Kafka::orders();
    for path in DOES_NOT_COUNT {
        kafka.put(path, b"");
    }
    let topic = metadata_record(2, &[&compact("orders"), &ID]);
    kafka.metadata_snapshot(SNAPSHOT, &[topic, metadata_record(3, &[&[0, 0, 0, 1], &ID])]);
    let config = metadata_record(4, &[&[2], &compact("orders"), &compact("retention.ms"), &compact("-1")]);
    let policy =
        metadata_record(4, &[&[2], &compact("orders"), &compact("cleanup.policy"), &compact("delete")]);
    kafka.metadata("00000000000000000002.log", 2, &[config, policy]);
    kafka.log("__consumer_offsets-0", 0, &[]);
    kafka.put("orders-0/00000000000000000007.snapshot", b"\0\x01\0\0\0\0");
    kafka.ends(&["orders 0 7", "orders 1 0", "__consumer_offsets 0 0"]);
    kafka.starts(&[]);
    kafka.checkpoint("cleaner-offset", &[]);
    kafka
}

fn files(volume: &Memory) -> Vec<String> {
    let (mut found, mut dirs) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(dir) = dirs.pop() {
        for entry in volume.list(&dir).unwrap() {
            let path = dir.join(entry.name);
            if entry.kind == EntryKind::Dir {
                dirs.push(path);
            } else {
                found.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_file_of_a_log_directory_is_in_the_table() {
    let counts = COUNTS.iter().map(|(path, _)| *path);
    let mut known: Vec<_> = counts.chain(DOES_NOT_COUNT.iter().copied()).map(str::to_owned).collect();
    known.sort();
    assert_eq!(files(&kafka().volume), known);
    let target = empty();
    assert!(kafka().import(&target).is_done);
    assert_clean(&target);
}

type Put = fn(&Path, &Path);

/// What stands in the place of a file or a directory; what was there has been moved to the second path.
const STRANGE: &[(&str, Put)] = &[
    ("a pipe", |path, _| make_pipe(path)),
    ("a directory", |path, _| fs::create_dir(path).unwrap()),
    ("a link", |path, was| symlink(was, path).unwrap()),
    ("a link to nothing", |path, _| symlink("nothing", path).unwrap()),
    ("a socket", |path, _| drop(UnixListener::bind(path).unwrap())),
];

/// Puts something into the place, runs the import, and takes it away again: exit code, and what was said.
fn with_strange(place: &Place, path: &str, put: impl FnOnce(&Path, &Path)) -> (Option<i32>, String) {
    let (at, was) = (place.path("kafka").join(path), place.path("was"));
    fs::rename(&at, &was).unwrap();
    put(&at, &was);
    let before = names(&place.path("kafka"));
    let output = place.import(&["kafka", "data"]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap().replace("\n  ", " ");
    assert_eq!(names(&place.path("kafka")), before, "{path}");
    let done = place.path("data").exists();
    assert_eq!(done, output.status.code() == Some(0), "{path}: {said}");
    if done {
        fs::remove_dir_all(place.path("data")).unwrap();
    }
    match fs::symlink_metadata(&at) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(&at).unwrap(),
        _ => fs::remove_file(&at).unwrap(),
    }
    fs::rename(&was, &at).unwrap();
    (output.status.code(), said)
}

/// Refused with a problem that names the path and says what to do.
fn assert_told(told: &(Option<i32>, String), path: &str, what: &str) {
    let (code, said) = told;
    let named = said.lines().any(|line| {
        line.strip_prefix("problem: ").is_some_and(|line| line.contains(&format!("/kafka/{path}: ")))
    });
    assert!(
        *code == Some(1) && named && said.contains("hint: "),
        "{what} in place of {path}: {code:?} {said}"
    );
}

#[test]
fn something_else_in_place_of_a_file_is_refused_if_the_file_counts() {
    let place = Place::with(&kafka());
    for (what, put) in STRANGE {
        for (path, _) in COUNTS {
            assert_told(&with_strange(&place, path, put), path, what);
        }
    }
}

#[test]
fn something_else_in_place_of_files_that_do_not_count_is_in_nobodys_way() {
    for (what, put) in STRANGE {
        let place = Place::with(&kafka());
        fs::write(place.path("was"), "").unwrap();
        for path in DOES_NOT_COUNT {
            let path = place.path("kafka").join(path);
            fs::remove_file(&path).unwrap();
            put(&path, &place.path("was"));
        }
        let output = place.import(&["kafka", "data"]);
        assert_eq!(output.status.code(), Some(0), "{what}: {}", text(&output));
    }
}

#[test]
fn something_else_in_place_of_a_directory_is_refused() {
    let place = Place::with(&kafka());
    let file: Put = |path, _| fs::write(path, "").unwrap();
    for (what, put) in STRANGE.iter().filter(|(what, _)| *what != "a directory").chain([&("a file", file)]) {
        for path in DIRECTORIES {
            let told = with_strange(&place, path, put);
            if *what == "a file" && path.starts_with("orders") {
                // A file is none of Kafka's partitions, whatever its name: the directory is missing.
                let problem = format!("recovery-point-offset-checkpoint: there is no directory {path}");
                assert!(told.0 == Some(1) && told.1.contains(&problem), "{told:?}");
            } else {
                assert_told(&told, path, what);
            }
        }
    }
}

#[test]
fn an_empty_file_is_refused_if_something_is_lost_with_it() {
    for (path, told) in COUNTS {
        let kafka = kafka();
        kafka.put(path, b"");
        let problems = kafka.problems();
        match told {
            Some(told) => {
                assert!(problems.iter().any(|problem| problem.contains(told)), "{path}: {problems:?}");
            }
            None => assert_eq!(problems, Vec::<String>::new(), "{path}"),
        }
    }
}

/// What the problems name, of an import of a volume behind this hook; nothing is written if there are any.
fn named(kafka: &Kafka, hook: Arc<dyn Hook>) -> Vec<PathBuf> {
    let volume = Faulty::new(Arc::new(kafka.volume.clone()), hook);
    let root = volume.root().to_owned();
    let sources = [Source { volume: Arc::new(volume), only: None }];
    let target = empty();
    let progress = Progress::default();
    let report =
        plan(&sources, Some(&*target), &options(), &progress).unwrap().carry_out(&target, &progress).unwrap();
    assert_eq!(report.is_done, report.problems.is_empty());
    assert!(report.is_done || target.list(Path::new("")).unwrap().is_empty());
    assert!(report.problems.iter().all(|problem| !problem.hint.is_empty()));
    report.problems.into_iter().map(|problem| problem.path.strip_prefix(&root).unwrap().to_owned()).collect()
}

#[test]
fn a_file_that_cannot_be_read_is_refused_if_it_counts() {
    for point in [Point::Open, Point::Length, Point::Read] {
        // Of the marker only that it is there counts, and an empty log is not read.
        let is_not_read = |path: &str| {
            path == ".kafka_cleanshutdown"
                || (point == Point::Read
                    && ["__consumer_offsets-0/00000000000000000000.log", "orders-1/00000000000000000000.log"]
                        .contains(&path))
        };
        for (path, _) in COUNTS.iter().filter(|(path, _)| !is_not_read(path)) {
            let rule = Rule::nth(point, 1, Verdict::Fail(ErrorClass::Io)).on(path).times(u64::MAX);
            let named = named(&kafka(), Rules::new([rule]));
            assert!(named.contains(&PathBuf::from(path)), "{point:?} {path}: {named:?}");
        }
        for path in DOES_NOT_COUNT {
            let rule = Rule::nth(point, 1, Verdict::Fail(ErrorClass::Io)).on(path).times(u64::MAX);
            assert_eq!(named(&kafka(), Rules::new([rule])), Vec::<PathBuf>::new(), "{point:?} {path}");
        }
    }
}

/// Does something to a file at a call on it, once.
#[derive(Debug)]
struct Meanwhile {
    volume: Memory,
    path: PathBuf,
    point: Point,
    change: fn(&Memory, &Path),
    is_done: AtomicBool,
}

impl Hook for Meanwhile {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        if point == self.point && path == self.path && !self.is_done.swap(true, Ordering::SeqCst) {
            (self.change)(&self.volume, path);
        }
        Verdict::Pass
    }
}

fn vanish(volume: &Memory, path: &Path) {
    volume.remove_file(path).unwrap();
}

/// By a whole batch, as if Kafka was running.
fn grow(volume: &Memory, path: &Path) {
    let file = volume.open(path, OpenMode::Write).unwrap();
    let end = file.length().unwrap();
    file.write_all_at(&[IoSlice::new(&values(7, 3, &["more"]))], end).unwrap();
}

fn meanwhile(kafka: &Kafka, path: &str, point: Point, change: fn(&Memory, &Path)) -> Arc<Meanwhile> {
    let (volume, path) = (kafka.volume.clone(), PathBuf::from(path));
    Arc::new(Meanwhile { volume, path, point, change, is_done: AtomicBool::new(false) })
}

#[test]
fn a_file_that_vanishes_before_it_is_read_is_refused_if_it_counts() {
    for (path, _) in COUNTS {
        let kafka = kafka();
        let hook = meanwhile(&kafka, path, Point::Open, vanish);
        let named = named(&kafka, Arc::clone(&hook) as _);
        if hook.is_done.load(Ordering::SeqCst) {
            assert!(named.contains(&PathBuf::from(path)), "{path}: {named:?}");
        } else {
            assert_eq!(*path, ".kafka_cleanshutdown");
        }
    }
}

#[test]
fn a_log_that_changes_between_the_check_and_the_copy_ends_the_import() {
    for change in [vanish, grow] {
        for path in ["00000000000000000000.log", "00000000000000000003.log", "00000000000000000006.log"] {
            let path = format!("orders-0/{path}");
            let (kafka, target) = (kafka(), empty());
            let progress = Progress::default();
            let planned = plan(&kafka.sources(), Some(&*target), &options(), &progress).unwrap();
            change(&kafka.volume, Path::new(&path));
            let said = planned.carry_out(&target, &progress).unwrap_err().to_string();
            assert!(said.contains("orders-0"), "{said}");
            assert!(target.list(Path::new("topics")).unwrap().is_empty(), "{said}");
        }
    }
}

#[test]
fn a_file_that_grows_while_it_is_read_does_not_end_in_a_topic_that_was_not_checked() {
    for point in [Point::Open, Point::Length, Point::Read] {
        for (path, _) in COUNTS {
            let (kafka, target) = (kafka(), empty());
            let hook = meanwhile(&kafka, path, point, grow);
            let volume = Faulty::new(Arc::new(kafka.volume.clone()), Arc::clone(&hook) as _);
            let sources = [Source { volume: Arc::new(volume), only: None }];
            let progress = Progress::default();
            let planned = plan(&sources, Some(&*target), &options(), &progress).unwrap();
            let checked = planned.report().clone();
            match planned.carry_out(&target, &progress) {
                Ok(report) if report.is_done => {
                    assert_clean(&target);
                    assert_eq!(report.records, checked.records, "{point:?} {path}");
                }
                Ok(report) => assert!(!report.problems.is_empty(), "{point:?} {path}"),
                Err(error) => {
                    assert!(error.to_string().contains("has changed"), "{point:?} {path}: {error}");
                    assert!(target.list(Path::new("topics")).unwrap().is_empty());
                }
            }
        }
    }
}
