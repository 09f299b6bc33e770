//! The commit cycle of a journal, on an I/O thread: write, sync, fence, tell.
//!
//! One cycle of a journal runs at a time and owns its [`Writer`]. After a cycle the next one is queued anew, so that
//! a busy journal does not keep a thread to itself.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use kaas_substrate::{ErrorClass, OpenMode};

use super::line::{Line, parse_file};
use super::open::{self, Born};
use super::state::{Numbered, Outcome, Sequence, Shared, Staged, Work, Writer};
use super::{JOURNAL, JournalError, SNAPSHOT, path_of};
use crate::leadership::Standing;
use crate::manifest::versioned::{self, FileVersion};
use crate::planted::{Bug, planted};

/// Shortest and longest pause before an unanswered fence is asked again.
const FENCE_PAUSE_MS: (u64, u64) = (5, 500);

/// Most lines that one write takes.
const MAX_LINES: usize = 4096;

/// One cycle: everything that is staged, up to the first snapshot, or that snapshot.
pub(super) fn run(shared: &Arc<Shared>) {
    let (mut batch, writer) = {
        let mut state = shared.state.lock();
        let Some(writer) = state.writer.take() else {
            drop(state);
            shared.fail(super::abandoned());
            shared.end_cycle(Vec::new(), None);
            return;
        };
        let appends = state.staged.iter().take_while(|next| is_append(next)).take(MAX_LINES).count();
        let taken = appends.max(1).min(state.staged.len());
        let rest = state.staged.split_off(taken);
        (std::mem::replace(&mut state.staged, rest), writer)
    };
    let (outcomes, writer) = match batch.pop() {
        Some(Numbered {
            sequence,
            staged: Staged { work: Work::Snapshot { covers, state }, on_outcome },
        }) => {
            let (result, writer) = write_snapshot(shared, writer, sequence, covers, &state);
            let staged = Staged { work: Work::Snapshot { covers, state }, on_outcome };
            (vec![Outcome::new(Numbered { sequence, staged }, result)], writer)
        }
        Some(last) => {
            batch.push(last);
            commit(shared, writer, batch)
        }
        None => (Vec::new(), Some(writer)),
    };
    if shared.end_cycle(outcomes, writer) {
        Shared::start_cycle(shared);
    }
}

fn is_append(numbered: &Numbered) -> bool {
    matches!(numbered.staged.work, Work::Append { .. })
}

/// Commits a batch of appends. The writer is given back unless the journal has failed.
fn commit(shared: &Shared, mut writer: Writer, batch: Vec<Numbered>) -> (Vec<Outcome>, Option<Writer>) {
    let (lines, refused) = encode(shared, &writer, &batch);
    let asked_early = planted(Bug::JournalFenceBeforeSync) && still_leading(shared).is_ok();
    let ask = || if asked_early { Ok(()) } else { still_leading(shared) };
    match write(&mut writer, &lines).and_then(|()| ask()) {
        Ok(()) => {
            shared.state.lock().appends_since_snapshot += lines.len() as u64;
            let full = JournalError::Full { bytes: writer.length };
            let outcomes = batch.into_iter().map(|numbered| {
                let sequence = numbered.sequence;
                let is_refused = numbered.staged.is_written() && refused.contains(&sequence);
                Outcome::new(numbered, if is_refused { Err(full.clone()) } else { Ok(sequence) })
            });
            (outcomes.collect(), Some(writer))
        }
        Err(failure) => {
            let goes_on = matches!(failure, JournalError::NoSpace { .. });
            if !goes_on {
                shared.fail(failure.clone());
            }
            let outcomes =
                batch.into_iter().map(|numbered| Outcome::new(numbered, Err(failure.clone()))).collect();
            (outcomes, goes_on.then_some(writer))
        }
    }
}

/// The lines of a batch, and the sequence numbers of those that the file has no room for.
fn encode(shared: &Shared, writer: &Writer, batch: &[Numbered]) -> (Vec<Vec<u8>>, Vec<Sequence>) {
    let (mut lines, mut refused) = (Vec::new(), Vec::new());
    let mut end = writer.length;
    for numbered in batch {
        let Work::Append { bytes } = &numbered.staged.work else { continue };
        if bytes.is_empty() {
            continue;
        }
        let line = Line::encode(numbered.sequence.0, writer.length, bytes);
        if end.saturating_add(line.len() as u64) > shared.settings.max_file_bytes {
            refused.push(numbered.sequence);
            continue;
        }
        end += line.len() as u64;
        lines.push(line);
    }
    (lines, refused)
}

/// Writes and syncs; on no space the file is cut back and the writer stays good.
fn write(writer: &mut Writer, lines: &[Vec<u8>]) -> Result<(), JournalError> {
    if lines.is_empty() {
        return Ok(());
    }
    let parts: Vec<_> = lines.iter().map(|line| IoSlice::new(line)).collect();
    match writer.file.write_all_at(&parts, writer.length) {
        Ok(()) => {}
        Err(error) if error.class == ErrorClass::NoSpace => {
            writer.file.set_length(writer.length).map_err(|error| poisoned(&error))?;
            return Err(JournalError::NoSpace { reason: error.to_string() });
        }
        Err(error) => return Err(poisoned(&error)),
    }
    if !planted(Bug::JournalAcknowledgeBeforeSync) {
        let mut synced = writer.file.sync_data();
        if planted(Bug::JournalRetryFailedSync) && synced.is_err() {
            synced = writer.file.sync_data();
        }
        synced.map_err(|error| poisoned(&error))?;
    }
    writer.length += lines.iter().map(|line| line.len() as u64).sum::<u64>();
    Ok(())
}

