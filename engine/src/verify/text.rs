//! The report for people: the worst first, by directory, each kind with what it means and what to do, and one line
//! at the end that says it all.

use std::path::Path;
use std::time::Duration;

use kaas_substrate::{harmless, printable};

use super::finding::{Finding, Severity};
use super::repair::{Lost, Outcome, Repaired};
use super::report::Report;
use crate::fold::fold;

/// The report as text, in lines of `width` characters where names do not make them longer; with `infos`, those too. Nothing that
/// a name or a file holds drives a terminal.
pub fn render(report: &Report, elapsed: Duration, infos: bool, width: usize) -> String {
    let mut page = Page { text: String::new(), width };
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
        page.line(0, "", &format!("{title} ({}): {meaning}", grouped(count)));
        page.end_block();
        page.findings(&findings);
    }
    page.summary(report, elapsed, infos);
    page.text
}

/// What was repaired, or would be: by directory the steps, and what is lost. As [`render`].
pub fn render_repairs(repairs: &[Repaired], width: usize) -> String {
    let mut page = Page { text: String::new(), width };
    let sections = [
        (Outcome::Repaired, "REPAIRED", "lost"),
        (Outcome::WouldRepair, "WOULD BE REPAIRED", "would be lost"),
        (Outcome::Refused, "NOT REPAIRED", "may be lost"),
    ];
    for (outcome, title, lost) in sections {
        let here: Vec<_> = repairs.iter().filter(|repaired| repaired.outcome == outcome).collect();
        if here.is_empty() {
            continue;
        }
        page.line(0, "", &format!("{title} ({}):", counted(here.len() as u64, "directory", "directories")));
        page.end_block();
        for repaired in here {
            page.repaired(repaired, lost);
        }
    }
    page.text
}

/// What a repair will lose, for whoever has to say whether it may: how many offsets, and which of which partition. As
/// [`render`].
pub fn render_losses(repairs: &[Repaired], width: usize) -> String {
    let mut page = Page { text: String::new(), width };
    let (offsets, others) = sums(repairs, Outcome::WouldRepair);
    let losing: Vec<_> = repairs.iter().filter(|repaired| repaired.outcome == Outcome::WouldRepair).collect();
    let losing: Vec<_> = losing
        .into_iter()
        .filter(|repaired| !repaired.lost.is_empty() || !repaired.given_up.is_empty())
        .collect();
    if losing.is_empty() {
        page.line(0, "", "Nothing that can be read would be lost, and no offset.");
    } else {
        page.line(
            0,
            "",
            &format!(
                "Would be lost: {}, of {}:",
                losses(offsets, others),
                counted(losing.len() as u64, "directory", "directories")
            ),
        );
    }
    for repaired in losing.iter().take(LOSSES_SHOWN_MAX) {
        page.line(2, "", &printable(&repaired.directory));
        for lost in &repaired.lost {
            page.line(4, "", &format!("{} ({})", lost.range(), grouped(lost.offsets())));
        }
        for given_up in &repaired.given_up {
            page.line(4, "", given_up);
        }
    }
    let more = losing.len().saturating_sub(LOSSES_SHOWN_MAX) as u64;
    if more > 0 {
        page.line(
            2,
            "",
            &format!("and {}; --dry-run shows all", counted(more, "more directory", "more directories")),
        );
    }
    page.text
}

/// What a repair does to `directories` of them, for whoever has to say whether it may. As [`render`].
pub fn render_question(directories: usize, width: usize) -> String {
    let mut page = Page { text: String::new(), width };
    let directories = counted(directories as u64, "directory", "directories");
    page.line(
        0,
        "",
        &format!(
            "The repair claims the next epoch of {directories}. A broker that leads there now is fenced out: it \
             acknowledges nothing more there until it has opened the partition again, which it does by itself. \
             --dry-run shows each step. Copy the directories first if you can."
        ),
    );
    page.text
}

/// The directories with losses that a question shows.
const LOSSES_SHOWN_MAX: usize = 20;

/// Offsets and other things that were lost where a repair had this outcome.
fn sums(repairs: &[Repaired], outcome: Outcome) -> (u64, u64) {
    let of = || repairs.iter().filter(|repaired| repaired.outcome == outcome);
    let offsets = of().flat_map(|repaired| &repaired.lost).map(Lost::offsets).sum();
    (offsets, of().map(|repaired| repaired.given_up.len() as u64).sum())
}

