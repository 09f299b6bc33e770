//! A partition on a volume, for tests: made, opened at ever higher epochs, "crashed" by abandoning it.
#![allow(dead_code)]

pub mod actor;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kaas_engine::batch::{BatchOptions, DecodeLimits, Producer, SimpleRecord, data_batch, decode_records};
use kaas_engine::identity::{Identity, write_partition};
use kaas_engine::leadership::Claimant;
use kaas_engine::types::{Epoch, Offset, ProducerId, Timestamp};
use kaas_engine::{
    AppendError, AppendOptions, Appended, Engine, EngineError, EngineSettings, FetchedRecords, Isolation,
    LogConfig, ManualClock, OpenPartition, Partition, Read, ReadError, ReadRequest, RecordsPart,
};
use kaas_substrate::{Local, Memory, Substrate};

pub const START: Timestamp = Timestamp(1_700_000_000_000);

/// One volume with one partition on it.
pub struct Volume {
    pub substrate: Arc<dyn Substrate>,
    pub clock: Arc<ManualClock>,
    pub settings: EngineSettings,
    pub config: LogConfig,
    pub dir: PathBuf,
    next_epoch: std::sync::atomic::AtomicU32,
    _temporary: Option<tempfile::TempDir>,
}

impl Volume {
    pub fn memory() -> Self {
        Self::on(Arc::new(Memory::new()), None)
    }

    pub fn local() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let substrate = Local::open(temporary.path()).unwrap();
        Self::on(Arc::new(substrate), Some(temporary))
    }

    pub fn on(substrate: Arc<dyn Substrate>, temporary: Option<tempfile::TempDir>) -> Self {
        let dir = PathBuf::from("0");
        substrate.create_dir(&dir).unwrap();
        write_partition(&*substrate, &dir, &identity(), Epoch::NONE).unwrap();
        substrate.sync_tree(&dir).unwrap();
        Self {
            substrate,
            clock: Arc::new(ManualClock::new(START)),
            settings: EngineSettings::default(),
            config: LogConfig::default(),
            dir,
            next_epoch: std::sync::atomic::AtomicU32::new(1),
            _temporary: temporary,
        }
    }

    /// A volume that has its partition already.
    pub fn of(substrate: Arc<dyn Substrate>, temporary: tempfile::TempDir) -> Self {
        Self {
            substrate,
            clock: Arc::new(ManualClock::new(START)),
            settings: EngineSettings::default(),
            config: LogConfig::default(),
            dir: PathBuf::from("0"),
            next_epoch: std::sync::atomic::AtomicU32::new(1),
            _temporary: Some(temporary),
        }
    }

    /// The same volume through another substrate; epochs go on.
    pub fn seen_through(&self, substrate: Arc<dyn Substrate>) -> Self {
        Self {
            substrate,
            clock: Arc::clone(&self.clock),
            settings: self.settings.clone(),
            config: self.config.clone(),
            dir: self.dir.clone(),
            next_epoch: self.next_epoch.load(std::sync::atomic::Ordering::Relaxed).into(),
            _temporary: None,
        }
    }

    /// This volume, with its epochs going on behind those that `other` has used.
    pub fn after(self, other: &Self) -> Self {
        let next = other.next_epoch.load(std::sync::atomic::Ordering::Relaxed);
        self.next_epoch.fetch_max(next, std::sync::atomic::Ordering::Relaxed);
        self
    }

    pub fn path(&self) -> &Path {
        self._temporary.as_ref().expect("a local volume").path()
    }

    pub fn engine(&self) -> Engine {
        let clock: Arc<ManualClock> = Arc::clone(&self.clock);
        Engine::open(Arc::clone(&self.substrate), self.settings.clone(), clock).unwrap()
    }

    /// Opens the partition at the next epoch.
    pub fn open(&self) -> Log {
        self.try_open().unwrap()
    }

    pub fn try_open(&self) -> Result<Log, EngineError> {
        let number = self.next_epoch.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.open_at(number)
    }

    pub fn open_at(&self, epoch: u32) -> Result<Log, EngineError> {
        self.open_with(self.engine(), epoch)
    }

    pub fn open_with(&self, engine: Engine, epoch: u32) -> Result<Log, EngineError> {
        let partition = engine.open_partition(OpenPartition {
            dir: self.dir.clone(),
            identity: identity(),
            epoch: Epoch::new(epoch).unwrap(),
            claimant: Claimant { broker_id: 1, incarnation: format!("run-{epoch}"), assignment_version: 0 },
            config: self.config.clone(),
        })?;
        Ok(Log { engine, partition })
    }
}

