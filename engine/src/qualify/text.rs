//! The report for a terminal, 80 columns wide: the verdict first, then its reasons, then what was tried.

use std::fmt::{self, Write};

use super::check::{Basis, Check, Outcome};
use super::latency::LatencyRow;
use super::pair::Clients;
use super::protocol::Volume;
use super::report::{Report, Verdict};

const WIDTH: usize = 80;

/// Fewer samples than this have no 99.9th percentile worth telling.
pub const ENOUGH_FOR_P999: u64 = 1000;

/// The report as text.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    // A String takes everything.
    let _ = write_report(&mut text, report);
    text
}

/// The verdict in words.
pub fn verdict_words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Fit => "FIT for several brokers",
        Verdict::FitForOneBroker => "FIT FOR ONE BROKER",
        Verdict::Unfit => "UNFIT",
    }
}

/// Who tried it.
pub fn clients_words(report: &Report) -> String {
    match report.clients {
        Clients::One => format!("two processes on one mount of {}", report.host.name),
        Clients::TwoMounts => format!("two mounts on {}", report.host.name),
        Clients::TwoHosts => format!("two hosts, {} and {}", report.host.name, report.second_host.name),
    }
}

/// A volume in a line.
pub fn volume_words(volume: &Volume) -> String {
    format!("{} ({}) on {}", volume.source, volume.file_system, volume.mounted_on)
}

/// A latency with three digits.
pub fn micros_words(micros: f64) -> String {
    match micros {
        _ if micros < 10.0 => format!("{micros:.1} µs"),
        _ if micros < 1e3 => format!("{micros:.0} µs"),
        _ if micros < 1e4 => format!("{:.2} ms", micros / 1e3),
        _ if micros < 1e5 => format!("{:.1} ms", micros / 1e3),
        _ if micros < 1e6 => format!("{:.0} ms", micros / 1e3),
        _ => format!("{:.1} s", micros / 1e6),
    }
}

fn write_report(text: &mut String, report: &Report) -> fmt::Result {
    writeln!(text, "{}: {}", report.dir, verdict_words(report.verdict))?;
    for reason in &report.reasons {
        wrapped(text, "  - ", reason)?;
    }
    writeln!(text)?;
    wrapped(text, "  volume    ", &volume_words(&report.volume))?;
    if report.clients != Clients::One {
        wrapped(text, "  second    ", &volume_words(&report.second_volume))?;
    }
    let passes = if report.passes == 1 { "pass" } else { "passes" };
    let seconds = report.elapsed_ms as f64 / 1e3;
    wrapped(
        text,
        "  tried by  ",
        &format!("{}, {} {passes}, {seconds:.0} s", clients_words(report), report.passes),
    )?;
    if !report.leftovers_removed.is_empty() {
        wrapped(
            text,
            "  removed   ",
            &format!("what earlier runs left: {}", report.leftovers_removed.join(", ")),
        )?;
    }
    if !report.leftovers_left.is_empty() {
        wrapped(text, "  left      ", &format!("of runs that go on: {}", report.leftovers_left.join(", ")))?;
    }

    writeln!(text, "\nWhat kaas relies on")?;
    let (required, noted): (Vec<_>, Vec<_>) =
        report.checks.iter().partition(|check| check.basis != Basis::Nothing);
    for check in required {
        write_check(text, check)?;
    }
    writeln!(text, "\nGood to know")?;
    for check in noted {
        wrapped(text, &format!("  {:<28}", check.title), &check.detail)?;
    }
    write_latencies(text, report)
}

fn write_check(text: &mut String, check: &Check) -> fmt::Result {
    let outcome = match check.outcome {
        Outcome::Passed => "ok",
        Outcome::Failed => "FAILED",
        Outcome::Noted => "noted",
        Outcome::NotTested => "-",
    };
    wrapped(text, &format!("  {outcome:<7} {:<6}", check.basis), check.title)?;
    wrapped(text, &format!("{:16}", ""), &check.detail)
}

fn write_latencies(text: &mut String, report: &Report) -> fmt::Result {
    if report.latencies.is_empty() {
        return Ok(());
    }
    let head = ["count", "p50", "p99", "p99.9", "max"];
    write!(text, "\n{:<30}{:>8}", "Latency", head[0])?;
    for column in head.iter().skip(1) {
        write!(text, "{column:>10}")?;
    }
    writeln!(text)?;
    for row in &report.latencies {
        write!(text, "  {:<28}{:>8}", row.title, row.count)?;
        for value in columns(row) {
            write!(text, "{value:>10}")?;
        }
        writeln!(text)?;
    }
    writeln!(text)?;
    for flow in &report.throughput {
        writeln!(text, "  {:<38}{:>8.0} MB/s", flow.title, flow.bytes_per_second / 1e6)?;
    }
    Ok(())
}

/// p50, p99, p99.9 and the highest, as far as there are samples enough.
pub fn columns(row: &LatencyRow) -> [String; 4] {
    let p999 = if row.count >= ENOUGH_FOR_P999 { micros_words(row.p999_us) } else { "-".to_owned() };
    [micros_words(row.p50_us), micros_words(row.p99_us), p999, micros_words(row.max_us)]
}

/// `words` behind `first`, broken at spaces, further lines below the first; a word that is too long is not broken.
fn wrapped(text: &mut String, first: &str, words: &str) -> fmt::Result {
    let indent = first.chars().count();
    let mut line = first.to_owned();
    let mut column = indent;
    let mut fresh = true;
    for word in words.split_whitespace() {
        let width = word.chars().count();
        if !fresh && column + 1 + width > WIDTH {
            writeln!(text, "{}", line.trim_end())?;
            line = " ".repeat(indent);
            column = indent;
            fresh = true;
        }
        if !fresh {
            line.push(' ');
            column += 1;
        }
        line.push_str(word);
        column += width;
        fresh = false;
    }
    writeln!(text, "{}", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_the_margin() {
        let mut text = String::new();
        let words = "word ".repeat(40);
        wrapped(&mut text, "  first   ", &words).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH && !line.ends_with(' ')), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("          word")), "{text}");
        assert_eq!(text.split_whitespace().count(), 41);
    }

    #[test]
    fn latencies_have_three_digits_and_a_unit() {
        for (micros, expected) in [
            (0.34, "0.3 µs"),
            (12.3, "12 µs"),
            (999.0, "999 µs"),
            (1234.0, "1.23 ms"),
            (23_456.0, "23.5 ms"),
            (234_567.0, "235 ms"),
            (2_345_678.0, "2.3 s"),
        ] {
            assert_eq!(micros_words(micros), expected);
        }
    }
}
