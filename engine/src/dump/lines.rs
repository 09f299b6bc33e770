//! Files with a JSON document a line, read in pieces.

use kaas_substrate::File;

use super::item::Item;
use super::{DumpError, Dumper};

/// Bytes read at once.
const PIECE_BYTES: usize = 64 << 10;

const HINT: &str = "in the last line this is what a crash leaves, and the next leader heals it";

impl Dumper<'_> {
    /// Shows a file line by line. A line that is no JSON is a finding; a line too long to be held ends the dump of
    /// the file.
    pub(super) fn json_lines(&mut self, path: &str, file: &dyn File) -> Result<(), DumpError> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut line = Vec::new();
        let (mut at, mut line_at) = (0_u64, 0_u64);
        loop {
            let read = file.read_at(&mut piece, at)?;
            let new = piece.get(..read).unwrap_or_default();
            if read == 0 {
                break;
            }
            at += read as u64;
            let whole = new.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let (whole, rest) = new.split_at_checked(whole).unwrap_or((new, &[]));
            if !whole.is_empty() {
                line.extend_from_slice(whole);
                self.show_lines(path, &line, line_at)?;
                line_at += line.len() as u64;
                line.clear();
            }
            line.extend_from_slice(rest);
            if line.len() > self.options.max_file_bytes {
                let problem = format!("a line longer than {} bytes", self.options.max_file_bytes);
                return self.finding(path, line_at, problem, "raise --max-file-bytes");
            }
        }
        if line.is_empty() {
            return Ok(());
        }
        let problem = format!("the last line ({} bytes) has no end", line.len());
        self.finding(path, line_at, problem, HINT)
    }

    /// Shows whole lines, the first of which begins at byte `at` of the file.
    pub(super) fn show_lines(&mut self, path: &str, lines: &[u8], at: u64) -> Result<(), DumpError> {
        let mut position = at;
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            match serde_json::from_slice(line) {
                Ok(value) => self.show(&Item::Json { value })?,
                Err(_) if line == b"\n" => {}
                Err(error) => self.finding(path, position, format!("not JSON: {error}"), HINT)?,
            }
            position += line.len() as u64;
        }
        Ok(())
    }
}
