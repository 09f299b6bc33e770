//! The 512-byte records of the fence: one an epoch, at byte `epoch * 512`; zeros mean "not claimed". The first one, of
//! no epoch, says whether the directory was taken away.
//!
//! Layout (little-endian): magic `kaasfnce` (0..8), format u32 (8), epoch u32 (12), kind u32 (16), owner's epoch u32
//! (20), broker id i32 (24), assignment version u64 (28), length of the incarnation u32 (36), incarnation (40..168),
//! zeros, CRC-32C of bytes 0..508 (508). Byte 507 must stay one of the zeros: extending the file may write it.

use kaas_substrate::{RECORD_BYTES, Record};

use super::Claimant;
use crate::types::Epoch;

/// Longest incarnation in bytes that a record holds.
pub(super) const MAX_INCARNATION_BYTES: usize = 128;

const MAGIC: [u8; 8] = *b"kaasfnce";
const FORMAT: u32 = 1;
const CLAIMED: u32 = 1;
const SKIPPED: u32 = 2;
const BORN: u32 = 3;
const TAKEN_AWAY: u32 = 4;
const CRC_AT: usize = RECORD_BYTES - 4;

/// What a record of the fence says of its epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FenceRecord {
    /// Nobody has claimed it.
    Unclaimed,
    /// Its owner has claimed it. All epochs below it are claimed or skipped, durably.
    Claimed { owner: Claimant },
    /// The claimant of a higher epoch made sure that nobody leads at this one.
    Skipped { by: Epoch },
    /// The directory was born after this epoch; nobody ever led at it or below it.
    Born,
    /// The directory is being removed by who led at epoch `by`; nobody can claim it any more. The record of
    /// [`Epoch::NONE`], and of no other.
    TakenAway { by: Epoch },
    /// The bytes are not a record of this epoch. Says nothing about who leads.
    Damaged(Damage),
}

/// What is wrong with a record of the fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Its end is missing: whoever wrote it stopped in the middle, or has not come to its end yet.
    #[error("only its beginning is there")]
    Unfinished,
    #[error("not a fence record")]
    Magic,
    #[error("format {found} is not known")]
    Format { found: u32 },
    #[error("checksum {found:#010x} instead of {computed:#010x}")]
    Checksum { found: u32, computed: u32 },
    #[error("it is the record of epoch {found}")]
    Epoch { found: u32 },
    #[error("a field is out of range")]
    Field,
    /// The record of a leader is gone: the fence is not the file that it claimed.
    #[error("the leader's own record is missing")]
    OwnRecordMissing,
    /// The record of a leader names another owner.
    #[error("the leader's own record names another owner")]
    OwnRecordForeign,
}

impl FenceRecord {
    /// The bytes of the record of `epoch`. A claimant's incarnation beyond 128 bytes is cut.
    pub(super) fn encode(&self, epoch: Epoch) -> Record {
        let mut record = [0; RECORD_BYTES];
        let (kind, owner_epoch, owner) = match self {
            Self::Unclaimed | Self::Damaged(_) => return record,
            Self::Claimed { owner } => (CLAIMED, epoch, Some(owner)),
            Self::Skipped { by } => (SKIPPED, *by, None),
            Self::Born => (BORN, epoch, None),
            Self::TakenAway { by } => (TAKEN_AWAY, *by, None),
        };
        put(&mut record, 0, &MAGIC);
        put(&mut record, 8, &FORMAT.to_le_bytes());
        put(&mut record, 12, &epoch.get().to_le_bytes());
        put(&mut record, 16, &kind.to_le_bytes());
        put(&mut record, 20, &owner_epoch.get().to_le_bytes());
        if let Some(owner) = owner {
            let incarnation = owner.incarnation.as_bytes();
            let incarnation = incarnation.get(..MAX_INCARNATION_BYTES).unwrap_or(incarnation);
            put(&mut record, 24, &owner.broker_id.to_le_bytes());
            put(&mut record, 28, &owner.assignment_version.to_le_bytes());
            put(&mut record, 36, &u32::try_from(incarnation.len()).unwrap_or(0).to_le_bytes());
            put(&mut record, 40, incarnation);
        }
        let crc = crc32c::crc32c(record.get(..CRC_AT).unwrap_or_default());
        put(&mut record, CRC_AT, &crc.to_le_bytes());
        record
    }

    /// What the bytes say, read at the place of `epoch`.
    pub(crate) fn decode(record: &Record, epoch: Epoch) -> Self {
        if *record == [0; RECORD_BYTES] {
            return Self::Unclaimed;
        }
        Self::decode_used(record, epoch).unwrap_or_else(Self::Damaged)
    }

    fn decode_used(record: &Record, epoch: Epoch) -> Result<Self, Damage> {
        let computed = crc32c::crc32c(record.get(..CRC_AT).unwrap_or_default());
        let found = u32_at(record, CRC_AT)?;
        if is_beginning(record, found, computed) {
            return Err(Damage::Unfinished);
        }
        if !record.starts_with(&MAGIC) {
            return Err(Damage::Magic);
        }
        if found != computed {
            return Err(Damage::Checksum { found, computed });
        }
        match u32_at(record, 8)? {
            FORMAT => {}
            found => return Err(Damage::Format { found }),
        }
        match u32_at(record, 12)? {
            found if found == epoch.get() => {}
            found => return Err(Damage::Epoch { found }),
        }
        let owner_epoch = Epoch::new(u32_at(record, 20)?).ok_or(Damage::Field)?;
        match u32_at(record, 16)? {
            CLAIMED if owner_epoch == epoch => Ok(Self::Claimed { owner: decode_owner(record)? }),
            SKIPPED if owner_epoch > epoch => Ok(Self::Skipped { by: owner_epoch }),
            BORN if owner_epoch == epoch => Ok(Self::Born),
            TAKEN_AWAY if epoch == Epoch::NONE => Ok(Self::TakenAway { by: owner_epoch }),
            _ => Err(Damage::Field),
        }
    }
}

