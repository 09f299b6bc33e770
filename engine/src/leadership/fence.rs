//! The fence file: birth, reading it whole or from its end, filling it below a claim.

use std::io::IoSlice;
use std::path::Path;

use kaas_substrate::{
    Error, ErrorClass, File, OpenMode, Operation, RECORD_BYTES, Record, RecordFile, Result, Substrate,
    TEMPORARY_PREFIX,
};

use super::claim;
use super::record::{Damage, FenceRecord};
use crate::planted::{Bug, planted};
use crate::types::Epoch;

/// Name of the fence in its directory.
pub const FENCE_NAME: &str = "fence";

/// Records are added in steps of this many (one 4 KiB block).
const RECORDS_PER_STEP: u64 = 8;

/// Records that are read or written in one call (1 MiB).
const RECORDS_PER_CALL: u64 = 2048;

/// Most epochs that one claim skips; each costs [`RECORD_BYTES`] in the fence.
pub(crate) const EPOCHS_SKIPPED_MAX: u64 = 1 << 20;

/// The highest epoch that a cluster can come to: one each second takes it 34 years.
const EPOCH_MAX: u64 = 1 << 30;

/// Most records of zeros in a row that a fence has: below the birth of a directory nothing is counted, and above it every claim fills
/// what it skips, unless it died before.
const ZEROS_MAX: u64 = EPOCHS_SKIPPED_MAX + 2 * RECORDS_PER_STEP;

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

