//! What coordinators write: appends of numbered entries, and snapshots that list the appends they hold.

use std::collections::BTreeMap;

use kaas_engine::journal::{Entry, Replay};
use serde_json::{Value, json};

/// Number of an append, which no other in the life of the slot has; counts up, as they are staged.
pub type AppendId = u64;

/// The entries of an append: `count` of them, each with `padding` bytes that say nothing.
pub fn entries(id: AppendId, count: u64, padding: usize) -> Vec<Value> {
    let padding = "x".repeat(padding);
    (0..count).map(|part| json!({ "append": id, "part": part, "of": count, "padding": padding })).collect()
}

/// The state after these appends.
pub fn state(appends: &[AppendId]) -> Value {
    json!({ "appends": appends })
}

/// What a coordinator was shown when it took over.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The appends, in order.
    pub appends: Vec<AppendId>,
    /// The sequence numbers of those that are not in the snapshot only.
    pub sequences: BTreeMap<AppendId, u64>,
}

impl View {
    /// Applies a replay, as a coordinator does: an append that the snapshot holds already changes nothing.
    ///
    /// # Errors
    ///
    /// If an append is there in part, twice, or not as it was written; in words.
    pub fn of(replay: &Replay) -> Result<Self, String> {
        let mut view = Self::default();
        if let Some(snapshot) = &replay.snapshot {
            let appends = snapshot.get("appends").and_then(Value::as_array);
            let appends = appends.ok_or_else(|| format!("the snapshot is {snapshot}"))?;
            let numbers: Option<Vec<_>> = appends.iter().map(Value::as_u64).collect();
            view.appends = numbers.ok_or_else(|| format!("the snapshot is {snapshot}"))?;
        }
        let in_snapshot = view.appends.clone();
        for entries in replay.entries.chunk_by(|one, other| one.sequence == other.sequence) {
            let (id, sequence) = append(entries)?;
            if view.sequences.insert(id, sequence).is_some() {
                return Err(format!("append {id} is there twice"));
            }
            if !in_snapshot.contains(&id) {
                view.appends.push(id);
            }
        }
        Ok(view)
    }
}

/// The append that entries with one sequence number are, and that number.
fn append(entries: &[Entry]) -> Result<(AppendId, u64), String> {
    let number = |entry: &Entry, name: &str| entry.value.get(name).and_then(Value::as_u64);
    let id = entries.first().and_then(|first| number(first, "append"));
    let is_whole = entries.iter().zip(0_u64..).all(|(entry, part)| {
        (number(entry, "append"), number(entry, "part"), number(entry, "of"))
            == (id, Some(part), Some(entries.len() as u64))
    });
    match (id, entries.first()) {
        (Some(id), Some(first)) if is_whole => Ok((id, first.sequence.0)),
        _ => Err(format!("these entries are no append: {entries:?}")),
    }
}

#[cfg(test)]
mod tests {
    use kaas_engine::journal::Sequence;

    use super::*;

    fn replay(snapshot: Option<&[AppendId]>, appends: &[(AppendId, u64)]) -> Replay {
        let of = |(id, sequence): &(AppendId, u64)| {
            let sequence = Sequence(*sequence);
            entries(*id, 2, 3).into_iter().map(move |value| Entry { sequence, value }).collect::<Vec<_>>()
        };
        Replay { snapshot: snapshot.map(state), entries: appends.iter().flat_map(of).collect() }
    }

    #[test]
    fn a_replay_is_applied_over_its_snapshot() {
        let view = View::of(&replay(Some(&[1, 2, 5]), &[(2, 7), (5, 8), (6, 9)])).unwrap();
        assert_eq!(view.appends, [1, 2, 5, 6]);
        assert_eq!(view.sequences, BTreeMap::from([(2, 7), (5, 8), (6, 9)]));
        assert_eq!(View::of(&replay(None, &[])).unwrap(), View::default());
    }

    #[test]
    fn an_append_in_part_or_twice_is_an_error() {
        assert!(View::of(&replay(None, &[(1, 1), (1, 2)])).is_err());
        let mut part = replay(None, &[(1, 1)]);
        part.entries.pop();
        assert!(View::of(&part).is_err());
        let mut mixed = replay(None, &[(1, 1), (2, 2)]);
        mixed.entries.iter_mut().for_each(|entry| entry.sequence = Sequence(1));
        assert!(View::of(&mixed).is_err());
        let foreign = Replay { snapshot: Some(json!([1])), entries: Vec::new() };
        assert!(View::of(&foreign).is_err());
    }
}