/// True for the first bytes of a record that was being written where zeros stood: its checksum, which comes last, is not
/// there, or not all of it.
fn is_beginning(record: &Record, found: u32, computed: u32) -> bool {
    let written = record.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let starts_well = record.iter().take(written).zip(&MAGIC).all(|(found, magic)| found == magic);
    starts_well && (0..4).any(|bytes| found != computed && found == computed & ((1 << (8 * bytes)) - 1))
}

fn decode_owner(record: &Record) -> Result<Claimant, Damage> {
    let length = usize::try_from(u32_at(record, 36)?).unwrap_or(usize::MAX);
    let incarnation =
        record.get(40..40usize.saturating_add(length)).filter(|_| length <= MAX_INCARNATION_BYTES);
    let incarnation = std::str::from_utf8(incarnation.ok_or(Damage::Field)?).map_err(|_| Damage::Field)?;
    Ok(Claimant {
        broker_id: i32::from_le_bytes(array_at(record, 24)?),
        incarnation: incarnation.to_owned(),
        assignment_version: u64::from_le_bytes(array_at(record, 28)?),
    })
}

fn put(record: &mut Record, at: usize, bytes: &[u8]) {
    for (to, from) in record.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

fn array_at<const N: usize>(record: &Record, at: usize) -> Result<[u8; N], Damage> {
    record.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).ok_or(Damage::Field)
}

fn u32_at(record: &Record, at: usize) -> Result<u32, Damage> {
    array_at(record, at).map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(value: u32) -> Epoch {
        Epoch::new(value).unwrap()
    }

    fn claimed() -> FenceRecord {
        FenceRecord::Claimed {
            owner: Claimant { broker_id: -7, incarnation: "run-1".to_owned(), assignment_version: u64::MAX },
        }
    }

    #[test]
    fn records_come_back() {
        for record in [claimed(), FenceRecord::Skipped { by: epoch(9) }, FenceRecord::Born] {
            assert_eq!(FenceRecord::decode(&record.encode(epoch(5)), epoch(5)), record);
            assert_eq!(
                record.encode(epoch(5))[kaas_substrate::RECORD_ZERO_AT],
                0,
                "where zeros may be written"
            );
        }
        assert_eq!(FenceRecord::decode(&[0; RECORD_BYTES], epoch(5)), FenceRecord::Unclaimed);
    }

    #[test]
    fn only_the_first_record_says_that_the_directory_is_gone() {
        let record = FenceRecord::TakenAway { by: epoch(9) };
        assert_eq!(FenceRecord::decode(&record.encode(Epoch::NONE), Epoch::NONE), record);
        let elsewhere = FenceRecord::decode(&record.encode(epoch(5)), epoch(5));
        assert_eq!(elsewhere, FenceRecord::Damaged(Damage::Field));
    }

    #[test]
    fn the_layout_is_fixed() {
        let record = claimed().encode(epoch(5));
        assert_eq!(&record[..8], b"kaasfnce");
        assert_eq!(record[8..16], [1, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(record[16..28], [1, 0, 0, 0, 5, 0, 0, 0, 0xf9, 0xff, 0xff, 0xff]);
        assert_eq!(&record[36..46], b"\x05\0\0\0run-1\0");
        assert_eq!(record[508..], crc32c::crc32c(&record[..508]).to_le_bytes());
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let record = claimed().encode(epoch(5));
        for byte in 0..RECORD_BYTES {
            for bit in 0..8 {
                let mut flipped = record;
                flipped[byte] ^= 1 << bit;
                let found = FenceRecord::decode(&flipped, epoch(5));
                assert!(matches!(found, FenceRecord::Damaged(_)), "bit {bit} of byte {byte}: {found:?}");
            }
        }
    }

    #[test]
    fn every_tear_is_found() {
        let record = claimed().encode(epoch(5));
        let skipped = FenceRecord::Skipped { by: epoch(9) }.encode(epoch(5));
        for end in 1..RECORD_BYTES {
            for record in [record, skipped] {
                let mut torn = record;
                torn[end..].fill(0);
                let found = FenceRecord::decode(&torn, epoch(5));
                assert_eq!(found, FenceRecord::Damaged(Damage::Unfinished), "torn at {end}");
            }
            // Another one had been torn there before.
            let mut torn = [&record[..end], &skipped[end..]].concat();
            torn[CRC_AT..].fill(0);
            let found = FenceRecord::decode(torn.as_array().unwrap(), epoch(5));
            assert_eq!(found, FenceRecord::Damaged(Damage::Unfinished), "torn at {end}");
        }
    }

    #[test]
    fn a_record_of_another_epoch_is_damage() {
        let record = claimed().encode(epoch(5));
        assert_eq!(FenceRecord::decode(&record, epoch(6)), FenceRecord::Damaged(Damage::Epoch { found: 5 }));
    }

    #[test]
    fn a_long_incarnation_is_cut() {
        let long = Claimant { broker_id: 1, incarnation: "x".repeat(300), assignment_version: 0 };
        let record = FenceRecord::Claimed { owner: long }.encode(epoch(5));
        let FenceRecord::Claimed { owner } = FenceRecord::decode(&record, epoch(5)) else {
            panic!("not claimed")
        };
        assert_eq!(owner.incarnation.len(), MAX_INCARNATION_BYTES);
    }
}
