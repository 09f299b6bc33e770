//! Which appends damage of a slot's files hits.

use std::collections::BTreeMap;

use kaas_engine::manifest::versioned::{FileKind, FileVersion};
use serde_json::Value;

use crate::journals::AppendId;

/// A slot's journals, and its snapshots.
pub const JOURNAL: FileKind = FileKind::bytes("journal", "jsonl");
pub const SNAPSHOT: FileKind = FileKind::bytes("snapshot", "json");

/// What a checksum looks like at the end of a line: in front of its eight digits, and behind them.
const SEAL: [&str; 2] = [",\"crc32c\":\"", "\"}"];

/// How every line behind the first begins.
const LINE_START: &[u8] = b"{\"seq\":";

/// A journal as its bytes say it.
#[derive(Debug, Default)]
pub struct JournalFile {
    /// The first line, if it can be read.
    header: Option<Value>,
    /// Whole lines: where each begins, where its write began, and the append.
    lines: Vec<(usize, usize, AppendId)>,
    /// Where the first bytes stand that are no whole line.
    broken_at: Option<usize>,
}

/// The object of a line, without its line feed, if its checksum is right.
fn unsealed(line: &[u8]) -> Option<Value> {
    let [before, after] = SEAL;
    let (body, seal) = line.split_at_checked(line.len().checked_sub(before.len() + 8 + after.len())?)?;
    let digits = seal.strip_prefix(before.as_bytes())?.strip_suffix(after.as_bytes())?;
    let is_right = digits == format!("{:08x}", crc32c::crc32c(body)).as_bytes();
    serde_json::from_slice(line).ok().filter(|_| is_right)
}

fn number(value: &Value, name: &str) -> Option<u64> {
    value.get(name)?.as_u64()
}

/// Where the write of a line began, and the append in it.
fn append(line: &Value) -> Option<(usize, AppendId)> {
    let write = usize::try_from(number(line, "at")?).ok()?;
    Some((write, number(line.get("entries")?.get(0)?, "append")?))
}

impl JournalFile {
    pub fn parse(bytes: &[u8]) -> Self {
        let mut file = Self::default();
        let mut at = 0;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let line = piece.strip_suffix(b"\n").unwrap_or_default();
            // The line feed between two lines may be what is damaged.
            let starts =
                line.windows(LINE_START.len()).enumerate().filter(|(_, window)| *window == LINE_START);
            let starts =
                std::iter::once(0).chain(starts.map(|(within, _)| within).filter(|within| *within > 0));
            let whole = starts.filter_map(|within| Some((within, unsealed(line.get(within..)?)?))).next();
            match whole {
                Some((0, header)) if at == 0 => file.header = Some(header),
                Some((within, line)) => {
                    if within > 0 {
                        file.broken_at = file.broken_at.or(Some(at));
                    }
                    file.lines.extend(append(&line).map(|(write, id)| (at + within, write, id)));
                }
                None => file.broken_at = file.broken_at.or(Some(at)),
            }
            at += piece.len();
        }
        file
    }

    /// The lines that were copied when the file was made, which no crash tears.
    fn inherited(&self) -> usize {
        let inherited = self.header.as_ref().and_then(|header| number(header, "inherited"));
        inherited.and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
    }

    /// The appends in it.
    pub fn appends(&self) -> impl Iterator<Item = AppendId> {
        self.lines.iter().map(|(_, _, id)| *id)
    }

    /// Whether it builds on the snapshot of this version, as far as it says so.
    pub fn builds_on(&self, version: FileVersion) -> bool {
        self.header.as_ref().is_none_or(|header| {
            let said = header.get("snapshot").filter(|said| !said.is_null());
            said.is_some_and(|said| {
                number(said, "epoch") == Some(version.epoch.get().into())
                    && number(said, "number") == Some(version.number)
            })
        })
    }

    /// What changing `self` into `after` hits, and whether that is as a crash may leave its end.
    pub fn hit(&self, after: &Self, length_after: usize) -> (Vec<AppendId>, bool) {
        let left: BTreeMap<_, _> = after.lines.iter().map(|(at, write, id)| (*id, (*at, *write))).collect();
        let broken_at = after.broken_at.unwrap_or(length_after);
        let whole_before = after.lines.iter().filter(|(at, ..)| *at < broken_at).count();
        let is_proved = after.lines.iter().any(|(at, write, _)| *at > broken_at && *write > broken_at);
        let is_tail = after.header.is_some() && whole_before >= self.inherited() && !is_proved;
        let is_hit = |id: &AppendId| left.get(id).is_none_or(|(at, _)| is_tail && *at > broken_at);
        (self.appends().filter(is_hit).collect(), is_tail)
    }
}

