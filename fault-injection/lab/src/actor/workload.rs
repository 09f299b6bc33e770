//! What a leader does all day: one thread appends, with several batches in flight, one reads what is committed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use kaas_engine::batch::{BatchOptions, DecodeLimits, SimpleRecord, check_crc, data_batch, decode_records};
use kaas_engine::types::{Offset, Timestamp};
use kaas_engine::{
    Acks, AppendError, AppendOptions, AppendTicket, Isolation, Partition, Read, ReadError, ReadRequest,
    RecordsPart, State,
};

use super::Voice;
use crate::protocol::Event;

/// Most batches in flight, and records in a batch.
const IN_FLIGHT_MAX: u64 = 8;
const RECORDS_MAX: u64 = 4;

/// Longest padding of a value: a batch may cover several pages.
const PADDING_MAX: u64 = 3000;

const PAUSE: Duration = Duration::from_millis(20);

/// The running threads.
pub(super) struct Workload {
    halted: Arc<AtomicBool>,
    threads: [JoinHandle<()>; 2],
}

impl Workload {
    pub(super) fn start(partition: Arc<Partition>, voice: Voice, tag: String) -> Self {
        let (halted, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let appender = {
            let (partition, voice, halted, over) =
                (Arc::clone(&partition), voice.clone(), Arc::clone(&halted), Arc::clone(&over));
            std::thread::spawn(move || {
                let reason = append_until(&partition, &voice, &tag, &halted);
                over.store(true, Ordering::SeqCst);
                voice.tell(Event::Ended { reason });
            })
        };
        let reader = std::thread::spawn(move || read_until(&partition, &voice, &over));
        Self { halted, threads: [appender, reader] }
    }

    pub(super) fn halt(self) {
        self.halted.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().expect("neither thread panics");
        }
    }
}

/// A small generator of numbers, for sizes only.
fn scatter(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 33
}

/// A value that tells whether it is whole: the tag, and as many `x` as follow from it.
fn value(tag: &str) -> String {
    let number = tag.bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let padding = usize::try_from(scatter(number) % PADDING_MAX).unwrap_or(0);
    format!("{tag} {}", "x".repeat(padding))
}

/// One batch of a record for each tag.
pub(super) fn batch(tags: &[String]) -> Bytes {
    let records: Vec<_> = tags.iter().map(|tag| SimpleRecord::of_value(value(tag))).collect();
    let options = BatchOptions { base_timestamp: Timestamp(1_700_000_000_000), ..BatchOptions::default() };
    data_batch(&records, &options).expect("small records")
}

/// Appends until told to stop or until the partition has ended; why it ended.
fn append_until(partition: &Arc<Partition>, voice: &Voice, tag: &str, halted: &AtomicBool) -> String {
    let mut in_flight: VecDeque<(Vec<String>, AppendTicket)> = VecDeque::new();
    let mut next = 0u64;
    let options = AppendOptions { acks: Acks::Committed, ..AppendOptions::default() };
    loop {
        let goes_on = !halted.load(Ordering::SeqCst) && is_leader(&partition.status().state);
        let window = if goes_on { 1 + scatter(next) % IN_FLIGHT_MAX } else { 0 };
        while u64::try_from(in_flight.len()).unwrap_or(u64::MAX) >= window.max(1) {
            let Some((tags, ticket)) = in_flight.pop_front() else { break };
            match ticket.wait() {
                Ok(Ok(appended)) => {
                    voice.tell(Event::Acknowledged { offset: appended.base_offset.0, tags });
                }
                Ok(Err(error)) => voice.tell(Event::Refused { tags, reason: error.to_string() }),
                Err(abandoned) => voice.tell(Event::Refused { tags, reason: format!("{abandoned:?}") }),
            }
        }
        if !goes_on {
            if in_flight.is_empty() {
                return format!("{:?}", partition.status().state);
            }
            continue;
        }
        let count = 1 + scatter(next ^ 0x5555) % RECORDS_MAX;
        let tags: Vec<_> = (next..next + count).map(|number| format!("{tag}-{number}")).collect();
        match partition.append(&batch(&tags), options) {
            Ok(ticket) => in_flight.push_back((tags, ticket)),
            Err(AppendError::Busy { .. }) => std::thread::sleep(PAUSE),
            Err(error) => {
                voice.tell(Event::Refused { tags, reason: error.to_string() });
                std::thread::sleep(PAUSE);
            }
        }
        next += count;
    }
}

