//! A dump for people.

use std::fmt::Write as _;

use super::item::{BatchItem, Content, Item, RecordItem};
use crate::fold::{WIDTH, fold};
use crate::verify::counted;

/// An item as lines of text, the last one with its end.
pub fn render(item: &Item) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = match item {
        Item::File { path, what, bytes } => {
            writeln!(out, "\n== {path}: {what}, {}", counted(*bytes, "byte", "bytes"))
        }
        Item::Batch(batch) => {
            out = render_batch(batch);
            Ok(())
        }
        Item::Record(record) => {
            out = render_record(record);
            Ok(())
        }
        Item::Dead { path, position, bytes, reason } => {
            let bytes = counted(*bytes, "byte", "bytes");
            let text = format!("{path}, byte {position}: dead, {bytes} to the end: {reason}");
            fold(&mut out, "-- ", 3, &text, WIDTH);
            Ok(())
        }
        Item::OffsetEntry { offset, position } => writeln!(out, "offset {offset}  position {position}"),
        Item::TimeEntry { timestamp, offset } => {
            writeln!(out, "timestamp {timestamp} ({})  offset {offset}", utc(*timestamp))
        }
        Item::AbortedTransaction { producer_id, first_offset, last_offset, last_stable_offset } => writeln!(
            out,
            "aborted: producer {producer_id}  offsets {first_offset}..={last_offset}  last stable \
             {last_stable_offset}"
        ),
        Item::Fence { epoch, state } => writeln!(out, "epoch {epoch}: {state}"),
        Item::Json { value } => {
            writeln!(out, "{}", serde_json::to_string_pretty(value).unwrap_or_else(|_| value.to_string()))
        }
        Item::Finding { path, position, problem, hint } => {
            fold(&mut out, "!! ", 3, &format!("{path}, byte {position}: {problem}"), WIDTH);
            fold(&mut out, "   ", 3, hint, WIDTH);
            Ok(())
        }
    };
    out
}

fn render_batch(batch: &BatchItem) -> String {
    let mut out = format!(
        "@{}  offsets {}..={}  {}  {} bytes  epoch {}  {}  {} {}",
        batch.position,
        batch.base_offset,
        batch.last_offset,
        counted(u64::try_from(batch.record_count).unwrap_or(0), "record", "records"),
        batch.batch_bytes,
        batch.leader_epoch,
        batch.compression,
        batch.timestamp_type,
        utc(batch.max_timestamp),
    );
    if let Some(producer) = &batch.producer {
        let _ = write!(out, "  producer {} epoch {}", producer.id, producer.epoch);
        if producer.base_sequence >= 0 {
            let _ = write!(out, " seq {}..={}", producer.base_sequence, producer.last_sequence);
        }
    }
    for (flag, name) in [
        (batch.transactional, "  transactional"),
        (batch.control, "  control"),
        (batch.delete_horizon, "  delete horizon"),
        (!batch.crc_ok, "  CRC WRONG"),
        (batch.dead, "  DEAD: behind what counts, never served"),
    ] {
        if flag {
            out.push_str(name);
        }
    }
    out.push('\n');
    out
}

fn render_record(record: &RecordItem) -> String {
    let mut out = format!("  | {}  {}", record.offset, utc(record.timestamp));
    if let Some(marker) = &record.marker {
        let _ = writeln!(out, "  {marker}");
        return out;
    }
    let _ = write!(out, "  key {}  value {}", show(&record.key), show(&record.value));
    for (key, value) in &record.headers {
        let _ = write!(out, "  [{}: {}]", show(key), show(value));
    }
    out.push('\n');
    out
}

fn show(content: &Content) -> String {
    match content {
        Content::None => "null".to_owned(),
        // Debug escapes control characters, so that a value cannot drive the terminal.
        Content::Text(text) => format!("{text:?}"),
        Content::Bytes { base64 } => format!("base64:{base64}"),
    }
}

/// Milliseconds since 1970 as `2023-11-14T22:13:20.000Z`; the number itself where it is no such time.
pub fn utc(timestamp: i64) -> String {
    const DAY_MS: i64 = 86_400_000;
    // Four-digit years; also keeps the arithmetic far from its limits.
    if !(0..253_402_300_800_000).contains(&timestamp) {
        return if timestamp == -1 { "no timestamp".to_owned() } else { format!("{timestamp} ms") };
    }
    let (days, ms) = (timestamp / DAY_MS, timestamp % DAY_MS);
    // Days since 0000-03-01, so that leap days come last in a year; 146,097 days make 400 years.
    let shifted = days + 719_468;
    let era_day = shifted % 146_097;
    let year_of_era = (era_day - era_day / 1460 + era_day / 36_524 - era_day / 146_096) / 365;
    let day_of_year = era_day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + (shifted / 146_097) * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_are_written_out() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(utc(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(utc(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(utc(253_402_300_799_999), "9999-12-31T23:59:59.999Z");
        assert_eq!(utc(-1), "no timestamp");
        assert_eq!(utc(i64::MAX), format!("{} ms", i64::MAX));
        assert_eq!(utc(i64::MIN), format!("{} ms", i64::MIN));
    }
}
