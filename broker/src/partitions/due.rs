//! Whether a partition that is not open has work for maintenance, told from its manifest without opening it.
//!
//! Opening claims, which costs several syncs; a broker with ten thousand partitions that nobody uses should not pay
//! that for each of them. Pure but for small reads, on an I/O thread: the manifest, and with `max.compaction.lag.ms` the first
//! batch of each segment that is not compacted.

use std::path::Path;

use kaas_engine::batch::{BatchHeader, HEADER_BYTES};
use kaas_engine::identity::Identity;
use kaas_engine::manifest::versioned::VersionedError;
use kaas_engine::manifest::{self, Manifest, SegmentEntry};
use kaas_engine::{Dirtiness, LogConfig, SegmentFile};
use kaas_substrate::{OpenMode, Substrate};

/// Whether the partition in `dir` should be opened and maintained. Blocks. `Damaged` if the manifest there is another
/// partition's.
pub(super) fn is_due(
    substrate: &dyn Substrate,
    dir: &Path,
    identity: &Identity,
    config: &LogConfig,
    now_ms: i64,
) -> Result<bool, VersionedError> {
    let manifest = manifest::read_newest(substrate, dir, identity)?;
    let oldest = |segment: &SegmentEntry| first_timestamp(substrate, dir, segment);
    // Without a manifest nobody has ever led it, so nothing was written.
    Ok(manifest.is_some_and(|manifest| has_work(&manifest, config, now_ms, oldest)))
}

/// The largest timestamp of a segment's first batch; `None` if that cannot be told from here.
fn first_timestamp(substrate: &dyn Substrate, dir: &Path, segment: &SegmentEntry) -> Option<i64> {
    let path = segment.name()?.path(dir, SegmentFile::Log);
    let mut header = [0; HEADER_BYTES];
    substrate.open(&path, OpenMode::Read).and_then(|file| file.read_at(&mut header, 0)).ok()?;
    BatchHeader::parse(&header).ok().map(|header| header.max_timestamp.0)
}

fn has_work(
    manifest: &Manifest,
    config: &LogConfig,
    now_ms: i64,
    first_timestamp: impl Fn(&SegmentEntry) -> Option<i64>,
) -> bool {
    if !manifest.released {
        // Its last leader did not close it: only opening it tells what it holds.
        return true;
    }
    has_old_segments(manifest, config, now_ms) || is_dirty(manifest, config, now_ms, first_timestamp)
}

/// Whether a round of compaction may be due. Roughly: what is behind the last stable offset counts, too.
fn is_dirty(
    manifest: &Manifest,
    config: &LogConfig,
    now_ms: i64,
    first_timestamp: impl Fn(&SegmentEntry) -> Option<i64>,
) -> bool {
    let first_dirty = manifest.first_dirty_offset.max(manifest.log_start_offset);
    let mut dirtiness = Dirtiness::default();
    for segment in manifest.segments.iter().filter(|_| config.compact) {
        let is_dirty = segment.end_offset > first_dirty;
        let age_ms = now_ms.saturating_sub(segment.max_timestamp);
        if is_dirty && config.min_compaction_lag_ms > 0 && age_ms < config.min_compaction_lag_ms {
            break;
        }
        let bytes = if is_dirty { &mut dirtiness.dirty_bytes } else { &mut dirtiness.clean_bytes };
        *bytes = bytes.saturating_add(segment.bytes);
        if is_dirty && config.max_compaction_lag_ms < i64::MAX && dirtiness.overdue_ms <= 0 {
            // The records that wait longest are the first, not the newest that the manifest tells of.
            let oldest = first_timestamp(segment).unwrap_or(segment.max_timestamp);
            let age_ms = if oldest > 0 { now_ms.saturating_sub(oldest) } else { 0 };
            dirtiness.overdue_ms = age_ms.saturating_sub(config.max_compaction_lag_ms).max(0);
        }
    }
    dirtiness.is_due(config)
}