/// The appends in a snapshot.
pub fn in_snapshot(bytes: &[u8]) -> Vec<AppendId> {
    let state: Option<Value> = serde_json::from_slice(bytes).ok();
    let appends = state.as_ref().and_then(|file| file.get("state")?.get("appends")?.as_array());
    appends.into_iter().flatten().filter_map(Value::as_u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(mut open: String) -> String {
        let crc = crc32c::crc32c(open.as_bytes());
        open.push_str(&format!(",\"crc32c\":\"{crc:08x}\"}}\n"));
        open
    }

    /// A line in a write that began at `write`.
    fn line(id: AppendId, write: usize) -> String {
        sealed(format!("{{\"seq\":{id},\"at\":{write},\"entries\":[{{\"append\":{id}}}]"))
    }

    /// Appends 1 (inherited), 2, and 3 with 4 in one write; and where each begins.
    fn file() -> (Vec<u8>, Vec<usize>) {
        let mut text =
            sealed("{\"format\":1,\"snapshot\":{\"epoch\":2,\"number\":1},\"inherited\":1".to_owned());
        let mut starts = Vec::new();
        for id in 1..=4 {
            starts.push(text.len());
            let write = if id == 4 { starts[2] } else { text.len() };
            text.push_str(&line(id, write));
        }
        (text.into_bytes(), starts)
    }

    fn hit(bytes: &[u8]) -> (Vec<AppendId>, bool) {
        JournalFile::parse(&file().0).hit(&JournalFile::parse(bytes), bytes.len())
    }

    #[test]
    fn a_line_is_hit_and_those_of_its_write_behind_it() {
        let (whole, starts) = file();
        assert_eq!(hit(&whole), (vec![], true));
        let flipped = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            hit(&bytes)
        };
        assert_eq!(flipped(3), (vec![], false));
        assert_eq!(flipped(starts[0] + 9), (vec![1], false));
        assert_eq!(flipped(starts[1] + 9), (vec![2], false));
        assert_eq!(flipped(starts[2] + 9), (vec![3, 4], true));
        assert_eq!(flipped(starts[3] + 9), (vec![4], true));
        // The line feed in front of a line.
        assert_eq!(flipped(starts[2] - 1), (vec![2], false));
        assert_eq!(hit(&whole[..starts[2] + 5]), (vec![3, 4], true));
        assert_eq!(hit(&whole[..starts[0] + 5]), (vec![1, 2, 3, 4], false));
        assert_eq!(hit(b""), (vec![1, 2, 3, 4], false));
    }

    #[test]
    fn a_journal_says_what_it_builds_on() {
        let version = |number| FileVersion { epoch: kaas_engine::types::Epoch::new(2).unwrap(), number };
        let parsed = JournalFile::parse(&file().0);
        assert!(parsed.builds_on(version(1)) && !parsed.builds_on(version(2)));
        assert!(JournalFile::default().builds_on(version(2)), "it does not say");
        assert_eq!(in_snapshot(b"{\"covers\":3,\"state\":{\"appends\":[1,5]}}"), [1, 5]);
    }
}
