//! `kaas-engine verify`: is everything in a data directory as it should be?
//!
//! Reads only, never writes (not even a claim; [`repair`] does), and needs no broker stopped: what a live leader's work may have looked
//! like is looked at a second time. Every byte that counts is read once, in pieces, so memory is bounded whatever the
//! size of segments and the number of partitions; directories are examined side by side on a few threads.
//!
//! # What is checked
//!
//! - **Records**: each batch of each segment that counts: CRC, header, offsets without gaps, the segment's leader epoch,
//!   the pinned ends. What lies behind is dead, and said to be so.
//! - **What says what counts**: manifest, recovery checkpoint, log start, high watermark.
//! - **Derived data**: offset, time and transaction indexes entry by entry, producer snapshots against a replay.
//! - **Leadership**: fence and claims, of partitions, slots and the controller. **Slot journals**.
//! - **Surroundings**: partition.json against its place, topic-id.json and configs, missing partitions, strangers.
//!
//! What cannot be known from the files alone: that a whole last segment, or the newest version of a small file, was taken
//! away without leaving a trace.
//!
//! # JSON
//!
//! `--json` writes one object; `docs/operating/verify.md` has its fields.

mod cluster;
mod finding;
mod identity;
mod indexes;
mod leaders;
mod partition;
mod producers;
mod read_ahead;
pub mod repair;
mod report;
mod segment;
mod slots;
mod strays;
mod text;
mod topics;
mod tree;
mod view;
mod walk;

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kaas_substrate::Substrate;

pub use finding::{Finding, Kind, Severity};
pub use identity::Expected;
pub(crate) use repair::quarantine::QUARANTINE_DIR;
pub use report::Report;
pub(crate) use text::{counted, grouped};
pub use text::{render, render_losses, render_question, render_repairs};
pub use tree::{VerifyError, verify};

use crate::clock::{Clock, SystemClock};
use crate::types::Timestamp;
use segment::Counts;

/// How to look.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directories that are examined side by side, from 1. Each has a piece of 1 MiB of what it reads; 64 MiB more, at most, are
    /// read ahead for all of them.
    pub threads: usize,
    /// The time that the expiry of producers is judged by.
    pub now: Timestamp,
    /// What the brokers' `producer.id.expiration.ms` is.
    pub producer_id_expiration_ms: i64,
    /// Most producers of one partition that are compared with its snapshots; beyond it they are not.
    pub producers_max: usize,
    /// How long to wait before a second look at what may be a leader's work.
    pub second_look_after: Duration,
    /// Most findings of one directory that are listed.
    pub findings_max: usize,
    /// Find out first how many bytes there are, for [`Progress::bytes_total`]; costs a look at each manifest.
    pub measure: bool,
    /// A repair may give up what was acknowledged and cannot be read any more (configs, committed offsets); what it gives up
    /// is told. Records that cannot be read are given up without it, those of a segment that is another one than was written are not.
    pub accept_loss: bool,
    /// Every broker that may have led what is repaired is stopped: where a fence is gone, a new one can be made.
    pub brokers_stopped: bool,
}

impl Default for Options {
    /// Four threads, Kafka's producer expiration of a day.
    fn default() -> Self {
        Self {
            threads: 4,
            now: SystemClock.now(),
            producer_id_expiration_ms: 86_400_000,
            producers_max: 200_000,
            second_look_after: Duration::from_millis(200),
            findings_max: 100,
            measure: false,
            accept_loss: false,
            brokers_stopped: false,
        }
    }
}

/// How far it has got; written by the threads that work, read by whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of segments that were read.
    pub bytes: AtomicU64,
    /// Bytes of segments that there are, as far as manifests and file lengths say; 0 while that is not known.
    pub bytes_total: AtomicU64,
    /// Directories (partitions, slots) that were examined.
    pub directories: AtomicU64,
    /// Directories that are known; 0 while they are still being looked for.
    pub directories_total: AtomicU64,
}

/// What every part of the check needs.
struct Context<'a> {
    substrate: &'a dyn Substrate,
    options: &'a Options,
    progress: &'a Progress,
}

/// What one directory has come to.
#[derive(Debug, Default)]
struct Examined {
    findings: Vec<Finding>,
    counts: Counts,
}

/// Examines one partition directory, relative to the substrate's root. A failing volume is a finding, too.
pub fn verify_partition(
    substrate: &dyn Substrate,
    dir: &Path,
    expected: &Expected,
    options: &Options,
    progress: &Progress,
) -> Report {
    let context = Context { substrate, options, progress };
    let mut report = Report { partitions: 1, ..Report::default() };
    report.add(partition::examine(&context, dir, expected), dir, options.findings_max);
    report
}

/// Examines one slot's directory, relative to the substrate's root. A failing volume is a finding, too.
pub fn verify_slot(substrate: &dyn Substrate, dir: &Path, options: &Options) -> Report {
    let context = Context { substrate, options, progress: &Progress::default() };
    let mut report = Report { slots: 1, ..Report::default() };
    report.add(slots::examine(&context, dir), dir, options.findings_max);
    report
}
