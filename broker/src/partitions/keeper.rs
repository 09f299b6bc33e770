//! What the metadata store asks of whoever runs partitions: their birth, and taking them away before a topic is
//! deleted. Called on the threads for metadata, never on the engine's: it waits for work that those do.

use std::path::Path;
use std::sync::Arc;

use kaas_control::ControlError;
use kaas_control::metadata::{PartitionKeeper, Topic};
use kaas_engine::identity::write_partition;
use kaas_engine::leadership::{self, ClaimError};
use kaas_engine::types::Epoch;
use tracing::warn;

use super::Partitions;
use super::registry::identity_of;

/// Claims that are tried for one partition that is taken away.
const CLAIM_ATTEMPTS: usize = 16;

/// Jobs that the claims of one topic are dealt out to.
const CLAIM_JOBS: u32 = 16;
const CLAIM_STRIDE: usize = CLAIM_JOBS as usize;

/// The keeper of this broker's partitions.
#[derive(Debug)]
pub struct Keeper {
    partitions: Arc<Partitions>,
}

impl Keeper {
    /// The keeper of `partitions`.
    pub fn new(partitions: Arc<Partitions>) -> Self {
        Self { partitions }
    }

    /// Claims every partition at `epoch` or higher, many at once: each claim waits for the volume.
    fn claim_all(&self, topic: &Topic, epoch: Epoch) -> Result<(), ControlError> {
        let mut tickets = Vec::new();
        for first in 0..CLAIM_JOBS.min(topic.partitions) {
            let (keeper, topic) = (Self::new(Arc::clone(&self.partitions)), topic.clone());
            let job = move || {
                let mut of_job = (first..topic.partitions).step_by(CLAIM_STRIDE);
                of_job.try_fold(epoch, |epoch, partition| keeper.claim(&topic, partition, epoch)).map(|_| ())
            };
            tickets.push(self.partitions.engine.io().run(job));
        }
        for ticket in tickets {
            let outcome = ticket.map(|ticket| ticket.wait());
            match outcome {
                Ok(Ok(done)) => done?,
                Ok(Err(source)) => return Err(failed(topic, 0, source)),
                Err(source) => return Err(failed(topic, 0, source)),
            }
        }
        Ok(())
    }

    /// Claims a partition that nobody here has open, at `epoch` or higher; the epoch that it took.
    fn claim(&self, topic: &Topic, partition: u32, mut epoch: Epoch) -> Result<Epoch, ControlError> {
        let Partitions { engine, controller, .. } = &*self.partitions;
        let dir = topic.partition_dir(partition);
        for _ in 0..CLAIM_ATTEMPTS {
            let claim = || leadership::claim(engine.substrate(), &dir, epoch, controller.claimant());
            match engine.reserve().with(claim) {
                Ok(_) => return Ok(epoch),
                Err(ClaimError::Refused { highest, .. }) => {
                    epoch = controller.advance_above(epoch.max(highest))?
                }
                Err(error) => return Err(failed(topic, partition, error)),
            }
        }
        Err(ControlError::FenceUnknown {
            epoch,
            reason: "every epoch is taken at once by somebody else".to_owned(),
        })
    }
}

impl PartitionKeeper for Keeper {
    fn write_new(&self, dir: &Path, topic: &Topic, partition: u32) -> Result<(), ControlError> {
        let Partitions { engine, controller, .. } = &*self.partitions;
        let identity = identity_of(topic, partition);
        // Everything below the controller's epoch is history that this partition has no part in.
        let skipped = controller.current().get().checked_sub(1).and_then(Epoch::new).unwrap_or(Epoch::NONE);
        write_partition(&**engine.substrate(), dir, &identity, skipped)
            .map_err(|error| failed(topic, partition, error))
    }

    fn take_away(&self, topic: &Topic) -> Result<(), ControlError> {
        let open = self.partitions.take(topic.id);
        let mut epoch = self.partitions.controller.current();
        for partition in &open {
            if let Ok(Err(error)) = partition.abandon().wait() {
                let identity = partition.identity();
                // The claim below fences it all the same.
                warn!(topic = %identity.topic, partition = identity.partition, %error, "not closed before its deletion");
            }
        }
        // Above the epoch of every partition that was opened in this run.
        epoch = self.partitions.controller.advance_above(epoch)?;
        self.claim_all(topic, epoch)
    }

    fn give_back(&self, topic: &Topic) {
        self.partitions.give_back(topic.id);
    }

    fn make_room(&self) -> bool {
        self.partitions.engine.reserve().release()
    }
}

fn failed(
    topic: &Topic,
    partition: u32,
    source: impl std::error::Error + Send + Sync + 'static,
) -> ControlError {
    ControlError::Partition { topic: topic.name.to_string(), partition, source: Box::new(source) }
}
