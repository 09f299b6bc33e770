//! Who may lead: the fence, record by record, and the claim files beside it.
//!
//! A claim that is being made just now may show a torn record or one without its neighbours: such findings make for a second
//! look.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;

use kaas_substrate::{EntryKind, RECORD_BYTES, RECORD_ZERO_AT, Substrate, read_small};
use serde::Deserialize;

use super::Context;
use super::finding::{Finding, Kind, Severity};
use super::tree::{DELETED_PREFIX, lineage};
use crate::leadership::{
    Claimant, Damage, FENCE_NAME, FenceContent, FenceRecord, claim_epoch, is_out_of_reach, records_needed,
};
use crate::types::{Epoch, Timestamp};

/// Damaged records of one fence that are told one by one.
const DAMAGED_SHOWN_MAX: usize = 8;

/// Largest claim file that is read.
const CLAIM_BYTES_MAX: usize = 64 << 10;

/// The record of an epoch, if it is not zeros.
fn record_of(fence: &FenceContent, epoch: Epoch) -> Option<&FenceRecord> {
    let at = fence.used.binary_search_by_key(&u64::from(epoch.get()), |(at, _)| *at).ok()?;
    fence.used.get(at).map(|(_, record)| record)
}

/// A claim file; for people, and to recognise a claim of one's own.
#[derive(Debug, Deserialize)]
struct ClaimFile {
    format: u64,
    epoch: u32,
    broker_id: i32,
    incarnation: String,
    assignment_version: u64,
    claimed_at_ms: u64,
}

/// What the claims of a directory say.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Claims {
    /// The highest epoch that is claimed.
    pub(super) highest: Option<Epoch>,
    /// When the newest of the claim files was made, by its claimant's clock.
    pub(super) newest: Option<Timestamp>,
}

/// Checks the fence and the claims of `dir`; once more if a claim that is under way may be what was found. `written` is the
/// highest epoch whose leader left a file behind.
pub(super) fn check(
    context: &Context<'_>,
    dir: &Path,
    written: Option<Epoch>,
    findings: &mut Vec<Finding>,
) -> Claims {
    let (mut claims, mut found) = look(context, dir, written);
    if found.iter().any(|finding| finding.racy && finding.severity > Severity::Info) {
        thread::sleep(context.options.second_look_after);
        (claims, found) = look(context, dir, written);
    }
    findings.extend(found);
    claims
}

/// One look: the fence, and then the claim files. In this order a claim that the fence has is in the listing, or else a later one
/// that has removed it.
fn look(context: &Context<'_>, dir: &Path, written: Option<Epoch>) -> (Claims, Vec<Finding>) {
    let path = dir.join(FENCE_NAME);
    let fence = match FenceContent::read(context.substrate, dir) {
        Ok(fence) => fence,
        Err(error) => {
            let kind = if error.is_not_found() { Kind::FenceMissing } else { Kind::Unreadable };
            return (Claims::default(), vec![Finding::new(kind, &path, error.to_string())]);
        }
    };
    let claims = match claim_files(context, dir) {
        Ok(claims) => claims,
        Err(error) => {
            return (Claims::default(), vec![Finding::new(Kind::Unreadable, dir, error.to_string())]);
        }
    };
    let mut findings = judge(&fence, &path, &claims, written);
    findings.extend(taken_away(context, dir, &fence));
    if findings.iter().any(|finding| finding.kind == Kind::EpochOutOfReach) {
        // The claim files are at odds with such a fence in any case.
        return (Claims::default(), findings);
    }
    let newest = check_claims(context, dir, &claims, &fence, &mut findings);
    (Claims { highest: highest_claimed(&fence), newest }, findings)
}

/// The epochs of the claim files of `dir`.
fn claim_files(context: &Context<'_>, dir: &Path) -> kaas_substrate::Result<BTreeSet<Epoch>> {
    let entries = context.substrate.list(dir)?.into_iter();
    Ok(entries
        .filter(|entry| entry.kind == EntryKind::File)
        .filter_map(|entry| claim_epoch(&entry.name))
        .collect())
}

