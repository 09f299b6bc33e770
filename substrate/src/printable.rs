//! Names and texts as people see them: what somebody puts into a name does not drive a terminal, and is not lost.

use std::borrow::Cow;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether a character is none that can be seen and does something to a terminal or to the text around it: controls, ends of
/// lines, changes of direction.
pub fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
        )
}

/// A path as it is shown: each byte that is no UTF-8, or is of a harmful character, as `\xNN`, and a backslash as `\\`, so that
/// `$'...'` makes the name of it again in a shell.
pub fn printable(path: &Path) -> Cow<'_, str> {
    match path.to_str() {
        Some(text) if !text.contains(|character| character == '\\' || is_harmful(character)) => {
            Cow::Borrowed(text)
        }
        _ => {
            let mut shown = String::new();
            for chunk in path.as_os_str().as_bytes().utf8_chunks() {
                for character in chunk.valid().chars() {
                    match character {
                        '\\' => shown.push_str("\\\\"),
                        _ => push(&mut shown, character),
                    }
                }
                chunk.invalid().iter().for_each(|byte| push_byte(&mut shown, *byte));
            }
            Cow::Owned(shown)
        }
    }
}

/// A text for a terminal: its lines and all else as they are, harmful characters as [`printable`] shows them.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let stays = |character: char| character == '\n' || !is_harmful(character);
    if text.chars().all(stays) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if stays(character) { shown.push(character) } else { push(&mut shown, character) }
    }
    Cow::Owned(shown)
}

fn push(shown: &mut String, character: char) {
    if is_harmful(character) {
        character.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| push_byte(shown, byte));
    } else {
        shown.push(character);
    }
}

fn push_byte(shown: &mut String, byte: u8) {
    // A String takes everything.
    let _ = write!(shown, "\\x{byte:02x}");
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn names() {
        for plain in ["", "topics/orders/0", "\u{e9}t\u{e9} 2024 (copy).log", "it's", "\u{65e5}\u{672c}"] {
            assert_eq!(printable(Path::new(plain)), plain);
        }
        let shown = |bytes: &[u8]| printable(Path::new(OsStr::from_bytes(bytes))).into_owned();
        assert_eq!(shown(b"a\xff\xfeb\xc3"), r"a\xff\xfeb\xc3");
        assert_eq!(shown(b"\x1b[2J\r\n\t\x7f"), r"\x1b[2J\x0d\x0a\x09\x7f");
        assert_eq!(shown("a\u{9b}b\u{202e}c".as_bytes()), r"a\xc2\x9bb\xe2\x80\xaec");
        assert_eq!(shown(b"a\\xff"), r"a\\xff");
    }

    #[test]
    fn texts_keep_their_lines() {
        assert_eq!(harmless("one\n  two \\ three"), "one\n  two \\ three");
        assert_eq!(harmless("one\r\n\u{1b}[31mtwo\u{2028}"), "one\\x0d\n\\x1b[31mtwo\\xe2\\x80\\xa8");
    }

    #[test]
    fn an_error_shows_its_path_like_this() {
        let path = Path::new(OsStr::from_bytes(b"a\x1b\xff"));
        let error = crate::Error::new(crate::Operation::Open, path, std::io::ErrorKind::NotFound.into());
        assert!(error.to_string().starts_with(r"open a\x1b\xff: not found"), "{error}");
    }
}
