//! A checksum as the last field of a JSON object, so that damage that leaves readable JSON (a digit that is another one)
//! is found too.
//!
//! `crc32c` is eight hexadecimal digits: the CRC-32C of all bytes in front of the comma before that field. The field is
//! always the last one, in one of two spellings: on one line, or as in the files that are laid out for people. Whoever
//! edits a file by hand takes the field out: a file without it is taken as it is.

/// Of an object on one line: `,"crc32c":"0a1b2c3d"}`.
const LINE: [&str; 2] = [",\"crc32c\":\"", "\"}"];

/// Of an object that is laid out over several lines.
const DOCUMENT: [&str; 2] = [",\n  \"crc32c\": \"", "\"\n}"];

const DIGITS: usize = 8;

/// Closes a JSON object (without its last brace, not empty) with its checksum, and ends the line.
pub(crate) fn seal_line(open_object: Vec<u8>) -> Vec<u8> {
    seal(open_object, LINE)
}

/// As [`seal_line`], for an object with a field on each line, without its last line feed and brace.
pub(crate) fn seal_document(open_object: Vec<u8>) -> Vec<u8> {
    seal(open_object, DOCUMENT)
}

fn seal(mut open_object: Vec<u8>, [before, after]: [&str; 2]) -> Vec<u8> {
    let crc = crc32c::crc32c(&open_object);
    open_object.extend_from_slice(format!("{before}{crc:08x}{after}\n").as_bytes());
    open_object
}

/// The object without its seal and last brace, if it ends with a seal on one line that is right. `line` comes without
/// its line feed.
pub(crate) fn unseal_line(line: &[u8]) -> Option<&[u8]> {
    let (body, crc) = split(line, LINE)?;
    is_crc_of(body, crc).then_some(body)
}

/// Whether the object that is the whole of `bytes`, a line feed at the end included, ends with a seal, in either
/// spelling, that is right.
pub(crate) fn is_sealed(bytes: &[u8]) -> bool {
    let Some(bytes) = bytes.strip_suffix(b"\n") else { return false };
    let sealed = [DOCUMENT, LINE].into_iter().find_map(|spelling| split(bytes, spelling));
    sealed.is_some_and(|(body, crc)| is_crc_of(body, crc))
}

/// The bytes that a seal covers, and its digits.
fn split<'a>(bytes: &'a [u8], [before, after]: [&str; 2]) -> Option<(&'a [u8], &'a [u8])> {
    let seal_bytes = before.len() + DIGITS + after.len();
    let (body, seal) = bytes.split_at_checked(bytes.len().checked_sub(seal_bytes)?)?;
    let crc = seal.strip_prefix(before.as_bytes())?.strip_suffix(after.as_bytes())?;
    Some((body, crc))
}

fn is_crc_of(body: &[u8], crc: &[u8]) -> bool {
    crc == format!("{:08x}", crc32c::crc32c(body)).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_breaks_a_seal() {
        for sealed in [seal_line(b"{\"a\":1".to_vec()), seal_document(b"{\n  \"a\": 1".to_vec())] {
            assert!(is_sealed(&sealed));
            for at in 0..sealed.len() {
                for bit in 0..8 {
                    let mut flipped = sealed.clone();
                    flipped[at] ^= 1 << bit;
                    assert!(!is_sealed(&flipped), "bit {bit} of byte {at}");
                }
            }
        }
    }

    #[test]
    fn seals_are_json() {
        let sealed = seal_document(b"{\n  \"a\": 1".to_vec());
        assert_eq!(sealed, b"{\n  \"a\": 1,\n  \"crc32c\": \"4f9c6419\"\n}\n");
        assert_eq!(unseal_line(seal_line(b"{\"a\":1".to_vec()).trim_ascii_end()), Some(&b"{\"a\":1"[..]));
        assert_eq!(unseal_line(b"{\"a\":1}"), None);
        assert!(!is_sealed(b"") && !is_sealed(b"{}\n"));
    }
}
