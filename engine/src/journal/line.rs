//! The text of a journal: sealed lines.
//!
//! Every line is one JSON object whose last field is `crc32c`, eight hexadecimal digits: the checksum of all bytes of
//! the line before `,"crc32c"`. People read it with `cat` and `jq`; a torn or garbled line is always found.
//!
//! The first line of a file is its [`Header`]. Each further line is one append, whole or not there:
//! `{"seq":17,"at":1024,"entries":[...],"crc32c":"0a1b2c3d"}`. `at` is where in the file the write that the line was
//! part of began: everything below it was synced before the line was written. So an unreadable stretch is told apart:
//! if a good line behind it has `at` beyond it, acknowledged bytes are damaged; if none has, it is a torn write that
//! nobody was promised anything about.

use serde::{Deserialize, Serialize};

use crate::manifest::seal::{seal_line, unseal_line};
use crate::manifest::versioned::FileVersion;
use crate::types::Epoch;

/// Format of journals and snapshots that this version writes, and the highest it reads.
pub(super) const FORMAT: u64 = 1;

/// How every line behind the first begins.
const LINE_START: &[u8] = b"{\"seq\":";

/// Where lines may begin in what cannot be read, behind its first byte: the line feed in between may be what is damaged.
pub(super) fn starts_within(piece: &[u8]) -> impl Iterator<Item = usize> {
    let windows = piece.windows(LINE_START.len()).enumerate().skip(1);
    windows.filter(|(_, window)| *window == LINE_START).map(|(at, _)| at)
}

/// A version as JSON has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reference {
    epoch: u32,
    number: u64,
}

impl From<FileVersion> for Reference {
    fn from(version: FileVersion) -> Self {
        Self { epoch: version.epoch.get(), number: version.number }
    }
}

impl Reference {
    pub(super) fn version(self) -> Option<FileVersion> {
        Some(FileVersion { epoch: Epoch::new(self.epoch)?, number: self.number })
    }
}

/// The first line of a journal file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) format: u64,
    pub(super) epoch: u32,
    pub(super) number: u64,
    /// The slot whose journal it is, as [`crate::layout::slot_name`] has it; `None` in a directory that is no slot's.
    pub(super) slot: Option<String>,
    /// The snapshot that the lines build on.
    pub(super) snapshot: Option<Reference>,
    /// How many of the lines were there at the birth of the file, copied from its predecessor.
    pub(super) inherited: u64,
    /// The highest sequence number that was given out when the file was born.
    pub(super) last_sequence: u64,
}

/// Why a line cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("the checksum is wrong")]
    Checksum,
    #[error("the line feed at its end is missing")]
    Unfinished,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("sequence number {found} follows {last}")]
    Sequence { last: u64, found: u64 },
    #[error("it says that it is journal {epoch:08x}.{number}")]
    Name { epoch: u32, number: u64 },
    #[error("the write it was part of would begin at {at}, behind it")]
    Position { at: u64 },
}

/// Parses an object that [`seal_line`] closed.
pub(super) fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, LineError> {
    unseal_line(line).ok_or(LineError::Checksum)?;
    Ok(serde_json::from_slice(line)?)
}

/// A sealed line of any object with at least one field.
pub(super) fn sealed<T: Serialize>(object: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = serde_json::to_vec(object)?;
    bytes.pop();
    Ok(seal_line(bytes))
}

/// An append as it stands in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) sequence: u64,
    /// The JSON array of its entries.
    pub(super) entries: Vec<u8>,
}

impl Line {
    /// The bytes of the line, as part of a write that begins at `at`.
    pub(super) fn encode(sequence: u64, at: u64, entries: &[u8]) -> Vec<u8> {
        let mut open = Vec::with_capacity(entries.len() + 80);
        open.extend_from_slice(format!("{{\"seq\":{sequence},\"at\":{at},\"entries\":").as_bytes());
        open.extend_from_slice(entries);
        seal_line(open)
    }

