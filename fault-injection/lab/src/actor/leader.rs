//! An actor as the leader of a partition.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kaas_engine::identity::{Identity, write_partition};
use kaas_engine::leadership::Claimant;
use kaas_engine::types::Epoch;
use kaas_engine::verify::{Expected, Options, Progress, Severity, verify_partition};
use kaas_engine::{AppendOptions, Engine, EngineSettings, LogConfig, OpenPartition, Partition, SystemClock};
use kaas_substrate::Substrate;
use parking_lot::Mutex;

use super::Voice;
use super::workload::{Workload, batch, read_all};
use crate::protocol::{Failure, Value};

/// Small, so that a few seconds of appends roll segments and write checkpoints.
const SEGMENT_BYTES: u64 = 256 << 10;
const CHECKPOINT_DISTANCE_BYTES: u64 = 64 << 10;

/// How long `verify` waits before it looks again at what a live leader's work may have looked like. Other hosts' caches
/// are that late.
const SECOND_LOOK_AFTER: Duration = Duration::from_secs(4);

type Outcome = Result<Value, Failure>;

/// The partition that the actor leads, if it leads one.
pub(super) struct Leader {
    substrate: Arc<dyn Substrate>,
    voice: Voice,
    led: Mutex<Option<(Engine, Arc<Partition>)>>,
    workload: Mutex<Option<Workload>>,
}

impl Leader {
    pub(super) fn new(substrate: Arc<dyn Substrate>, voice: Voice) -> Self {
        Self { substrate, voice, led: Mutex::default(), workload: Mutex::default() }
    }

    /// Born whole: under another name, and renamed.
    pub(super) fn make(&self, dir: &str) -> Outcome {
        let (born, volume) = (format!("~{dir}"), &*self.substrate);
        volume.create_dir(Path::new(&born))?;
        write_partition(volume, Path::new(&born), &identity(dir), Epoch::NONE).map_err(Failure::of)?;
        volume.sync_tree(Path::new(&born))?;
        volume.rename(Path::new(&born), Path::new(dir))?;
        volume.sync_dir(Path::new(""))?;
        Ok(Value::Nothing)
    }

    pub(super) fn open(&self, dir: &str, epoch: u32) -> Outcome {
        let settings = EngineSettings {
            checkpoint_distance_bytes: CHECKPOINT_DISTANCE_BYTES,
            ..EngineSettings::default()
        };
        let engine = Engine::open(Arc::clone(&self.substrate), settings, Arc::new(SystemClock))
            .map_err(Failure::of)?;
        let partition = engine
            .open_partition(OpenPartition {
                dir: dir.into(),
                identity: identity(dir),
                epoch: Epoch::new(epoch).ok_or_else(|| Failure::of("no such epoch"))?,
                claimant: Claimant {
                    broker_id: 1,
                    incarnation: format!("process {}", std::process::id()),
                    assignment_version: 0,
                },
                config: LogConfig { segment_bytes: SEGMENT_BYTES, ..LogConfig::default() },
            })
            .map_err(Failure::from)?;
        *self.led.lock() = Some((engine, partition));
        self.status()
    }

    pub(super) fn lead(&self, tag: &str) -> Outcome {
        let workload = Workload::start(self.partition()?, self.voice.clone(), tag.to_owned());
        *self.workload.lock() = Some(workload);
        Ok(Value::Nothing)
    }

    pub(super) fn halt(&self) -> Outcome {
        let workload = self.workload.lock().take();
        if let Some(workload) = workload {
            workload.halt();
        }
        Ok(Value::Nothing)
    }

    pub(super) fn append(&self, tag: &str) -> Outcome {
        let appended = self
            .partition()?
            .append_and_wait(&batch(&[tag.to_owned()]), AppendOptions::default())
            .map_err(Failure::of)?;
        Ok(Value::Offset(appended.base_offset.0))
    }

    pub(super) fn read(&self) -> Outcome {
        read_all(&self.partition()?).map(Value::Records).map_err(Failure::of)
    }

    pub(super) fn status(&self) -> Outcome {
        let status = self.partition()?.status();
        Ok(Value::Status {
            state: format!("{:?}", status.state),
            log_start: status.log_start.0,
            high_watermark: status.high_watermark.0,
            log_end: status.log_end.0,
        })
    }

    pub(super) fn close(&self) -> Outcome {
        self.end(|partition| partition.close())
    }

    pub(super) fn abandon(&self) -> Outcome {
        self.end(|partition| partition.abandon())
    }

    pub(super) fn verify(&self, dir: &str) -> Outcome {
        let options = Options { second_look_after: SECOND_LOOK_AFTER, ..Options::default() };
        let (expected, progress) = (Expected::default(), Progress::default());
        let report = verify_partition(&*self.substrate, Path::new(dir), &expected, &options, &progress);
        let errors = report.findings.iter().filter(|finding| finding.severity == Severity::Error);
        Ok(Value::Findings(errors.map(|finding| format!("{finding:?}")).collect()))
    }

    fn end(
        &self,
        how: impl FnOnce(&Arc<Partition>) -> kaas_engine::completion::Ticket<Result<(), kaas_engine::EngineError>>,
    ) -> Outcome {
        let led = self.led.lock().take();
        let Some((engine, partition)) = led else { return Err(Failure::of("no partition is open")) };
        how(&partition).wait().map_err(Failure::of)?.map_err(Failure::of)?;
        engine.close();
        Ok(Value::Nothing)
    }

    fn partition(&self) -> Result<Arc<Partition>, Failure> {
        let led = self.led.lock();
        led.as_ref()
            .map(|(_, partition)| Arc::clone(partition))
            .ok_or_else(|| Failure::of("no partition is open"))
    }
}

fn identity(dir: &str) -> Identity {
    Identity { topic: dir.to_owned(), partition: 0, topic_id: [7; 16] }
}
