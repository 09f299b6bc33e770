//! The report for a terminal, 80 columns wide.

use std::fmt::{self, Write};

use super::{Report, Spread};
use crate::qualify::micros_words;

/// The report as text.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    // A String takes everything.
    let _ = write_report(&mut text, report);
    text
}

fn write_report(text: &mut String, report: &Report) -> fmt::Result {
    writeln!(text, "{} ({})", report.dir, report.substrate)?;
    writeln!(
        text,
        "{} rounds of {} ms of each, by turns; medians; ratios: lowest to highest",
        report.rounds, report.round_ms
    )?;
    if !report.commits.is_empty() {
        write_commits(text, report)?;
    }
    if let Some(reads) = &report.reads {
        let mega = |bytes: f64| bytes / 1e6;
        writeln!(text, "\nRead from the start, 1 MiB at once, beside reading the file")?;
        writeln!(
            text,
            "  raw {:.0} MB/s, engine {:.0} MB/s, ratio {}",
            mega(reads.raw_bytes_per_second),
            mega(reads.engine_bytes_per_second),
            ratio(reads.ratio),
        )?;
        writeln!(
            text,
            "  p50 {} and {}, p99 {} and {}",
            micros_words(reads.raw.p50_us),
            micros_words(reads.engine.p50_us),
            micros_words(reads.raw.p99_us),
            micros_words(reads.engine.p99_us),
        )?;
    }
    if !report.takeovers.is_empty() {
        writeln!(text, "\nTakeover from a leader that closed nothing, ms (lowest to highest)")?;
        writeln!(text, "{:>12}{:>28}{:>32}", "log", "until it serves", "until it acknowledges")?;
        for takeover in &report.takeovers {
            writeln!(
                text,
                "{:>12}{:>28}{:>32}",
                bytes_words(takeover.log_bytes),
                milliseconds(takeover.open_ms),
                milliseconds(takeover.first_acknowledged_ms),
            )?;
        }
    }
    if !report.compactions.is_empty() {
        write_compactions(text, report)?;
    }
    Ok(())
}

fn write_compactions(text: &mut String, report: &Report) -> fmt::Result {
    writeln!(
        text,
        "\nA round of compaction; ratio: beside two plain reads of the log and a write of\nwhat is left"
    )?;
    writeln!(
        text,
        "{:>10}{:>10}{:>10}{:>11}{:>11}   ratio",
        "log", "left", "keys", "read MB/s", "write MB/s"
    )?;
    for row in &report.compactions {
        writeln!(
            text,
            "{:>10}{:>10}{:>10}{:>11.1}{:>11.1}   {}",
            bytes_words(row.log_bytes),
            bytes_words(row.left_bytes),
            row.keys,
            row.read_bytes_per_second.median / 1e6,
            row.written_bytes_per_second.median / 1e6,
            ratio(row.ratio),
        )?;
    }
    writeln!(text, "{:>10}{:>22}{:>22}{:>22}", "log", "map of keys", "process grew by", "allowed")?;
    for row in &report.compactions {
        writeln!(
            text,
            "{:>10}{:>22}{:>22}{:>22}",
            bytes_words(row.log_bytes),
            bytes_words(row.map_bytes),
            bytes_words(row.memory_bytes),
            bytes_words(row.memory_bound_bytes),
        )?;
    }
    Ok(())
}

fn write_commits(text: &mut String, report: &Report) -> fmt::Result {
    writeln!(
        text,
        "\nAppend and commit, MB/s: engine by a gathered write and fdatasync of the same\nbytes (raw), and by the same and a read of a fence (fenced)"
    )?;
    writeln!(
        text,
        "{:>5}{:>9}{:>7}{:>8}{:>8}  {:<19}  by fenced",
        "parts", "batch", "flight", "raw", "engine", "by raw"
    )?;
    for row in &report.commits {
        writeln!(
            text,
            "{:>5}{:>9}{:>7}{:>8.1}{:>8.1}  {:<19}  {}",
            row.case.partitions,
            bytes_words(row.case.batch_bytes as u64),
            row.case.in_flight,
            row.raw_bytes_per_second / 1e6,
            row.engine_bytes_per_second / 1e6,
            ratio(row.ratio),
            ratio(row.fenced_ratio),
        )?;
    }
    writeln!(text, "\nLatency: raw write and fdatasync, engine until acknowledged, one fence read")?;
    writeln!(
        text,
        "{:>5}{:>9}{:>7}{:>10}{:>10}{:>10}{:>10}{:>10}{:>7}",
        "parts", "batch", "flight", "raw p50", "p99", "eng. p50", "p99", "fence p50", "share"
    )?;
    for row in &report.commits {
        write!(
            text,
            "{:>5}{:>9}{:>7}",
            row.case.partitions,
            bytes_words(row.case.batch_bytes as u64),
            row.case.in_flight
        )?;
        let latencies =
            [row.raw.p50_us, row.raw.p99_us, row.engine.p50_us, row.engine.p99_us, row.fence.p50_us];
        for micros in latencies {
            write!(text, "{:>10}", micros_words(micros))?;
        }
        writeln!(text, "{:>6.1}%", row.fence_share * 100.0)?;
    }
    Ok(())
}

fn ratio(spread: Spread) -> String {
    format!("{} ({} to {})", short(spread.median), short(spread.min), short(spread.max))
}

/// In four characters, up to 9999.
fn short(ratio: f64) -> String {
    match ratio {
        _ if ratio < 9.995 => format!("{ratio:.2}"),
        _ if ratio < 99.95 => format!("{ratio:.1}"),
        _ => format!("{ratio:.0}"),
    }
}

fn milliseconds(spread: Spread) -> String {
    format!("{:.1} ({:.1} to {:.1})", spread.median, spread.min, spread.max)
}

/// Bytes in the largest unit of which there is one once they are rounded, to three or four digits.
pub(super) fn bytes_words(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let Some((unit, one)) = UNITS.into_iter().find(|(_, one)| bytes >= one - one / 2048) else {
        return format!("{bytes} B");
    };
    let number = bytes as f64 / one as f64;
    let digits = if number < 99.95 { format!("{number:.1}") } else { format!("{number:.0}") };
    format!("{} {unit}", digits.strip_suffix(".0").unwrap_or(&digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_rounded_and_not_cut_off() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            ((1 << 20) - 1, "1 MiB"),
            ((1 << 30) - (1 << 18), "1 GiB"),
            (1023 << 20, "1023 MiB"),
            (4096, "4 KiB"),
            (1 << 20, "1 MiB"),
            ((1 << 20) + (1 << 19), "1.5 MiB"),
            ((1 << 20) + 80, "1 MiB"),
            (2 * (1 << 20) - 80, "2 MiB"),
            (99 << 20, "99 MiB"),
            ((128 << 20) + (1 << 19) + 1, "129 MiB"),
            (1 << 30, "1 GiB"),
            (3 << 29, "1.5 GiB"),
            (10 << 30, "10 GiB"),
            (u64::MAX, "17179869184 GiB"),
        ] {
            assert_eq!(bytes_words(bytes), expected, "{bytes}");
        }
        // With a column's width to spare.
        assert!((0..43).all(|shift| bytes_words((1 << shift) - 1).len() <= 8));
    }
}
