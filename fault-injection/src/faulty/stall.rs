//! Calls that do not return until they are let go, and the order of all calls.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{Hook, Point, Verdict};

/// Holds the calls of one kind while it is closed: a volume that does not answer, a process that is stopped right before a
/// call. Open at first. Notes all calls that it sees, of whatever kind.
#[derive(Debug)]
pub struct Stall {
    point: Point,
    path_contains: String,
    state: Mutex<State>,
    changed: Condvar,
    calls: Mutex<Vec<(Point, PathBuf)>>,
}

#[derive(Debug)]
struct State {
    is_closed: bool,
    held: usize,
    /// For the calls that were held.
    verdict: Verdict,
}

impl Stall {
    /// For calls of `point` on paths that contain `part` (empty: any).
    pub fn new(point: Point, part: &str) -> Arc<Self> {
        let state = State { is_closed: false, held: 0, verdict: Verdict::Pass };
        Arc::new(Self {
            point,
            path_contains: part.to_owned(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            calls: Mutex::default(),
        })
    }

    /// All calls so far, in the order in which they came.
    pub fn calls(&self) -> Vec<(Point, PathBuf)> {
        self.calls.lock().clone()
    }

    /// Calls are held from now on.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Lets the calls go that are held, with this verdict, and all later ones pass.
    pub fn release(&self, verdict: Verdict) {
        let mut state = self.state.lock();
        (state.is_closed, state.verdict) = (false, verdict);
        self.changed.notify_all();
    }

    /// Waits until so many calls are held (at the same time); false if that does not come about in this time.
    #[must_use]
    pub fn wait_until_held(&self, calls: usize, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        let mut state = self.state.lock();
        while state.held < calls && !self.changed.wait_until(&mut state, deadline).timed_out() {}
        state.held >= calls
    }
}

impl Hook for Stall {
    fn before(&self, point: Point, path: &Path) -> Verdict {
        self.calls.lock().push((point, path.to_owned()));
        if point != self.point || !path.to_string_lossy().contains(&self.path_contains) {
            return Verdict::Pass;
        }
        let mut state = self.state.lock();
        if !state.is_closed {
            return Verdict::Pass;
        }
        state.held += 1;
        self.changed.notify_all();
        while state.is_closed {
            self.changed.wait(&mut state);
        }
        state.held -= 1;
        state.verdict
    }
}