/// A test on a volume in memory, and on a directory of this machine.
pub fn each_volume(test: impl Fn(Volume)) {
    test(Volume::memory());
    test(Volume::local());
}

pub fn identity() -> Identity {
    Identity { topic: "orders".into(), partition: 0, topic_id: [7; 16] }
}

/// An open partition with its engine.
pub struct Log {
    pub engine: Engine,
    pub partition: Arc<Partition>,
}

impl Log {
    pub fn append(&self, values: &[&str]) -> Result<Appended, AppendError> {
        self.append_batch(&batch(values))
    }

    pub fn append_batch(&self, batch: &Bytes) -> Result<Appended, AppendError> {
        self.partition.append_and_wait(batch, AppendOptions::default())
    }

    pub fn read(&self, from: i64) -> Result<FetchedRecords, ReadError> {
        self.read_with(ReadRequest {
            from: Offset(from),
            max_bytes: 1 << 20,
            at_least_one: true,
            isolation: Isolation::ReadUncommitted,
            file_ranges: false,
        })
    }

    pub fn read_with(&self, request: ReadRequest) -> Result<FetchedRecords, ReadError> {
        match self.partition.read(request)? {
            Read::Ready(fetched) => Ok(fetched),
            Read::Blocking(read) => read.run(),
        }
    }

    /// Every record from the log start to the high watermark: offset and value.
    pub fn records(&self) -> Vec<(i64, String)> {
        let mut from = self.partition.status().log_start.0;
        let mut records = Vec::new();
        loop {
            let fetched = self.read(from).unwrap();
            if fetched.bytes == 0 {
                assert_eq!(Offset(from), fetched.status.high_watermark, "a read stopped short");
                return records;
            }
            for (offset, value) in decode(&fetched) {
                if offset >= from {
                    records.push((offset, value));
                    from = offset + 1;
                }
            }
        }
    }

    pub fn values(&self) -> Vec<String> {
        self.records().into_iter().map(|(_, value)| value).collect()
    }

    pub fn close(self) {
        self.partition.close().wait().unwrap().unwrap();
    }

    /// Leaves everything as it is on the volume, as a crash of the process would.
    pub fn crash(self) {
        self.partition.abandon().wait().unwrap().unwrap();
    }
}

pub fn batch(values: &[&str]) -> Bytes {
    let records: Vec<_> = values.iter().map(|value| SimpleRecord::of_value(value.to_string())).collect();
    data_batch(&records, &BatchOptions { base_timestamp: START, ..BatchOptions::default() }).unwrap()
}

pub fn producer_batch(id: i64, epoch: i16, base_sequence: i32, values: &[&str]) -> Bytes {
    let records: Vec<_> = values.iter().map(|value| SimpleRecord::of_value(value.to_string())).collect();
    let producer = Some(Producer { id: ProducerId(id), epoch, base_sequence });
    data_batch(&records, &BatchOptions { base_timestamp: START, producer, ..BatchOptions::default() })
        .unwrap()
}

pub fn bytes_of(fetched: &FetchedRecords) -> Bytes {
    let mut all = Vec::new();
    for part in &fetched.parts {
        match part {
            RecordsPart::Bytes(bytes) => all.extend_from_slice(bytes),
            RecordsPart::FileRange { file, position, length } => {
                let mut bytes = vec![0; *length];
                assert_eq!(file.read_at(&mut bytes, *position).unwrap(), *length);
                all.extend_from_slice(&bytes);
            }
        }
    }
    assert_eq!(all.len(), fetched.bytes);
    Bytes::from(all)
}

pub fn decode(fetched: &FetchedRecords) -> Vec<(i64, String)> {
    let mut bytes = bytes_of(fetched);
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let batch = decode_records(&bytes, &DecodeLimits::default()).unwrap();
        let length = batch.header().batch_bytes;
        kaas_engine::batch::check_crc(&bytes).unwrap();
        for record in batch {
            let record = record.unwrap();
            let value = String::from_utf8(record.value.unwrap_or_default().to_vec()).unwrap();
            records.push((record.offset.0, value));
        }
        bytes = bytes.slice(length..);
    }
    records
}

/// The offsets of all records, control records included.
pub fn decode_offsets(fetched: &FetchedRecords) -> Vec<i64> {
    let mut bytes = bytes_of(fetched);
    let mut offsets = Vec::new();
    while !bytes.is_empty() {
        let header = kaas_engine::batch::BatchHeader::parse(&bytes).unwrap();
        offsets.extend(header.base_offset.0..=header.last_offset().0);
        bytes = bytes.slice(header.batch_bytes..);
    }
    offsets
}