/// Whether no claim can come to `epoch` from `highest`, the highest one that is used: it skips more than a claim may. What names
/// such an epoch was not made by a leader of this directory.
pub(crate) fn is_out_of_reach(epoch: Epoch, highest: Epoch) -> bool {
    // The first epoch vouches for all below it.
    index(epoch).saturating_sub(index(highest).max(1)) > EPOCHS_SKIPPED_MAX || index(epoch) > EPOCH_MAX
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
pub(crate) fn recreate_fence(substrate: &dyn Substrate, dir: &Path, skipped_up_to: Epoch) -> Result<()> {
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
///
/// A claim file that is out of reach of the fence does not count: a claim looks at the distance before it makes its file, so this is
/// none that can be led, and nobody could claim an epoch above it.
pub fn highest(substrate: &dyn Substrate, dir: &Path) -> Result<Epoch> {
    let fenced = match substrate.open_records(&dir.join(FENCE_NAME)) {
        Ok(fence) => highest_used(fence.as_ref(), 1)?.unwrap_or(Epoch::NONE),
        // A tool that may only read here: a mount that is read-only, another user.
        Err(error) if error.class == ErrorClass::Invalid => highest_readable(substrate, dir)?,
        Err(error) => return Err(error),
    };
    let claimed = substrate.list(dir)?.into_iter().filter_map(|entry| claim::parse_name(&entry.name));
    Ok(claimed.filter(|epoch| !is_out_of_reach(*epoch, fenced)).fold(fenced, Epoch::max))
}

/// The same of the fence alone, which is opened for reading.
fn highest_readable(substrate: &dyn Substrate, dir: &Path) -> Result<Epoch> {
    let content = FenceContent::read(substrate, dir)?;
    let highest = content.used.last().filter(|(at, _)| *at > index(Epoch::NONE));
    Ok(highest.map_or(Epoch::NONE, |(at, _)| epoch_at(*at)))
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

/// All records of the fence in `dir` that are not zeros, lowest epoch first, as [`FenceContent::read`] finds them; for tools.
pub fn records(substrate: &dyn Substrate, dir: &Path) -> Result<Vec<(Epoch, FenceRecord)>> {
    let content = FenceContent::read(substrate, dir)?;
    Ok(content.used.into_iter().map(|(at, record)| (epoch_at(at), record)).collect())
}

/// A fence as a tool reads it, which may have no right to write there (a mount that is read-only, another user).
#[derive(Debug, Default)]
pub(crate) struct FenceContent {
    /// Bytes of the file.
    pub(crate) length: u64,
    /// The records that are not zeros, each with its index, lowest first. A piece of one at the end of the file is one that
    /// goes on with zeros.
    pub(crate) used: Vec<(u64, FenceRecord)>,
    /// Below this index there are more zeros than any claim leaves. Between them and the beginning nothing was read: it may be
    /// terabytes.
    pub(crate) endless_zeros_below: Option<u64>,
}

impl FenceContent {
    /// Reads the fence of `dir`. From its end, as whoever leads there looks at it.
    pub(crate) fn read(substrate: &dyn Substrate, dir: &Path) -> Result<Self> {
        let fence = substrate.open(&dir.join(FENCE_NAME), OpenMode::ReadUncached)?;
        let mut content = Self { length: fence.length()?, ..Self::default() };
        let records = content.length.div_ceil(RECORD_BYTES as u64);
        let beginning = records.min(RECORDS_PER_CALL);
        let (mut end, mut lowest, mut is_born) = (records, records, false);
        while end > beginning {
            let first = end.saturating_sub(RECORDS_PER_CALL).max(beginning);
            let found = read_piece(&*fence, first, end)?;
            lowest = found.first().map_or(lowest, |(at, _)| *at);
            is_born |= found.iter().any(|(_, record)| *record == FenceRecord::Born);
            content.used.extend(found);
            end = first;
            if lowest - first > ZEROS_MAX {
                // Below a birth there need be nothing.
                content.endless_zeros_below = (!is_born).then_some(lowest);
                break;
            }
        }
        content.used.extend(read_piece(&*fence, 0, beginning)?);
        content.used.sort_unstable_by_key(|(at, _)| *at);
        Ok(content)
    }
}

/// The records from index `first` to below `end` that are not zeros.
fn read_piece(fence: &dyn File, first: u64, end: u64) -> Result<Vec<(u64, FenceRecord)>> {
    let count = usize::try_from(end - first).unwrap_or(0);
    let mut records = vec![[0; RECORD_BYTES]; count];
    let bytes = records.as_flattened_mut();
    let read = fence.read_at(bytes, first * RECORD_BYTES as u64)?;
    bytes.get_mut(read..).unwrap_or_default().fill(0);
    let decoded = records.iter().zip(first..).map(|(record, at)| (at, decode(record, at)));
    Ok(decoded.filter(|(_, record)| *record != FenceRecord::Unclaimed).collect())
}

/// What a record says at index `at`, where there may be no epoch.
fn decode(record: &Record, at: u64) -> FenceRecord {
    match u32::try_from(at).ok().and_then(Epoch::new) {
        Some(epoch) => FenceRecord::decode(record, epoch),
        None if *record == [0; RECORD_BYTES] => FenceRecord::Unclaimed,
        None => FenceRecord::Damaged(Damage::Field),
    }
}

/// Up to one call's worth of records from `first` on, below `end`.
fn read_some(fence: &dyn RecordFile, first: u64, end: u64) -> Result<Vec<Record>> {
    let count = usize::try_from(end.saturating_sub(first).min(RECORDS_PER_CALL)).unwrap_or(0);
    let mut records = vec![[0; RECORD_BYTES]; count];
    fence.read(first, &mut records)?;
    Ok(records)
}

/// The highest epoch from index `from` on whose record is not zeros. An error if so many zeros end the fence that no claim can
/// have left them: it may go on for terabytes.
pub(super) fn highest_used(fence: &dyn RecordFile, from: u64) -> Result<Option<Epoch>> {
    let records = fence.records()?;
    let mut end = records;
    while end > from {
        if records - end > ZEROS_MAX {
            let problem = format!(
                "it has {records} records, and none of the last {} says anything: no claim makes it so long; `kaas-engine verify` tells \
                 what to do",
                records - end
            );
            return Err(invalid(Operation::Read, problem));
        }
        let first = end.saturating_sub(RECORDS_PER_CALL).max(from);
        let records = read_some(fence, first, end)?;
        let used = records.iter().rposition(|record| *record != [0; RECORD_BYTES]);
        if let Some(used) = used {
            return Ok(Some(epoch_at(first + used as u64)));
        }
        end = first;
    }
    Ok(None)
}

/// That the fence is not what claims make of one.
fn invalid(operation: Operation, problem: String) -> Error {
    let source = std::io::Error::new(std::io::ErrorKind::InvalidData, problem);
    Error::new(operation, Path::new(FENCE_NAME), source)
}

/// Where filling below a claim of `epoch` starts: at the highest record that vouches for all below it (claimed, or
/// the birth), or at epoch 1; not further below than a claim can skip, and one more.
pub(super) fn fill_from(fence: &dyn RecordFile, epoch: Epoch) -> Result<u64> {
    let lowest = index(epoch).saturating_sub(EPOCHS_SKIPPED_MAX + 1).max(1);
    let mut end = index(epoch).min(fence.records()?);
    while end > lowest {
        let first = end.saturating_sub(RECORDS_PER_CALL).max(lowest);
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
    Ok(lowest)
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
    let between = used.iter().filter(|(at, _)| born < *at && *at < epoch).count() as u64;
    let missing = index(epoch).saturating_sub(index(born)).saturating_sub(between);
    if missing > EPOCHS_SKIPPED_MAX {
        let problem = format!("it lacks {missing} records below epoch {epoch}: no claim skips as many");
        return Err(invalid(Operation::Write, problem));
    }
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