/// "20 offsets", "20 offsets and 1 other thing".
fn losses(offsets: u64, others: u64) -> String {
    match (offsets, others) {
        (0, others) => counted(others, "thing", "things"),
        (offsets, 0) => counted(offsets, "offset", "offsets"),
        (offsets, others) => {
            format!(
                "{} and {}",
                counted(offsets, "offset", "offsets"),
                counted(others, "other thing", "other things")
            )
        }
    }
}

/// Bytes of what leads a line at most for the next one to begin behind it.
const LEAD_MAX: usize = "to do: ".len();

/// A text that is being written.
struct Page {
    text: String,
    width: usize,
}

impl Page {
    /// A line, or several, all but the first as far in as what follows `lead` if that is short.
    fn line(&mut self, indent: usize, lead: &str, text: &str) {
        let hang = if lead.len() <= LEAD_MAX { lead.len() } else { 2 };
        fold(&mut self.text, &(" ".repeat(indent) + lead), indent + hang, &harmless(text), self.width);
    }

    fn end_block(&mut self) {
        self.text.push('\n');
    }

    fn findings(&mut self, findings: &[&Finding]) {
        let mut dir: Option<&Path> = None;
        let mut at = 0;
        while let Some(finding) = findings.get(at) {
            let parent = finding.file.parent();
            if parent != dir {
                dir = parent;
                self.line(2, "", &printable(parent.unwrap_or(Path::new(""))));
            }
            let rest = findings.get(at..).unwrap_or_default();
            let alike = |other: &&&Finding| other.kind == finding.kind && other.file.parent() == parent;
            let alike = rest.iter().take_while(alike).count();
            self.line(4, "", &finding.kind.code());
            for finding in rest.iter().take(alike) {
                let file = Path::new(finding.file.file_name().unwrap_or_default());
                let position = finding.position.map(|position| format!(", byte {position}"));
                let offset = finding.offset.map(|offset| format!(", offset {offset}"));
                let [position, offset] = [position, offset].map(Option::unwrap_or_default);
                self.line(6, "", &format!("{}{position}{offset}:", printable(file)));
                self.line(8, "", &finding.problem);
            }
            self.line(6, "means: ", finding.meaning);
            self.line(6, "to do: ", finding.action);
            self.end_block();
            at += alike.max(1);
        }
    }

    /// `lost` says whether it is, or would be.
    fn repaired(&mut self, repaired: &Repaired, lost: &str) {
        self.line(2, "", &printable(&repaired.directory));
        if let Some(reason) = &repaired.reason {
            self.line(4, "", reason);
        }
        for step in &repaired.steps {
            self.line(4, "- ", step);
        }
        let offsets = repaired.lost.iter().map(|lost| (lost.range(), &lost.reason));
        for (range, reason) in offsets {
            self.line(4, &format!("{lost}: "), &format!("{range}: {reason}"));
        }
        let told = repaired.given_up.iter().map(|text| (lost, text));
        let told = told.chain(repaired.unknown.iter().map(|text| ("not known any more", text)));
        for (lead, text) in told.chain(repaired.left.iter().map(|text| ("left as it is", text))) {
            self.line(4, &format!("{lead}: "), text);
        }
        self.end_block();
    }

    fn summary(&mut self, report: &Report, elapsed: Duration, infos: bool) {
        let seconds = elapsed.as_secs_f64();
        let mut text = "Looked at ".to_owned();
        for (count, one, many) in [
            (report.topics, "topic", "topics"),
            (report.partitions, "partition", "partitions"),
            (report.slots, "slot", "slots"),
            (report.segments, "segment", "segments"),
        ] {
            if count > 0 {
                text += &format!("{}, ", counted(count, one, many));
            }
        }
        let records = counted(report.records, "record", "records");
        text += &format!("{records}, {} in {seconds:.1} s", size(report.bytes));
        if seconds >= 0.1 && report.bytes > 0 {
            text += &format!(" ({:.0} MB/s)", mega(report.bytes) / seconds);
        }
        if let Some(memory) = report.peak_memory_bytes {
            text += &format!(", with {} of memory", size(memory));
        }
        self.line(0, "", &(text + "."));
        self.line(0, "", &(found(report) + &in_order(report, infos)));
        let told = [
            (Outcome::Repaired, "Lost"),
            (Outcome::WouldRepair, "Would be lost"),
            (Outcome::Refused, "May be lost"),
        ];
        for (outcome, words) in told {
            let (offsets, others) = sums(&report.repairs, outcome);
            if offsets + others > 0 {
                self.line(0, "", &format!("{words}: {}, listed above.", losses(offsets, others)));
            }
        }
    }
}

