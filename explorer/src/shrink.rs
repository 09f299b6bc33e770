//! Making a failing line shorter: decisions are taken out for as long as the run fails in the same way.
//!
//! Zeller's and Hildebrandt's delta debugging ("Simplifying and Isolating Failure-Inducing Input", 2002), over the list
//! of decisions that were not the plainest, one kind at a time.

use crate::choices::{Kept, Line, Stream};
use crate::run::{Outcome, run};

/// A shorter line that fails in the same way.
#[derive(Debug)]
pub struct Shrunk {
    pub outcome: Outcome,
    /// Decisions left, of how many at first.
    pub left: usize,
    pub of: usize,
    /// Runs that it took.
    pub runs: u64,
}

struct Search {
    best: Outcome,
    kind: &'static str,
    runs: u64,
    runs_max: u64,
}

fn size(kept: &Kept) -> usize {
    kept.values().map(Vec::len).sum()
}

/// Shrinks a run that failed, in at most `runs_max` runs. `progress` is told the decisions left.
pub fn shrink(failed: &Outcome, runs_max: u64, progress: impl Fn(usize)) -> Shrunk {
    let of = size(&failed.taken);
    let kind = failed.problems.first().map_or("", |problem| problem.kind());
    let mut search = Search { best: failed.clone(), kind, runs: 0, runs_max };
    // What was decided not to be the plainest is all there is to it: the same run, with the list made explicit.
    search.try_keeping(failed.taken.clone());
    loop {
        let before = size(&search.best.taken);
        let streams: Vec<Stream> = search.best.taken.keys().copied().collect();
        for stream in streams {
            search.without(stream);
            progress(size(&search.best.taken));
        }
        if size(&search.best.taken) >= before || search.is_over() {
            break;
        }
    }
    let left = size(&search.best.taken);
    Shrunk { outcome: search.best, left, of, runs: search.runs }
}

impl Search {
    fn is_over(&self) -> bool {
        self.runs >= self.runs_max
    }

    /// Runs with these decisions only; they are the best so far if the run still fails in the same way. A run may not come
    /// to some of them, so the best is what it did take.
    fn try_keeping(&mut self, kept: Kept) -> bool {
        if self.is_over() {
            return false;
        }
        self.runs += 1;
        let line = Line { kept: Some(kept), ..self.best.line.clone() };
        let Ok(mut outcome) = run(&line, false) else { return false };
        if outcome.problems.first().is_none_or(|problem| problem.kind() != self.kind) {
            return false;
        }
        outcome.line.kept = Some(outcome.taken.clone());
        self.best = outcome;
        true
    }

    /// Takes decisions of one stream out: all, halves, quarters, and so on.
    fn without(&mut self, stream: Stream) {
        let mut pieces = 1;
        loop {
            let Some(numbers) = self.best.taken.get(&stream).cloned() else { return };
            let length = numbers.len().div_ceil(pieces).max(1);
            let mut any = false;
            // From the end: the later decisions depend on the earlier ones.
            for start in (0..numbers.len()).step_by(length).rev() {
                let piece = numbers.get(start..(start + length).min(numbers.len())).unwrap_or_default();
                let mut kept = self.best.taken.clone();
                let Some(of_stream) = kept.get_mut(&stream) else { return };
                let before = of_stream.len();
                of_stream.retain(|number| !piece.contains(number));
                if of_stream.len() == before {
                    continue;
                }
                if of_stream.is_empty() {
                    kept.remove(&stream);
                }
                any |= self.try_keeping(kept);
            }
            if self.is_over() || (length == 1 && !any) {
                return;
            }
            if !any {
                pieces *= 2;
            } else if length > 1 {
                pieces = pieces.max(2);
            }
        }
    }
}
