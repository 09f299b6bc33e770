//! Opening a partition whose files say anything.
//!
//! Asserted: it opens or says why not; what it serves has gapless, ascending offsets within its bounds; it takes an append behind
//! them; and an open after a crash sees all of that again, the same.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kaas_engine::batch::{BatchHeader, BatchOptions, SimpleRecord, check_crc, data_batch};
use kaas_engine::identity::read_partition;
use kaas_engine::leadership::{self, Claimant};
use kaas_engine::types::{Offset, Timestamp};
use kaas_engine::{
    AppendOptions, Engine, EngineSettings, FetchedRecords, Isolation, LogConfig, ManualClock, OpenPartition,
    Partition, Read, ReadError, ReadRequest, RecordsPart,
};
use kaas_substrate::Substrate;

use crate::Archive;

/// Where the partition is in the archive.
pub const DIR: &str = "0";

/// A partition directory as an archive.
pub fn recovery(data: &[u8]) {
    let volume: Arc<dyn Substrate> = Arc::new(Archive::unpack(data).volume());
    let Some((engine, partition)) = open(&volume) else { return };
    let before = read_all(&partition);
    let batch = data_batch(&[SimpleRecord::of_value("next")], &BatchOptions::default()).expect("a batch");
    let end = partition.status().log_end;
    match partition.append_and_wait(&batch, AppendOptions::default()) {
        Ok(appended) => assert_eq!(appended.base_offset, end),
        // At the last offset that there is, or on a volume that says it is full.
        Err(_) => return,
    }
    let _ = partition.abandon().wait();
    engine.close();
    let Some((engine, partition)) = open(&volume) else {
        panic!("it opened, took an append, and opens no more")
    };
    if let Some(before) = before {
        let after = read_all(&partition).expect("what could be read cannot be read any more");
        assert!(after.starts_with(&before), "what was served has changed");
        assert_eq!(after.last().map(|(offset, _)| *offset), Some(end.0));
    }
    let _ = partition.close().wait();
    engine.close();
}

/// At the next epoch that can be claimed.
fn open(volume: &Arc<dyn Substrate>) -> Option<(Engine, Arc<Partition>)> {
    let epoch = leadership::highest(&**volume, Path::new(DIR)).ok()?.next();
    let identity = read_partition(&**volume, Path::new(DIR)).ok()?;
    let clock = Arc::new(ManualClock::new(Timestamp(1_700_000_000_000)));
    let mut settings = EngineSettings::default();
    settings.io.max_threads = 1;
    let engine = Engine::open(Arc::clone(volume), settings, clock).expect("an engine");
    let opened = engine.open_partition(OpenPartition {
        dir: PathBuf::from(DIR),
        identity,
        epoch,
        claimant: Claimant { broker_id: 1, incarnation: format!("run-{epoch}"), assignment_version: 0 },
        config: LogConfig::default(),
    });
    match opened {
        Ok(partition) => Some((engine, partition)),
        Err(_) => {
            engine.close();
            None
        }
    }
}

/// Every batch's base offset and bytes from the log start to the high watermark; `None` if some of it is damaged: what is pinned
/// is not looked at when it is opened.
fn read_all(partition: &Arc<Partition>) -> Option<Vec<(i64, Bytes)>> {
    let status = partition.status();
    assert!(status.log_start <= status.last_stable);
    assert!(status.last_stable <= status.high_watermark && status.high_watermark <= status.log_end);
    let mut from = status.log_start;
    let mut batches = Vec::new();
    while from < status.high_watermark {
        let mut bytes = bytes_of(&read(partition, from).ok()?);
        if bytes.is_empty() {
            // A manifest that says more than there is, or a log whose end was compacted away.
            return None;
        }
        while !bytes.is_empty() {
            let header = BatchHeader::parse(&bytes).expect("a batch is served that is none");
            assert!(
                header.last_offset() >= from && header.next_offset() <= status.high_watermark,
                "out of bounds"
            );
            let batch = bytes.split_to(header.batch_bytes);
            check_crc(&batch).ok()?;
            batches.push((header.base_offset.0, batch));
            from = header.next_offset();
        }
    }
    Some(batches)
}

fn read(partition: &Arc<Partition>, from: Offset) -> Result<FetchedRecords, ReadError> {
    let request = ReadRequest {
        from,
        max_bytes: 1 << 16,
        at_least_one: true,
        isolation: Isolation::ReadUncommitted,
        file_ranges: false,
    };
    match partition.read(request)? {
        Read::Ready(fetched) => Ok(fetched),
        Read::Blocking(read) => read.run(),
    }
}

fn bytes_of(fetched: &FetchedRecords) -> Bytes {
    let mut all = Vec::new();
    for part in &fetched.parts {
        match part {
            RecordsPart::Bytes(bytes) => all.extend_from_slice(bytes),
            RecordsPart::FileRange { .. } => unreachable!("none were asked for"),
        }
    }
    Bytes::from(all)
}
