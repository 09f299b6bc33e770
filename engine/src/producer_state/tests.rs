//! Tests of the producer state: rule by rule, and against a model that looks at the whole history each time.

use proptest::prelude::*;

use super::*;
use crate::batch::{Attributes, Compression};
use crate::identity::Identity;
use crate::types::Epoch;

const PLAIN: Checks = Checks { require_open_transaction: false, verification: None };

fn header(id: i64, epoch: i16, sequence: i32, count: i32, transactional: bool) -> BatchHeader {
    BatchHeader {
        partition_leader_epoch: -1,
        attributes: Attributes::new(Compression::None, transactional, false),
        base_timestamp: Timestamp(5),
        max_timestamp: Timestamp(1000 + i64::from(sequence)),
        producer_id: (id >= 0).then_some(ProducerId(id)),
        producer_epoch: epoch,
        base_sequence: sequence,
        ..BatchHeader::plain(0, count)
    }
}

fn marker_header(id: i64, epoch: i16) -> BatchHeader {
    BatchHeader {
        attributes: Attributes::new(Compression::None, true, true),
        base_sequence: -1,
        ..header(id, epoch, 0, 1, true)
    }
}

fn marker(marker: Marker, coordinator_epoch: i32) -> EndMarker {
    EndMarker { marker, coordinator_epoch }
}

/// Checks and appends at the end.
fn put(states: &mut ProducerStates, batch: BatchHeader) -> Result<Verdict, ProducerError> {
    let verdict = states.check(&batch, &PLAIN)?;
    if verdict == Verdict::Append {
        let _ = states.append(&batch.appended_at(states.end_offset(), Epoch::NONE));
    }
    Ok(verdict)
}

fn end(states: &mut ProducerStates, id: i64, epoch: i16, with: EndMarker) -> Option<CompletedTransaction> {
    states.check_marker(ProducerId(id), epoch, with).unwrap();
    let batch = marker_header(id, epoch).appended_at(states.end_offset(), Epoch::NONE);
    states.append_marker(&batch, with).0
}

fn appended(result: Result<Verdict, ProducerError>) {
    assert_eq!(result, Ok(Verdict::Append));
}

#[test]
fn the_last_five_batches_are_recognised() {
    let mut states = ProducerStates::new();
    for index in 0..6 {
        appended(put(&mut states, header(1, 0, index * 2, 2, false)));
    }
    for index in 1..6 {
        let offset = i64::from(index) * 2;
        let duplicate = Verdict::Duplicate {
            base_offset: Offset(offset),
            last_offset: Offset(offset + 1),
            timestamp: Timestamp(1000 + offset),
        };
        assert_eq!(put(&mut states, header(1, 0, index * 2, 2, false)), Ok(duplicate));
    }
    let id = ProducerId(1);
    let old = ProducerError::OutOfOrderSequence { producer_id: id, epoch: 0, found: 0, last: 11 };
    assert_eq!(put(&mut states, header(1, 0, 0, 2, false)), Err(old));
    // The same first sequence with another length is no duplicate.
    let other = ProducerError::OutOfOrderSequence { producer_id: id, epoch: 0, found: 10, last: 11 };
    assert_eq!(put(&mut states, header(1, 0, 10, 1, false)), Err(other));
    let gap = ProducerError::OutOfOrderSequence { producer_id: id, epoch: 0, found: 13, last: 11 };
    assert_eq!(put(&mut states, header(1, 0, 13, 1, false)), Err(gap));
    assert_eq!(states.end_offset(), Offset(12));
}

#[test]
fn sequences_wrap_around() {
    let mut states = ProducerStates::new();
    appended(put(&mut states, header(1, 0, i32::MAX - 1, 2, false)));
    appended(put(&mut states, header(1, 0, 0, 1, false)));
    // A batch across the end, and its repetition.
    let mut states = ProducerStates::new();
    appended(put(&mut states, header(1, 0, i32::MAX, 3, false)));
    appended(put(&mut states, header(1, 0, 2, 1, false)));
    assert!(matches!(put(&mut states, header(1, 0, i32::MAX, 3, false)), Ok(Verdict::Duplicate { .. })));
}

