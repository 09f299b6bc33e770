//! Kafka's variable-length integers (zigzag, 7 bits a byte, low bits first) and a bounded reader over them.

use bytes::{BufMut, Bytes, BytesMut};

use super::error::RecordProblem;

/// Appends `value`, 1 to 10 bytes; also right for 32-bit fields, whose encoding is the same.
pub fn put_varint(out: &mut BytesMut, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    loop {
        let low = u8::try_from(rest & 0x7f).unwrap_or(0);
        rest >>= 7;
        if rest == 0 {
            out.put_u8(low);
            return;
        }
        out.put_u8(low | 0x80);
    }
}

/// Reads fields off bytes, refusing to go past their end.
#[derive(Debug, Clone)]
pub struct Reader {
    bytes: Bytes,
    position: usize,
}

impl Reader {
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes, position: 0 }
    }

    /// All bytes, those read already too.
    pub fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Bytes left.
    pub fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.position)
    }

    fn byte(&mut self) -> Result<u8, RecordProblem> {
        let byte = self.bytes.get(self.position).copied().ok_or(RecordProblem::Ends)?;
        self.position += 1;
        Ok(byte)
    }

    pub fn i8(&mut self) -> Result<i8, RecordProblem> {
        Ok(self.byte()?.cast_signed())
    }

    fn zigzag(&mut self, max_bytes: u32) -> Result<u64, RecordProblem> {
        let mut value = 0_u64;
        for index in 0..max_bytes {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(RecordProblem::Varint)
    }

    /// A 64-bit integer of at most 10 bytes.
    pub fn varlong(&mut self) -> Result<i64, RecordProblem> {
        let raw = self.zigzag(10)?;
        Ok((raw >> 1).cast_signed() ^ -((raw & 1).cast_signed()))
    }

    /// A 32-bit integer of at most 5 bytes.
    pub fn varint(&mut self) -> Result<i32, RecordProblem> {
        let raw = self.zigzag(5)?;
        let value = (raw >> 1).cast_signed() ^ -((raw & 1).cast_signed());
        i32::try_from(value).map_err(|_| RecordProblem::Varint)
    }

    /// The next `length` bytes, shared with the source.
    pub fn take(&mut self, length: usize) -> Result<Bytes, RecordProblem> {
        if length > self.remaining() {
            return Err(RecordProblem::Ends);
        }
        let end = self.position + length;
        let taken = self.bytes.slice(self.position..end);
        self.position = end;
        Ok(taken)
    }

    /// Bytes with their length in front; `None` for a negative length.
    pub fn nullable_bytes(&mut self) -> Result<Option<Bytes>, RecordProblem> {
        match usize::try_from(self.varint()?) {
            Ok(length) => self.take(length).map(Some),
            Err(_) => Ok(None),
        }
    }
}