fn poisoned(error: &dyn std::fmt::Display) -> JournalError {
    JournalError::Poisoned { reason: error.to_string() }
}

/// Asks the fence until it answers, for as long as the settings allow and asking is of use.
fn still_leading(shared: &Shared) -> Result<(), JournalError> {
    if planted(Bug::JournalWithoutFence) {
        return Ok(());
    }
    let time = shared.pool.time();
    let deadline = time.elapsed() + Duration::from_millis(shared.settings.fence_limit_ms);
    let mut pause_ms = FENCE_PAUSE_MS.0;
    loop {
        match shared.leadership.standing() {
            Standing::Leading => return Ok(()),
            Standing::Deposed { by } => return Err(JournalError::Deposed { by }),
            Standing::Unknown(error) => {
                if error.is_final() || time.elapsed() + Duration::from_millis(pause_ms) > deadline {
                    return Err(poisoned(&error));
                }
                tracing::debug!(dir = %shared.leadership.dir().display(), %error, "the fence does not answer");
                time.sleep(Duration::from_millis(pause_ms));
                pause_ms = (pause_ms * 2).min(FENCE_PAUSE_MS.1);
            }
        }
    }
}

/// Writes a snapshot and a journal file that builds on it, and makes that file the journal.
fn write_snapshot(
    shared: &Shared,
    writer: Writer,
    sequence: Sequence,
    covers: Sequence,
    state: &[u8],
) -> (Result<Sequence, JournalError>, Option<Writer>) {
    let version = FileVersion { epoch: writer.version.epoch, number: writer.version.number + 1 };
    match replace_journal(shared, &writer, version, sequence, covers, state) {
        Ok((next, appends)) => {
            shared.state.lock().appends_since_snapshot = appends;
            prune(shared, version, Some(version));
            (Ok(covers), Some(next))
        }
        Err(failure @ JournalError::NoSpace { .. }) => (Err(failure), Some(writer)),
        Err(failure) => {
            shared.fail(failure.clone());
            (Err(failure), None)
        }
    }
}

fn replace_journal(
    shared: &Shared,
    writer: &Writer,
    version: FileVersion,
    sequence: Sequence,
    covers: Sequence,
    state: &[u8],
) -> Result<(Writer, u64), JournalError> {
    let substrate = shared.substrate.as_ref();
    let dir = shared.leadership.dir();
    let failed = |error: &kaas_substrate::Error| match error.class {
        _ if error.is_no_descriptors() => JournalError::NoSpace { reason: error.to_string() },
        ErrorClass::NoSpace => JournalError::NoSpace { reason: error.to_string() },
        _ => poisoned(error),
    };
    let later = if planted(Bug::JournalForgetsLater) { Vec::new() } else { lines_behind(writer, covers)? };
    let state = open::snapshot_bytes(substrate, dir, covers, state).map_err(|error| poisoned(&error))?;
    let write_state = || kaas_substrate::write_small(substrate, &path_of(dir, SNAPSHOT, version), &state);
    if !planted(Bug::JournalBeforeSnapshot) {
        write_state().map_err(|error| failed(&error))?;
    }
    let born = Born { version, snapshot: Some(version), lines: &later, last_sequence: sequence };
    let bytes = born.encode(substrate, dir).map_err(|error| poisoned(&error))?;
    let path = path_of(dir, JOURNAL, version);
    if let Err(error) = kaas_substrate::write_small(substrate, &path, &bytes) {
        // From the moment its name is there, the new file is the journal for every successor: the old one may be
        // used further only if it is certain that the name is not there.
        let listed = versioned::list(substrate, dir, JOURNAL).map_err(|error| poisoned(&error))?;
        return Err(if listed.contains(&version) { poisoned(&error) } else { failed(&error) });
    }
    if planted(Bug::JournalBeforeSnapshot) {
        write_state().map_err(|error| poisoned(&error))?;
    }
    let file = substrate.open(&path, OpenMode::Write).map_err(|error| poisoned(&error))?;
    still_leading(shared)?;
    Ok((Writer { file, version, length: bytes.len() as u64 }, later.len() as u64))
}

/// The lines of the own file that a snapshot does not cover.
fn lines_behind(writer: &Writer, covers: Sequence) -> Result<Vec<Line>, JournalError> {
    let length = usize::try_from(writer.length).map_err(|error| poisoned(&error))?;
    let mut bytes = vec![0; length];
    let read = writer.file.read_at(&mut bytes, 0).map_err(|error| poisoned(&error))?;
    let parsed = bytes.get(..read).map(parse_file);
    match parsed {
        Some(Ok(parsed)) if parsed.valid_bytes == writer.length => {
            Ok(parsed.lines.into_iter().filter(|line| line.sequence > covers.0).collect())
        }
        Some(Err(damaged)) => Err(poisoned(&damaged.reason)),
        _ => Err(JournalError::Poisoned {
            reason: "the journal reads back shorter than it was written".to_owned(),
        }),
    }
}

/// Removes what no successor needs; called after the fence was asked. What cannot be removed stays for the next time.
pub(super) fn prune(shared: &Shared, journal: FileVersion, snapshot: Option<FileVersion>) {
    let (substrate, dir) = (shared.substrate.as_ref(), shared.leadership.dir());
    let mut outcome = versioned::remove_below(substrate, dir, JOURNAL, journal);
    if let (Ok(_), Some(snapshot)) = (&outcome, snapshot) {
        outcome = versioned::remove_below(substrate, dir, SNAPSHOT, snapshot);
    }
    if let Err(error) = outcome {
        tracing::warn!(dir = %dir.display(), %error, "old files of a journal cannot be removed");
    }
}