fn highest_claimed(fence: &FenceContent) -> Option<Epoch> {
    let claimed = fence.used.iter().rev().find(|(_, record)| matches!(record, FenceRecord::Claimed { .. }));
    claimed.and_then(|(at, _)| u32::try_from(*at).ok()).and_then(Epoch::new)
}

/// What is wrong with the fence itself.
fn judge(
    fence: &FenceContent,
    path: &Path,
    claims: &BTreeSet<Epoch>,
    written: Option<Epoch>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let position = |at: u64| at * RECORD_BYTES as u64;
    let vouches = |record: &FenceRecord| matches!(record, FenceRecord::Claimed { .. } | FenceRecord::Born);
    let top = fence.used.iter().rev().find(|(_, record)| vouches(record)).map_or(0, |(at, _)| *at);
    let born =
        fence.used.iter().rev().find(|(_, record)| *record == FenceRecord::Born).map_or(0, |(at, _)| *at);

    let is_claimed = |epoch: Epoch| matches!(record_of(fence, epoch), Some(FenceRecord::Claimed { .. }));
    let unfinished = claims.iter().rev().find(|epoch| !is_claimed(**epoch));
    let damaged = fence.used.iter().filter_map(|(at, record)| match record {
        FenceRecord::Damaged(damage) => Some((*at, damage)),
        _ => None,
    });
    // Those at the top come first: they concern whoever leads now.
    for (at, damage) in damaged.rev().take(DAMAGED_SHOWN_MAX) {
        let kind = match damage {
            _ if at < top => Kind::FenceRecordDamaged,
            // A leader of it had come to its claim's end: this is no claim that was cut off.
            _ if written.is_some_and(|written| u64::from(written.get()) >= at) => Kind::FenceDamaged,
            Damage::Unfinished => Kind::FenceRecordTorn,
            // Whoever has begun that claim writes everything below it.
            _ if unfinished.is_some_and(|epoch| u64::from(epoch.get()) > at) => Kind::FenceRecordTorn,
            _ => Kind::FenceDamaged,
        };
        findings.push(Finding::new(kind, path, format!("record of epoch {at}: {damage}")).at(position(at)));
    }
    let impossible = out_of_reach(fence, path, written);
    let is_possible = impossible.is_none();
    findings.extend(impossible);
    // Below the highest claim everything is used, back to the birth.
    let mut next = born + 1;
    for (at, _) in &fence.used {
        if *at >= next && next < top {
            if *at > next && is_possible {
                let problem =
                    format!("epochs {next} to {} below the claimed epoch {top} have no record", at - 1);
                findings.push(Finding::new(Kind::FenceGap, path, problem).at(position(next)));
            }
            next = at + 1;
        }
    }
    let behind: Vec<_> = fence.used.iter().filter(|(at, _)| *at > top).collect();
    if let Some((at, FenceRecord::Skipped { by })) = behind.first().map(|(at, record)| (at, record)) {
        let problem = format!("epoch {by} has skipped epoch {at} and has no record of its own");
        findings.push(Finding::new(Kind::ClaimUnfinished, path, problem).at(position(*at)));
    }
    if let Some(written) = written
        && is_possible
        && u64::from(written.get()) > fence.used.last().map_or(0, |(at, _)| *at)
    {
        let problem =
            format!("a leader of epoch {written} has left files behind; the fence knows nothing of it");
        findings.push(Finding::new(Kind::FenceBehind, path, problem).at(position(u64::from(written.get()))));
    }
    let leader = u32::try_from(top).ok().and_then(Epoch::new).unwrap_or(Epoch::NONE);
    let needed = position(records_needed(leader));
    // Where nothing can be allocated it was extended by the one byte of a record that is always zero.
    let whole = [0, RECORD_ZERO_AT as u64 + 1].contains(&(fence.length % RECORD_BYTES as u64));
    if fence.length < needed || !whole {
        let problem = format!("it has {} bytes; the leader of epoch {top} needs {needed}", fence.length);
        findings.push(Finding::new(Kind::FenceShort, path, problem));
    }
    findings
}

