//! Rounds of compaction, as tasks of the process beside its leaders.

use std::sync::Arc;

use kaas_engine::{Compacted, EngineError, Partition};

use crate::cluster::Cluster;
use crate::problem::Problem;
use crate::process::Process;
use crate::scheduler::{Dead, Until};

/// Begins a round; it goes on beside everything else, until it is done or its process dies. Then what is returned is the
/// only one left of its kind.
pub fn begin(
    cluster: &Arc<Cluster>,
    process: &Arc<Process>,
    topic: usize,
    partition: &Arc<Partition>,
) -> Arc<()> {
    let (cluster, process, partition) = (Arc::clone(cluster), Arc::clone(process), Arc::clone(partition));
    let scheduler = Arc::clone(&cluster.scheduler);
    let token = Arc::new(());
    let its_own = Arc::clone(&token);
    scheduler.spawn(process.id, "compaction", move || {
        run(&cluster, &process, topic, &partition);
        drop(its_own);
    });
    token
}

/// A round, from its beginning to its end.
pub fn round(
    cluster: &Arc<Cluster>,
    process: &Arc<Process>,
    topic: usize,
    partition: &Arc<Partition>,
) -> Result<(), Dead> {
    let token = begin(cluster, process, topic, partition);
    cluster.scheduler.leave(Until::True(Box::new(move || Arc::strong_count(&token) == 1)))
}

fn run(cluster: &Cluster, process: &Process, topic: usize, partition: &Arc<Partition>) {
    let Some(topic) = cluster.topics.get(topic) else { return };
    let dirtiness = partition.dirtiness();
    let outcome = partition.compact_now();
    // What a dead process was told, nobody hears.
    if process.is_dead() {
        return;
    }
    cluster.scheduler.note(&format_args!("compaction at epoch {}: {outcome:?}", partition.epoch()));
    match outcome {
        Ok(Compacted { segments_before, .. }) => {
            topic.history.lock().compacted += segments_before as u64;
        }
        Err(error) => check(cluster, &error),
    }
    if let Err(error) = dirtiness {
        check(cluster, &error);
    }
}

fn check(cluster: &Cluster, error: &EngineError) {
    if matches!(error, EngineError::Damaged { .. }) {
        cluster.scheduler.report(Problem::Damaged(format!("compaction: {error}")));
    }
}
