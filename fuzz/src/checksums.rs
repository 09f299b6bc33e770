//! Sets the checksums of what a fuzzer has changed right, so that what lies behind them is reached too.

/// The CRC-32C of a batch covers what follows this byte; it stands in front of it.
const BATCH_COVER: usize = 21;
const BATCH_LENGTH_END: usize = 12;

/// Makes every checksum of a file right, by the kind of file that its name says.
pub fn renew(name: &str, bytes: &mut [u8]) {
    if name.ends_with(".log") {
        renew_batches(bytes);
    } else if bytes.starts_with(b"{") {
        renew_json(bytes);
    } else if name.ends_with(".snapshot") {
        renew_kafka_snapshot(bytes);
    }
}

/// Record batches, one behind the other, as far as their lengths lead.
pub fn renew_batches(mut bytes: &mut [u8]) {
    while let Some(length) = bytes.get(8..BATCH_LENGTH_END) {
        let length = i32::from_be_bytes(length.try_into().expect("four bytes"));
        let end = usize::try_from(length).unwrap_or(0).saturating_add(BATCH_LENGTH_END);
        if end < BATCH_COVER || end > bytes.len() {
            return;
        }
        let (batch, rest) = bytes.split_at_mut(end);
        let crc = crc32c::crc32c(&batch[BATCH_COVER..]);
        batch[BATCH_COVER - 4..BATCH_COVER].copy_from_slice(&crc.to_be_bytes());
        bytes = rest;
    }
}

/// A version, the CRC-32C of all that follows it, producers.
fn renew_kafka_snapshot(bytes: &mut [u8]) {
    if let Some((head, rest)) = bytes.split_at_mut_checked(6) {
        head[2..].copy_from_slice(&crc32c::crc32c(rest).to_be_bytes());
    }
}

/// Objects that end with a field `crc32c` over what is in front of it; on a line of its own, over all lines before.
pub fn renew_json(bytes: &mut [u8]) {
    let mut line_at = 0;
    while line_at < bytes.len() {
        let line_end = find(&bytes[line_at..], b"\n").map_or(bytes.len(), |length| line_at + length);
        let line = &bytes[line_at..line_end];
        let named = find(line, b"\"crc32c\":").map(|at| line_at + at);
        if let Some(name_at) = named
            && let Some(digits_at) = find(&bytes[name_at + 9..line_end], b"\"").map(|at| name_at + 9 + at + 1)
            && digits_at + 8 <= line_end
        {
            let covered = match &bytes[line_at..name_at] {
                // A snapshot's last line, and the last field of an object that is laid out for people.
                b"{" => &bytes[..line_at],
                b"  " => &bytes[..line_at.saturating_sub(2)],
                _ => &bytes[line_at..line_at.max(name_at.saturating_sub(1))],
            };
            let digits = format!("{:08x}", crc32c::crc32c(covered));
            bytes[digits_at..digits_at + 8].copy_from_slice(digits.as_bytes());
        }
        line_at = line_end + 1;
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|found| found == wanted)
}