/// The highest epoch of which the fence has a record, damaged or not.
fn highest_used(fence: &FenceContent) -> Option<Epoch> {
    fence.used.last().map_or(Some(Epoch::NONE), |(at, _)| u32::try_from(*at).ok().and_then(Epoch::new))
}

/// An epoch, of the fence or of a file beside it, that no claims can have led to. One of them is enough: what else is wrong
/// with the fence follows from it.
fn out_of_reach(fence: &FenceContent, path: &Path, written: Option<Epoch>) -> Option<Finding> {
    let finding = |problem: String| Finding::new(Kind::EpochOutOfReach, path, problem).certain();
    let records = fence.length.div_ceil(RECORD_BYTES as u64);
    let highest = highest_used(fence);
    match fence.endless_zeros_below {
        Some(at) if at == records => {
            let problem = format!(
                "it has {} bytes, which ends in more empty records than any claim leaves",
                fence.length
            );
            return Some(finding(problem));
        }
        Some(at) => {
            let problem =
                format!("it has a record of epoch {at}, and more empty ones below it than any claim leaves");
            return Some(finding(problem).at(at * RECORD_BYTES as u64));
        }
        None => {}
    }
    let Some(highest) = highest.filter(|highest| !is_out_of_reach(*highest, *highest)) else {
        let at = fence.used.last().map_or(0, |(at, _)| *at);
        let problem = format!("it has a record of epoch {at}; no cluster comes so far");
        return Some(finding(problem).at(at * RECORD_BYTES as u64));
    };
    let written = written.filter(|written| is_out_of_reach(*written, highest))?;
    Some(finding(format!(
        "a manifest, checkpoint, segment, journal or snapshot beside it has epoch {written} in its name; the fence has \
         used no epoch above {highest}, and a claim cannot skip as many"
    )))
}

/// That the directory was taken away from everybody who might claim it. Where a deletion has renamed its topic aside this
/// is as it should be.
fn taken_away(context: &Context<'_>, dir: &Path, fence: &FenceContent) -> Option<Finding> {
    let Some((0, FenceRecord::TakenAway { by })) = fence.used.first() else { return None };
    // Asked after the mark was read: a deletion renames first.
    let kind = match is_in_place(context.substrate, dir) {
        Ok(true) if !is_aside(context.substrate, dir) => Kind::TakenAway,
        Ok(_) => Kind::Deleted,
        Err(error) => return Some(Finding::new(Kind::Unreadable, dir, error.to_string())),
    };
    let problem = format!("the controller of epoch {by} has taken it away, to delete its topic");
    Some(Finding::new(kind, &dir.join(FENCE_NAME), problem).at(0))
}

/// Whether the directory is a deleted topic's, or in one, by the name that it was opened with.
pub(super) fn is_aside(substrate: &dyn Substrate, dir: &Path) -> bool {
    let [name, parent, _] = lineage(substrate, dir);
    [name, parent].iter().flatten().any(|name| name.starts_with(DELETED_PREFIX))
}

/// Whether the directory that `dir` is in is still there under its name. Asked of a listing: for a while a client of NFS
/// opens what it knows a name to lead to, wherever that was renamed meanwhile. True where nothing around it can be listed.
pub(super) fn is_in_place(substrate: &dyn Substrate, dir: &Path) -> kaas_substrate::Result<bool> {
    let parent = dir.parent().and_then(|parent| Some((parent.file_name()?, parent.parent()?)));
    let Some((name, above)) = parent else { return Ok(true) };
    Ok(substrate.list(above)?.iter().any(|entry| entry.name == name))
}

