//! What was found, and how much was looked at.

use std::path::Path;

use serde::Serialize;

use super::Examined;
use super::finding::{Finding, Kind, Severity};

/// The outcome of a check.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Topics, partitions and slots that were looked at.
    pub topics: u64,
    pub partitions: u64,
    pub slots: u64,
    /// Segments that count, and the batches, records and bytes in them.
    pub segments: u64,
    pub batches: u64,
    pub records: u64,
    pub bytes: u64,
    /// Findings by severity, those that are not listed included.
    pub errors: u64,
    pub warnings: u64,
    pub infos: u64,
    /// The findings, in the order of the directories they are in.
    pub findings: Vec<Finding>,
}

impl Report {
    /// True without errors and warnings.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.warnings == 0
    }

    /// Takes in what a directory has come to; of its findings the worst `findings_max` are listed.
    pub(super) fn add(&mut self, examined: Examined, dir: &Path, findings_max: usize) {
        let Examined { mut findings, counts } = examined;
        self.segments += counts.segments;
        self.batches += counts.batches;
        self.records += counts.records;
        self.bytes += counts.bytes;
        for finding in &findings {
            match finding.severity {
                Severity::Error => self.errors += 1,
                Severity::Warning => self.warnings += 1,
                Severity::Info => self.infos += 1,
            }
        }
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let hidden = findings.len().saturating_sub(findings_max);
        findings.truncate(findings_max);
        self.findings.append(&mut findings);
        if hidden > 0 {
            self.warnings += 1;
            self.findings.push(Finding::new(Kind::NotShown, dir, format!("{hidden} more findings")));
        }
    }

    /// Adds another report, of another volume.
    pub fn merge(&mut self, other: Self) {
        self.topics += other.topics;
        self.partitions += other.partitions;
        self.slots += other.slots;
        self.segments += other.segments;
        self.batches += other.batches;
        self.records += other.records;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.warnings += other.warnings;
        self.infos += other.infos;
        self.findings.extend(other.findings);
    }

    /// The same with the findings' files below `root`.
    #[must_use]
    pub fn below(mut self, root: &Path) -> Self {
        for finding in &mut self.findings {
            finding.file = root.join(&finding.file);
        }
        self
    }

    /// The documented JSON object.
    pub fn to_json(&self, elapsed_ms: u64) -> Result<String, serde_json::Error> {
        #[derive(Serialize)]
        struct Document<'a> {
            format: u32,
            verdict: &'static str,
            elapsed_ms: u64,
            #[serde(flatten)]
            report: &'a Report,
        }
        let verdict = if self.is_clean() { "clean" } else { "findings" };
        serde_json::to_string_pretty(&Document { format: 1, verdict, elapsed_ms, report: self })
    }
}