#[test]
fn epochs() {
    let id = ProducerId(1);
    let mut states = ProducerStates::new();
    // Nothing is known: any sequence is taken.
    appended(put(&mut states, header(1, 4, 17, 1, false)));
    let late = ProducerError::SequenceOfNewEpoch { producer_id: id, epoch: 5, found: 18, current: 4 };
    assert_eq!(put(&mut states, header(1, 5, 18, 1, false)), Err(late));
    appended(put(&mut states, header(1, 5, 0, 1, false)));
    let zombie = ProducerError::InvalidProducerEpoch { producer_id: id, found: 4, current: 5 };
    assert_eq!(put(&mut states, header(1, 4, 18, 1, false)), Err(zombie));
    // Batches of the old epoch are not recognised any more, not even as duplicates.
    assert_eq!(put(&mut states, header(1, 4, 17, 1, false)), Err(zombie));
    assert_eq!(states.producer(id).unwrap().batches.batches().len(), 1);
}

#[test]
fn a_marker_keeps_the_sequence_within_an_epoch_and_ends_it_with_a_higher_one() {
    let mut states = ProducerStates::new();
    appended(put(&mut states, header(1, 0, 0, 3, true)));
    end(&mut states, 1, 0, marker(Marker::Commit, 1));
    appended(put(&mut states, header(1, 0, 3, 1, true)));
    end(&mut states, 1, 1, marker(Marker::Abort, 1));
    let id = ProducerId(1);
    let error = ProducerError::OutOfOrderSequence { producer_id: id, epoch: 1, found: 4, last: -1 };
    assert_eq!(put(&mut states, header(1, 1, 4, 1, true)), Err(error));
    appended(put(&mut states, header(1, 1, 0, 1, true)));
}

#[test]
fn transactions_bound_the_stable_offset() {
    let mut states = ProducerStates::new();
    appended(put(&mut states, header(-1, 0, 0, 10, false)));
    assert_eq!(states.first_unstable_offset(), None);
    appended(put(&mut states, header(1, 0, 0, 1, true)));
    appended(put(&mut states, header(2, 0, 0, 1, true)));
    appended(put(&mut states, header(1, 0, 1, 1, true)));
    assert_eq!(states.first_unstable_offset(), Some(Offset(10)));
    assert!(states.has_open_transaction(ProducerId(1)));
    let error = ProducerError::NotTransactional { producer_id: ProducerId(1) };
    assert_eq!(put(&mut states, header(1, 0, 2, 1, false)), Err(error));

    let completed = end(&mut states, 1, 0, marker(Marker::Abort, 3)).unwrap();
    let expected = CompletedTransaction {
        producer_id: ProducerId(1),
        first_offset: Offset(10),
        last_offset: Offset(13),
        aborted: true,
        last_stable_offset: Offset(11),
    };
    assert_eq!(completed, expected);
    // Ended, but its marker is not committed.
    assert_eq!(states.first_unstable_offset(), Some(Offset(10)));
    states.on_high_watermark(Offset(13));
    assert_eq!(states.first_unstable_offset(), Some(Offset(10)));
    states.on_high_watermark(Offset(14));
    assert_eq!(states.first_unstable_offset(), Some(Offset(11)));

    let completed = end(&mut states, 2, 0, marker(Marker::Commit, 3)).unwrap();
    assert_eq!((completed.last_stable_offset, completed.aborted), (Offset(15), false));
    states.on_high_watermark(Offset(15));
    assert_eq!(states.first_unstable_offset(), None);
    // A marker without a transaction ends none.
    assert_eq!(end(&mut states, 2, 0, marker(Marker::Commit, 3)), None);
}

#[test]
fn old_coordinators_are_fenced() {
    let mut states = ProducerStates::new();
    end(&mut states, 1, 3, marker(Marker::Commit, 7));
    let id = ProducerId(1);
    let fenced = ProducerError::CoordinatorFenced { producer_id: id, found: 6, current: 7 };
    assert_eq!(states.check_marker(id, 3, marker(Marker::Commit, 6)), Err(fenced));
    let zombie = ProducerError::InvalidProducerEpoch { producer_id: id, found: 2, current: 3 };
    assert_eq!(states.check_marker(id, 2, marker(Marker::Commit, 7)), Err(zombie));
    assert_eq!(states.check_marker(id, 3, marker(Marker::Commit, 7)), Ok(()));
}

#[test]
fn verification() {
    let mut states = ProducerStates::new();
    let unverified = Checks { require_open_transaction: true, verification: None };
    let none = ProducerError::NoTransaction { producer_id: ProducerId(1) };
    assert_eq!(states.check(&header(1, 0, 0, 1, true), &unverified), Err(none));
    assert_eq!(states.check(&header(1, 0, 0, 1, false), &unverified), Ok(Verdict::Append));
    let with = |lowest_sequence, bumps_epoch| Checks {
        verification: Some(Verification { lowest_sequence, bumps_epoch }),
        ..PLAIN
    };
    let behind =
        ProducerError::SequenceBehindVerification { producer_id: ProducerId(1), found: 5, lowest: 2 };
    assert_eq!(states.check(&header(1, 0, 5, 1, true), &with(2, false)), Err(behind));
    assert_eq!(states.check(&header(1, 0, 2, 1, true), &with(2, false)), Ok(Verdict::Append));
    assert!(states.check(&header(1, 0, 2, 1, true), &with(2, true)).is_err());
    appended(put(&mut states, header(1, 0, 0, 1, true)));
    assert_eq!(states.check(&header(1, 0, 1, 1, true), &unverified), Ok(Verdict::Append));
}

