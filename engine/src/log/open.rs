//! Opening a partition: claim, look, scan, pin, ask the fence, serve. `leadership.md`'s takeover, and the only
//! recovery there is: a restart is a takeover from oneself.
//!
//! # Which bytes count
//!
//! The highest manifest says it. Its segments count up to the ends it pins. Behind them count the segments of the
//! manifest's own epoch that were appended to, as far as their batches are whole, undamaged and in sequence. A segment
//! that was rewritten counts only where a manifest names it. Every leader writes a
//! manifest, which pins what it inherited, *before* it serves anything or creates a segment; so what a deposed
//! leader still writes, into old segments or as new ones, is outside of every later view, and views of later
//! leaders only grow.
//!
//! # What is bounded
//!
//! A clean close pins everything: nothing is scanned. Otherwise the scan begins at the last recovery checkpoint,
//! at most `checkpoint_distance_bytes` before the end of what was written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_substrate::{EntryKind, Substrate, TEMPORARY_PREFIX};

use super::names::{SegmentFile, SegmentFileName, SegmentName};
use super::partition::{Core, Partition};
use super::recovery::{Recovered, recover};
use super::segment::Segment;
use super::status::{State, Status};
use super::tail::Tail;
use crate::commit::staging::Waiters;
use crate::commit::writer::{Boundary, Numbers, Writer};
use crate::compaction::CleanerState;
use crate::engine::Shared;
use crate::error::EngineError;
use crate::identity::{Identity, read_partition};
use crate::leadership::{self, ClaimError, Claimant, Leadership, Standing, is_out_of_reach};
use crate::manifest::{MANIFEST, Manifest, ProducerStateRef, owned};
use crate::planted::{Bug, planted};
use crate::settings::LogConfig;
use crate::sync::{AtomicU64, Mutex, RwLock};
use crate::types::{Epoch, Offset};

/// What is to be opened, and as whom.
#[derive(Debug, Clone)]
pub struct OpenPartition {
    /// The partition's directory, relative to the engine's root.
    pub dir: PathBuf,
    /// Which partition is expected there.
    pub identity: Identity,
    /// The epoch that the assignment gives this broker.
    pub epoch: Epoch,
    /// Who claims it.
    pub claimant: Claimant,
    /// The topic's configuration.
    pub config: LogConfig,
}

/// Names found in a partition directory.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Segments whose `.log` is there.
    pub(crate) logs: BTreeSet<SegmentName>,
    /// Every file of a segment.
    segment_files: Vec<SegmentFileName>,
    /// What crashes left of files that were being written.
    temporary: Vec<PathBuf>,
}

impl Listing {
    pub(crate) fn read(substrate: &dyn Substrate, dir: &Path) -> Result<Self, EngineError> {
        let mut listing = Self::default();
        for entry in substrate.list(dir)? {
            let name = entry.name.to_str().unwrap_or_default();
            if entry.kind != EntryKind::File {
                continue;
            }
            if name.starts_with(TEMPORARY_PREFIX) {
                listing.temporary.push(dir.join(OsStr::new(name)));
            } else if let Some(file) = SegmentFileName::parse(name) {
                listing.segment_files.push(file);
                if file.file == SegmentFile::Log {
                    listing.logs.insert(file.segment);
                }
            }
        }
        Ok(listing)
    }
}

