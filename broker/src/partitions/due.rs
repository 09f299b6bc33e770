//! Whether a partition that is not open has work for maintenance, told from its manifest without opening it.
//!
//! Opening claims, which costs several syncs; a broker with ten thousand partitions that nobody uses should not pay
//! that for each of them. Pure but for one small read, on an I/O thread.

use std::path::Path;

use kaas_engine::LogConfig;
use kaas_engine::manifest::versioned::{self, VersionedError};
use kaas_engine::manifest::{MANIFEST, Manifest};
use kaas_substrate::Substrate;

/// Whether the partition in `dir` should be opened and maintained. Blocks.
pub(super) fn is_due(
    substrate: &dyn Substrate,
    dir: &Path,
    config: &LogConfig,
    now_ms: i64,
) -> Result<bool, VersionedError> {
    let manifest = versioned::read_highest::<Manifest>(substrate, dir, MANIFEST)?;
    // Without a manifest nobody has ever led it, so nothing was written.
    Ok(manifest.is_some_and(|(_, manifest)| has_work(&manifest, config, now_ms)))
}

fn has_work(manifest: &Manifest, config: &LogConfig, now_ms: i64) -> bool {
    if !manifest.released {
        // Its last leader did not close it: only opening it tells what it holds.
        return true;
    }
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
    use kaas_engine::manifest::SegmentEntry;

    use super::*;

    fn manifest(released: bool, segments: &[(u64, i64)]) -> Manifest {
        let segments = segments.iter().map(|(bytes, max_timestamp)| SegmentEntry {
            epoch: 1,
            base_offset: 0,
            end_offset: 1,
            bytes: *bytes,
            max_timestamp: *max_timestamp,
            offset_of_max_timestamp: 0,
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
        let due = |manifest: &Manifest, config: &LogConfig| has_work(manifest, config, 1_000);
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
}
