//! What names and texts that somebody else has chosen look like in JSON.

use std::fmt::Write;
use std::path::Path;

use kaas_substrate::{is_harmful, printable};
use serde::Serializer;

/// A path as a string: as it is if it is UTF-8, else as [`printable`] shows it, which JSON has no other way to say.
pub(crate) fn path(path: &Path) -> String {
    path.to_str().map_or_else(|| printable(path).into_owned(), str::to_owned)
}

/// [`path()`] for serde.
pub(crate) fn serialize_path<S: Serializer>(value: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path(value))
}

/// The same JSON with the characters escaped that would do something to a terminal it is printed on. In JSON these stand within
/// strings only, but for the ends of its own lines.
pub(crate) fn json(text: String) -> String {
    let stays = |character: char| character == '\n' || !is_harmful(character);
    if text.chars().all(stays) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if stays(character) {
            escaped.push(character);
        } else {
            // A String takes everything; all of them are of the first 65,536 characters.
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_the_same_and_drives_no_terminal() {
        let value = serde_json::json!({"a\u{1b}\u{9b}": "\u{7f} \u{e9}\n\u{202e}\u{feff} \u{1f600}"});
        let text = json(serde_json::to_string_pretty(&value).unwrap());
        assert!(text.chars().all(|character| character == '\n' || !is_harmful(character)), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn a_path_is_itself_if_it_can_be() {
        use std::os::unix::ffi::OsStrExt;
        assert_eq!(path(Path::new("a\u{1b}\\b")), "a\u{1b}\\b");
        assert_eq!(path(Path::new(std::ffi::OsStr::from_bytes(b"a\xff"))), r"a\xff");
    }
}
