//! `kaas-engine import` as a command: what it prints, its exit codes, which directories it refuses, and that one that was killed
//! is begun again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, clippy::cast_possible_truncation)]

#[path = "support/kafka.rs"]
mod kafka;
#[path = "support/place.rs"]
mod place;
mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use kaas_substrate::Substrate;
use kaas_substrate::recognise::open_to_read;
use kafka::{Kafka, at, values};
use place::{Place, make_pipe, names, text};

#[test]
fn the_command_reports_and_exits() {
    let place = Place::with(&Kafka::orders());
    let dry = place.import(&["--dry-run", "kafka", "data"]);
    let table = "topic   partitions       records             bytes\n\
                 orders           2             7               ";
    assert!(text(&dry).starts_with(table), "{}", text(&dry));
    assert!(text(&dry).contains("\ncan be imported: 1 topic, 2 partitions, 7 records, "), "{}", text(&dry));
    assert_eq!((dry.status.code(), place.path("data").exists()), (Some(0), false));
    assert!(dry.stderr.is_empty(), "no progress without a terminal");

    let done = place.import(&["--json", "kafka", "data"]);
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((done.status.code(), &json["is_done"], &json["records"]), (Some(0), &true.into(), &7.into()));
    assert_eq!(json["topics"][0]["partitions"][0]["log_end_offset"], 7);
    let again = place.import(&["kafka", "data"]);
    assert_eq!(again.status.code(), Some(0));
    assert!(text(&again).starts_with("already there: orders\n"), "{}", text(&again));

    let data = open_to_read(&place.path("data")).unwrap();
    let broker = data.try_lock(Path::new("cluster/lock")).unwrap().unwrap();
    let said = place.refused(1, &["--dry-run", "kafka", "data"]);
    assert!(said.contains("data: a broker is running on it"), "{said}");
    drop(broker);
    assert_eq!(place.import(&["--dry-run", "kafka", "data"]).status.code(), Some(0));

    fs::remove_file(place.path("kafka/.kafka_cleanshutdown")).unwrap();
    let said = place.refused(1, &["kafka", "other"]);
    assert!(said.ends_with("cannot be imported, nothing was written: 1 problem\n"), "{said}");
    let refused = place.import(&["--json", "kafka", "other"]);
    let json: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert!(json["problems"][0]["hint"].as_str().unwrap().contains("--after-crash"), "{json}");
}

#[test]
fn server_properties_are_read_and_what_is_none_is_refused() {
    let place = Place::with(&Kafka::orders());
    let command = ["--server-properties", "server.properties", "kafka", "data"];
    let what_else = "name the server.properties that Kafka is started with";
    let said = place.refused(2, &command);
    assert!(said.contains("server.properties: No such file") && said.contains(what_else), "{said}");
    make_pipe(&place.path("server.properties"));
    assert!(place.refused(2, &command).contains("server.properties: it is no file"));
    fs::remove_file(place.path("server.properties")).unwrap();
    fs::write(place.path("file"), "started\n").unwrap();
    symlink("file", place.path("server.properties")).unwrap();
    assert!(place.refused(1, &command).contains("server.properties: it has no node.id"));
    fs::write(place.path("file"), "node.id=1\nlog.retention.hours=1\npassword=secret\n").unwrap();
    let output = place.import(&command);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("\n  retention.ms=3600000 (log.retention.hours in server.properties)\n"), "{said}");
    assert!(!said.contains("secret"), "{said}");
}

#[test]
fn no_line_is_longer_than_a_hundred_columns() {
    let kafka = Kafka::orders();
    kafka.ends(&["orders 0 9", "orders 1 5", "payments 0 3"]);
    kafka.remove("orders-1/00000000000000000000.log");
    kafka.volume.create_dir(Path::new("x-0.0123456789abcdef-future")).unwrap();
    let place = Place::with(&kafka);
    let said = place.refused_lines(1, &["kafka", "data"]);
    assert!(said.contains("3 problems"), "{said}");
    let root = place.temporary.path().as_os_str().len();
    for line in said.lines() {
        // A path stands on one line, whatever its length.
        assert!(line.len() <= 100.max(root + 80), "{line}");
    }
    assert!(said.lines().filter(|line| line.starts_with("  hint: ")).count() <= 2, "{said}");
}

