//! A leader: one run of one process at one epoch, step by step. Between any two steps it may be paused for as long
//! as it takes.

use crate::Flaw;
use crate::volume::{Epoch, LeaderId, Mark, Pin, Value, View, Volume};

/// What a leader does next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// Creates the claim file, exclusively.
    CreateClaim,
    /// Looks whether a higher epoch is used already, and whether its own is skipped.
    LookAbove,
    /// Reads the records below its own.
    ReadBelow,
    /// Writes them: skipped where they were unclaimed, else as they were read.
    FillBelow(Vec<(Epoch, Mark)>),
    /// Writes its own record.
    WriteOwn,
    /// Looks above again.
    LookAgain,
    /// Reads the highest manifest.
    ReadManifest,
    /// Lists the directory, and reads what lies behind the manifest.
    Scan { epoch: Epoch, pinned: View },
    /// Makes what it found durable: writes the records it has read back in place, synced.
    MakeDurable { found: View, values: Vec<Value> },
    /// Writes its manifest, durable.
    WriteManifest(View),
    /// Asks the fence.
    AskFence(View),
    /// Serves.
    Serve(Serving),
    /// Stopped: refused, deposed, its host gone, or the directory cannot be.
    Ended(End),
}

/// Why a leader stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    Refused,
    Deposed,
    HostLost,
    /// It found files that no run of the protocol leaves behind.
    Damaged,
}

/// A leader that serves. Counts are of its own records: `acknowledged <= asked <= synced <= written`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Serving {
    pub inherited: View,
    pub written: usize,
    pub synced: usize,
    /// Synced when the fence was asked last, and said that it leads.
    pub asked: usize,
    pub acknowledged: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    pub id: LeaderId,
    pub epoch: Epoch,
    pub step: Step,
    /// Offsets of own records that are in its host's memory only.
    pub cache: Vec<usize>,
    /// Where its segment begins, once it serves. Writes may land long after it has ended.
    pub base: Option<usize>,
    /// What it found before it claimed, which is a flaw.
    early: Option<(View, Vec<Value>)>,
}

impl Leader {
    pub fn new(id: LeaderId, epoch: Epoch) -> Self {
        Self { id, epoch, step: Step::CreateClaim, cache: Vec::new(), base: None, early: None }
    }

    /// Its `number`-th record.
    pub fn value(&self, number: usize) -> Value {
        self.id * 8 + u8::try_from(number).unwrap_or(u8::MAX)
    }

    pub fn still_leads(&self, volume: &Volume) -> bool {
        volume.mark(self.epoch + 1) == Mark::Unclaimed
    }

    /// The next step of a claim or a takeover; those of serving are the model's actions.
    pub fn advance(&mut self, volume: &mut Volume, flaw: Flaw) {
        let epoch = self.epoch;
        self.step = match std::mem::replace(&mut self.step, Step::Ended(End::Refused)) {
            Step::CreateClaim => {
                if volume.claims.contains_key(&epoch) && flaw != Flaw::ClaimNotExclusive {
                    Step::Ended(End::Refused)
                } else {
                    volume.claims.insert(epoch, self.id);
                    if flaw == Flaw::ScanBeforeClaim { Step::ReadManifest } else { Step::LookAbove }
                }
            }
            Step::LookAbove => {
                let taken = !matches!(volume.mark(epoch), Mark::Unclaimed | Mark::Claimed(_));
                let foreign = matches!(volume.mark(epoch), Mark::Claimed(by) if by != self.id);
                let refused = taken || volume.is_fenced_above(epoch);
                if refused || (foreign && flaw != Flaw::ClaimNotExclusive) {
                    Step::Ended(End::Refused)
                } else if flaw == Flaw::SkippedNotFilled {
                    Step::WriteOwn
                } else {
                    Step::ReadBelow
                }
            }
            Step::ReadBelow => {
                let vouching = |below: &Epoch| matches!(volume.mark(*below), Mark::Claimed(_));
                let from = (1..epoch).rev().find(vouching).unwrap_or(1);
                Step::FillBelow((from..epoch).map(|below| (below, volume.mark(below))).collect())
            }
            Step::FillBelow(read) => {
                for (below, mark) in read {
                    let filled = if mark == Mark::Unclaimed { Mark::Skipped } else { mark };
                    volume.fence.insert(below, filled);
                }
                Step::WriteOwn
            }
            Step::WriteOwn => {
                volume.fence.insert(epoch, Mark::Claimed(self.id));
                Step::LookAgain
            }
            Step::LookAgain if volume.is_fenced_above(epoch) => Step::Ended(End::Refused),
            Step::LookAgain => match self.early.take() {
                Some((found, values)) => Step::MakeDurable { found, values },
                None => Step::ReadManifest,
            },
            Step::ReadManifest => read_manifest(volume, epoch, flaw),
            Step::Scan { epoch: of, pinned } => match self.scan(volume, of, pinned, flaw) {
                Step::MakeDurable { found, values } if flaw == Flaw::ScanBeforeClaim => {
                    self.early = Some((found, values));
                    Step::LookAbove
                }
                step => step,
            },
            Step::MakeDurable { found, values } => {
                if flaw != Flaw::InheritedNotDurable {
                    make_durable(volume, &found, &values);
                }
                Step::WriteManifest(found)
            }
            Step::WriteManifest(found) => {
                volume.manifests.insert(epoch, found.clone());
                if flaw == Flaw::ServeWithoutAsking { serve(found) } else { Step::AskFence(found) }
            }
            Step::AskFence(_) if !self.still_leads(volume) => Step::Ended(End::Deposed),
            Step::AskFence(found) => serve(found),
            step @ (Step::Serve(_) | Step::Ended(_)) => step,
        };
        if let Step::Serve(serving) = &self.step {
            self.base = Some(serving.inherited.end());
        }
    }

