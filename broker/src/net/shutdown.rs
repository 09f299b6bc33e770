//! The phase of the process: running, draining, stopped. Observed by every task that waits.

use tokio::sync::watch;

/// What the process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serving.
    Running,
    /// No new requests; those that were read are answered, what is parked answers with what it has.
    Draining,
    /// Connections are closed wherever they are.
    Stopped,
}

/// A handle on the phase; cheap to clone.
#[derive(Debug, Clone)]
pub struct Shutdown {
    sender: watch::Sender<Phase>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { sender: watch::Sender::new(Phase::Running) }
    }
}

impl Shutdown {
    /// Moves on to `phase`; never back.
    pub fn advance(&self, phase: Phase) {
        self.sender.send_if_modified(|current| {
            let later = phase > *current;
            if later {
                *current = phase;
            }
            later
        });
    }

    /// The phase now.
    pub fn phase(&self) -> Phase {
        *self.sender.borrow()
    }

    /// An observer for a task that looks often.
    pub fn observe(&self) -> Observer {
        Observer { receiver: self.sender.subscribe() }
    }

    /// Waits until the phase is `phase` or later.
    pub async fn reached(&self, phase: Phase) {
        let mut receiver = self.sender.subscribe();
        // The sender lives as long as `self`.
        let _ = receiver.wait_for(|current| *current >= phase).await;
    }
}

/// Sees the phase; cheaper to wait with than [`Shutdown::reached`].
#[derive(Debug)]
pub struct Observer {
    receiver: watch::Receiver<Phase>,
}

impl Observer {
    /// The phase now.
    pub fn phase(&self) -> Phase {
        *self.receiver.borrow()
    }

    /// Waits until the phase is `phase` or later. May be dropped and called again.
    pub async fn reached(&mut self, phase: Phase) {
        // An error means that the process is gone.
        let _ = self.receiver.wait_for(|current| *current >= phase).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_phase_never_goes_back() {
        let shutdown = Shutdown::default();
        shutdown.advance(Phase::Stopped);
        shutdown.advance(Phase::Draining);
        assert_eq!(shutdown.phase(), Phase::Stopped);
        shutdown.reached(Phase::Draining).await;
    }
}