fn has_old_segments(manifest: &Manifest, config: &LogConfig, now_ms: i64) -> bool {
    let Some(oldest) = manifest.segments.first().filter(|_| config.delete) else { return false };
    // Records without timestamps are as old as their first maintenance, which only an open partition knows.
    let too_old = config.retention_ms >= 0
        && oldest.max_timestamp >= 0
        && oldest.max_timestamp < now_ms.saturating_sub(config.retention_ms);
    let bytes = manifest.segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.bytes));
    let too_large = u64::try_from(config.retention_bytes)
        .is_ok_and(|keep| bytes.saturating_sub(oldest.bytes) >= keep && manifest.segments.len() > 1);
    too_old || too_large
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kaas_engine::batch::{BatchOptions, SimpleRecord, data_batch};
    use kaas_engine::identity::write_partition;
    use kaas_engine::leadership::Claimant;
    use kaas_engine::manifest::{BatchCrcs, MANIFEST, versioned};
    use kaas_engine::types::{Epoch, Timestamp};
    use kaas_engine::{Engine, EngineSettings, OpenPartition, SystemClock};
    use kaas_substrate::Memory;

    use super::*;

    /// As where a segment's file cannot be read.
    fn unknown(_: &SegmentEntry) -> Option<i64> {
        None
    }

    fn manifest(released: bool, segments: &[(u64, i64)]) -> Manifest {
        let segments = segments.iter().map(|(bytes, max_timestamp)| SegmentEntry {
            epoch: 1,
            base_offset: 0,
            end_offset: 1,
            bytes: *bytes,
            max_timestamp: *max_timestamp,
            offset_of_max_timestamp: 0,
            batch_crcs: BatchCrcs::default(),
            indexes: None,
            generation: 0,
            leader_epochs: Vec::new(),
        });
        Manifest {
            epoch: 1,
            log_start_offset: 0,
            high_watermark: 0,
            next_offset: 0,
            released,
            segments: segments.collect(),
            producer_state: None,
            first_dirty_offset: 0,
        }
    }

    #[test]
    fn only_what_retention_would_touch_is_due() {
        let config = LogConfig { retention_ms: 100, retention_bytes: 50, ..LogConfig::default() };
        let due = |manifest: &Manifest, config: &LogConfig| has_work(manifest, config, 1_000, unknown);
        assert!(!due(&manifest(true, &[]), &config));
        assert!(!due(&manifest(true, &[(10, 950)]), &config));
        assert!(due(&manifest(true, &[(10, 899)]), &config), "too old");
        assert!(!due(&manifest(true, &[(10, 950), (49, 990)]), &config));
        assert!(due(&manifest(true, &[(10, 950), (50, 990)]), &config), "too large without the oldest");
        assert!(
            !due(&manifest(true, &[(1_000, 950)]), &config),
            "the last segment is not deleted for its size"
        );
        assert!(due(&manifest(false, &[]), &config), "not closed");
        let never = LogConfig { retention_ms: -1, retention_bytes: -1, ..LogConfig::default() };
        assert!(!due(&manifest(true, &[(1_000, 0), (1_000, 0)]), &never));
        let compacted = LogConfig { delete: false, ..config };
        assert!(!due(&manifest(true, &[(10, 0), (50, 0)]), &compacted));
    }

    #[test]
    fn what_is_dirty_is_due() {
        let config = LogConfig { delete: false, compact: true, ..LogConfig::default() };
        let of = |first_dirty_offset: i64, segments: &[(u64, i64)]| {
            let mut manifest = manifest(true, segments);
            for (at, segment) in (0..).zip(&mut manifest.segments) {
                (segment.base_offset, segment.end_offset) = (at, at + 1);
            }
            Manifest { first_dirty_offset, ..manifest }
        };
        let log = [(100, 900), (100, 950)];
        assert!(has_work(&of(0, &log), &config, 1_000, unknown));
        assert!(!has_work(&of(1, &log), &config, 1_000, unknown), "half is not more than half");
        assert!(has_work(&of(1, &[(100, 900), (101, 950)]), &config, 1_000, unknown));
        assert!(!has_work(&of(2, &log), &config, 1_000, unknown));
        let young = LogConfig { min_compaction_lag_ms: 101, ..config.clone() };
        assert!(!has_work(&of(0, &log), &young, 1_000, unknown));
        let overdue = LogConfig { max_compaction_lag_ms: 49, ..config.clone() };
        assert!(has_work(&of(1, &log), &overdue, 1_000, unknown));
        let patient = LogConfig { max_compaction_lag_ms: 80, ..config.clone() };
        assert!(!has_work(&of(1, &log), &patient, 1_000, unknown));
        assert!(!has_work(&of(1, &log), &patient, 1_000, |_| Some(920)));
        assert!(has_work(&of(1, &log), &patient, 1_000, |_| Some(919)), "the first record waits longest");
        assert!(!has_work(&of(2, &log), &patient, 1_000, |_| Some(919)), "it is compacted");
        assert!(!has_work(&of(0, &log), &LogConfig { compact: false, ..config }, 1_000, unknown));
    }

    #[test]
    fn the_first_timestamp_is_read_from_the_segment() {
        let memory = Memory::new();
        let entry = manifest(true, &[(100, 950)]).segments.remove(0);
        assert_eq!(first_timestamp(&memory, Path::new(""), &entry), None);
        let options = BatchOptions { base_timestamp: Timestamp(919), ..BatchOptions::default() };
        let batch = data_batch(&[SimpleRecord::of_value("v")], &options).unwrap();
        let path = entry.name().unwrap().path(Path::new(""), SegmentFile::Log);
        let file = memory.open(&path, OpenMode::CreateNew).unwrap();
        file.write_all_at(&[std::io::IoSlice::new(&batch)], 0).unwrap();
        assert_eq!(first_timestamp(&memory, Path::new(""), &entry), Some(919));
    }

    #[test]
    fn a_manifest_of_another_partition_is_not_believed() {
        let volume: Arc<dyn Substrate> = Arc::new(Memory::new());
        let of = |partition| Identity { topic: "orders".to_owned(), partition, topic_id: [7; 16] };
        let engine =
            Engine::open(Arc::clone(&volume), EngineSettings::default(), Arc::new(SystemClock)).unwrap();
        for (dir, identity) in [("0", of(0)), ("1", of(1))] {
            volume.create_dir(Path::new(dir)).unwrap();
            write_partition(&*volume, Path::new(dir), &identity, Epoch::NONE).unwrap();
            let claimant = Claimant { broker_id: 1, incarnation: "run".to_owned(), assignment_version: 0 };
            let open = OpenPartition {
                dir: dir.into(),
                identity,
                epoch: Epoch::new(1).unwrap(),
                claimant,
                config: LogConfig::default(),
            };
            engine.open_partition(open).unwrap().close().wait().unwrap().unwrap();
        }
        let look = || is_due(&*volume, Path::new("0"), &of(0), &LogConfig::default(), 0);
        assert!(!look().unwrap());
        let newest = |dir: &str| {
            let (version, bytes) =
                versioned::read_bytes(&*volume, Path::new(dir), MANIFEST).unwrap().unwrap();
            (MANIFEST.file_name(version), bytes)
        };
        let (name, foreign) = newest("1");
        kaas_substrate::write_small(&*volume, &Path::new("0").join(&name), &foreign).unwrap();
        assert_eq!(newest("0").0, name, "it is the newest there");
        assert!(matches!(look(), Err(VersionedError::Damaged { .. })));
    }
}
