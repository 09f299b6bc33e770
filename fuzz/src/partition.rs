//! A partition of a volume as its next leader finds it, and what a consumer can read there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use kaas_engine::batch::{BatchHeader, check_crc};
use kaas_engine::identity::read_partition;
use kaas_engine::leadership::{self, ClaimError, Claimant};
use kaas_engine::manifest::versioned::read_highest;
use kaas_engine::manifest::{MANIFEST, Manifest};
use kaas_engine::types::{Epoch, Offset, Timestamp};
use kaas_engine::{
    Engine, EngineError, EngineSettings, FetchedRecords, Isolation, LogConfig, ManualClock, OpenPartition,
    Partition, Read, ReadError, ReadRequest, RecordsPart,
};
use kaas_substrate::Substrate;

/// The time, for whatever asks for it.
pub const NOW: Timestamp = Timestamp(1_700_000_000_000);

/// A partition that is led, and its engine.
pub struct Led {
    volume: Arc<dyn Substrate>,
    dir: PathBuf,
    engine: Engine,
    pub partition: Arc<Partition>,
}

/// A batch as it was served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    pub header: BatchHeader,
    pub bytes: Bytes,
}

impl Served {
    /// Whether a consumer finds a record in it. Readers pass over segments in which no batch has any.
    pub fn has_records(&self) -> bool {
        self.header.record_count > 0
    }

    /// What a consumer makes of it: all but the leader epoch.
    pub fn records(&self) -> (i64, Bytes) {
        (self.header.base_offset.0, self.bytes.slice(16..))
    }
}

impl Led {
    /// Opens the partition in `dir` at the next epoch that can be claimed; the one that the fence offers may turn out to be taken.
    pub fn open(volume: &Arc<dyn Substrate>, dir: &Path) -> Result<Self, EngineError> {
        let highest = leadership::highest(&**volume, dir)?;
        match Self::open_at(volume, dir, highest.next()) {
            Err(EngineError::Claim(refused)) if let ClaimError::Refused { highest, .. } = *refused => {
                Self::open_at(volume, dir, highest.next())
            }
            outcome => outcome,
        }
    }

    fn open_at(volume: &Arc<dyn Substrate>, dir: &Path, epoch: Epoch) -> Result<Self, EngineError> {
        let identity = read_partition(&**volume, dir)?;
        let clock = Arc::new(ManualClock::new(NOW));
        let mut settings = EngineSettings::default();
        settings.io.max_threads = 1;
        let engine = Engine::open(Arc::clone(volume), settings, clock).expect("an engine");
        let opened = engine.open_partition(OpenPartition {
            dir: dir.to_owned(),
            identity,
            epoch,
            claimant: Claimant { broker_id: 1, incarnation: format!("run-{epoch}"), assignment_version: 0 },
            config: LogConfig::default(),
        });
        let partition = opened.inspect_err(|_| engine.close())?;
        Ok(Self { volume: Arc::clone(volume), dir: dir.to_owned(), engine, partition })
    }

    /// As after a crash.
    pub fn crash(self) {
        let _ = self.partition.abandon().wait();
        self.engine.close();
    }

    pub fn close(self) {
        let _ = self.partition.close().wait();
        self.engine.close();
    }

    /// Every batch from the log start to the high watermark; `None` if some of it is damaged: what is pinned is not looked at
    /// when it is opened, but for its end.
    pub fn read_all(&self) -> Option<Vec<Served>> {
        let status = self.partition.status();
        assert!(status.log_start <= status.last_stable);
        assert!(status.last_stable <= status.high_watermark && status.high_watermark <= status.log_end);
        let mut batches = Vec::new();
        let end = self.read_from(status.log_start, &mut batches).ok()?;
        assert!(
            end == status.high_watermark || self.ends_with_a_gap(end),
            "a reader would wait at offset {end}: {status:?}, {:?}",
            self.manifest()
        );
        Some(batches)
    }

    /// Every batch that can be read, past damage: from the beginning of each segment as far as it goes.
    pub fn read_what_can_be(&self) -> Vec<Served> {
        let status = self.partition.status();
        let segments = self.manifest().segments;
        let starts = segments.iter().map(|entry| Offset(entry.base_offset));
        let mut batches: Vec<Served> = Vec::new();
        for from in std::iter::once(status.log_start).chain(starts) {
            let read_up_to = batches.last().map_or(status.log_start, |last| last.header.next_offset());
            if from >= read_up_to && from < status.high_watermark {
                let _ = self.read_from(from, &mut batches);
            }
        }
        batches
    }

    /// Adds what can be read from an offset on; where that ended.
    fn read_from(&self, from: Offset, batches: &mut Vec<Served>) -> Result<Offset, ReadError> {
        let high_watermark = self.partition.status().high_watermark;
        let mut from = from;
        while from < high_watermark {
            let mut bytes = bytes_of(&read(&self.partition, from)?);
            if bytes.is_empty() {
                break;
            }
            while !bytes.is_empty() {
                let header = BatchHeader::parse(&bytes).expect("a batch is served that is none");
                assert!(
                    header.last_offset() >= from && header.next_offset() <= high_watermark,
                    "out of bounds: {header:?}, read from offset {from}, up to {high_watermark}"
                );
                let bytes = bytes.split_to(header.batch_bytes);
                if let Err(error) = check_crc(&bytes) {
                    // Consumers check it.
                    let reason = error.to_string();
                    return Err(ReadError::Damaged { path: self.dir.clone(), position: 0, reason });
                }
                batches.push(Served { header, bytes });
                from = header.next_offset();
            }
        }
        Ok(from)
    }

    /// Behind a rewritten segment offsets may be missing up to the end of the log, as in Kafka: whoever reads there waits for the
    /// next record.
    fn ends_with_a_gap(&self, end: Offset) -> bool {
        let Manifest { segments, next_offset, .. } = self.manifest();
        let last = segments.last().filter(|last| last.generation > 0 && last.end_offset <= end.0);
        last.is_some() && next_offset == self.partition.status().high_watermark.0
    }

    /// Its own, written when it was opened.
    fn manifest(&self) -> Manifest {
        let found = read_highest::<Manifest>(&*self.volume, &self.dir, MANIFEST);
        found.expect("a manifest that can be read").expect("a manifest").1
    }
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