    pub(super) fn parse(line: &[u8], start: u64, last: u64) -> Result<(Self, u64), LineError> {
        #[derive(Deserialize)]
        struct Numbers {
            seq: u64,
            at: u64,
        }
        let body = unseal_line(line).ok_or(LineError::Checksum)?;
        let Numbers { seq, at } = serde_json::from_slice(line)?;
        if at > start {
            return Err(LineError::Position { at });
        }
        if seq <= last {
            return Err(LineError::Sequence { last, found: seq });
        }
        let mark: &[u8] = b"\"entries\":";
        let entries = body.windows(mark.len()).position(|window| window == mark);
        let entries = entries.and_then(|at| body.get(at + mark.len()..)).ok_or(LineError::Checksum)?;
        Ok((Self { sequence: seq, entries: entries.to_vec() }, at))
    }
}

/// What stands in a journal file.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) header: Header,
    pub(super) lines: Vec<Line>,
    /// Bytes up to which it could be read; what lies behind is a torn write.
    pub(super) valid_bytes: u64,
}

/// Where and why a journal file is damaged.
#[derive(Debug)]
pub(super) struct Damaged {
    pub(super) offset: u64,
    pub(super) reason: LineError,
}

/// Reads a whole journal file. It was renamed into place whole, so its header and the lines it was born with are
/// never torn; a torn write can only be at its end.
pub(super) fn parse_file(bytes: &[u8]) -> Result<Parsed, Damaged> {
    let Some((first, mut rest)) = split_line(bytes) else {
        return Err(Damaged { offset: 0, reason: LineError::Unfinished });
    };
    let header: Header = parse(first).map_err(|reason| Damaged { offset: 0, reason })?;
    let mut lines: Vec<Line> = Vec::new();
    let mut position = first.len() as u64 + 1;
    if header.format > FORMAT {
        return Ok(Parsed { header, lines, valid_bytes: position });
    }
    let mut last = 0;
    while !rest.is_empty() {
        let parsed = match split_line(rest) {
            Some((line, behind)) => Line::parse(line, position, last).map(|parsed| (parsed.0, line, behind)),
            None => Err(LineError::Unfinished),
        };
        match parsed {
            Ok((parsed, line, behind)) => {
                last = parsed.sequence;
                lines.push(parsed);
                position += line.len() as u64 + 1;
                rest = behind;
            }
            Err(reason) if is_damage(&header, lines.len(), rest, position) => {
                return Err(Damaged { offset: position, reason });
            }
            Err(_) => break,
        }
    }
    if (lines.len() as u64) < header.inherited {
        return Err(Damaged { offset: position, reason: LineError::Unfinished });
    }
    Ok(Parsed { header, lines, valid_bytes: position })
}

/// True if what cannot be read at `position` was synced once: it was there at the birth of the file, or a good line
/// further on was written after it.
fn is_damage(header: &Header, lines: usize, rest: &[u8], position: u64) -> bool {
    if (lines as u64) < header.inherited {
        return true;
    }
    let mut behind = rest;
    let mut start = position;
    while let Some((line, next)) = split_line(behind) {
        let proves = |within: usize| {
            let line = line.get(within..).unwrap_or_default();
            Line::parse(line, start + within as u64, 0).is_ok_and(|(_, at)| at > position)
        };
        if proves(0) || starts_within(line).any(proves) {
            return true;
        }
        start += line.len() as u64 + 1;
        behind = next;
    }
    false
}

