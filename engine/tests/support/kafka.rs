//! A log directory that looks like Apache Kafka's, made byte by byte on a volume in memory.
#![allow(dead_code)]

use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_engine::batch::{BatchOptions, SimpleRecord, data_batch};
use kaas_engine::identity::Identity;
use kaas_engine::import::{ImportError, Options, Progress, Report, Source, plan};
use kaas_engine::leadership::Claimant;
use kaas_engine::types::Epoch;
use kaas_engine::verify::{self, verify};
use kaas_engine::{Engine, EngineSettings, LogConfig, ManualClock, OpenPartition, Partition};
use kaas_substrate::{Memory, OpenMode, Substrate};

use crate::support::{self, Log, START, producer_batch};

/// A log directory in the making.
pub struct Kafka {
    pub volume: Memory,
}

/// Where a batch has its leader epoch, outside of the checksum.
const LEADER_EPOCH_AT: usize = 12;

pub fn at(batch: &[u8], offset: i64, leader_epoch: i32) -> Vec<u8> {
    let mut bytes = batch.to_vec();
    bytes[..8].copy_from_slice(&offset.to_be_bytes());
    bytes[LEADER_EPOCH_AT..LEADER_EPOCH_AT + 4].copy_from_slice(&leader_epoch.to_be_bytes());
    bytes
}

pub fn values(offset: i64, leader_epoch: i32, values: &[&str]) -> Vec<u8> {
    at(&support::batch(values), offset, leader_epoch)
}

/// The id of the topic `orders`.
pub const ID: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// A record of Kafka's metadata log: a topic is created (2), or a partition of it (3), or it is removed (9), or a config set (4).
pub fn metadata_record(kind: u8, parts: &[&[u8]]) -> SimpleRecord {
    let mut bytes = vec![1, kind, 0];
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes.push(0);
    SimpleRecord { value: Some(bytes.into()), ..SimpleRecord::of_value("") }
}

/// A string of such a record.
pub fn compact(text: &str) -> Vec<u8> {
    [&[text.len() as u8 + 1], text.as_bytes()].concat()
}

impl Kafka {
    pub fn new() -> Self {
        let kafka = Self { volume: Memory::new() };
        kafka.put(".kafka_cleanshutdown", b"");
        kafka.put("meta.properties", b"version=1\ncluster.id=abcdefghijklmnopqrstuv\nnode.id=1\n");
        kafka.put("recovery-point-offset-checkpoint", b"0\n0\n");
        kafka
    }