#[test]
fn producers_expire_but_not_inside_a_transaction() {
    let mut states = ProducerStates::new();
    appended(put(&mut states, header(1, 0, 0, 1, false)));
    appended(put(&mut states, header(2, 0, 0, 1, true)));
    assert_eq!(states.expire(Timestamp(1099), 100), 0);
    assert_eq!(states.expire(Timestamp(1100), 100), 1);
    assert!(states.producer(ProducerId(1)).is_none());
    assert_eq!(states.len(), 1);
    // Not known any more: any sequence.
    appended(put(&mut states, header(1, 0, 40, 1, false)));
}

#[test]
fn an_undo_outlives_expiry() {
    let mut states = ProducerStates::new();
    appended(put(&mut states, header(1, 0, 0, 1, false)));
    let undo = states.append(&header(1, 0, 1, 1, false).appended_at(Offset(1), Epoch::NONE));
    assert_eq!(states.expire(Timestamp(100_000), 1), 1);
    states.undo(undo);
    assert!(states.is_empty());
    assert_eq!(states.end_offset(), Offset(1));
}

#[test]
fn an_idle_partition_costs_little() {
    assert!(size_of::<ProducerStates>() <= 160, "{}", size_of::<ProducerStates>());
    assert!(size_of::<ProducerEntry>() <= 184, "{}", size_of::<ProducerEntry>());
    assert_eq!(ProducerStates::new().producers.capacity(), 0);
}

#[test]
fn damaged_snapshots_are_refused() {
    let mut states = ProducerStates::new();
    appended(put(&mut states, header(1, 0, 0, 1, true)));
    appended(put(&mut states, header(2, 7, 9, 3, false)));
    let bytes = states.to_snapshot(&identity());
    assert_eq!(ProducerStates::from_snapshot(&bytes).unwrap(), (identity(), states));
    for length in 0..bytes.len() {
        assert!(ProducerStates::from_snapshot(&bytes[..length]).is_err(), "cut at {length}");
    }
    for byte in 0..bytes.len() {
        let mut copy = bytes.clone();
        copy[byte] ^= 1;
        assert!(ProducerStates::from_snapshot(&copy).is_err(), "byte {byte}");
    }
}

/// Puts the right checksum under edited lines.
fn sealed(lines: &str) -> Vec<u8> {
    format!("{lines}{{\"crc32c\":\"{:08x}\"}}\n", crc32c::crc32c(lines.as_bytes())).into_bytes()
}

#[test]
fn snapshots_with_a_right_checksum_are_still_read_with_care() {
    let head = |version: u32, producers: u32| {
        format!(
            "{{\"format\":\"kaas producer state\",\"version\":{version},\"identity\":{IDENTITY},\"end_offset\":3,\"later\":0,\
             \"producers\":{producers}}}\n"
        )
    };
    let producer = "{\"producer_id\":1,\"epoch\":0,\"coordinator_epoch\":-1,\"last_timestamp\":1,\
                    \"transaction_first_offset\":2,\"unknown\":[],\"batches\":[]}\n";
    let read = |lines: String| ProducerStates::from_snapshot(&sealed(&lines));
    let (_, states) = read(head(1, 1) + producer).unwrap();
    assert_eq!(states.first_unstable_offset(), Some(Offset(2)));
    assert_eq!(states.end_offset(), Offset(3));
    let newer = read(head(2, 0)).unwrap_err();
    assert!(matches!(newer, SnapshotError::NewerFormat { found: 2, supported: 1 }), "{newer}");
    let count = read(head(1, 2) + producer).unwrap_err();
    assert!(matches!(count, SnapshotError::Count { found: 1, declared: 2 }), "{count}");
    let twice = read(head(1, 2) + producer + producer).unwrap_err();
    assert!(matches!(twice, SnapshotError::Producer { producer_id: 1, .. }), "{twice}");
    let other = read(head(1, 0).replace("kaas producer state", "diary")).unwrap_err();
    assert!(matches!(other, SnapshotError::Format { .. }), "{other}");
    let many = producer.replace("\"batches\":[]", &format!("\"batches\":[{}]", [BATCH; 6].join(",")));
    assert!(matches!(read(head(1, 1) + &many).unwrap_err(), SnapshotError::Producer { .. }));
    let negative =
        producer.replace("\"batches\":[]", &format!("\"batches\":[{}]", BATCH.replace(":0,", ":9,")));
    assert!(matches!(read(head(1, 1) + &negative).unwrap_err(), SnapshotError::Producer { .. }));
}