/// The first line without its line feed, and what follows it.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((bytes.get(..end)?, bytes.get(end + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(inherited: u64) -> Vec<u8> {
        let header = Header {
            format: 1,
            epoch: 3,
            number: 0,
            slot: None,
            snapshot: None,
            inherited,
            last_sequence: inherited,
        };
        sealed(&header).unwrap()
    }

    /// A file with one inherited line, then writes of two lines each.
    fn sample() -> Vec<u8> {
        let mut file = header(1);
        let at = file.len() as u64;
        file.extend(Line::encode(1, 0, b"[{\"k\":\"inherited\"}]"));
        assert!(at > 0);
        for write in 0..3 {
            let at = file.len() as u64;
            for line in 0..2 {
                file.extend(Line::encode(
                    2 + write * 2 + line,
                    at,
                    b"[{\"k\":\"a \\\"entries\\\": \\n b\"},2]",
                ));
            }
        }
        file
    }

    fn line_starts(file: &[u8]) -> Vec<usize> {
        let feeds = file.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
        std::iter::once(0).chain(feeds).collect()
    }

    #[test]
    fn a_line_is_json_for_people() {
        let line = Line::encode(17, 1024, b"[{\"k\":1}]");
        let text = String::from_utf8(line).unwrap();
        assert!(text.starts_with("{\"seq\":17,\"at\":1024,\"entries\":[{\"k\":1}],\"crc32c\":\""), "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["entries"][0]["k"], 1);
    }

    #[test]
    fn a_whole_file_comes_back() {
        let file = sample();
        let parsed = parse_file(&file).unwrap();
        assert_eq!(parsed.lines.iter().map(|line| line.sequence).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(parsed.lines[3].entries, b"[{\"k\":\"a \\\"entries\\\": \\n b\"},2]");
        assert_eq!(parsed.valid_bytes, file.len() as u64);
    }

    #[test]
    fn a_tear_anywhere_in_the_last_write_is_cut_there() {
        let file = sample();
        let starts = line_starts(&file);
        for end in starts[6]..file.len() {
            let parsed = parse_file(&file[..end]).unwrap();
            let whole = if end >= starts[7] { 6 } else { 5 };
            assert_eq!((parsed.lines.len(), parsed.valid_bytes), (whole, starts[whole + 1] as u64), "{end}");
        }
    }

    #[test]
    fn a_hole_in_the_last_write_is_cut_there_even_if_a_later_line_is_whole() {
        let mut file = sample();
        let starts = line_starts(&file);
        file[starts[6]..starts[6] + 20].fill(0);
        let parsed = parse_file(&file).unwrap();
        assert_eq!((parsed.lines.len(), parsed.valid_bytes), (5, starts[6] as u64));
    }

    #[test]
    fn damage_below_a_later_write_is_an_error() {
        let file = sample();
        let starts = line_starts(&file);
        for at in 0..starts[6] {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            let found = parse_file(&damaged).map(|parsed| parsed.lines.len());
            assert!(found.is_err(), "byte {at}: {found:?}");
        }
    }

    /// Then the two read as one line, which is no line: what stands behind the line feed was written after it all the same.
    #[test]
    fn a_damaged_line_feed_in_front_of_the_only_line_of_the_last_write_is_an_error() {
        let mut file = sample();
        let (starts, at) = (line_starts(&file), file.len());
        file.extend(Line::encode(8, at as u64, b"[3]"));
        for feed in starts.into_iter().skip(1).map(|start| start - 1) {
            let mut damaged = file.clone();
            damaged[feed] ^= 1;
            let found = parse_file(&damaged).map(|parsed| parsed.lines.len());
            assert!(found.is_err(), "byte {feed}: {found:?}");
        }
    }

    #[test]
    fn every_flipped_bit_of_the_last_write_is_found() {
        let file = sample();
        let starts = line_starts(&file);
        for at in starts[6]..file.len() {
            for bit in 0..8 {
                let mut damaged = file.clone();
                damaged[at] ^= 1 << bit;
                let parsed = parse_file(&damaged).unwrap();
                let whole = if at >= starts[7] { 6 } else { 5 };
                assert_eq!(parsed.lines.len(), whole, "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn sequence_numbers_go_up() {
        let mut file = header(0);
        let at = file.len() as u64;
        file.extend(Line::encode(5, at, b"[]"));
        file.extend(Line::encode(5, at, b"[]"));
        assert_eq!(parse_file(&file).unwrap().lines.len(), 1);
    }
}
