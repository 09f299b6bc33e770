//! Strings that are slices of a frame.
//!
//! Invariant: the bytes of a [`KString`] are valid UTF-8, checked where it is made. A `KString` that came from a frame
//! keeps the whole frame alive: copy (`to_owned_string`) whatever outlives the request.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::Utf8Error;

use bytes::Bytes;

/// An immutable string, cheap to clone, usually a slice of the frame that it was decoded from.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KString(Bytes);

impl KString {
    /// The empty string; does not allocate.
    pub const fn new() -> Self {
        KString(Bytes::new())
    }

    /// A string that lives for ever; does not allocate.
    pub const fn from_static(text: &'static str) -> Self {
        KString(Bytes::from_static(text.as_bytes()))
    }

    /// Takes a slice as a string without a copy. Errors if it is not UTF-8.
    pub fn from_utf8(bytes: Bytes) -> Result<Self, Utf8Error> {
        std::str::from_utf8(&bytes)?;
        Ok(KString(bytes))
    }

    /// The text. The bytes are checked once more (a few nanoseconds for a topic name), because this crate has no
    /// unsafe code; the check cannot fail.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The text as bytes, without the check of [`as_str`](Self::as_str).
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is no byte.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A copy that does not keep the frame alive.
    pub fn to_owned_string(&self) -> String {
        self.as_str().to_owned()
    }

    /// The underlying slice.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl Deref for KString {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for KString {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

/// `[u8]` and not `str`, because the derived `Hash` is that of the bytes.
impl Borrow<[u8]> for KString {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl From<&str> for KString {
    fn from(text: &str) -> Self {
        KString(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for KString {
    fn from(text: String) -> Self {
        KString(Bytes::from(text))
    }
}

impl From<&String> for KString {
    fn from(text: &String) -> Self {
        KString::from(text.as_str())
    }
}

impl From<KString> for String {
    fn from(text: KString) -> Self {
        text.to_owned_string()
    }
}

impl PartialEq<str> for KString {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<&str> for KString {
    fn eq(&self, other: &&str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<String> for KString {
    fn eq(&self, other: &String) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl fmt::Display for KString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), f)
    }
}

impl fmt::Debug for KString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_a_frame_is_not_copied() {
        let frame = Bytes::from_static(b"xxtopicyy");
        let text = KString::from_utf8(frame.slice(2..7)).unwrap();
        assert_eq!(text, "topic");
        assert_eq!(text.as_bytes().as_ptr(), frame[2..].as_ptr());
        assert_eq!(text.clone().into_bytes().as_ptr(), frame[2..].as_ptr());
        assert_eq!(text.to_owned_string(), "topic".to_string());
    }

    #[test]
    fn bytes_that_are_not_utf8_are_refused() {
        assert!(KString::from_utf8(Bytes::from_static(b"a\xff")).is_err());
        assert!(KString::from_utf8(Bytes::from_static(b"\xc0\x80")).is_err());
    }
}
