//! Slot journals: the state of coordinators, each in a directory with claims and a fence.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;

use kaas_substrate::EntryKind;

use super::finding::{Finding, Kind, Severity};
use super::repair::quarantine::QUARANTINE_DIR;
use super::strays::{self, Strays};
use super::{Context, Examined, cluster, leaders};
use crate::journal::{Inspected, OpenError, inspect, is_journal_file, is_snapshot_file};
use crate::leadership::{FENCE_NAME, claim_epoch};
use crate::manifest::versioned::FileVersion;

/// Looks at a slot; once more if it may have been changed meanwhile.
pub(super) fn examine(context: &Context<'_>, dir: &Path) -> Examined {
    let mut examined = look(context, dir);
    if !examined.findings.iter().all(|finding| finding.severity == Severity::Info) {
        thread::sleep(context.options.second_look_after);
        examined = look(context, dir);
    }
    strays::explain(context.substrate, dir, &mut examined.findings);
    examined
}

fn look(context: &Context<'_>, dir: &Path) -> Examined {
    let mut examined = Examined::default();
    let findings = &mut examined.findings;
    let Some(Names { versions, snapshot }) = names(context, dir, findings) else {
        return examined;
    };
    let inspected = inspect(context.substrate, dir);
    let foreign = match &inspected {
        Err(OpenError::Foreign { path, .. }) => path.file_name().and_then(is_journal_file),
        _ => None,
    };
    // Another slot's file says nothing about who led here.
    let written =
        versions.into_iter().filter(|version| Some(*version) != foreign).map(|version| version.epoch);
    let led = leaders::check(context, dir, written.max(), findings);
    examined.counts.newest = led.newest;
    match inspected {
        Ok(None) => {
            if led.highest.is_some() && snapshot.is_none() {
                findings.push(Finding::new(Kind::NeverServed, dir, "there is no journal"));
            }
            // A snapshot follows a journal, and goes before it.
            findings.extend(snapshot.map(|path| {
                Finding::new(
                    Kind::JournalDamaged,
                    &path,
                    "there is a snapshot, and no journal that builds on it",
                )
            }));
        }
        Ok(Some(Inspected { path, bytes, valid_bytes })) => {
            if valid_bytes < bytes {
                let problem = format!("{} bytes behind the last whole entry", bytes - valid_bytes);
                findings.push(Finding::new(Kind::TornTail, &path, problem).at(valid_bytes));
            }
        }
        Err(error) => findings.push(as_finding(&error, dir)),
    }
    examined
}

fn as_finding(error: &OpenError, dir: &Path) -> Finding {
    match error {
        OpenError::Damaged { path, offset, reason } => {
            Finding::new(Kind::JournalDamaged, path, reason.to_string()).at(*offset)
        }
        OpenError::SnapshotMissing { path } => {
            Finding::new(Kind::JournalDamaged, path, "the journal builds on it, and it is not there")
        }
        OpenError::Storage(error) if error.is_too_long() => {
            Finding::new(Kind::JournalDamaged, &error.path, error.to_string())
        }
        OpenError::Storage(error) => Finding::new(Kind::Unreadable, &error.path, error.to_string()),
        OpenError::Foreign { path, found, expected } => {
            let problem = format!("it belongs to slot {found}, not to {expected}");
            Finding::new(Kind::ForeignFile, path, problem)
        }
        OpenError::NewerFormat { path, .. } => Finding::new(Kind::NewerFormat, path, error.to_string()),
        other => Finding::new(Kind::Unreadable, dir, other.to_string()),
    }
}

/// What the names in a slot's directory say.
#[derive(Debug, Default)]
struct Names {
    /// Of journals and snapshots.
    versions: BTreeSet<FileVersion>,
    /// One of the snapshots.
    snapshot: Option<PathBuf>,
}

/// Reads the names; tells of those that nobody knows.
fn names(context: &Context<'_>, dir: &Path, findings: &mut Vec<Finding>) -> Option<Names> {
    let entries = match context.substrate.list(dir) {
        Ok(entries) => entries,
        Err(error) => {
            findings.push(Finding::new(Kind::Unreadable, dir, error.to_string()));
            return None;
        }
    };
    let mut names = Names::default();
    let mut strays = Strays::new(dir, findings);
    for entry in entries {
        let name = entry.name.to_str().unwrap_or_default();
        let (claim, version) = (claim_epoch(&entry.name), is_journal_file(&entry.name));
        match entry.kind {
            // It is opened by everybody, who tells what is wrong with it.
            _ if name == FENCE_NAME => {}
            EntryKind::Dir if name == QUARANTINE_DIR => {
                strays.tell(Kind::Quarantine, &entry.name, "a repair has put something aside");
            }
            EntryKind::File if claim.is_some() => {}
            EntryKind::File if version.is_some() => {
                names.versions.extend(version);
                if is_snapshot_file(&entry.name) {
                    names.snapshot = Some(dir.join(name));
                }
            }
            kind if claim.is_some() || version.is_some() => {
                strays.wrong_type(&entry.name, kind, EntryKind::File);
            }
            _ => strays.other(&entry),
        }
    }
    Some(names)
}

/// The controller's directory: claims and a fence, nothing else. Its epochs are in the names of what it writes beside it.
pub(super) fn examine_controller(context: &Context<'_>, dir: &Path) -> Examined {
    let mut examined = Examined::default();
    let findings = &mut examined.findings;
    if context.substrate.list(dir).is_err_and(|error| error.is_not_found()) {
        findings.push(Finding::new(Kind::FenceMissing, dir, "the controller's directory is not there"));
    } else if names(context, dir, findings).is_some() {
        let written = dir.parent().and_then(|cluster| cluster::written(context.substrate, cluster));
        examined.counts.newest = leaders::check(context, dir, written, findings).newest;
    }
    strays::explain(context.substrate, dir, &mut examined.findings);
    examined
}
