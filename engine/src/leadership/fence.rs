//! The fence file: birth, reading it whole or from its end, filling it below a claim.

use std::io::IoSlice;
use std::path::Path;

use kaas_substrate::{
    OpenMode, Operation, RECORD_BYTES, Record, RecordFile, Result, Substrate, TEMPORARY_PREFIX,
};

use super::claim;
use super::record::FenceRecord;
use crate::planted::{Bug, planted};
use crate::types::Epoch;

/// Name of the fence in its directory.
pub const FENCE_NAME: &str = "fence";

/// Records are added in steps of this many (one 4 KiB block).
const RECORDS_PER_STEP: u64 = 8;

/// Records that are read or written in one call (1 MiB).
const RECORDS_PER_CALL: u64 = 2048;

/// Where the record of `epoch` stands.
pub(super) fn index(epoch: Epoch) -> u64 {
    u64::from(epoch.get())
}

fn epoch_at(index: u64) -> Epoch {
    u32::try_from(index).ok().and_then(Epoch::new).unwrap_or(Epoch::NONE)
}

/// How long the fence must be for a leader of `epoch`: its own record and the next one lie inside, so that a
/// successor writes where every host already sees the file.
pub(crate) fn records_needed(epoch: Epoch) -> u64 {
    (index(epoch) + 2).next_multiple_of(RECORDS_PER_STEP)
}

/// Creates the fence of a directory that is being built under a temporary name; epochs up to `skipped_up_to` can
/// never be claimed in it. Not durable on return: the caller syncs the tree before it renames it into place.
pub fn birth(substrate: &dyn Substrate, dir: &Path, skipped_up_to: Epoch) -> Result<()> {
    create(substrate, &dir.join(FENCE_NAME), skipped_up_to)
}

/// Makes a fence in a directory that has lost its own: epochs up to `skipped_up_to` can never be claimed in it. Durable on
/// return.
///
/// Whoever still has the lost one open does not learn from the new one that it is deposed: the caller knows that nobody
/// leads the directory, and that nobody else is doing this.
pub(crate) fn bear_again(substrate: &dyn Substrate, dir: &Path, skipped_up_to: Epoch) -> Result<()> {
    // Under its own name it must never be seen without its record.
    let temporary = dir.join(format!("{TEMPORARY_PREFIX}{FENCE_NAME}"));
    match substrate.remove_file(&temporary) {
        Err(error) if !error.is_not_found() => return Err(error),
        _ => {}
    }
    create(substrate, &temporary, skipped_up_to)?;
    substrate.open(&temporary, OpenMode::Write)?.sync_data()?;
    substrate.rename(&temporary, &dir.join(FENCE_NAME))?;
    substrate.sync_dir(dir)
}

fn create(substrate: &dyn Substrate, path: &Path, skipped_up_to: Epoch) -> Result<()> {
    substrate.create_records(path, records_needed(skipped_up_to))?;
    if skipped_up_to == Epoch::NONE {
        return Ok(());
    }
    // Nobody else sees it yet, so this is a plain write.
    let record = FenceRecord::Born.encode(skipped_up_to);
    let fence = substrate.open(path, OpenMode::Write)?;
    fence.write_all_at(&[IoSlice::new(&record)], index(skipped_up_to) * RECORD_BYTES as u64)
}

/// The highest epoch that is claimed, skipped or being claimed in `dir`: no lower one, nor this one, can be claimed by
/// anybody who has not claimed it yet. [`Epoch::NONE`] if there is none. A damaged record counts as one.
pub fn highest(substrate: &dyn Substrate, dir: &Path) -> Result<Epoch> {
    let fence = substrate.open_records(&dir.join(FENCE_NAME))?;
    let fenced = highest_used(fence.as_ref(), 1)?.unwrap_or(Epoch::NONE);
    let claimed = substrate.list(dir)?.iter().filter_map(|entry| claim::parse_name(&entry.name)).max();
    Ok(fenced.max(claimed.unwrap_or(Epoch::NONE)))
}

/// Takes the directory away from everybody who might claim it: no claim succeeds that begins after this, nor one that
/// was under way and of which this has seen nothing. Durable on return. Call it on a directory that was claimed at
/// `epoch` (at most) and then renamed aside, before it is removed.
///
/// Returns the highest epoch above `epoch` that was used meanwhile. If there is one, somebody has taken over before the
/// rename and may have acknowledged records: then [`give_back`], and rename it back.
pub fn take_away(substrate: &dyn Substrate, dir: &Path, epoch: Epoch) -> Result<Option<Epoch>> {
    let fence = substrate.open_records(&dir.join(FENCE_NAME))?;
    fence.write(index(Epoch::NONE), &[FenceRecord::TakenAway { by: epoch }.encode(Epoch::NONE)])?;
    highest_used(fence.as_ref(), index(epoch) + 1)
}

/// Takes [`take_away`] back. Durable on return.
pub fn give_back(substrate: &dyn Substrate, dir: &Path) -> Result<()> {
    let fence = substrate.open_records(&dir.join(FENCE_NAME))?;
    fence.write(index(Epoch::NONE), &[FenceRecord::Unclaimed.encode(Epoch::NONE)])
}

/// Who took the directory away; `None` if nobody did, or is only just writing it.
pub(super) fn taken_away_by(fence: &dyn RecordFile) -> Result<Option<Epoch>> {
    let mut first = [[0; RECORD_BYTES]];
    fence.read(index(Epoch::NONE), &mut first)?;
    let [first] = first;
    Ok(match FenceRecord::decode(&first, Epoch::NONE) {
        FenceRecord::TakenAway { by } => Some(by),
        _ => None,
    })
}

