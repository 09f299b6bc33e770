//! Encoding of values into [`Segments`].
//!
//! Lengths that do not fit their field are errors. Only records are kept as slices; everything else is short and goes
//! to the scratch buffer.

use bytes::Bytes;

use crate::error::EncodeError;
use crate::error_code::ErrorCode;
use crate::kstring::KString;
use crate::records::Records;
use crate::segments::{Mark, Segments};
use crate::uuid::Uuid;

/// Where the values of one message go.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Segments,
    message: &'static str,
    version: i16,
    flexible: bool,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut Segments, message: &'static str, version: i16, flexible: bool) -> Self {
        Writer { out, message, version, flexible }
    }

    pub(crate) fn version(&self) -> i16 {
        self.version
    }

    #[cold]
    pub(crate) fn not_in_version(&self, field: &'static str) -> EncodeError {
        EncodeError::FieldNotInVersion { message: self.message, version: self.version, field }
    }

    #[cold]
    fn null(&self, field: &'static str) -> EncodeError {
        EncodeError::NullNotAllowed { message: self.message, version: self.version, field }
    }

    #[cold]
    fn too_long(&self, field: &'static str, length: usize) -> EncodeError {
        EncodeError::TooLong { message: self.message, version: self.version, field, length }
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.i8(i8::from(value));
    }

    pub(crate) fn i8(&mut self, value: i8) {
        self.out.put(&value.to_be_bytes());
    }

    pub(crate) fn i16(&mut self, value: i16) {
        self.out.put(&value.to_be_bytes());
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.out.put(&value.to_be_bytes());
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.out.put(&value.to_be_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.out.put(&value.to_be_bytes());
    }

    pub(crate) fn f64(&mut self, value: f64) {
        self.out.put(&value.to_be_bytes());
    }

    pub(crate) fn uuid(&mut self, value: Uuid) {
        self.out.put(value.as_bytes());
    }

    pub(crate) fn error(&mut self, value: ErrorCode) {
        self.i16(value.code());
    }

    pub(crate) fn unsigned_varint(&mut self, value: u32) {
        let (bytes, length) = varint_bytes(value);
        self.out.put(bytes.get(..length).unwrap_or_default());
    }

    /// A length plus one, which must be a signed 32-bit number too.
    fn compact_length(&mut self, length: usize, field: &'static str) -> Result<(), EncodeError> {
        let fits = i32::try_from(length).ok().and_then(|length| u32::try_from(length).ok());
        let length = fits.ok_or_else(|| self.too_long(field, length))?;
        self.unsigned_varint(length + 1);
        Ok(())
    }

    fn long_length(&mut self, length: usize, field: &'static str) -> Result<(), EncodeError> {
        if self.flexible {
            return self.compact_length(length, field);
        }
        let length = i32::try_from(length).map_err(|_| self.too_long(field, length))?;
        self.i32(length);
        Ok(())
    }

    fn long_null(&mut self) {
        if self.flexible {
            self.unsigned_varint(0);
        } else {
            self.i32(-1);
        }
    }

    fn string_null(&mut self) {
        if self.flexible {
            self.unsigned_varint(0);
        } else {
            self.i16(-1);
        }
    }

    pub(crate) fn string(&mut self, value: &KString, field: &'static str) -> Result<(), EncodeError> {
        let length = i16::try_from(value.len()).map_err(|_| self.too_long(field, value.len()))?;
        if self.flexible {
            self.compact_length(value.len(), field)?;
        } else {
            self.i16(length);
        }
        self.out.put(value.as_bytes());
        Ok(())
    }

    /// `nullable` says whether this version allows null.
    pub(crate) fn nullable_string(
        &mut self,
        value: &Option<KString>,
        nullable: bool,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match value {
            Some(value) => self.string(value, field)?,
            None if nullable => self.string_null(),
            None => return Err(self.null(field)),
        }
        Ok(())
    }

    /// The nullable string of request headers, which never became flexible.
    pub(crate) fn header_string(
        &mut self,
        value: &Option<KString>,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        let flexible = std::mem::replace(&mut self.flexible, false);
        let result = self.nullable_string(value, true, field);
        self.flexible = flexible;
        result
    }

    pub(crate) fn bytes(&mut self, value: &Bytes, field: &'static str) -> Result<(), EncodeError> {
        self.long_length(value.len(), field)?;
        self.out.put(value);
        Ok(())
    }

    #[allow(dead_code, reason = "no table has nullable bytes at the moment")]
    pub(crate) fn nullable_bytes(
        &mut self,
        value: &Option<Bytes>,
        nullable: bool,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match value {
            Some(value) => self.bytes(value, field)?,
            None if nullable => self.long_null(),
            None => return Err(self.null(field)),
        }
        Ok(())
    }

    /// Records of a request: one slice, not copied.
    pub(crate) fn nullable_records(
        &mut self,
        value: &Option<Bytes>,
        nullable: bool,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match value {
            Some(value) => {
                self.long_length(value.len(), field)?;
                self.out.put_records(&Records::from(value.clone()));
            }
            None if nullable => self.long_null(),
            None => return Err(self.null(field)),
        }
        Ok(())
    }

    /// Records of a response: slices and ranges, not copied.
    pub(crate) fn nullable_record_parts(
        &mut self,
        value: &Option<Records>,
        nullable: bool,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match value {
            Some(value) => {
                self.long_length(value.len(), field)?;
                self.out.put_records(value);
            }
            None if nullable => self.long_null(),
            None => return Err(self.null(field)),
        }
        Ok(())
    }

    pub(crate) fn nullable_struct<T>(
        &mut self,
        value: &Option<T>,
        nullable: bool,
        field: &'static str,
        write: fn(&mut Writer<'_>, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        match value {
            Some(value) => {
                self.i8(1);
                write(self, value)
            }
            None if nullable => {
                self.i8(-1);
                Ok(())
            }
            None => Err(self.null(field)),
        }
    }

    pub(crate) fn array<T>(
        &mut self,
        items: &[T],
        field: &'static str,
        write: fn(&mut Writer<'_>, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        self.long_length(items.len(), field)?;
        for item in items {
            write(self, item)?;
        }
        Ok(())
    }

    pub(crate) fn nullable_array<T>(
        &mut self,
        items: &Option<Vec<T>>,
        nullable: bool,
        field: &'static str,
        write: fn(&mut Writer<'_>, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        match items {
            Some(items) => self.array(items, field, write),
            None if nullable => {
                self.long_null();
                Ok(())
            }
            None => Err(self.null(field)),
        }
    }

    /// The number of tagged fields that follow; nothing in a version that is not flexible.
    pub(crate) fn tag_count(&mut self, count: u32) {
        if self.flexible {
            self.unsigned_varint(count);
        }
    }

    /// Begins a tagged field; its value follows, then `end_tag`.
    pub(crate) fn begin_tag(&mut self, number: u32) -> Mark {
        self.unsigned_varint(number);
        self.out.mark()
    }

    /// Puts the size before the value.
    pub(crate) fn end_tag(&mut self, start: Mark, field: &'static str) -> Result<(), EncodeError> {
        let length = self.out.len_since(start);
        let fits = i32::try_from(length).ok().and_then(|length| u32::try_from(length).ok());
        let size = fits.ok_or_else(|| self.too_long(field, length))?;
        let (bytes, length) = varint_bytes(size);
        self.out.insert_at(start, bytes.get(..length).unwrap_or_default());
        Ok(())
    }
}

/// The bytes of an unsigned varint and how many of them count.
fn varint_bytes(mut value: u32) -> ([u8; 5], usize) {
    let mut bytes = [0; 5];
    let mut length = 0;
    for byte in &mut bytes {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        length += 1;
        if value == 0 {
            *byte = low & 0x7f;
            break;
        }
        *byte = low | 0x80;
    }
    (bytes, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_of_all_lengths() {
        for (value, expected) in [
            (0_u32, &[0][..]),
            (127, &[0x7f]),
            (128, &[0x80, 1]),
            (300, &[0xac, 2]),
            (16_384, &[0x80, 0x80, 1]),
            (u32::MAX, &[0xff, 0xff, 0xff, 0xff, 0x0f]),
        ] {
            let (bytes, length) = varint_bytes(value);
            assert_eq!(&bytes[..length], expected);
            let body = Bytes::copy_from_slice(expected);
            let mut reader = crate::reader::Reader::new(body, "Test", 0, true);
            assert_eq!(reader.unsigned_varint("value").unwrap(), value);
            reader.finish().unwrap();
        }
    }
}