#[test]
fn kafkas_directories_and_the_data_directory_are_apart() {
    let place = Place::with(&Kafka::orders());
    symlink(place.path("kafka"), place.path("link")).unwrap();
    let inside = "lies in Kafka's log directory";
    assert!(place.refused(2, &["kafka", "kafka/data"]).contains(inside));
    assert!(place.refused(2, &["kafka", "kafka/orders-0"]).contains(inside));
    assert!(place.refused(2, &["kafka", "link/new/data"]).contains(inside));
    assert!(place.refused(2, &["link", "kafka/data"]).contains(inside));
    // A partition of it is enough.
    assert!(place.refused(2, &["kafka/orders-0", "kafka/data"]).contains(inside));
    assert!(place.refused(2, &["kafka", "link"]).contains("cannot be both"));
    assert!(place.refused(2, &["kafka", "."]).contains("kafka lies in ."));
    assert!(place.refused(2, &["kafka", "link", "data"]).contains("kafka is given twice"));
    assert!(
        place.refused(2, &["kafka/orders-0", "link/orders-0", "data"]).contains("orders-0 is given twice")
    );
    assert_eq!(place.import(&["kafka/orders-0", "kafka/orders-1", "data"]).status.code(), Some(0));
    // A data directory is none of Kafka's.
    let other = "a data directory of kaas, not a log directory of Kafka";
    assert!(place.refused(1, &["data", "new"]).contains(other));
    for below in ["data/topics", "data/topics/orders", "data/topics/orders/0"] {
        assert!(place.refused(1, &[below, "new"]).contains("no partitions of Kafka here"));
    }
}

#[test]
fn directories_that_are_not_there_or_none_are_refused() {
    let place = Place::with(&Kafka::orders());
    fs::write(place.path("file"), "x").unwrap();
    assert!(place.refused(2, &["nowhere", "data"]).contains("nowhere: No such file or directory"));
    assert!(place.refused(2, &["file", "data"]).contains("file: Not a directory"));
    assert!(place.refused(2, &["kafka", "file"]).contains("file: Not a directory"));
    assert!(place.refused(2, &["kafka", "file/data"]).contains("file/data: Not a directory"));
    fs::create_dir(place.path("photos")).unwrap();
    fs::write(place.path("photos/1.jpeg"), "x").unwrap();
    assert!(place.refused(2, &["kafka", "photos"]).contains("neither empty nor a data directory of kaas"));
    // The directory above a log directory, with a file in it that is not one of Kafka's logs.
    fs::create_dir(place.path("opt")).unwrap();
    fs::rename(place.path("kafka"), place.path("opt/kafka")).unwrap();
    fs::write(place.path("opt/server.log"), "x").unwrap();
    assert!(place.refused(1, &["opt", "data"]).contains("no partitions of Kafka here"));
}

#[test]
fn links_are_refused() {
    let log = "kafka/orders-0/00000000000000000003.log";
    // A log that is a link, or a directory, or a partition that is a link.
    let place = Place::with(&Kafka::orders());
    fs::rename(place.path(log), place.path("log")).unwrap();
    symlink(place.path("log"), place.path(log)).unwrap();
    assert!(place.refused(1, &["kafka", "data"]).contains("no file, but a link"));
    fs::remove_file(place.path(log)).unwrap();
    fs::create_dir(place.path(log)).unwrap();
    assert!(place.refused(1, &["kafka", "data"]).contains("no file, but a link"));
    let place = Place::with(&Kafka::orders());
    fs::rename(place.path("kafka/orders-1"), place.path("orders-1")).unwrap();
    symlink(place.path("orders-1"), place.path("kafka/orders-1")).unwrap();
    let said = place.refused(1, &["kafka", "data"]);
    assert!(said.contains("orders-1: no directory, but a link or a special file"), "{said}");
    // Of a topic that is not asked for it is in nobody's way.
    place.write("second", &Kafka::new());
    fs::rename(place.path("kafka/orders-0"), place.path("kafka/payments-0")).unwrap();
    fs::write(
        place.path("kafka/payments-0/partition.metadata"),
        "version: 0\ntopic_id: BBECAwQFBgcICQoLDA0ODw",
    )
    .unwrap();
    assert_eq!(place.import(&["--topic", "payments", "kafka", "data"]).status.code(), Some(0));
}

