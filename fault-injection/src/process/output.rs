//! What a process writes to its pipes: read by a thread each, so that the process never blocks on a full pipe.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;

use parking_lot::Mutex;

/// Most lines that are kept of a stream; the first ones go.
const LINES_MAX: usize = 400;

/// Longest line that is kept whole, in bytes.
const LINE_BYTES_MAX: usize = 4096;

/// The last lines of a stream, and the thread that reads it.
#[derive(Debug)]
pub(super) struct Output {
    kept: Arc<Mutex<VecDeque<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Output {
    /// Reads `stream` to its end. The receiver gets each line too, as long as it lives.
    pub(super) fn collect(stream: impl Read + Send + 'static) -> (Self, Receiver<String>) {
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, lines) = mpsc::channel();
        let into = Arc::clone(&kept);
        let reader = std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            while let Some(line) = next_line(&mut stream) {
                let _ = sender.send(line.clone());
                let mut kept = into.lock();
                if kept.len() == LINES_MAX {
                    kept.pop_front();
                }
                kept.push_back(line);
            }
        });
        (Self { kept, reader: Some(reader) }, lines)
    }

    /// The lines that are kept, one below the other.
    pub(super) fn text(&self) -> String {
        self.kept.lock().iter().fold(String::new(), |text, line| text + line + "\n")
    }

    /// Waits for the end of the stream, which comes when the process (and whoever inherited the pipe) has ended.
    pub(super) fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            // A reader that panicked has nothing more to give.
            let _ = reader.join();
        }
    }
}

/// The next line without its end, cut at [`LINE_BYTES_MAX`]; `None` at the end of the stream or on an error.
fn next_line(stream: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    let limit = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
    if stream.by_ref().take(limit).read_until(b'\n', &mut line).ok()? == 0 {
        return None;
    }
    Some(String::from_utf8_lossy(&line).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept() {
        let text = (0..LINES_MAX + 5).map(|n| format!("line {n}\n")).collect::<String>();
        let (mut output, lines) = Output::collect(std::io::Cursor::new(text));
        output.finish();
        assert!(output.text().starts_with("line 5\n"));
        assert_eq!(lines.iter().count(), LINES_MAX + 5);
    }

    #[test]
    fn a_long_line_comes_in_pieces() {
        let (mut output, lines) = Output::collect(std::io::Cursor::new("x".repeat(LINE_BYTES_MAX + 1)));
        output.finish();
        assert_eq!(lines.iter().map(|line| line.len()).collect::<Vec<_>>(), [LINE_BYTES_MAX, 1]);
    }
}
