//! The data directory that is imported into: taken hold of as a broker would, topics built aside and renamed into place.
//!
//! Whoever changes a data directory holds its lock and is its controller; so no broker serves it meanwhile, and one that was
//! started past the lock finds itself deposed before it acts. The order is the house's: build, sync, fence, rename.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_substrate::{EntryKind, File, LockGuard, OpenMode, Substrate, read_small, remove_tree};

use super::read::{ReadPartition, ReadSegment, Sink};
use super::{ImportError, Progress};
use crate::identity::{Identity, write_partition};
use crate::layout::{
    CLUSTER_DIR, CONTROLLER_DIR, DATA_FORMAT, LOCK_FILE, META_FILE, Meta, PRODUCER_IDS, PRODUCER_IDS_BLOCK,
    ProducerIdsFile, TOPIC_CONFIG, TOPIC_ID_FILE, TOPIC_ID_FORMAT, TOPICS_DIR, TopicConfigFile, TopicIdFile,
    bear_cluster, write_new,
};
use crate::leadership::{self, Claimant, Leadership, Standing};
use crate::log::indexes::IndexImages;
use crate::log::{SegmentFile, SegmentName};
use crate::manifest::versioned::{self, FileVersion};
use crate::manifest::{
    IndexFiles, IndexLengths, LeaderEpoch, MANIFEST, Manifest, PRODUCER_STATE, ProducerStateRef,
    SegmentEntry, owned,
};
use crate::types::{Epoch, Offset};

/// Largest of kaas' small files that is read here.
const SMALL_FILE_BYTES_MAX: usize = 1 << 20;

/// Bytes that are written at once.
const WRITE_BYTES: usize = 1 << 20;

/// How often another process may take the controller's next epoch first.
const CLAIMS_MAX: usize = 16;

/// The generation of imported segments: like those of the cleaner they are whole, and counted by the manifest alone.
const GENERATION: u32 = 1;

/// Prefix of topics that an import is building.
const BUILDING_PREFIX: &str = "~new-import-";

/// The data directory, held.
pub(super) struct Target {
    substrate: Arc<dyn Substrate>,
    controller: Leadership,
    claimant: Claimant,
    _lock: Box<dyn LockGuard>,
}

/// A topic to be built.
pub(super) struct NewTopic<'a> {
    pub(super) name: &'a str,
    pub(super) id: [u8; 16],
    /// `id` as the tools show it.
    pub(super) shown_id: String,
    pub(super) configs: &'a BTreeMap<String, String>,
}

/// What a look at the directory found.
#[derive(Debug, Default)]
pub(super) struct Existing {
    /// `None` if it is no data directory yet.
    pub(super) cluster_id: Option<String>,
    /// Its topics, and their ids where they have one.
    pub(super) topics: BTreeMap<String, Option<String>>,
}

/// Looks at the directory; nothing is touched by it.
pub(super) fn look(substrate: &dyn Substrate) -> Result<Existing, ImportError> {
    let dir = || substrate.root().to_owned();
    let root = substrate.list(Path::new(""))?;
    let has = |name: &str| root.iter().any(|entry| entry.name == name);
    let mut cluster_id = None;
    if has(CLUSTER_DIR) {
        cluster_id = Some(read_meta(substrate)?.cluster_id);
    } else if root.iter().any(|entry| !is_unfinished(&entry.name.to_string_lossy())) {
        return Err(ImportError::NotADataDirectory { dir: dir() });
    }
    let mut topics = BTreeMap::new();
    if has(TOPICS_DIR) {
        for entry in substrate.list(Path::new(TOPICS_DIR))? {
            let name = entry.name.to_string_lossy().into_owned();
            if entry.kind == EntryKind::Dir && !name.starts_with('~') {
                let id = topic_id(substrate, &name)?;
                topics.insert(name, id);
            }
        }
    }
    Ok(Existing { cluster_id, topics })
}