fn found(report: &Report) -> String {
    if report.is_clean() {
        return "Clean: nothing is wrong".to_owned();
    }
    let kinds = [(report.errors, "error", "errors"), (report.warnings, "warning", "warnings")];
    let kinds = kinds.into_iter().filter(|(count, ..)| *count > 0);
    let kinds: Vec<_> = kinds.map(|(count, one, many)| counted(count, one, many)).collect();
    format!("Found {}", kinds.join(" and "))
}

fn in_order(report: &Report, infos: bool) -> String {
    match report.infos {
        0 => ".".to_owned(),
        count if infos => format!(", and {} in order.", counted(count, "thing", "things")),
        count => format!("; {} more in order (--all shows them).", counted(count, "thing", "things")),
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
        let text = render(&report, Duration::from_secs(1), false, 100);
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is not in:\n{text}"));
        assert!(at("ERRORS (2)") < at("first") && at("second") < at("WARNINGS (1)"));
        assert_eq!(text.matches("to do: Copy the directory;").count(), 1);
        assert!(!text.contains("hidden"));
        assert!(
            text.ends_with(
                "Looked at 1,200 partitions, 5 records, 20 kB in 1.0 s (0 MB/s).\n\
             Found 2 errors and 1 warning; 1 thing more in order (--all shows them).\n"
            ),
            "{text}"
        );
        assert!(render(&report, Duration::ZERO, true, 100).contains("hidden"));
        assert!(
            render(&Report::default(), Duration::ZERO, false, 100).ends_with("Clean: nothing is wrong.\n")
        );
    }

    #[test]
    fn lines_are_no_wider_than_asked_and_nothing_drives_a_terminal() {
        use std::os::unix::ffi::OsStrExt;
        let name = std::ffi::OsStr::from_bytes(b"\x1b]0;x\x07\xff\n");
        let mut report = Report::default();
        for kind in Kind::ALL {
            let problem =
                "a problem of some words \u{1b}[2J\u{9b} that goes on for a while, as some do ".repeat(3);
            report.findings.push(Finding::new(
                *kind,
                &Path::new("/data/topics/orders/0").join(name),
                problem,
            ));
        }
        let lost = Lost { from: 7, to: 8, reason: "a reason of some words ".repeat(6) };
        let repaired = |outcome| Repaired {
            directory: "/data/topics/orders/0".into(),
            outcome,
            reason: None,
            steps: vec!["a step of some words ".repeat(7)],
            lost: vec![lost.clone()],
            given_up: vec!["a thing of some words ".repeat(7)],
            unknown: vec!["another thing of some words ".repeat(7)],
            left: vec!["the rest of some words ".repeat(7)],
            findings: 1,
        };
        report.repairs = vec![repaired(Outcome::WouldRepair), repaired(Outcome::Repaired)];
        for width in [60, 80, 100, 136] {
            let repairs = render_repairs(&report.repairs, width) + &render_losses(&report.repairs, width);
            let text = render(&report, Duration::ZERO, true, width) + &repairs;
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(width) && widest > Some(width - 20), "{width}: {widest:?}\n{text}");
            assert!(!text.contains(|character: char| character != '\n' && character.is_control()), "{text}");
            assert!(text.contains(r"\x1b]0;x\x07\xff\x0a:"), "{text}");
            for part in
                ["\nLost: 1 offset and 1 other thing, ", "\nWould be lost: 1 offset and 1 other thing, "]
            {
                assert!(text.contains(part), "{part} is not in:\n{text}");
            }
            for part in
                ["    would be lost: offset 7: a reason", "    lost: offset 7: a reason", "    offset 7 (1)"]
            {
                assert!(text.contains(part), "{part} is not in:\n{text}");
            }
        }
    }
}
