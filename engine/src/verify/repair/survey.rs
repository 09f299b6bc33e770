//! What stands in a damaged segment that was appended to: whole batches side by side, and what is between them.

use super::super::walk::{Epochs, Step, Walk, Wanted};
use super::placing::{Damage, Front, Group, Piece};
use super::salvage::Source;
use crate::batch::BatchHeader;
use crate::planted::{Bug, planted};
use crate::types::Offset;

type Result<T> = std::result::Result<T, kaas_substrate::Error>;

/// Where these fields stand in a batch's header.
const LAST_OFFSET_DELTA_AT: usize = 23;
const RECORD_COUNT_AT: usize = 57;

/// Reads on from where `walk` stands up to `end`. Memory grows with the number of damaged places.
pub(super) fn survey(walk: &mut Walk<'_>, source: &Source, end: u64) -> Result<Vec<Group>> {
    let epochs = [source.name.epoch];
    let wanted = Wanted { epochs: Epochs::Of(&epochs), from: Offset(i64::MIN), end: Offset(i64::MAX) };
    let mut groups = vec![Group::default()];
    loop {
        match walk.step()? {
            Step::End => break,
            Step::Batch { position, header } => {
                if let Some(group) = groups.last_mut() {
                    add(&mut group.pieces, source, position, &header);
                }
            }
            Step::Damaged { position, .. } => {
                let here = walk.peek(position)?;
                let is_ours =
                    |header: &BatchHeader| header.partition_leader_epoch == source.name.epoch.to_wire();
                let behind = here.filter(is_ours).map(|header| header.base_offset);
                if let Some(group) = groups.last_mut() {
                    group.behind = behind;
                }
                if planted(Bug::RepairStopsAtDamage) || !go_on(walk, position, here, &wanted)? {
                    break;
                }
                let damage = read_damage(walk, position, walk.position())?;
                groups.push(Group { front: Front::Damage(damage), ..Group::default() });
            }
        }
    }
    if let Some(group) = groups.last_mut() {
        let last = group.pieces.last();
        group.is_last = last.is_some_and(|last| last.position + last.bytes == end);
    }
    Ok(groups)
}

fn add(pieces: &mut Vec<Piece>, source: &Source, position: u64, header: &BatchHeader) {
    let piece = Piece {
        position,
        bytes: header.batch_bytes as u64,
        batches: 1,
        base: header.base_offset,
        offsets: i64::from(header.last_offset_delta) + 1,
        is_within: header.base_offset.0 >= 0 && header.next_offset() <= source.limit,
        has_wrong_epoch: header.partition_leader_epoch != source.name.epoch.to_wire(),
    };
    let goes_on = |last: &&mut Piece| {
        last.base.plus(last.offsets) == piece.base
            && last.is_within == piece.is_within
            && !(last.has_wrong_epoch || piece.has_wrong_epoch || last.base.0 < 0)
    };
    match pieces.last_mut().filter(goes_on) {
        Some(last) => {
            last.bytes += piece.bytes;
            last.batches += 1;
            last.offsets += piece.offsets;
        }
        None => pieces.push(piece),
    }
}

/// Moves to the next whole batch behind the damaged one at `position`, whose header is `here`, if it can be one. False if there is
/// none.
fn go_on(walk: &mut Walk<'_>, position: u64, here: Option<BatchHeader>, wanted: &Wanted<'_>) -> Result<bool> {
    // Its records may hold what looks like a batch. If its header is whole they are passed over.
    if let Some(here) = here {
        let behind = position + here.batch_bytes as u64;
        let next = walk.peek(behind)?.filter(|next| next.base_offset == here.next_offset());
        if next.is_some() && walk.goes_on_at(behind)? {
            return Ok(true);
        }
    }
    Ok(walk.find(position + 1, wanted)?.is_some())
}

/// What the bytes from `from` to `to` say, which cannot be read.
fn read_damage(walk: &mut Walk<'_>, from: u64, to: u64) -> Result<Damage> {
    let first = walk.bytes_of_header(from)?;
    let field = |at: usize| {
        let bytes = first.get(at..).and_then(|rest| rest.first_chunk()).filter(|_| to - from > at as u64);
        bytes.map(|bytes| i64::from(i32::from_be_bytes(*bytes)))
    };
    let delta = field(LAST_OFFSET_DELTA_AT).map(|delta| delta + 1);
    let hints = delta.into_iter().chain(field(RECORD_COUNT_AT)).filter(|offsets| *offsets > 0).collect();
    let (mut at, mut offsets) = (from, 0);
    while at < to {
        // Whoever appends leaves no record out, so that the two fields bear each other out.
        let header = walk.peek(at)?.filter(|header| header.record_count == header.last_offset_delta + 1);
        let Some(header) = header else { break };
        at += header.batch_bytes as u64;
        offsets += i64::from(header.record_count);
    }
    let ends_with_zeros = walk.is_behind_zeros(to)?;
    Ok(Damage { offsets: (at == to).then_some(offsets), hints, ends_with_zeros, bytes: to - from })
}