fn is_leader(state: &State) -> bool {
    matches!(state, State::Leading | State::Unsure)
}

/// Reads from the log start on, whatever becomes visible.
fn read_until(partition: &Arc<Partition>, voice: &Voice, over: &AtomicBool) {
    let mut from = partition.status().log_start;
    while !over.load(Ordering::SeqCst) {
        match read_some(partition, from) {
            Ok(records) => {
                if records.is_empty() {
                    std::thread::sleep(PAUSE);
                }
                for (offset, tag) in records {
                    from = Offset(offset + 1);
                    match tag {
                        Ok(tag) => voice.tell(Event::Read { offset, tag }),
                        Err(what) => voice.tell(Event::Wrong { what }),
                    }
                }
            }
            Err(ReadError::Damaged { path, position, reason }) => {
                let what = format!("read: {} is damaged at {position}: {reason}", path.display());
                voice.tell(Event::Wrong { what });
                return;
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Offset and tag of every committed record.
pub(super) fn read_all(partition: &Arc<Partition>) -> Result<Vec<(i64, String)>, String> {
    let status = partition.status();
    let mut from = status.log_start;
    let mut all = Vec::new();
    while from < status.high_watermark {
        let records = read_some(partition, from).map_err(|error| format!("reading at {from}: {error}"))?;
        if records.is_empty() {
            return Err(format!("nothing at {from}, below the high watermark {}", status.high_watermark));
        }
        for (offset, tag) in records {
            if offset != from.0 {
                return Err(format!("offset {offset} instead of {from}"));
            }
            from = Offset(offset + 1);
            all.push((offset, tag?));
        }
    }
    Ok(all)
}

type Found = (i64, Result<String, String>);

/// What one read returns from `from` on. `Err` of a record says how it is broken.
fn read_some(partition: &Arc<Partition>, from: Offset) -> Result<Vec<Found>, ReadError> {
    let request = ReadRequest {
        from,
        max_bytes: 1 << 18,
        at_least_one: true,
        isolation: Isolation::ReadUncommitted,
        file_ranges: false,
    };
    let fetched = match partition.read(request)? {
        Read::Ready(fetched) => fetched,
        Read::Blocking(read) => read.run()?,
    };
    let mut bytes = Vec::new();
    for part in &fetched.parts {
        if let RecordsPart::Bytes(part) = part {
            bytes.extend_from_slice(part);
        }
    }
    let mut bytes = Bytes::from(bytes);
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let whole = check_crc(&bytes).and_then(|()| decode_records(&bytes, &DecodeLimits::default()));
        let batch = match whole {
            Ok(batch) => batch,
            Err(error) => {
                found.push((from.0, Err(format!("a broken batch was read at {from}: {error}"))));
                return Ok(found);
            }
        };
        let length = batch.header().batch_bytes;
        for record in batch {
            let Ok(record) = record else {
                found.push((from.0, Err(format!("a broken record was read at {from}"))));
                return Ok(found);
            };
            if record.offset >= from {
                let text = String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned();
                let tag = text.split(' ').next().unwrap_or_default().to_owned();
                let tag = if text == value(&tag) { Ok(tag) } else { Err(format!("{tag} is not whole")) };
                found.push((record.offset.0, tag));
            }
        }
        bytes = bytes.slice(length..);
    }
    Ok(found)
}
