//! When which log is compacted: the dirtiest first, as many at once as there are cleaner threads.
//!
//! Each task looks at every open partition of a compacted topic and has the dirtiest one compacted, again and again; with
//! nothing to do it waits for `log.cleaner.backoff.ms`. The work itself runs on threads of its own, so that commits and
//! reads never wait for it. Partitions that are not open are opened by maintenance when they are dirty.

use std::sync::Arc;
use std::time::Duration;

use kaas_engine::{Dirtiness, Partition};
use tracing::debug;

use crate::net::Phase;
use crate::server::Broker;

/// One of the tasks.
#[derive(Debug)]
pub struct Cleaner {
    broker: Arc<Broker>,
}

impl Cleaner {
    /// How many tasks a broker runs (`log.cleaner.threads`); none without `log.cleaner.enable`.
    pub fn tasks(broker: &Broker) -> u32 {
        let effective = &broker.configs().effective;
        if effective.log_cleaner_enable { effective.log_cleaner_threads } else { 0 }
    }

    /// A task of `broker`.
    pub fn new(broker: Arc<Broker>) -> Self {
        Self { broker }
    }

    /// Runs until the process drains. A round under way then ends when its partition is closed.
    pub async fn run(self) {
        tokio::select! {
            biased;
            () = self.broker.shutdown.reached(Phase::Draining) => {}
            () = self.compact() => {}
        }
    }

    async fn compact(&self) {
        loop {
            let progress = match self.dirtiest().await {
                // If another task was first with it, there may be others.
                Some(partition) => {
                    self.compact_one(Arc::clone(&partition)).await || partition.is_compacting()
                }
                None => false,
            };
            if !progress {
                let backoff_ms = self.broker.configs().effective.log_cleaner_backoff_ms.max(1);
                tokio::time::sleep(Duration::from_millis(backoff_ms)).await;
            }
        }
    }

    /// The partition with the largest share that is not compacted yet, of those where a round is due.
    async fn dirtiest(&self) -> Option<Arc<Partition>> {
        let mut dirtiest: Option<(Arc<Partition>, Dirtiness)> = None;
        for partition in self.broker.partitions.all_open() {
            let config = partition.config();
            if !config.compact {
                continue;
            }
            let looked = Arc::clone(&partition);
            let Ok(ticket) = self.broker.cleaner_io.run(move || looked.dirtiness()) else { continue };
            match ticket.await {
                Ok(Ok(Some(found))) if found.is_due(&config) => {
                    if dirtiest.as_ref().is_none_or(|(_, other)| found.ratio() > other.ratio()) {
                        dirtiest = Some((partition, found));
                    }
                }
                Ok(Err(error)) => {
                    debug!(dir = %partition.dir().display(), %error, "cannot tell whether to compact");
                }
                Ok(Ok(_)) | Err(_) => {}
            }
        }
        dirtiest.map(|(partition, _)| partition)
    }

    /// Whether anything was compacted. What went wrong the engine has logged.
    async fn compact_one(&self, partition: Arc<Partition>) -> bool {
        let Ok(ticket) = self.broker.cleaner_io.run(move || partition.compact_now()) else { return false };
        matches!(ticket.await, Ok(Ok(compacted)) if compacted.segments_before > 0)
    }
}
