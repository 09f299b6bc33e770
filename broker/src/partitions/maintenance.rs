//! What time brings: retention, rolls by age, and the removal of deleted topics' files.
//!
//! One task. It visits every partition, since retention is owed to those that nobody uses too; one at a time, so
//! that the I/O threads stay free for commits. One that is not open is opened only if there is something to do.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use super::OpenError;
use crate::net::Phase;
use crate::server::Broker;

/// Time from the start to the first round; later rounds follow `log.retention.check.interval.ms`.
const FIRST_ROUND: Duration = Duration::from_secs(30);
/// Longest time between sweeps of what deleted topics left behind.
const SWEEP_INTERVAL: Duration = Duration::from_secs(300);

/// The task.
#[derive(Debug)]
pub struct Maintenance {
    broker: Arc<Broker>,
}

impl Maintenance {
    /// Maintenance of `broker`'s partitions.
    pub fn new(broker: Arc<Broker>) -> Self {
        Self { broker }
    }

    /// Runs until the process drains.
    pub async fn run(self) {
        let mut round = Instant::now() + self.interval().min(FIRST_ROUND);
        let mut sweep = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = self.broker.shutdown.reached(Phase::Draining) => return,
                () = sleep_until(sweep) => {}
                () = self.broker.sweep.notified() => {}
                () = sleep_until(round) => {
                    self.round().await;
                    round = Instant::now() + self.interval();
                    continue;
                }
            }
            self.sweep().await;
            sweep = Instant::now() + SWEEP_INTERVAL;
        }
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(self.broker.configs().effective.log_retention_check_interval_ms.max(1))
    }

    async fn round(&self) {
        // A partition may have been opened by a request that had looked at its topic before a change.
        self.broker.apply_configs();
        let topics = self.broker.store.topics();
        for topic in topics.iter() {
            for partition in 0..topic.partitions {
                if self.broker.shutdown.phase() >= Phase::Draining {
                    return;
                }
                let open = match self.broker.partitions.get_if_due(topic, partition).await {
                    Ok(Some(open)) => open,
                    Err(error) if matches!(*error, OpenError::Stopping) => return,
                    // Nothing to do, or logged where it was opened.
                    Ok(None) | Err(_) => continue,
                };
                match open.maintain().await {
                    Ok(Ok(done)) if done.segments_deleted > 0 => {
                        let segments = done.segments_deleted;
                        debug!(topic = %topic.name, partition, segments, log_start = %done.log_start, "old segments deleted");
                    }
                    Ok(Ok(_)) | Err(_) => {}
                    Ok(Err(error)) => warn!(topic = %topic.name, partition, %error, "maintenance failed"),
                }
            }
        }
    }

    async fn sweep(&self) {
        let store = Arc::clone(&self.broker.store);
        match self.broker.blocking(move || store.sweep()).await {
            Ok(Ok(0)) => {}
            Ok(Ok(left)) => warn!(left, "directories of deleted topics that could not be removed"),
            Ok(Err(error)) => warn!(%error, "cannot remove what deleted topics left behind"),
            Err(error) => debug!(%error, "sweep put off"),
        }
        let topics = self.broker.store.topics();
        self.broker.partitions.forget(|id| topics.get_by_id(id).is_some());
    }
}