/// Checks the claim files; when the newest was made.
fn check_claims(
    context: &Context<'_>,
    dir: &Path,
    claims: &BTreeSet<Epoch>,
    fence: &FenceContent,
    findings: &mut Vec<Finding>,
) -> Option<Timestamp> {
    let mut newest = None;
    let highest = highest_claimed(fence);
    for epoch in claims {
        let path = claim_path(dir, *epoch);
        if highest_used(fence).is_some_and(|highest| is_out_of_reach(*epoch, highest)) {
            let problem = "the fence has used no epoch that a claim can skip to it from";
            findings.push(Finding::new(Kind::ClaimOutOfReach, &path, problem).certain());
            continue;
        }
        let claim = match read_claim(context, &path, *epoch) {
            Ok(Some(claim)) => claim,
            // Collected since the listing.
            Ok(None) => continue,
            Err(finding) => {
                findings.push(*finding);
                continue;
            }
        };
        newest = newest.max(i64::try_from(claim.claimed_at_ms).ok().map(Timestamp));
        let unfinished = match record_of(fence, *epoch) {
            Some(FenceRecord::Claimed { owner }) if *owner == named_as(&claim, owner) => continue,
            // A claim that came too late: the first owner's file was collected, which made room for another's.
            Some(FenceRecord::Claimed { .. }) if highest > Some(*epoch) => {
                "a later epoch had been claimed before it".to_owned()
            }
            Some(FenceRecord::Claimed { owner }) => {
                let problem = format!(
                    "it names broker {} ({}, assignment {}), the fence broker {} ({}, assignment {})",
                    claim.broker_id,
                    claim.incarnation,
                    claim.assignment_version,
                    owner.broker_id,
                    owner.incarnation,
                    owner.assignment_version
                );
                findings.push(Finding::new(Kind::ClaimDisagrees, &path, problem));
                continue;
            }
            Some(FenceRecord::Skipped { by }) => format!("epoch {by} skipped it"),
            Some(FenceRecord::Born) => "the directory was born after it".to_owned(),
            // The first record is of no epoch, and no claim either.
            Some(FenceRecord::Damaged(_) | FenceRecord::TakenAway { .. }) => continue,
            Some(FenceRecord::Unclaimed) | None => "the fence has no record of it".to_owned(),
        };
        findings.push(Finding::new(Kind::ClaimUnfinished, &path, unfinished));
    }
    // A later claim removes this one, and is listed itself.
    if let Some(highest) = highest.filter(|highest| claims.last() < Some(highest)) {
        let problem = "the highest epoch's claim file is not there";
        findings.push(Finding::new(Kind::ClaimMissing, &claim_path(dir, highest), problem));
    }
    newest
}

/// The claim's owner, to be compared with the fence's; an incarnation is cut to what a record holds.
fn named_as(claim: &ClaimFile, owner: &Claimant) -> Claimant {
    let kept = claim.incarnation.get(..owner.incarnation.len()).unwrap_or(&claim.incarnation);
    let whole = owner.incarnation.len() >= claim.incarnation.len().min(128);
    Claimant {
        broker_id: claim.broker_id,
        incarnation: if whole { kept.to_owned() } else { claim.incarnation.clone() },
        assignment_version: claim.assignment_version,
    }
}

fn claim_path(dir: &Path, epoch: Epoch) -> PathBuf {
    dir.join(format!("claim.{:08x}", epoch.get()))
}

