//! What was found, and how much was looked at.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Examined;
use super::finding::{Finding, Kind, Severity};
use super::identity::Expected;
use super::repair::{Lost, Repaired};
use super::text::counted;
use crate::types::{ProducerId, Timestamp};

/// What a repair would look into, by its directory relative to the volume's root.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// `cluster/controller/`.
    Controller(PathBuf),
    /// `cluster/`.
    Cluster(PathBuf),
    /// A topic's directory, not its partitions.
    Topic(PathBuf),
    Slot(PathBuf),
    /// A partition, and what is expected of it.
    Partition(PathBuf, Expected),
}

impl Place {
    pub(super) fn dir(&self) -> &Path {
        match self {
            Self::Controller(dir)
            | Self::Cluster(dir)
            | Self::Topic(dir)
            | Self::Slot(dir)
            | Self::Partition(dir, _) => dir,
        }
    }
}

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
    /// The most memory that the process had, if whoever shows the report knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// The findings, in the order of the directories they are in.
    pub findings: Vec<Finding>,
    /// What was repaired, or would be; empty where no repair was asked for.
    pub repairs: Vec<Repaired>,
    /// Where errors or warnings were found that a repair may be able to do something about.
    #[serde(skip)]
    pub(super) to_repair: Vec<Place>,
    /// What all of its directories say, if a whole data directory was looked at.
    #[serde(skip)]
    pub(super) traces: Option<Traces>,
}

/// What was found all over a data directory.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Traces {
    /// The highest producer id in any log.
    pub(super) highest_producer: Option<ProducerId>,
    /// The newest time that a record or a claim carries.
    pub(super) newest: Option<Timestamp>,
}

impl Report {
    /// True without errors and warnings.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.warnings == 0
    }

    /// How many directories a repair would look into.
    pub fn directories_to_repair(&self) -> usize {
        self.to_repair.len()
    }

    /// Offsets that a repair had to give up, or would have to.
    pub fn lost_offsets(&self) -> u64 {
        let lost = self.repairs.iter().flat_map(|repaired| &repaired.lost);
        lost.map(Lost::offsets).sum()
    }

    /// Acknowledged things other than records that a repair had to give up, or would have to.
    pub fn given_up(&self) -> usize {
        self.repairs.iter().map(|repaired| repaired.given_up.len()).sum()
    }

    /// As [`Report::add`], and remembers the place if a repair may be able to do something there.
    pub(super) fn add_place(&mut self, place: Place, examined: Examined, findings_max: usize) {
        // What is wrong with the producer ids shows only once all logs were read.
        let known = matches!(place, Place::Cluster(_))
            && self.to_repair.iter().any(|known| known.dir() == place.dir());
        let bad = examined.findings.iter().any(Finding::is_bad);
        self.add(examined, place.dir(), findings_max);
        if bad && !known {
            self.to_repair.push(place);
        }
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
            self.findings.push(Finding::new(
                Kind::NotShown,
                dir,
                counted(hidden as u64, "more finding", "more findings"),
            ));
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
        self.repairs.extend(other.repairs);
    }

    /// The same with the findings' files below `root`.
    #[must_use]
    pub fn below(mut self, root: &Path) -> Self {
        for finding in &mut self.findings {
            finding.file = root.join(&finding.file);
        }
        for repaired in &mut self.repairs {
            repaired.directory = root.join(&repaired.directory);
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
        let document = Document { format: 1, verdict, elapsed_ms, report: self };
        serde_json::to_string_pretty(&document).map(crate::printable::json)
    }
}
