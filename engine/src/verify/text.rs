//! The report for people: the worst first, by directory, each kind with what it means and what to do, and one line
//! at the end that says it all.

use std::fmt::{self, Write};
use std::path::Path;
use std::time::Duration;

use super::finding::{Finding, Severity};
use super::repair::{Lost, Outcome, Repaired};
use super::report::Report;

/// The report as text; with `infos`, those too.
pub fn render(report: &Report, elapsed: Duration, infos: bool) -> String {
    let mut text = String::new();
    // A String takes everything.
    let _ = write_report(&mut text, report, elapsed, infos);
    text
}

fn write_report(text: &mut String, report: &Report, elapsed: Duration, infos: bool) -> fmt::Result {
    let sections = [
        (
            Severity::Error,
            "ERRORS",
            "records are lost or unreadable, or something cannot be opened",
            report.errors,
        ),
        (Severity::Warning, "WARNINGS", "no committed record is missing", report.warnings),
        (Severity::Info, "INFO", "as it should be", report.infos),
    ];
    for (severity, title, meaning, count) in sections {
        let findings: Vec<_> =
            report.findings.iter().filter(|finding| finding.severity == severity).collect();
        if findings.is_empty() || (severity == Severity::Info && !infos) {
            continue;
        }
        writeln!(text, "{title} ({count}): {meaning}\n")?;
        write_findings(text, &findings)?;
    }
    write_summary(text, report, elapsed, infos)
}

fn write_findings(text: &mut String, findings: &[&Finding]) -> fmt::Result {
    let mut dir: Option<&Path> = None;
    let mut at = 0;
    while let Some(finding) = findings.get(at) {
        let parent = finding.file.parent();
        if parent != dir {
            dir = parent;
            writeln!(text, "  {}", parent.unwrap_or(Path::new("")).display())?;
        }
        let rest = findings.get(at..).unwrap_or_default();
        let alike = |other: &&&Finding| other.kind == finding.kind && other.file.parent() == parent;
        let alike = rest.iter().take_while(alike).count();
        writeln!(text, "    {}", finding.kind.code())?;
        for finding in rest.iter().take(alike) {
            let file = finding.file.file_name().unwrap_or_default().to_string_lossy();
            write!(text, "      {file}")?;
            if let Some(position) = finding.position {
                write!(text, ", byte {position}")?;
            }
            if let Some(offset) = finding.offset {
                write!(text, ", offset {offset}")?;
            }
            writeln!(text, ":\n        {}", finding.problem)?;
        }
        writeln!(text, "      means: {}", finding.meaning)?;
        writeln!(text, "      to do: {}\n", finding.action)?;
        at += alike.max(1);
    }
    Ok(())
}

/// What was repaired, or would be: by directory the steps, and what is lost.
pub fn render_repairs(repairs: &[Repaired]) -> String {
    let mut text = String::new();
    // A String takes everything.
    let _ = write_repairs(&mut text, repairs);
    text
}

fn write_repairs(text: &mut String, repairs: &[Repaired]) -> fmt::Result {
    let sections = [
        (Outcome::Repaired, "REPAIRED"),
        (Outcome::WouldRepair, "WOULD BE REPAIRED"),
        (Outcome::Refused, "LEFT AS IT IS"),
    ];
    for (outcome, title) in sections {
        let here: Vec<_> = repairs.iter().filter(|repaired| repaired.outcome == outcome).collect();
        if here.is_empty() {
            continue;
        }
        writeln!(text, "{title} ({}):\n", counted(here.len() as u64, "directory", "directories"))?;
        for repaired in here {
            writeln!(text, "  {}", repaired.directory.display())?;
            if let Some(reason) = &repaired.reason {
                writeln!(text, "    {reason}")?;
            }
            for step in &repaired.steps {
                writeln!(text, "    - {step}")?;
            }
            for Lost { from, to, reason } in &repaired.lost {
                writeln!(text, "    lost: offsets {from} to {}: {reason}", to.saturating_sub(1))?;
            }
            for given_up in &repaired.given_up {
                writeln!(text, "    lost: {given_up}")?;
            }
            for unknown in &repaired.unknown {
                writeln!(text, "    not known any more: {unknown}")?;
            }
            for left in &repaired.left {
                writeln!(text, "    left as it is: {left}")?;
            }
            writeln!(text)?;
        }
    }
    Ok(())
}