    fn scan(&self, volume: &Volume, of: Epoch, mut found: View, flaw: Flaw) -> Step {
        if flaw == Flaw::PinsIgnored {
            found = clipped(volume);
        } else if volume.segments.keys().any(|other| *other > of) {
            // A segment of an epoch whose manifest is missing: its leader has written it before it created any.
            let ended = if self.still_leads(volume) { End::Damaged } else { End::Deposed };
            return Step::Ended(ended);
        } else if of > 0 {
            let base = found.end();
            let count = volume.run(of, base);
            if count > 0 {
                found.0.push(Pin { epoch: of, base, count });
            }
        }
        let read: Option<Vec<Value>> =
            found.places().map(|(offset, of)| volume.cell(of, offset).map(|cell| cell.value)).collect();
        match read {
            Some(values) => Step::MakeDurable { found, values },
            None if self.still_leads(volume) => Step::Ended(End::Damaged),
            None => Step::Ended(End::Deposed),
        }
    }
}

fn serve(inherited: View) -> Step {
    Step::Serve(Serving { inherited, ..Serving::default() })
}

fn read_manifest(volume: &Volume, epoch: Epoch, flaw: Flaw) -> Step {
    let found = if flaw == Flaw::StaleManifest {
        volume.manifests.first_key_value()
    } else {
        volume.manifests.last_key_value()
    };
    match found {
        Some((of, _)) if *of >= epoch => Step::Ended(End::Deposed),
        Some((of, pinned)) => Step::Scan { epoch: *of, pinned: pinned.clone() },
        None => Step::Scan { epoch: 0, pinned: View::default() },
    }
}

/// Writes exactly what was read and counts: if the server has lost it meanwhile, it is there again.
fn make_durable(volume: &mut Volume, found: &View, values: &[Value]) {
    for ((offset, of), value) in found.places().zip(values) {
        let base = volume.segments.get(&of).map_or(offset, |segment| segment.base);
        volume.put(of, base, offset, crate::volume::Cell { value: *value, durable: true });
    }
}

/// What counts by the segments' names and lengths alone: each one up to where a later epoch's begins.
fn clipped(volume: &Volume) -> View {
    let mut view = View::default();
    for (epoch, segment) in &volume.segments {
        let later = volume.segments.range(epoch + 1..).map(|(_, later)| later.base).min();
        let end = (segment.base + volume.run(*epoch, segment.base)).min(later.unwrap_or(usize::MAX));
        if segment.base == view.end() && end > segment.base {
            view.0.push(Pin { epoch: *epoch, base: segment.base, count: end - segment.base });
        }
    }
    view
}