/// Claims and opens a partition; blocks. It serves when this returns.
pub(crate) fn open(shared: &Arc<Shared>, request: OpenPartition) -> Result<Arc<Partition>, EngineError> {
    let OpenPartition { dir, identity, epoch, claimant, config } = request;
    let substrate = &shared.substrate;
    check_identity(shared, &dir, &identity)?;
    let leadership = leadership::claim(substrate, &dir, epoch, &claimant)?.timed(&shared.time);
    let inherited = match inherit(shared, &dir, &identity, epoch, &config) {
        Ok(inherited) => inherited,
        Err(error) => {
            // A later leader may have moved things about meanwhile; then nothing is wrong with them.
            return Err(match (leadership.standing(), error) {
                (Standing::Deposed { by }, _) => EngineError::Deposed { by },
                (Standing::Unknown(unread), EngineError::Damaged { path, reason }) => EngineError::Poisoned {
                    reason: format!("{}: {reason}; but the fence cannot be read: {unread}", path.display()),
                },
                (Standing::Leading | Standing::Unknown(_), error) => error,
            });
        }
    };
    let partition = assemble(shared, dir, identity, leadership, config, inherited)?;
    match partition.leadership.standing() {
        Standing::Leading => {}
        Standing::Deposed { by } => return Err(EngineError::Deposed { by }),
        Standing::Unknown(error) => {
            return Err(EngineError::Poisoned { reason: format!("the fence cannot be read: {error}") });
        }
    }
    if let Err(error) = partition.leadership.collect_old_claims() {
        tracing::debug!(dir = %partition.dir.display(), %error, "old claims stay for now");
    }
    // Nobody else has the partition yet, so the writer is at home; the lock is not held while it makes system calls.
    let writer = partition.core.lock().writer.take();
    if let Some(writer) = writer {
        writer.remove_replaced();
        partition.core.lock().writer = Some(writer);
    }
    Ok(partition)
}

/// What a leader finds.
struct Inherited {
    manifest: Option<Manifest>,
    listing: Listing,
    recovered: Recovered,
}

/// Reads what the directory holds, and makes durable what of it counts.
fn inherit(
    shared: &Shared,
    dir: &Path,
    identity: &Identity,
    epoch: Epoch,
    config: &LogConfig,
) -> Result<Inherited, EngineError> {
    let substrate = &*shared.substrate;
    // The manifest first: its leader may not know yet that it is deposed, and go on creating files. Those that this
    // manifest names are in any later listing, since nothing is unlinked but by who leads.
    let manifest = read_manifest(substrate, dir, identity)?;
    match manifest.as_ref().and_then(|manifest| Epoch::new(manifest.epoch)) {
        Some(highest) if is_out_of_reach(highest, epoch) => {
            return Err(ClaimError::OutOfReach { dir: dir.to_owned(), epoch, highest }.into());
        }
        Some(by) if by > epoch => return Err(EngineError::Deposed { by }),
        Some(served) if served == epoch && !planted(Bug::ReuseEpoch) => {
            // This run has led at this epoch before. Its files are numbered on from there, so it must not begin anew.
            let dir = dir.to_owned();
            return Err(ClaimError::Refused { dir, epoch, highest: epoch }.into());
        }
        _ => {}
    }
    let listing = Listing::read(substrate, dir)?;
    // Where it has to write what it found again, a full volume must not keep it from that.
    let recover = || recover(shared, dir, identity, epoch, &listing, manifest.as_ref(), config);
    let recovered = shared.reserve.with(recover)?;
    if !planted(Bug::InheritedNotDurable) {
        make_durable(shared, dir, &recovered)?;
    }
    Ok(Inherited { manifest, listing, recovered })
}

/// The highest manifest. Under another's name, or in another's directory, it would take the place of what was
/// acknowledged after it.
fn read_manifest(
    substrate: &dyn Substrate,
    dir: &Path,
    identity: &Identity,
) -> Result<Option<Manifest>, EngineError> {
    let read = owned::read_highest::<Manifest>(substrate, dir, MANIFEST, identity)?;
    let Some((version, manifest)) = read else { return Ok(None) };
    if manifest.epoch != version.epoch.get() {
        let reason = format!("it says epoch {}, its name {}", manifest.epoch, version.epoch);
        return Err(EngineError::Damaged { path: dir.join(MANIFEST.file_name(version)), reason });
    }
    Ok(Some(manifest))
}

fn check_identity(shared: &Shared, dir: &Path, expected: &Identity) -> Result<(), EngineError> {
    let found = read_partition(&*shared.substrate, dir)?;
    if found == *expected {
        return Ok(());
    }
    Err(EngineError::Foreign {
        path: dir.to_owned(),
        expected: expected.to_string(),
        found: found.to_string(),
    })
}