fn write_summary(text: &mut String, report: &Report, elapsed: Duration, infos: bool) -> fmt::Result {
    let seconds = elapsed.as_secs_f64();
    write!(text, "Looked at ")?;
    for (count, one, many) in [
        (report.topics, "topic", "topics"),
        (report.partitions, "partition", "partitions"),
        (report.slots, "slot", "slots"),
        (report.segments, "segment", "segments"),
    ] {
        if count > 0 {
            write!(text, "{}, ", counted(count, one, many))?;
        }
    }
    write!(
        text,
        "{}, {} in {seconds:.1} s",
        counted(report.records, "record", "records"),
        size(report.bytes)
    )?;
    if seconds >= 0.1 && report.bytes > 0 {
        write!(text, " ({:.0} MB/s)", mega(report.bytes) / seconds)?;
    }
    if let Some(memory) = report.peak_memory_bytes {
        write!(text, ", with {} of memory", size(memory))?;
    }
    writeln!(text, ".")?;
    if report.is_clean() {
        write!(text, "Clean: nothing is wrong")?;
    } else {
        let mut kinds = Vec::new();
        if report.errors > 0 {
            kinds.push(counted(report.errors, "error", "errors"));
        }
        if report.warnings > 0 {
            kinds.push(counted(report.warnings, "warning", "warnings"));
        }
        write!(text, "Found {}", kinds.join(" and "))?;
    }
    write_infos(text, report, infos)?;
    let lost = report.lost_offsets();
    if lost > 0 {
        writeln!(text, "Lost: {}, listed above.", counted(lost, "offset", "offsets"))?;
    }
    Ok(())
}

fn write_infos(text: &mut String, report: &Report, infos: bool) -> fmt::Result {
    match report.infos {
        0 => writeln!(text, "."),
        count if infos => writeln!(text, ", and {} in order.", counted(count, "thing", "things")),
        count => writeln!(text, "; {} more in order (--all shows them).", counted(count, "thing", "things")),
    }
}

/// "1 topic", "2 topics".
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

/// With separators between thousands.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Millions; good enough for people.
#[allow(clippy::cast_precision_loss)]
fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        10_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{:.1} GB", mega(bytes) / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Kind;
    use super::*;

    #[test]
    fn the_worst_comes_first_and_the_last_line_says_it_all() {
        let file = Path::new("/data/topics/orders/0/x.log");
        let mut report = Report { partitions: 1200, records: 5, bytes: 20_000, ..Report::default() };
        report.findings.push(Finding::new(Kind::UnknownFile, Path::new("/data/topics/orders/0/notes"), "no"));
        report.findings.push(Finding::new(Kind::DamagedBatch, file, "first").at(7));
        report.findings.push(Finding::new(Kind::DamagedBatch, file, "second").at(9));
        report.findings.push(Finding::new(Kind::Temporary, file, "hidden"));
        (report.errors, report.warnings, report.infos) = (2, 1, 1);
        let text = render(&report, Duration::from_secs(1), false);
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is not in:\n{text}"));
        assert!(at("ERRORS (2)") < at("first") && at("second") < at("WARNINGS (1)"));
        assert_eq!(text.matches(Kind::DamagedBatch.action()).count(), 1);
        assert!(!text.contains("hidden"));
        assert!(
            text.ends_with(
                "Looked at 1,200 partitions, 5 records, 20 kB in 1.0 s (0 MB/s).\n\
             Found 2 errors and 1 warning; 1 thing more in order (--all shows them).\n"
            ),
            "{text}"
        );
        assert!(render(&report, Duration::ZERO, true).contains("hidden"));
        assert!(render(&Report::default(), Duration::ZERO, false).ends_with("Clean: nothing is wrong.\n"));
    }
}