const IDENTITY: &str = "{\"topic\":\"t\",\"partition\":3,\"topic_id\":\"07070707070707070707070707070707\"}";

fn identity() -> Identity {
    Identity { topic: "t".into(), partition: 3, topic_id: [7; 16] }
}

const BATCH: &str = "{\"last_sequence\":3,\"last_offset\":3,\"offset_delta\":0,\"timestamp\":1}";

/// The rules once more, told over the whole history instead of a summary of it.
#[derive(Default, Clone)]
struct Model {
    history: Vec<(BatchHeader, Option<EndMarker>)>,
}

impl Model {
    fn of(&self, id: ProducerId) -> Vec<(BatchHeader, Option<EndMarker>)> {
        self.history.iter().filter(|(batch, _)| batch.producer_id == Some(id)).copied().collect()
    }

    /// Data batches since the epoch last changed, the last five of them.
    fn window(&self, id: ProducerId) -> Vec<BatchHeader> {
        let events = self.of(id);
        let Some((last, _)) = events.last() else { return Vec::new() };
        let same = events.iter().rev().take_while(|(batch, _)| batch.producer_epoch == last.producer_epoch);
        let mut window: Vec<_> = same.filter(|(_, m)| m.is_none()).map(|(b, _)| *b).take(5).collect();
        window.reverse();
        window
    }

    fn open(&self, id: ProducerId) -> Option<Offset> {
        let events = self.of(id);
        let since = events.iter().rposition(|(_, marker)| marker.is_some()).map_or(0, |at| at + 1);
        events[since..].iter().find(|(batch, _)| batch.is_transactional()).map(|(b, _)| b.base_offset)
    }

    fn accepts(&self, batch: &BatchHeader) -> Result<Option<Offset>, ()> {
        let Some(id) = batch.producer_id else { return Ok(None) };
        let window = self.window(id);
        let events = self.of(id);
        let Some(epoch) = events.last().map(|(b, _)| b.producer_epoch) else { return Ok(None) };
        if epoch == batch.producer_epoch {
            let same = |b: &&BatchHeader| {
                b.base_sequence == batch.base_sequence && b.record_count == batch.record_count
            };
            if let Some(twin) = window.iter().find(same) {
                return Ok(Some(twin.base_offset));
            }
        }
        let expected = if epoch == batch.producer_epoch {
            window.last().map_or(0, |last| crate::batch::increment_sequence(last.last_sequence(), 1))
        } else {
            0
        };
        let wrong = batch.producer_epoch < epoch
            || batch.base_sequence != expected
            || (self.open(id).is_some() && !batch.is_transactional());
        if wrong { Err(()) } else { Ok(None) }
    }