/// What was read may be another's (or a killed process's) unsynced bytes: nothing of it may be served, or built
/// upon, before it is on stable storage.
fn make_durable(shared: &Shared, dir: &Path, recovered: &Recovered) -> Result<(), EngineError> {
    for segment in &recovered.scanned {
        shared.substrate.make_durable(&segment.path(SegmentFile::Log), segment.bytes())?;
    }
    if !recovered.scanned.is_empty() {
        shared.substrate.sync_dir(dir)?;
    }
    Ok(())
}

fn assemble(
    shared: &Arc<Shared>,
    dir: PathBuf,
    identity: Identity,
    leadership: Leadership,
    config: LogConfig,
    Inherited { manifest, listing, recovered }: Inherited,
) -> Result<Arc<Partition>, EngineError> {
    let epoch = leadership.epoch();
    let end = recovered.end;
    let segments = Arc::new(recovered.segments);
    let log_start = recovered.log_start;
    let used: Option<ProducerStateRef> =
        manifest.as_ref().and_then(|manifest| manifest.producer_state).filter(|used| used.offset == end.0);
    let mut writer = Box::new(Writer {
        substrate: Arc::clone(&shared.substrate),
        dir: dir.clone(),
        identity: identity.clone(),
        epoch,
        active: None,
        unsealed: Vec::new(),
        producers: recovered.producers.clone(),
        end,
        unchecked_bytes: 0,
        unsynced_records: 0,
        unsynced_since_ms: None,
        boundary: Boundary::Written(used),
        garbage: garbage(&dir, &listing, &segments),
        pending_garbage: Vec::new(),
        manifest: manifest.unwrap_or_default(),
        numbers: Numbers::default(),
        short_of: None,
        is_behind: false,
        tail_uncertain: false,
        checkpoint_state: None,
        flush_armed: false,
        sync_armed: false,
    });
    if used.is_none() {
        writer.take_boundary();
    }
    // The authority on what counts, from here on. A full volume must not keep a partition from opening.
    shared.reserve.with(|| writer.write_manifest(&segments, log_start, end, false))?;

    let mut core = Core {
        status: Status {
            log_start,
            last_stable: log_start,
            high_watermark: log_start,
            log_end: end,
            epoch,
            state: State::Leading,
        },
        config: Arc::new(config),
        producers: recovered.producers,
        staged: VecDeque::new(),
        staged_bytes: 0,
        requests: VecDeque::new(),
        writer: Some(writer),
        worker_active: false,
        written_end: end,
        synced_end: end,
        fence_running: false,
        asking_again: false,
        unsure_since_ms: None,
        closing: false,
        written_waiters: Waiters::default(),
        committed_waiters: Waiters::default(),
        space_waiters: Vec::new(),
    };
    core.advance_high_watermark(end);
    Ok(Arc::new(Partition {
        shared: Arc::clone(shared),
        dir,
        identity,
        leadership,
        core: Mutex::new(core),
        segments: RwLock::new(segments),
        tail: Mutex::new(Tail::new(Arc::clone(&shared.tail_budget))),
        watchers: super::watch::Watchers::default(),
        cleaner: CleanerState::default(),
        call_began_ms: AtomicU64::new(0),
        fence_began_ms: AtomicU64::new(0),
    }))
}

/// Files that no later leader needs once this one's manifest is durable: segments outside of the view, index files
/// without a log, or in whose place others have been written, temporary files.
fn garbage(dir: &Path, listing: &Listing, view: &[Arc<Segment>]) -> Vec<PathBuf> {
    let view: BTreeMap<SegmentName, &Arc<Segment>> =
        view.iter().map(|segment| (segment.name, segment)).collect();
    let is_used =
        |file: &&SegmentFileName| view.get(&file.segment).is_some_and(|segment| segment.has_file(file));
    let unused = listing.segment_files.iter().filter(|file| !is_used(file));
    unused.map(|file| file.path(dir)).chain(listing.temporary.iter().cloned()).collect()
}

impl Default for Manifest {
    /// What holds before any leader has written one: an empty log.
    fn default() -> Self {
        Self {
            epoch: Epoch::NONE.get(),
            log_start_offset: 0,
            high_watermark: 0,
            next_offset: Offset::ZERO.0,
            released: false,
            segments: Vec::new(),
            producer_state: None,
            first_dirty_offset: 0,
        }
    }
}