fn read_claim(context: &Context<'_>, path: &Path, epoch: Epoch) -> Result<Option<ClaimFile>, Box<Finding>> {
    let finding = |kind, problem: String| Box::new(Finding::new(kind, path, problem));
    let bytes = match read_small(context.substrate, path, CLAIM_BYTES_MAX) {
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => {
            let kind = if error.is_too_long() { Kind::ClaimDamaged } else { Kind::Unreadable };
            return Err(finding(kind, error.to_string()));
        }
        Ok(bytes) => bytes,
    };
    if bytes.is_empty() {
        return Err(finding(Kind::ClaimUnfinished, "it is empty".into()));
    }
    let claim: ClaimFile = serde_json::from_slice(&bytes)
        .map_err(|error| finding(Kind::ClaimDamaged, format!("it cannot be read: {error}")))?;
    match claim.format {
        0 => return Err(finding(Kind::ClaimDamaged, "there is no format 0".into())),
        1 => {}
        newer => {
            let problem = format!("it has format {newer}; this version of kaas reads up to 1");
            return Err(finding(Kind::NewerFormat, problem));
        }
    }
    if claim.epoch != epoch.get() {
        return Err(finding(Kind::ClaimDamaged, format!("it says epoch {}", claim.epoch)));
    }
    Ok(Some(claim))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged_with(claims: &[u32], used: Vec<(u64, FenceRecord)>, written: u32) -> Vec<Kind> {
        let fence = FenceContent { length: 64 * RECORD_BYTES as u64, used, ..FenceContent::default() };
        let claims = claims.iter().filter_map(|epoch| Epoch::new(*epoch)).collect();
        let findings = judge(&fence, Path::new("fence"), &claims, Epoch::new(written));
        findings.iter().map(|finding| finding.kind).collect()
    }

    fn judged(used: Vec<(u64, FenceRecord)>, written: u32) -> Vec<Kind> {
        judged_with(&[], used, written)
    }

    fn claimed() -> FenceRecord {
        let owner = Claimant { broker_id: 1, incarnation: "run".into(), assignment_version: 0 };
        FenceRecord::Claimed { owner }
    }

    fn skipped(by: u32) -> FenceRecord {
        FenceRecord::Skipped { by: Epoch::new(by).unwrap() }
    }

    #[test]
    fn fences_in_order() {
        assert_eq!(judged(vec![], 0), []);
        assert_eq!(judged(vec![(1, claimed()), (2, claimed())], 2), []);
        assert_eq!(judged(vec![(5, FenceRecord::Born)], 0), []);
        assert_eq!(judged(vec![(5, FenceRecord::Born), (6, skipped(7)), (7, claimed())], 7), []);
        assert_eq!(judged(vec![(1, skipped(3)), (2, skipped(3)), (3, claimed())], 1), []);
    }

    #[test]
    fn fences_that_are_not() {
        assert_eq!(judged(vec![(1, claimed()), (3, claimed())], 3), [Kind::FenceGap]);
        assert_eq!(judged(vec![(5, FenceRecord::Born), (8, claimed())], 8), [Kind::FenceGap]);
        assert_eq!(judged(vec![(3, claimed())], 3), [Kind::FenceGap]);
        assert_eq!(judged(vec![(1, claimed()), (2, skipped(3))], 1), [Kind::ClaimUnfinished]);
        assert_eq!(judged(vec![(1, claimed())], 2), [Kind::FenceBehind]);
        let damaged = FenceRecord::Damaged(Damage::Magic);
        assert_eq!(judged(vec![(1, damaged.clone()), (2, claimed())], 2), [Kind::FenceRecordDamaged]);
        assert_eq!(judged(vec![(1, claimed()), (2, damaged)], 1), [Kind::FenceDamaged]);
        let torn = FenceRecord::Damaged(Damage::Unfinished);
        assert_eq!(judged(vec![(1, torn.clone()), (2, claimed())], 2), [Kind::FenceRecordDamaged]);
        assert_eq!(judged(vec![(1, claimed()), (2, torn.clone())], 1), [Kind::FenceRecordTorn]);
        assert_eq!(judged(vec![(1, claimed()), (2, torn)], 2), [Kind::FenceDamaged], "of an epoch that led");
        // Overwritten in part by a claim of epoch 3 that did not come to its end.
        let fence = || vec![(1, claimed()), (2, FenceRecord::Damaged(Damage::Magic))];
        assert_eq!(judged_with(&[1, 3], fence(), 1), [Kind::FenceRecordTorn]);
        assert_eq!(judged_with(&[1, 2], fence(), 1), [Kind::FenceDamaged]);
        assert_eq!(judged_with(&[1, 3], fence(), 2), [Kind::FenceDamaged], "of an epoch that led");
    }
}
