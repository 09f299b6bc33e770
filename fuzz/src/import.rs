//! `kaas-engine import` of any directory.
//!
//! Asserted: it ends with a report or an error, and leaves Kafka's files as they are. With problems nothing is written. Without, what
//! it has made is clean, consumers read what they would of a Kafka that starts on the directory, at the same offsets, and a second
//! import finds it there.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kaas_engine::batch::BatchHeader;
use kaas_engine::import::{ImportError, Options, Progress, Report, ServerProperties, Source, plan};
use kaas_engine::layout::TOPICS_DIR;
use kaas_engine::types::Offset;
use kaas_engine::verify;
use kaas_substrate::{Memory, Substrate, read_small};

use crate::Archive;
use crate::checksums;
use crate::partition::{Led, NOW, Served};
use crate::tree;

/// Largest log that is compared.
const LOG_BYTES_MAX: usize = 1 << 20;

/// The broker's configs, in the log directory here; none are there if it is not.
const SERVER_PROPERTIES: &str = "server.properties";

/// A log directory of Kafka, or anything else.
pub fn import(data: &[u8]) {
    let kafka = Archive::unpack(data).volume();
    let before = tree::of_volume(&kafka);
    let target: Arc<dyn Substrate> = Arc::new(Memory::with_capacity(64 << 20));
    let outcome = import_into(&kafka, &target);
    tree::assert_same(&before, &tree::of_volume(&kafka), "the import has changed Kafka's files");
    let Ok(report) = outcome else { return };
    if !report.problems.is_empty() {
        assert!(tree::of_volume(&*target).is_empty(), "something was written in spite of problems");
        return;
    }
    let options =
        verify::Options { threads: 1, now: NOW, second_look_after: Duration::ZERO, ..Default::default() };
    let verified = verify::verify(&*target, Path::new(""), &options, &verify::Progress::default());
    let verified = verified.expect("what was imported can be looked at");
    assert!(verified.is_clean(), "{:#?}", verified.findings);
    let mut imported = tree::of_volume(&*target);
    if let Ok(again) = import_into(&kafka, &target)
        && again.problems.is_empty()
    {
        assert_eq!(again.already_there.len(), report.topics.len());
        let mut now = tree::of_volume(&*target);
        for tree in [&mut imported, &mut now] {
            tree.retain(|path, _| Path::new(path).starts_with(TOPICS_DIR));
        }
        tree::assert_same(&imported, &now, "the second import has changed a topic");
    }
    for topic in target.list(Path::new(TOPICS_DIR)).unwrap_or_default() {
        for partition in partitions(&*target, &topic.name.to_string_lossy()) {
            compare(&kafka, &target, &topic.name.to_string_lossy(), &partition);
        }
    }
}

fn import_into(kafka: &Memory, target: &Arc<dyn Substrate>) -> Result<Report, ImportError> {
    let sources = [Source { volume: Arc::new(kafka.clone()), only: None }];
    let progress = Progress::default();
    let path = Path::new(SERVER_PROPERTIES);
    let properties = read_small(kafka, path, LOG_BYTES_MAX).unwrap_or_default();
    // Without that line it is no broker's.
    let properties = [&b"node.id=1\n"[..], &properties].concat();
    let server_properties = Some(ServerProperties::parse(path, &properties));
    // Where Kafka was stopped cleanly that cuts off nothing.
    let options = Options { node_id: 1, after_crash: true, server_properties, ..Options::default() };
    let plan = plan(&sources, Some(&**target), &options, &progress)?;
    let _ = plan.report().to_text(100);
    plan.carry_out(target, &progress)
}

/// The names of a topic's partition directories.
fn partitions(target: &dyn Substrate, topic: &str) -> Vec<String> {
    let entries = target.list(&Path::new(TOPICS_DIR).join(topic)).expect("a topic");
    let dirs = entries.into_iter().filter(|entry| entry.kind == kaas_substrate::EntryKind::Dir);
    dirs.map(|entry| entry.name.to_string_lossy().into_owned()).collect()
}

/// What consumers read here is what Kafka has there, from the log start on.
fn compare(kafka: &Memory, target: &Arc<dyn Substrate>, topic: &str, partition: &str) {
    let led = Led::open(target, &Path::new(TOPICS_DIR).join(topic).join(partition));
    let led = led.expect("what was imported can be led");
    let log_start = led.partition.status().log_start;
    let served = led.read_all().expect("what was imported can be read");
    led.close();
    let served: Vec<_> = served.iter().filter(|served| served.has_records()).map(Served::records).collect();
    assert_eq!(served, batches(kafka, &format!("{topic}-{partition}"), log_start), "{topic}-{partition}");
}

/// The batches with records that a Kafka would serve that starts on the directory: of the segments that hold the log start and what
/// follows, those that end behind it, up to the first that is damaged. What lies in segments below is not looked at by it, and may
/// be anything.
fn batches(kafka: &Memory, dir: &str, log_start: Offset) -> Vec<(i64, Bytes)> {
    let base = |name: &str| name.strip_suffix(".log").filter(|stem| stem.len() == 20)?.parse::<i64>().ok();
    let entries = kafka.list(Path::new(dir)).expect("it was imported");
    let mut bases: Vec<_> = entries.iter().filter_map(|entry| base(entry.name.to_str()?)).collect();
    bases.sort_unstable();
    let mut batches = Vec::new();
    for (at, base) in bases.iter().enumerate() {
        if bases.get(at + 1).is_some_and(|next| *next <= log_start.0) {
            continue;
        }
        let path = Path::new(dir).join(format!("{base:020}.log"));
        let mut bytes = Bytes::from(read_small(kafka, &path, LOG_BYTES_MAX).expect("a small log"));
        while !bytes.is_empty() {
            let whole = BatchHeader::parse(&bytes).ok().filter(|header| header.batch_bytes <= bytes.len());
            let Some(header) = whole.filter(|header| has_right_checksum(&bytes[..header.batch_bytes])) else {
                return batches;
            };
            let bytes = bytes.split_to(header.batch_bytes);
            let served = Served { header, bytes };
            if served.header.last_offset() >= log_start && served.has_records() {
                batches.push(served.records());
            }
        }
    }
    batches
}

fn has_right_checksum(batch: &[u8]) -> bool {
    let mut renewed = batch.to_vec();
    checksums::renew_batches(&mut renewed);
    renewed == batch
}