#[test]
fn what_kafka_had_put_aside_is_passed_over_and_told() {
    let kafka = Kafka::orders();
    for name in ["old-0.0123-delete", "orders-0.4567-future", "gone-0.89ab-stray", "backup", "lost+found"] {
        kafka.volume.create_dir(Path::new(name)).unwrap();
    }
    let place = Place::with(&kafka);
    let output = place.import(&["kafka", "data"]);
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output).replace("\n  ", " ");
    for told in [
        "old-0.0123-delete: passed over: Kafka was deleting it",
        "orders-0.4567-future: passed over: a copy that Kafka had not finished",
        "gone-0.89ab-stray: passed over: Kafka's metadata does not have it",
        "backup: passed over: not the directory of a partition",
    ] {
        assert!(said.contains(told), "{said}");
    }
    assert!(!said.contains("lost+found"), "{said}");
}

#[test]
fn names_that_kafka_would_not_take_are_refused() {
    let place = Place::with(&Kafka::orders());
    let long = "x".repeat(250);
    for name in ["a b", "ümlaut", &long] {
        fs::create_dir(place.path("kafka").join(format!("{name}-0"))).unwrap();
    }
    let said = place.refused(1, &["kafka", "data"]);
    assert_eq!(said.matches("is no name of a topic").count(), 3, "{said}");
    let kafka = Kafka::new();
    for name in ["a.b-0", "a_b-0"] {
        kafka.log(name, 0, &[values(0, 0, &["x"])]);
    }
    let place = Place::with(&kafka);
    let collide = "differs from that of the topic \"a.b\" only in '.' and '_'";
    assert!(place.refused(1, &["kafka", "data"]).contains(collide));
    // Nor beside one that is there.
    assert_eq!(place.import(&["--topic", "a.b", "kafka", "data"]).status.code(), Some(0));
    let output = place.import(&["--topic", "a_b", "kafka", "data"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).replace("\n  ", " ").contains(collide), "{}", text(&output));
}

#[test]
fn one_that_was_killed_is_begun_again() {
    let kafka = Kafka::new();
    let value = "x".repeat(1 << 18);
    let batch = values(0, 0, &[&value]);
    let place = Place::with(&kafka);
    // Where a batch lies is no part of its checksum.
    let logs = 3;
    for topic in ["orders", "payments"] {
        let dir = place.path("kafka").join(format!("{topic}-0"));
        fs::create_dir(&dir).unwrap();
        for log in 0..logs {
            let base = log * 64;
            let bytes: Vec<u8> = (base..base + 64).flat_map(|offset| at(&batch, offset, 0)).collect();
            fs::write(dir.join(format!("{base:020}.log")), bytes).unwrap();
        }
    }
    let building = |name: &Path| name.file_name().unwrap().to_string_lossy().starts_with("~new-import-");
    let topics = place.path("data/topics");
    for done in [0, 1] {
        let mut child = place.command(&["kafka", "data"]).stdout(Stdio::null()).spawn().unwrap();
        loop {
            assert_eq!(child.try_wait().unwrap(), None, "it was to be killed in the middle");
            let found = if topics.exists() { fs::read_dir(&topics).unwrap().collect() } else { Vec::new() };
            let found: Vec<_> = found.into_iter().filter_map(Result::ok).map(|entry| entry.path()).collect();
            if found.iter().any(|path| building(path)) && found.len() > done {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(names(&topics).iter().any(|path| building(path)), "nothing was left");
    let output = place.import(&["kafka", "data"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let mut found: Vec<_> = fs::read_dir(&topics).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    found.sort();
    assert_eq!(found, ["orders", "payments"]);
    let verify =
        Command::new(env!("CARGO_BIN_EXE_kaas-engine")).arg("verify").arg(place.path("data")).output();
    let verify = verify.unwrap();
    assert_eq!(verify.status.code(), Some(0), "{}", text(&verify));
}
