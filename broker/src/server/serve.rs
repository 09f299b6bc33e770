//! Serving, and stopping: accept no more, answer what is in flight, close the partitions, let the rest go.

use std::sync::Arc;
use std::time::Duration;

use kaas_control::metadata::MetadataWatcher;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::file_reads::EngineReads;
use super::{Broker, StartError, Started};
use crate::api::Requests;
use crate::net::{Budget, Listener, Phase, Shutdown};
use crate::partitions::{Cleaner, Maintenance};

/// How often it is looked whether the reserve is in use, and how soon after that it is tried for the first time to put it back.
const RESERVE_INTERVAL: Duration = Duration::from_millis(250);

/// Longest pause between two attempts, each of which writes to the full volume; they double from [`RESERVE_INTERVAL`].
const RESERVE_INTERVAL_MAX: Duration = Duration::from_secs(4);

/// Time that remains for closing partitions when requests have used up theirs.
const CLOSE_GRACE: Duration = Duration::from_secs(20);

impl Started {
    /// The state of the broker.
    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }

    /// A handle that stops it: [`Phase::Draining`] answers what is in flight first.
    pub fn shutdown(&self) -> Shutdown {
        self.broker.shutdown.clone()
    }

    /// Serves until the phase is [`Phase::Draining`], then stops: requests in flight have `timeout`. Everything is
    /// closed on return.
    pub async fn serve(self, timeout: Duration) -> Result<(), StartError> {
        let broker = self.broker;
        let shutdown = broker.shutdown.clone();
        let budget = Budget::new(self.settings.queued_request_bytes);
        let service = Arc::new(Requests::new(Arc::clone(&broker)));
        let reads = Arc::new(EngineReads::new(broker.engine.clone()));
        let mut listeners = JoinSet::new();
        for bound in self.bound {
            let listener = Listener::new(
                bound,
                "PLAINTEXT",
                Arc::<Requests>::clone(&service),
                Arc::<EngineReads>::clone(&reads),
                Arc::clone(&self.settings),
                budget.clone(),
                Arc::clone(&broker.connection_limits),
                shutdown.clone(),
            );
            listeners.spawn(listener.map_err(StartError::Threads)?.serve());
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(Maintenance::new(Arc::clone(&broker)).run());
        for _ in 0..Cleaner::tasks(&broker) {
            tasks.spawn(Cleaner::new(Arc::clone(&broker)).run());
        }
        tasks.spawn(follow_store(Arc::clone(&broker)));
        tasks.spawn(keep_reserve(Arc::clone(&broker)));
        tasks.spawn(coordinate_groups(Arc::clone(&broker)));

        shutdown.reached(Phase::Draining).await;
        info!("stopping: answering requests in flight");
        let deadline = Instant::now() + timeout;
        let drained = async { while listeners.join_next().await.is_some() {} };
        tokio::select! {
            () = drained => {}
            () = sleep_until(deadline) => warn!("requests are still in flight; closing their connections"),
        }
        shutdown.advance(Phase::Stopped);
        while listeners.join_next().await.is_some() {}
        while tasks.join_next().await.is_some() {}
        broker.partitions.close(Instant::now() + CLOSE_GRACE).await;
        info!("stopped");
        Ok(())
    }
}

/// Brings the groups back, so that their sessions and retention run; and lets them go when the broker stops: members
/// that wait in a rebalance are told at once.
async fn coordinate_groups(broker: Arc<Broker>) {
    let coordinate = async {
        if let Err(error) = broker.groups.load_existing().await {
            warn!(%error, "some groups could not be loaded; tried again when they are asked for");
        }
    };
    tokio::join!(coordinate, async {
        broker.shutdown.reached(Phase::Draining).await;
        broker.groups.shutdown().await;
    });
}

/// Puts space aside again after a full volume has needed it: appends wait for that.
async fn keep_reserve(broker: Arc<Broker>) {
    // What the log was told last.
    let mut told = None;
    let mut pause = RESERVE_INTERVAL;
    loop {
        tokio::select! {
            biased;
            () = broker.shutdown.reached(Phase::Draining) => return,
            () = tokio::time::sleep(pause) => {}
        }
        let reserve = Arc::clone(broker.engine.reserve());
        pause = pause_after(pause, reserve.is_in_use());
        if !reserve.is_in_use() {
            continue;
        }
        // Saturated threads are no reason to give up.
        let Ok(ticket) = broker.engine.io().run(move || reserve.replenish()) else { continue };
        match ticket.await {
            Ok(Err(error)) => {
                let words = error.to_string();
                if told.as_ref() != Some(&words) {
                    warn!(%error, "the space put aside for when the volume is full is not there");
                    told = Some(words);
                }
            }
            _ => told = None,
        }
    }
}

/// The pause before the next look, after one of `pause`.
fn pause_after(pause: Duration, is_in_use: bool) -> Duration {
    if is_in_use { (pause * 2).min(RESERVE_INTERVAL_MAX) } else { RESERVE_INTERVAL }
}

/// Puts changes of the store into force, whoever made them.
async fn follow_store(broker: Arc<Broker>) {
    let bell = Arc::new(Bell(Notify::new()));
    let _subscription = broker.store.subscribe(Arc::<Bell>::clone(&bell));
    loop {
        tokio::select! {
            biased;
            () = broker.shutdown.reached(Phase::Draining) => return,
            () = bell.0.notified() => broker.apply_configs(),
        }
    }
}

struct Bell(Notify);

impl MetadataWatcher for Bell {
    fn changed(&self) {
        self.0.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_that_stays_in_use_is_tried_ever_more_rarely() {
        let mut pause = RESERVE_INTERVAL;
        let mut pauses = Vec::new();
        for _ in 0..6 {
            pause = pause_after(pause, true);
            pauses.push(pause.as_millis());
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 4000, 4000]);
        assert_eq!(pause_after(pause, false), RESERVE_INTERVAL);
    }
}