    fn first_open(&self) -> Option<Offset> {
        (0..4).filter_map(|id| self.open(ProducerId(id))).min()
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A batch; the sequence is this much beside the right one.
    Data {
        id: i64,
        epoch_step: i16,
        skip: i32,
        count: i32,
        transactional: bool,
    },
    Mark {
        id: i64,
        epoch_step: i16,
        abort: bool,
        coordinator_epoch: i32,
    },
    /// Take back up to this many appends.
    Undo(usize),
    /// Go through a snapshot.
    Snapshot,
}

fn step() -> impl Strategy<Value = Step> {
    let data = (-1_i64..4, -1_i16..2, any::<bool>(), -4_i32..3, 1_i32..4, any::<bool>()).prop_map(
        |(id, epoch_step, right, skip, count, transactional)| Step::Data {
            id,
            epoch_step: if right { 0 } else { epoch_step },
            skip: if right { 0 } else { skip },
            count,
            transactional,
        },
    );
    let mark = (0_i64..4, -1_i16..2, any::<bool>(), 0_i32..3).prop_map(
        |(id, epoch_step, abort, coordinator_epoch)| Step::Mark { id, epoch_step, abort, coordinator_epoch },
    );
    prop_oneof![
        8 => data,
        3 => mark,
        1 => (1_usize..6).prop_map(Step::Undo),
        1 => Just(Step::Snapshot),
    ]
}

/// The producer's epoch and next sequence, as a client would know them.
fn next_of(states: &ProducerStates, id: i64) -> (i16, i32) {
    match states.producer(ProducerId(id)) {
        Some(entry) => {
            let last = entry.batches.last();
            (entry.epoch, last.map_or(0, |last| crate::batch::increment_sequence(last.last_sequence, 1)))
        }
        None => (0, i32::MAX - 3),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_state_is_what_the_history_says(steps in proptest::collection::vec(step(), 1..80)) {
        let mut states = ProducerStates::new();
        let mut model = Model::default();
        let mut undos = Vec::new();
        for step in steps {
            match step {
                Step::Data { id, epoch_step, skip, count, transactional } => {
                    let (epoch, sequence) = next_of(&states, id);
                    let batch = header(id, (epoch + epoch_step).max(0), (sequence.saturating_add(skip)).max(0),
                        count, transactional && id >= 0);
                    let expected = model.accepts(&batch);
                    let got = states.check(&batch, &PLAIN);
                    match (got, expected) {
                        (Ok(Verdict::Append), Ok(None)) => {
                            let batch = batch.appended_at(states.end_offset(), Epoch::NONE);
                            let before = states.clone();
                            undos.push((states.append(&batch), before));
                            model.history.push((batch, None));
                        }
                        (Ok(Verdict::Duplicate { base_offset, .. }), Ok(Some(offset))) => {
                            prop_assert_eq!(base_offset, offset);
                        }
                        (Err(_), Err(())) => {}
                        (got, expected) => prop_assert!(false, "{batch:?}: {got:?} but {expected:?}"),
                    }
                }
                Step::Mark { id, epoch_step, abort, coordinator_epoch } => {
                    let epoch = (next_of(&states, id).0 + epoch_step).max(0);
                    let with = marker(if abort { Marker::Abort } else { Marker::Commit }, coordinator_epoch);
                    let known = model.of(ProducerId(id));
                    let newest = known.iter().rev().find_map(|(_, marker)| *marker);
                    let stale = known.last().is_some_and(|(last, _)| epoch < last.producer_epoch)
                        || newest.is_some_and(|newest| coordinator_epoch < newest.coordinator_epoch);
                    let got = states.check_marker(ProducerId(id), epoch, with);
                    prop_assert_eq!(got.is_err(), stale);
                    if !stale {
                        let batch = marker_header(id, epoch).appended_at(states.end_offset(), Epoch::NONE);
                        let opened = model.open(ProducerId(id));
                        let before = states.clone();
                        let (completed, undo) = states.append_marker(&batch, with);
                        undos.push((undo, before));
                        model.history.push((batch, Some(with)));
                        prop_assert_eq!(completed.map(|c| c.first_offset), opened);
                        if let Some(completed) = completed {
                            prop_assert_eq!(completed.aborted, abort);
                            let stable = model.first_open().unwrap_or(batch.next_offset());
                            prop_assert_eq!(completed.last_stable_offset, stable);
                        }
                    }
                }
                Step::Undo(count) => {
                    for _ in 0..count {
                        if let Some((undo, before)) = undos.pop() {
                            states.undo(undo);
                            prop_assert_eq!(&states, &before);
                            model.history.pop();
                        }
                    }
                }
                Step::Snapshot => {
                    let (_, read) = ProducerStates::from_snapshot(&states.to_snapshot(&identity())).unwrap();
                    prop_assert_eq!(read.to_snapshot(&identity()), states.to_snapshot(&identity()));
                    let mut committed = states.clone();
                    committed.on_high_watermark(states.end_offset());
                    prop_assert_eq!(&read, &committed);
                    states = committed;
                    undos.clear();
                }
            }
            let mut committed = states.clone();
            committed.on_high_watermark(states.end_offset());
            prop_assert_eq!(committed.first_unstable_offset(), model.first_open());
        }
        // Replaying what is in the log gives the same state, from the start or behind a snapshot.
        states.on_high_watermark(states.end_offset());
        let half = model.history.len() / 2;
        let mut replayed = ProducerStates::new();
        for (index, (batch, marker)) in model.history.iter().enumerate() {
            if index == half {
                (_, replayed) = ProducerStates::from_snapshot(&replayed.to_snapshot(&identity())).unwrap();
                for (batch, marker) in &model.history[..half] {
                    prop_assert_eq!(replayed.replay(batch, *marker), None);
                }
            }
            replayed.replay(batch, *marker);
        }
        replayed.on_high_watermark(replayed.end_offset());
        prop_assert_eq!(replayed, states);
    }
}
