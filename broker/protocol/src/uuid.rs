//! Topic ids, directory ids: 16 bytes on the wire, 22 characters of base64url without padding as text, as Kafka prints
//! them.

use std::fmt;
use std::str::FromStr;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const TEXT_LENGTH: usize = 22;

/// A 16-byte id. The zero id means "none" in Kafka's messages and is the default.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

/// A text that is not 22 characters of base64url that decode to 16 bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an id of {TEXT_LENGTH} base64url characters: {text:?}")]
pub struct UuidParseError {
    /// What was given.
    pub text: String,
}

impl Uuid {
    /// The id that means none.
    pub const ZERO: Uuid = Uuid([0; 16]);

    /// True for [`Uuid::ZERO`].
    pub fn is_zero(&self) -> bool {
        *self == Uuid::ZERO
    }

    /// The bytes in wire order.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// From a number, most significant byte first.
    pub const fn from_u128(value: u128) -> Self {
        Uuid(value.to_be_bytes())
    }

    /// As a number, most significant byte first.
    pub const fn as_u128(&self) -> u128 {
        u128::from_be_bytes(self.0)
    }
}

impl From<[u8; 16]> for Uuid {
    fn from(bytes: [u8; 16]) -> Self {
        Uuid(bytes)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(TEXT_LENGTH);
        for group in self.0.chunks(3) {
            let mut bits: u32 = 0;
            for index in 0..3 {
                bits = (bits << 8) | u32::from(group.get(index).copied().unwrap_or(0));
            }
            for sextet in 0..=group.len() {
                let index = (bits >> (18 - 6 * sextet)) & 0x3f;
                let symbol = ALPHABET.get(index as usize).copied().unwrap_or(b'?');
                text.push(char::from(symbol));
            }
        }
        f.write_str(&text)
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = UuidParseError;

    fn from_str(text: &str) -> Result<Self, UuidParseError> {
        parse(text).ok_or_else(|| UuidParseError { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<Uuid> {
    let text = text.strip_suffix("==").unwrap_or(text);
    if text.len() != TEXT_LENGTH {
        return None;
    }
    let mut value: u128 = 0;
    for (position, symbol) in text.bytes().enumerate() {
        let sextet = ALPHABET.iter().position(|candidate| *candidate == symbol)?;
        let sextet = u128::try_from(sextet).ok()?;
        // 22 symbols carry 132 bits: the last one holds 2 bits and 4 zeros.
        if position + 1 < TEXT_LENGTH {
            value = (value << 6) | sextet;
        } else if sextet & 0x0f == 0 {
            value = (value << 2) | (sextet >> 4);
        } else {
            return None;
        }
    }
    Some(Uuid::from_u128(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_base64url_without_padding() {
        assert_eq!(Uuid::ZERO.to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(Uuid::from_u128(1).to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!(Uuid([0xff; 16]).to_string(), "_____________________w");
        let id = Uuid::from_u128(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210);
        assert_eq!(id.to_string(), "ASNFZ4mrze_-3LqYdlQyEA");
        assert_eq!(id.to_string().parse::<Uuid>().unwrap(), id);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "AAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAB", "AAAAAAAAAAAAAAAAAAAA+A", "é"] {
            assert!(text.parse::<Uuid>().is_err(), "{text}");
        }
    }
}