    pub fn put(&self, path: &str, bytes: &[u8]) {
        let path = Path::new(path);
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            match self.volume.create_dir(dir) {
                Err(error) if !error.is_exists() => panic!("{error}"),
                _ => {}
            }
        }
        match self.volume.remove_file(path) {
            Err(error) if !error.is_not_found() => panic!("{error}"),
            _ => {}
        }
        self.volume.open(path, OpenMode::CreateNew).unwrap().write_all_at(&[IoSlice::new(bytes)], 0).unwrap();
    }

    pub fn remove(&self, path: &str) {
        self.volume.remove_file(Path::new(path)).unwrap();
    }

    pub fn log(&self, dir: &str, base: i64, batches: &[Vec<u8>]) {
        self.put(&format!("{dir}/{base:020}.log"), &batches.concat());
    }

    /// Two partitions: three segments under the leader epochs 0, 0 to 3, and 3, and an empty one.
    pub fn orders() -> Self {
        let kafka = Self::new();
        kafka.log("orders-0", 0, &[values(0, 0, &["v0", "v1"]), values(2, 0, &["v2"])]);
        kafka.log("orders-0", 3, &[values(3, 0, &["v3"]), values(4, 3, &["v4", "v5"])]);
        kafka.log("orders-0", 6, &[at(&producer_batch(4321, 0, 0, &["v6"]), 6, 3)]);
        kafka.put("orders-0/leader-epoch-checkpoint", b"0\n2\n0 0\n3 4\n");
        kafka.log("orders-1", 0, &[]);
        for partition in 0..2 {
            let path = format!("orders-{partition}/partition.metadata");
            kafka.put(&path, b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw");
        }
        kafka
    }

    /// One of the checkpoints of the log directory: lines of topic, partition and offset.
    pub fn checkpoint(&self, name: &str, lines: &[&str]) {
        let text = format!("0\n{}\n{}\n", lines.len(), lines.join("\n"));
        self.put(&format!("{name}-checkpoint"), text.as_bytes());
    }

    /// Where the logs end.
    pub fn ends(&self, lines: &[&str]) {
        self.checkpoint("recovery-point-offset", lines);
    }

    /// Where the logs begin.
    pub fn starts(&self, lines: &[&str]) {
        self.checkpoint("log-start-offset", lines);
    }

    /// A file of Kafka's metadata log with one batch; returns its bytes.
    pub fn metadata(&self, name: &str, offset: i64, records: &[SimpleRecord]) -> Vec<u8> {
        let batch = at(&data_batch(records, &BatchOptions::default()).unwrap(), offset, 1);
        self.put(&format!("__cluster_metadata-0/{name}"), &batch);
        batch
    }

    /// A whole snapshot of Kafka's metadata.
    pub fn metadata_snapshot(&self, name: &str, records: &[SimpleRecord]) {
        let batch = self.metadata(name, 0, records);
        let footer = SimpleRecord { key: Some(vec![0, 0, 0, 4].into()), ..SimpleRecord::of_value("\0\0\0") };
        let mut footer =
            at(&data_batch(&[footer], &BatchOptions::default()).unwrap(), records.len() as i64, 1);
        // A control batch.
        footer[22] |= 0x20;
        let crc = crc32c::crc32c(&footer[21..]);
        footer[17..21].copy_from_slice(&crc.to_be_bytes());
        self.put(&format!("__cluster_metadata-0/{name}"), &[batch, footer].concat());
    }

    pub fn sources(&self) -> Vec<Source> {
        vec![Source { volume: Arc::new(self.volume.clone()), only: None }]
    }

    pub fn import_with(&self, target: &Arc<dyn Substrate>, options: &Options) -> Result<Report, ImportError> {
        let progress = Progress::default();
        let plan = plan(&self.sources(), Some(&**target), options, &progress)?;
        plan.carry_out(target, &progress)
    }

    pub fn import(&self, target: &Arc<dyn Substrate>) -> Report {
        self.import_with(target, &options()).unwrap()
    }

    pub fn problems(&self) -> Vec<String> {
        self.problems_with(&options())
    }

    pub fn problems_with(&self, options: &Options) -> Vec<String> {
        let target: Arc<dyn Substrate> = Arc::new(Memory::new());
        let report = self.import_with(&target, options).unwrap();
        if !report.problems.is_empty() {
            assert!(!report.is_done);
            assert!(target.list(Path::new("")).unwrap().is_empty(), "something was written");
        }
        report.problems.into_iter().map(|problem| problem.problem).collect()
    }
}

pub fn options() -> Options {
    Options { node_id: 1, ..Options::default() }
}

pub fn empty() -> Arc<dyn Substrate> {
    Arc::new(Memory::new())
}

pub fn assert_clean(target: &Arc<dyn Substrate>) {
    let options = verify::Options::default();
    let report = verify(&**target, Path::new(""), &options, &verify::Progress::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

pub fn identity(partition: u32) -> Identity {
    Identity { topic: "orders".into(), partition, topic_id: std::array::from_fn(|n| n as u8) }
}

pub fn open(target: &Arc<dyn Substrate>, partition: u32, epoch: u32) -> Log {
    open_with(target, partition, epoch, LogConfig::default())
}

pub fn open_with(target: &Arc<dyn Substrate>, partition: u32, epoch: u32, config: LogConfig) -> Log {
    let clock = Arc::new(ManualClock::new(START));
    let engine = Engine::open(Arc::clone(target), EngineSettings::default(), clock).unwrap();
    let request = OpenPartition {
        dir: PathBuf::from(format!("topics/orders/{partition}")),
        identity: identity(partition),
        epoch: Epoch::new(epoch).unwrap(),
        claimant: Claimant { broker_id: 1, incarnation: "run".into(), assignment_version: 0 },
        config,
    };
    let partition = engine.open_partition(request).unwrap();
    Log { engine, partition }
}

pub fn epochs(partition: &Arc<Partition>) -> Vec<Option<(u32, i64)>> {
    let end = |epoch| partition.end_offset_for_epoch(Epoch::new(epoch).unwrap());
    (0..4).map(|epoch| end(epoch).map(|(epoch, end)| (epoch.get(), end.0))).collect()
}