/// All records of the fence in `dir` that are not zeros, lowest epoch first; for tools, which may have no right to write there
/// (a mount that is read-only, another user).
pub fn records(substrate: &dyn Substrate, dir: &Path) -> Result<Vec<(Epoch, FenceRecord)>> {
    let fence = substrate.open(&dir.join(FENCE_NAME), OpenMode::ReadUncached)?;
    let mut found = Vec::new();
    let mut buffer = vec![0; usize::try_from(RECORDS_PER_CALL).unwrap_or(1) * RECORD_BYTES];
    let mut first = 0;
    loop {
        let read = fence.read_at(&mut buffer, first * RECORD_BYTES as u64)?;
        let (records, _) = buffer.get(..read).unwrap_or_default().as_chunks::<RECORD_BYTES>();
        for (record, at) in records.iter().zip(first..) {
            match FenceRecord::decode(record, epoch_at(at)) {
                FenceRecord::Unclaimed => {}
                used => found.push((epoch_at(at), used)),
            }
        }
        if read < buffer.len() {
            return Ok(found);
        }
        first += records.len() as u64;
    }
}

/// Up to one call's worth of records from `first` on, below `end`.
fn read_some(fence: &dyn RecordFile, first: u64, end: u64) -> Result<Vec<Record>> {
    let count = usize::try_from(end.saturating_sub(first).min(RECORDS_PER_CALL)).unwrap_or(0);
    let mut records = vec![[0; RECORD_BYTES]; count];
    fence.read(first, &mut records)?;
    Ok(records)
}

/// The highest epoch from index `from` on whose record is not zeros.
pub(super) fn highest_used(fence: &dyn RecordFile, from: u64) -> Result<Option<Epoch>> {
    let mut end = fence.records()?;
    while end > from {
        let first = end.saturating_sub(RECORDS_PER_CALL).max(from);
        let records = read_some(fence, first, end)?;
        let used = records.iter().rposition(|record| record.iter().any(|byte| *byte != 0));
        if let Some(used) = used {
            return Ok(Some(epoch_at(first + used as u64)));
        }
        end = first;
    }
    Ok(None)
}

/// Where filling below a claim of `epoch` starts: at the highest record that vouches for all below it (claimed, or
/// the birth), or at epoch 1.
pub(super) fn fill_from(fence: &dyn RecordFile, epoch: Epoch) -> Result<u64> {
    let mut end = index(epoch).min(fence.records()?);
    while end > 1 {
        let first = end.saturating_sub(RECORDS_PER_CALL).max(1);
        let records = read_some(fence, first, end)?;
        let vouching = records.iter().zip(first..).filter(|(record, at)| {
            let decoded = FenceRecord::decode(record, epoch_at(*at));
            matches!(decoded, FenceRecord::Claimed { .. } | FenceRecord::Born)
        });
        if let Some((_, at)) = vouching.last() {
            return Ok(at);
        }
        end = first;
    }
    Ok(1)
}

/// Makes every record between the birth of `dir` and `epoch` used, and leaves no damaged one below, also where one above it vouches for all below:
/// for a repair that holds `epoch`. Durable on return.
pub(crate) fn fill_gaps(substrate: &dyn Substrate, dir: &Path, epoch: Epoch) -> Result<()> {
    let used = records(substrate, dir)?;
    if matches!(used.first(), Some((Epoch::NONE, FenceRecord::Damaged(_)))) {
        // It says that the directory was taken away, or nothing: a claim has just found that it was not.
        give_back(substrate, dir)?;
    }
    let born =
        used.iter().rfind(|(_, record)| *record == FenceRecord::Born).map_or(Epoch::NONE, |(born, _)| *born);
    let fence = substrate.open_records(&dir.join(FENCE_NAME))?;
    // Below the birth there need be no record; but none that is damaged.
    let damaged = used.iter().filter(|(_, record)| matches!(record, FenceRecord::Damaged(_)));
    for (at, _) in damaged.filter(|(at, _)| Epoch::NONE < *at && *at < born) {
        fence.write(index(*at), &[FenceRecord::Skipped { by: epoch }.encode(*at)])?;
    }
    fill_below(fence.as_ref(), index(born) + 1, epoch)
}

/// Makes every record from index `from` up to the one below `epoch` durable and used: what is zeros or damaged
/// becomes "skipped by `epoch`"; the others are written again as they are, since whoever wrote them may have died
/// before they were durable.
pub(super) fn fill_below(fence: &dyn RecordFile, from: u64, epoch: Epoch) -> Result<()> {
    let end = index(epoch);
    let mut first = from;
    while first < end {
        let mut records = read_some(fence, first, end)?;
        for (record, at) in records.iter_mut().zip(first..) {
            let decoded = FenceRecord::decode(record, epoch_at(at));
            if planted(Bug::TornRecordRefusesClaims) && matches!(decoded, FenceRecord::Damaged(_)) {
                let damaged = std::io::Error::from(std::io::ErrorKind::InvalidData);
                return Err(kaas_substrate::Error::new(Operation::Read, Path::new(FENCE_NAME), damaged));
            }
            if matches!(decoded, FenceRecord::Unclaimed | FenceRecord::Damaged(_)) {
                *record = FenceRecord::Skipped { by: epoch }.encode(epoch_at(at));
            }
        }
        fence.write(first, &records)?;
        first += records.len() as u64;
    }
    Ok(())
}
