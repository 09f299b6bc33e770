//! The newest offset of each key, in memory of a fixed bound: open addressing over slots of 24 bytes (128 bits of the
//! key's hash, and the offset).
//!
//! The keys themselves are not kept, so two keys with one hash would be taken for one, and the older record lost. As in
//! Kafka (MD5) 128 bits make that improbable beyond any other failure: with 2^32 keys in one round the chance is below
//! 2^-64. Unlike MD5, whose collisions anybody can make, the hash is SipHash-2-4 with a key that is drawn anew for each
//! map and never leaves the process: nobody can choose keys that collide.

use std::hash::{BuildHasher, RandomState};

use siphasher::sip128::SipHasher24;

use crate::types::Offset;

/// Bytes of a slot.
const SLOT_BYTES: usize = 24;

/// The capacity grows by this factor.
const GROWTH: usize = 4;

/// Slots that a map has at least to begin with, if it may have as many.
const FIRST_SLOTS: usize = 1024;

/// Two halves of a hash, and the offset plus one: 0 is a free slot.
type Slot = [u64; 3];

/// The newest offset of each key.
pub(super) struct OffsetMap {
    hasher: SipHasher24,
    slots: Vec<Slot>,
    /// What `slots` may grow to.
    slots_max: usize,
    used: usize,
    load_factor: f64,
    /// Every record up to this offset is in (inclusive); `None` before the first.
    latest: Option<Offset>,
}

/// There is no room for another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

impl OffsetMap {
    /// A map that never holds more than `max_bytes`, also not while it grows, at a load of at most `load_factor`.
    pub(super) fn new(max_bytes: usize, load_factor: f64) -> Self {
        // While it grows for the last time, a quarter of it exists beside it.
        let most = (max_bytes / SLOT_BYTES / (GROWTH + 1)).saturating_mul(GROWTH).max(2);
        let (mut first, mut times) = (most, 1_usize);
        while first / GROWTH >= FIRST_SLOTS {
            first /= GROWTH;
            times *= GROWTH;
        }
        let slots_max = first * times;
        let random = || RandomState::new().hash_one(0_u8);
        Self {
            hasher: SipHasher24::new_with_keys(random(), random()),
            slots: vec![[0; 3]; first],
            slots_max,
            used: 0,
            load_factor: load_factor.clamp(0.01, 1.0),
            latest: None,
        }
    }

    /// Keys in it.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * SLOT_BYTES
    }

    /// Up to which offset (inclusive) every record is in.
    pub(super) fn latest(&self) -> Option<Offset> {
        self.latest
    }

    /// Says that every record up to `offset` (inclusive) is in.
    pub(super) fn set_latest(&mut self, offset: Offset) {
        self.latest = self.latest.max(Some(offset));
    }

    /// Notes that a record of `key` stands at `offset`, which is behind every one noted before.
    pub(super) fn put(&mut self, key: &[u8], offset: Offset) -> Result<(), Full> {
        let hash = self.hash(key);
        let value = u64::try_from(offset.0).unwrap_or(0).saturating_add(1);
        if self.used >= self.room(self.slots.len()) && self.find(hash).is_none() {
            self.grow()?;
        }
        let at = self.place(hash);
        if let Some(slot) = self.slots.get_mut(at) {
            self.used += usize::from(slot[2] == 0);
            *slot = [hash.0, hash.1, value];
        }
        Ok(())
    }

    /// The newest offset of `key`; `None` if no record with it was noted.
    pub(super) fn get(&self, key: &[u8]) -> Option<Offset> {
        let value = self.find(self.hash(key))?;
        i64::try_from(value - 1).ok().map(Offset)
    }

    fn hash(&self, key: &[u8]) -> (u64, u64) {
        let hash = self.hasher.hash(key);
        (hash.h1, hash.h2)
    }

    /// Keys that `slots` slots may hold: at least one stays free, or a search would not end.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn room(&self, slots: usize) -> usize {
        let room = (slots as f64 * self.load_factor) as usize;
        room.clamp(1, slots.saturating_sub(1).max(1))
    }

    /// The slot that has the hash, or the free one where it belongs.
    fn place(&self, hash: (u64, u64)) -> usize {
        let slots = self.slots.len();
        // The high half of the product: evenly spread, without a division.
        let wide = (u128::from(hash.0) * (slots as u128)) >> 64;
        let mut at = usize::try_from(wide).unwrap_or(0);
        for _ in 0..slots {
            match self.slots.get(at) {
                Some(slot) if slot[2] != 0 && (slot[0], slot[1]) != hash => {
                    at = if at + 1 == slots { 0 } else { at + 1 };
                }
                _ => return at,
            }
        }
        at
    }

    fn find(&self, hash: (u64, u64)) -> Option<u64> {
        self.slots.get(self.place(hash)).map(|slot| slot[2]).filter(|value| *value != 0)
    }

    fn grow(&mut self) -> Result<(), Full> {
        if self.slots.len() >= self.slots_max {
            return Err(Full);
        }
        let larger = self.slots.len().saturating_mul(GROWTH).min(self.slots_max);
        let old = std::mem::replace(&mut self.slots, vec![[0; 3]; larger]);
        for slot in old.into_iter().filter(|slot| slot[2] != 0) {
            let at = self.place((slot[0], slot[1]));
            if let Some(free) = self.slots.get_mut(at) {
                *free = slot;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn it_knows_the_newest_offset_of_every_key() {
        let mut map = OffsetMap::new(10 << 20, 0.9);
        let mut model = HashMap::new();
        assert_eq!(map.get(b"a"), None);
        for offset in 0..200_000_i64 {
            let key = format!("key-{}", (offset * 7919) % 60_000);
            map.put(key.as_bytes(), Offset(offset)).unwrap();
            model.insert(key, Offset(offset));
        }
        assert_eq!(map.len(), model.len());
        for (key, offset) in &model {
            assert_eq!(map.get(key.as_bytes()), Some(*offset));
        }
        assert_eq!(map.get(b"key-60000"), None);
        map.put(b"", Offset(0)).unwrap();
        assert_eq!(map.get(b""), Some(Offset(0)));
    }

    #[test]
    fn it_stays_within_its_bound_and_keeps_what_it_has_when_it_is_full() {
        for max_bytes in [0, 24, 100, 5_000, 100_000, 1 << 20] {
            let mut map = OffsetMap::new(max_bytes, 0.9);
            let mut full = None;
            for offset in 0..100_000_i64 {
                let before = map.slots.capacity();
                if map.put(&offset.to_be_bytes(), Offset(offset)).is_err() {
                    full = Some(offset);
                    break;
                }
                let both =
                    if map.slots.capacity() == before { before } else { before + map.slots.capacity() };
                assert!(
                    both * SLOT_BYTES <= max_bytes.max(2 * SLOT_BYTES),
                    "{both} slots in {max_bytes} bytes"
                );
            }
            let full = full.unwrap();
            let fraction = full * 24 * 100 / i64::try_from(max_bytes.max(24)).unwrap();
            assert!(max_bytes < 1000 || fraction >= 65, "only {full} keys in {max_bytes} bytes");
            for offset in 0..full {
                assert_eq!(map.get(&offset.to_be_bytes()), Some(Offset(offset)));
            }
            // Keys that are there have room.
            map.put(&0_i64.to_be_bytes(), Offset(1 << 40)).unwrap();
            assert_eq!(map.get(&0_i64.to_be_bytes()), Some(Offset(1 << 40)));
        }
    }
}
