//! A whole data directory, and what verify says of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kaas_engine::io::{IoPool, IoPoolSettings};
use kaas_engine::journal::{self, Journal, JournalSettings, Sequence};
use kaas_engine::leadership::{self, Claimant};
use kaas_engine::manifest::versioned;
use kaas_engine::types::Epoch;
use kaas_engine::verify::repair::{Mode, Repaired, repair};
use kaas_engine::verify::{Finding, Kind, Options, Progress, Report, VerifyError, verify};
use kaas_engine::{Engine, EngineSettings, LogConfig, ManualClock, OpenPartition};
use kaas_substrate::{Local, Substrate};
use serde_json::json;

use crate::looking::{bad, options};
use crate::support::{START, batch, producer_batch};

/// The slot.
pub const SLOT: &str = "slots/groups/07";

pub struct Data {
    temporary: tempfile::TempDir,
}

impl Data {
    /// Two topics of three partitions with a few records, the cluster's files, a slot with a journal.
    pub fn new() -> Self {
        let data = Self { temporary: tempfile::tempdir().unwrap() };
        let volume: Arc<dyn Substrate> = Arc::new(Local::open(data.temporary.path()).unwrap());
        for dir in ["cluster", "cluster/controller", "topics", "slots", "slots/groups"] {
            volume.create_dir(Path::new(dir)).unwrap();
        }
        data.write_json("cluster/meta.json", &json!({"cluster_id": "x", "node_id": 1}));
        let configs = json!({"all": {"max.connections": "9"}, "brokers": {"1": {"max.connections": "500"}}});
        data.write_json("cluster/broker-configs.00000001.1.json", &configs);
        data.write_json("cluster/producer-ids.00000001.1.json", &json!({"next_block_start": 1000}));
        data.write("cluster/lock", "");
        data.write("cluster/lock-holder.json", "{\"pid\":7}\n");
        leadership::birth(&*volume, Path::new("cluster/controller"), Epoch::NONE).unwrap();
        let claimant = Claimant { broker_id: 1, incarnation: "run".into(), assignment_version: 0 };
        let epoch = Epoch::new(1).unwrap();
        leadership::claim(&volume, Path::new("cluster/controller"), epoch, &claimant).unwrap();

        let clock = Arc::new(ManualClock::new(START));
        let engine = Engine::open(Arc::clone(&volume), EngineSettings::default(), clock).unwrap();
        for topic in ["orders", "payments"] {
            let id = [topic.len() as u8; 16];
            volume.create_dir(&Path::new("topics").join(topic)).unwrap();
            let text = URL_SAFE_NO_PAD.encode(id);
            data.write_json(
                &format!("topics/{topic}/topic-id.json"),
                &json!({"topic": topic, "topic_id": text}),
            );
            for partition in 0..3 {
                let dir = PathBuf::from(format!("topics/{topic}/{partition}"));
                volume.create_dir(&dir).unwrap();
                let identity =
                    kaas_engine::identity::Identity { topic: topic.into(), partition, topic_id: id };
                kaas_engine::identity::write_partition(&*volume, &dir, &identity, Epoch::NONE).unwrap();
                let claimant = claimant.clone();
                let config = LogConfig::default();
                let opened =
                    engine.open_partition(OpenPartition { dir, identity, epoch, claimant, config }).unwrap();
                opened.append(&batch(&["a", "b"]), Default::default()).unwrap().wait().unwrap().unwrap();
                let idempotent = producer_batch(7, 0, 0, &["c"]);
                opened.append(&idempotent, Default::default()).unwrap().wait().unwrap().unwrap();
                opened.close().wait().unwrap().unwrap();
            }
        }
        data.write_json("topics/orders/config.00000001.1.json", &json!({"config": {"retention.ms": "1"}}));

        let slot = Path::new(SLOT);
        journal::birth(&*volume, slot, "1").unwrap();
        let settings = IoPoolSettings { name: "test", max_threads: 2, idle_ms: 100, max_queued: 100 };
        let pool = Arc::new(IoPool::new(settings).unwrap());
        let (journal, _) =
            Journal::open(&volume, slot, epoch, &claimant, &pool, JournalSettings::default()).unwrap();
        for n in 0..5 {
            journal.append(&[n]).wait().unwrap();
        }
        journal.close();
        data
    }

    /// The same with a snapshot in the slot that covers the first entries.
    pub fn with_snapshot() -> Self {
        let data = Self::new();
        let (journal, _) = data.open_slot();
        journal.write_snapshot(Sequence(3), &json!({"state": "three"})).wait().unwrap();
        journal.append(&[7]).wait().unwrap();
        journal.close();
        data.assert_clean();
        data
    }

    pub fn root(&self) -> &Path {
        self.temporary.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// A JSON file as kaas writes it, with its checksum.
    pub fn write_json(&self, name: &str, value: &serde_json::Value) {
        let bytes = versioned::encode(Path::new(name), 1, value).unwrap();
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub fn verify(&self, target: &str) -> Report {
        self.try_verify(target).unwrap()
    }

    pub fn try_verify(&self, target: &str) -> Result<Report, VerifyError> {
        let volume = Local::open(self.temporary.path()).unwrap();
        verify(&volume, Path::new(target), &options(), &Progress::default())
    }

    pub fn volume(&self) -> Arc<dyn Substrate> {
        Arc::new(Local::open(self.temporary.path()).unwrap())
    }

    /// Repairs what is wrong, through `volume`.
    pub fn repair_through(
        &self,
        volume: &Arc<dyn Substrate>,
        options: &Options,
        mode: &Mode,
    ) -> Vec<Repaired> {
        let report = verify(&**volume, Path::new(""), options, &Progress::default()).unwrap();
        repair(volume, &report, options, mode, &Progress::default())
    }

    pub fn repair(&self, options: &Options) -> Vec<Repaired> {
        let claimant = Claimant { broker_id: -1, incarnation: "repair".into(), assignment_version: 0 };
        self.repair_through(&self.volume(), options, &Mode::Repair(claimant))
    }

    pub fn dry_run(&self, options: &Options) -> Vec<Repaired> {
        self.repair_through(&self.volume(), options, &Mode::DryRun)
    }

    /// Opens the slot at an epoch that nobody has claimed: the snapshot, and the entries behind it.
    pub fn open_slot(&self) -> (Journal, journal::Replay) {
        self.try_open_slot().unwrap()
    }

    pub fn try_open_slot(&self) -> Result<(Journal, journal::Replay), journal::OpenError> {
        let (volume, slot) = (self.volume(), Path::new(SLOT));
        let epoch = leadership::highest(&*volume, slot).unwrap().next();
        let claimant = Claimant { broker_id: 1, incarnation: "next".into(), assignment_version: 0 };
        let settings = IoPoolSettings { name: "test", max_threads: 2, idle_ms: 100, max_queued: 100 };
        let pool = Arc::new(IoPool::new(settings).unwrap());
        Journal::open(&volume, slot, epoch, &claimant, &pool, JournalSettings::default())
    }

    #[track_caller]
    pub fn assert_found(&self, kind: Kind, file: &str) -> Finding {
        let report = self.verify("");
        let found = report.findings.iter().find(|finding| finding.kind == kind);
        let found = found.unwrap_or_else(|| panic!("{kind:?} is not among {:#?}", report.findings));
        assert_eq!(found.file, Path::new(file));
        found.clone()
    }

    #[track_caller]
    pub fn assert_clean(&self) -> Report {
        let report = self.verify("");
        assert!(report.is_clean() && bad(&report).is_empty(), "{:#?}", report.findings);
        report
    }
}
