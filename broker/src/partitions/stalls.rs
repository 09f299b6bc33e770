//! Tells the log when the volume does not answer, and when it does again: nothing fails meanwhile that would.
//!
//! One task of the broker. It reads the partitions' watchdogs, and makes no call on the volume itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use crate::net::Phase;
use crate::server::Broker;

/// How often it is looked.
const INTERVAL: Duration = Duration::from_secs(2);

/// How often the log is told while it lasts.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Runs until the broker drains.
pub async fn tell_stalls(broker: Arc<Broker>) {
    // Since when the volume does not answer, and when the log was last told.
    let mut stalled: Option<(Instant, Instant)> = None;
    loop {
        tokio::select! {
            biased;
            () = broker.shutdown.reached(Phase::Draining) => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let waiting: Vec<_> = broker
            .partitions
            .all_open()
            .into_iter()
            .filter_map(|partition| partition.stalled_ms().map(|ms| (ms, partition)))
            .collect();
        let now = Instant::now();
        let Some((waited_ms, longest)) = waiting.iter().max_by_key(|(ms, _)| *ms) else {
            if let Some((since, _)) = stalled.take() {
                info!(seconds = now.duration_since(since).as_secs(), "the volume answers again");
            }
            continue;
        };
        let waited = Duration::from_millis(*waited_ms);
        let (_, told) = stalled.get_or_insert_with(|| (now.checked_sub(waited).unwrap_or(now), now));
        if *told == now || now.duration_since(*told) > TOLD_EVERY {
            *told = now;
            warn!(
                dir = %longest.dir().display(), seconds = waited.as_secs(), partitions = waiting.len(),
                "the volume does not answer: appends are refused until it does"
            );
        }
    }
}