/// Whether somebody works on the data directory. Nothing is made: where there is no lock nobody holds it.
pub(super) fn is_locked(substrate: &dyn Substrate) -> Result<bool, ImportError> {
    let cluster = Path::new(CLUSTER_DIR);
    let lock = cluster.join(LOCK_FILE);
    match substrate.list(cluster) {
        Ok(entries) if entries.iter().any(|entry| entry.name == LOCK_FILE) => {
            Ok(substrate.try_lock(&lock)?.is_none())
        }
        Ok(_) => Ok(false),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_unfinished(name: &str) -> bool {
    name.starts_with('~') || name == "lost+found"
}

fn read_meta(substrate: &dyn Substrate) -> Result<Meta<String>, ImportError> {
    let path = Path::new(CLUSTER_DIR).join(META_FILE);
    let bytes = read_small(substrate, &path, SMALL_FILE_BYTES_MAX)?;
    Ok(versioned::decode(&path, DATA_FORMAT, &bytes)?)
}

fn topic_id(substrate: &dyn Substrate, name: &str) -> Result<Option<String>, ImportError> {
    let path = Path::new(TOPICS_DIR).join(name).join(TOPIC_ID_FILE);
    match read_small(substrate, &path, SMALL_FILE_BYTES_MAX) {
        Ok(bytes) => {
            Ok(Some(versioned::decode::<TopicIdFile<String>>(&path, TOPIC_ID_FORMAT, &bytes)?.topic_id))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Target {
    /// Takes hold of the directory, which is born if it is empty.
    pub(super) fn take(substrate: &Arc<dyn Substrate>, new: &Meta<String>) -> Result<Self, ImportError> {
        let volume = &**substrate;
        let root = volume.list(Path::new(""))?;
        if !root.iter().any(|entry| entry.name == CLUSTER_DIR) {
            bear_cluster(volume, &uuid::Uuid::new_v4().to_string(), new)?;
        }
        let meta = read_meta(volume)?;
        let cluster = Path::new(CLUSTER_DIR);
        let Some(lock) = volume.try_lock(&cluster.join(LOCK_FILE))? else {
            return Err(ImportError::Locked { dir: volume.root().to_owned() });
        };
        if !root.iter().any(|entry| entry.name == TOPICS_DIR) {
            volume.create_dir(Path::new(TOPICS_DIR))?;
        }
        volume.sync_dir(Path::new(""))?;
        let claimant = Claimant {
            broker_id: meta.node_id,
            incarnation: format!("import-{}", uuid::Uuid::new_v4()),
            assignment_version: 0,
        };
        let controller = claim(substrate, &cluster.join(CONTROLLER_DIR), &claimant)?;
        let target = Self { substrate: Arc::clone(substrate), controller, claimant, _lock: lock };
        target.still_controller()?;
        if let Err(error) = target.controller.collect_old_claims() {
            tracing::warn!(%error, "old claims left behind");
        }
        target.remove_leftovers()?;
        Ok(target)
    }

    /// Who imports.
    pub(super) fn claimant(&self) -> &Claimant {
        &self.claimant
    }

    /// Sees to it that no producer id below `next` is handed out. Durable on return.
    pub(super) fn reserve_producer_ids(&self, next: i64) -> Result<(), ImportError> {
        let (volume, dir) = (&*self.substrate, Path::new(CLUSTER_DIR));
        let known = versioned::read_highest::<ProducerIdsFile>(volume, dir, PRODUCER_IDS)?;
        let blocks = next.max(0) / PRODUCER_IDS_BLOCK + i64::from(next % PRODUCER_IDS_BLOCK > 0);
        let next_block_start = blocks.saturating_mul(PRODUCER_IDS_BLOCK);
        if known.map_or(0, |(_, known)| known.next_block_start) >= next_block_start {
            return Ok(());
        }
        let version = FileVersion { epoch: self.controller.epoch(), number: 1 };
        versioned::write(volume, dir, PRODUCER_IDS, version, &ProducerIdsFile { next_block_start })?;
        self.still_controller()
    }

    /// What an import that was killed has left.
    fn remove_leftovers(&self) -> Result<(), ImportError> {
        for entry in self.substrate.list(Path::new(TOPICS_DIR))? {
            if entry.name.to_string_lossy().starts_with(BUILDING_PREFIX) {
                self.still_controller()?;
                self.remove(&Path::new(TOPICS_DIR).join(&entry.name));
            }
        }
        Ok(())
    }

    fn remove(&self, dir: &Path) {
        if let Err(left) = remove_tree(&*self.substrate, dir) {
            tracing::warn!(dir = %dir.display(), %left, "left behind; the broker's next start removes it");
        }
    }

    fn still_controller(&self) -> Result<(), ImportError> {
        match self.controller.standing() {
            Standing::Leading => Ok(()),
            Standing::Deposed { by } => Err(ImportError::Deposed { by }),
            Standing::Unknown(error) => Err(ImportError::Fence(error)),
        }
    }

    /// The id of the topic of that name, if there is one.
    pub(super) fn topic(&self, name: &str) -> Result<Option<Option<String>>, ImportError> {
        let there = self.substrate.list(Path::new(TOPICS_DIR))?.iter().any(|entry| entry.name == name);
        Ok(if there { Some(topic_id(&*self.substrate, name)?) } else { None })
    }

    /// Builds a topic aside with `fill`, which is given the directory of each partition, makes it durable and renames it into
    /// place. Durable on return; after an error there is no such topic, or all of it.
    pub(super) fn build_topic(
        &self,
        topic: &NewTopic<'_>,
        fill: impl FnOnce(&dyn Substrate, &Path) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        let volume = &*self.substrate;
        let topics = Path::new(TOPICS_DIR);
        let dir = topics.join(format!("{BUILDING_PREFIX}{}", uuid::Uuid::new_v4()));
        let built = self.write_topic(topic, &dir, fill).and_then(|()| {
            volume.sync_tree(&dir)?;
            self.still_controller()?;
            Ok(volume.rename(&dir, &topics.join(topic.name))?)
        });
        if let Err(error) = built {
            self.remove(&dir);
            return Err(error);
        }
        volume.sync_dir(topics)?;
        self.still_controller()
    }

    fn write_topic(
        &self,
        topic: &NewTopic<'_>,
        dir: &Path,
        fill: impl FnOnce(&dyn Substrate, &Path) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        let volume = &*self.substrate;
        volume.create_dir(dir)?;
        let id_path = dir.join(TOPIC_ID_FILE);
        let id = TopicIdFile { topic: topic.name.to_owned(), topic_id: topic.shown_id.clone() };
        write_new(volume, &id_path, &versioned::encode(&id_path, TOPIC_ID_FORMAT, &id)?)?;
        if !topic.configs.is_empty() {
            let version = FileVersion { epoch: self.controller.epoch(), number: 1 };
            let path = dir.join(TOPIC_CONFIG.file_name(version));
            let file = TopicConfigFile { config: topic.configs.clone() };
            write_new(volume, &path, &versioned::encode(&path, TOPIC_CONFIG.format(), &file)?)?;
        }
        fill(volume, dir)
    }
}

/// Claims the next epoch.
fn claim(substrate: &Arc<dyn Substrate>, dir: &Path, claimant: &Claimant) -> Result<Leadership, ImportError> {
    let mut highest = leadership::highest(&**substrate, dir)?;
    for _ in 0..CLAIMS_MAX {
        match leadership::claim(substrate, dir, highest.next(), claimant) {
            Err(leadership::ClaimError::Refused { highest: taken, .. }) => highest = taken,
            outcome => return Ok(outcome?),
        }
    }
    Err(ImportError::Deposed { by: highest })
}

/// Writes the segments of a partition as they are read.
pub(super) struct PartitionSink<'a> {
    volume: &'a dyn Substrate,
    dir: PathBuf,
    identity: Identity,
    /// Of the manifest and the segments' names: the highest of Kafka's, at least 1. Nobody can claim it.
    epoch: Epoch,
    progress: &'a Progress,
    file: Option<Arc<dyn File>>,
    written: u64,
    buffer: Vec<u8>,
    entries: Vec<SegmentEntry>,
}

impl<'a> PartitionSink<'a> {
    /// Begins a partition in the directory of its topic.
    pub(super) fn begin(
        volume: &'a dyn Substrate,
        topic_dir: &Path,
        identity: &Identity,
        highest_epoch: u32,
        progress: &'a Progress,
    ) -> Result<Self, ImportError> {
        let dir = topic_dir.join(identity.partition.to_string());
        volume.create_dir(&dir)?;
        let epoch = Epoch::new(highest_epoch.max(1)).filter(|epoch| epoch.next() > *epoch);
        let epoch = epoch.ok_or(ImportError::EpochsExhausted { epoch: highest_epoch })?;
        // kaas' own epochs go on above.
        write_partition(volume, &dir, identity, epoch)?;
        Ok(Self {
            volume,
            dir,
            identity: identity.clone(),
            epoch,
            progress,
            file: None,
            written: 0,
            buffer: Vec::new(),
            entries: Vec::new(),
        })
    }

    fn name(&self, base: Offset) -> SegmentName {
        SegmentName { epoch: self.epoch, base_offset: base, generation: GENERATION }
    }

    fn flush(&mut self) -> Result<(), kaas_substrate::Error> {
        if let Some(file) = &self.file {
            file.write_all_at(&[IoSlice::new(&self.buffer)], self.written)?;
            self.written += self.buffer.len() as u64;
            self.progress.add_written(self.buffer.len() as u64);
            self.buffer.clear();
        }
        Ok(())
    }

    /// Writes what makes the segments count: the manifest, released as after a clean stop, and the producers at its end.
    pub(super) fn finish(self, read: &ReadPartition) -> Result<(), ImportError> {
        let version = FileVersion { epoch: self.epoch, number: 1 };
        let producer_state = if read.producers.is_empty() {
            None
        } else {
            let path = self.dir.join(PRODUCER_STATE.file_name(version));
            write_new(self.volume, &path, &read.producers.to_snapshot(&self.identity))?;
            Some(ProducerStateRef { epoch: self.epoch.get(), number: version.number, offset: read.end.0 })
        };
        let manifest = Manifest {
            epoch: self.epoch.get(),
            log_start_offset: read.log_start.0,
            high_watermark: read.end.0,
            next_offset: read.end.0,
            released: true,
            segments: self.entries,
            producer_state,
            first_dirty_offset: read.first_dirty.unwrap_or(Offset::ZERO).0,
        };
        let path = self.dir.join(MANIFEST.file_name(version));
        Ok(write_new(self.volume, &path, &owned::encode(&path, MANIFEST, &self.identity, &manifest)?)?)
    }
}

impl Sink for PartitionSink<'_> {
    fn begin(&mut self, base: Offset) -> Result<(), kaas_substrate::Error> {
        let path = self.name(base).path(&self.dir, SegmentFile::Log);
        self.file = Some(self.volume.open(&path, OpenMode::CreateNew)?);
        self.written = 0;
        Ok(())
    }

    fn batch(&mut self, bytes: &[u8]) -> Result<(), kaas_substrate::Error> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    fn end(&mut self, segment: &ReadSegment, indexes: &IndexImages) -> Result<(), kaas_substrate::Error> {
        self.flush()?;
        self.file = None;
        let name = self.name(segment.base);
        let write = |file: SegmentFile, image: &[u8]| -> Result<u64, kaas_substrate::Error> {
            if !image.is_empty() {
                write_new(self.volume, &name.path(&self.dir, file), image)?;
            }
            Ok(image.len() as u64)
        };
        let lengths = IndexLengths {
            offset_index_bytes: write(SegmentFile::OffsetIndex, &indexes.offset)?,
            time_index_bytes: write(SegmentFile::TimeIndex, &indexes.time)?,
            txn_index_bytes: write(SegmentFile::TxnIndex, &indexes.txn)?,
        };
        let epochs = segment.leader_epochs.iter();
        self.entries.push(SegmentEntry {
            epoch: self.epoch.get(),
            base_offset: segment.base.0,
            generation: GENERATION,
            end_offset: segment.end.0,
            bytes: segment.bytes,
            max_timestamp: segment.max_timestamp.0,
            offset_of_max_timestamp: segment.offset_of_max_timestamp.0,
            batch_crcs: segment.batch_crcs,
            indexes: Some(IndexFiles { version: None, lengths }),
            leader_epochs: epochs
                .map(|(epoch, start)| LeaderEpoch { epoch: *epoch, start_offset: *start })
                .collect(),
        });
        Ok(())
    }
}
