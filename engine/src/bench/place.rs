//! Where it happens: engines and partitions in the run's directory.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use kaas_substrate::Substrate;

use super::{BenchError, path};
use crate::batch::{BatchOptions, SimpleRecord, data_batch};
use crate::identity::{Identity, write_partition};
use crate::leadership::Claimant;
use crate::log::{OpenPartition, Partition};
use crate::scratch;
use crate::types::Epoch;
use crate::{Engine, EngineSettings, LogConfig, SystemClock};

/// The run's directory.
pub struct Place {
    pub substrate: Arc<dyn Substrate>,
}

impl Place {
    /// An engine as a broker has it.
    pub fn engine(&self) -> Result<Engine, BenchError> {
        let substrate = Arc::clone(&self.substrate);
        Ok(Engine::open(substrate, EngineSettings::default(), Arc::new(SystemClock))?)
    }

    /// Makes the directory of a new partition.
    pub fn birth(&self, name: &str) -> Result<(), BenchError> {
        self.substrate.create_dir(path(name))?;
        write_partition(&*self.substrate, path(name), &identity(), Epoch::NONE)?;
        Ok(self.substrate.sync_tree(path(name))?)
    }

    /// Claims and opens it.
    pub fn open(&self, engine: &Engine, name: &str, epoch: Epoch) -> Result<Arc<Partition>, BenchError> {
        self.open_with(engine, name, epoch, LogConfig::default())
    }

    /// The same, with a configuration of its own but for the size of batches.
    pub fn open_with(
        &self,
        engine: &Engine,
        name: &str,
        epoch: Epoch,
        config: LogConfig,
    ) -> Result<Arc<Partition>, BenchError> {
        let claimant = Claimant { broker_id: 0, incarnation: "bench".into(), assignment_version: 0 };
        Ok(engine.open_partition(OpenPartition {
            dir: PathBuf::from(name),
            identity: identity(),
            epoch,
            claimant,
            config: LogConfig { max_message_bytes: usize::MAX, ..config },
        })?)
    }

    /// Removes a partition that was closed, or a file.
    pub fn remove(&self, name: &str) -> Result<(), BenchError> {
        scratch::remove(&*self.substrate, path(name))
            .map_err(|source| BenchError::NotRemoved { name: name.to_owned(), source })
    }
}

fn identity() -> Identity {
    Identity { topic: "bench".into(), partition: 0, topic_id: [1; 16] }
}

/// The first epoch.
pub fn first_epoch() -> Epoch {
    Epoch::NONE.next()
}

/// A batch of one record of about `bytes` in all.
pub fn batch_of(bytes: usize) -> Result<Bytes, BenchError> {
    /// What a batch of one record has around the record's value.
    const AROUND: usize = 80;
    let value = vec![b'x'; bytes.saturating_sub(AROUND).max(1)];
    Ok(data_batch(&[SimpleRecord::of_value(value)], &BatchOptions::default())?)
}

/// Appends a batch again and again, so many of them in flight, for as long as `more` says; the batches.
pub fn append_while(
    partition: &Arc<Partition>,
    batch: &Bytes,
    in_flight: usize,
    more: impl FnMut(u64) -> bool,
    told: impl FnMut(std::time::Duration),
) -> Result<u64, BenchError> {
    append_while_made(partition, || Ok(batch.clone()), in_flight, more, told)
}

/// The same, with batches that are made one by one.
pub fn append_while_made(
    partition: &Arc<Partition>,
    mut make: impl FnMut() -> Result<Bytes, BenchError>,
    in_flight: usize,
    mut more: impl FnMut(u64) -> bool,
    mut told: impl FnMut(std::time::Duration),
) -> Result<u64, BenchError> {
    use std::collections::VecDeque;
    use std::time::Instant;

    use crate::error::AppendError;
    use crate::log::AppendOptions;

    let mut waiting = VecDeque::new();
    let mut count = 0;
    let mut next = None;
    while more(count) {
        // Kept, if there is no room for it yet.
        let batch = match next.take() {
            Some(batch) => batch,
            None => make()?,
        };
        let began = Instant::now();
        if in_flight == 1 {
            partition.append_and_wait(&batch, AppendOptions::default())?;
            told(began.elapsed());
        } else {
            match partition.append(&batch, AppendOptions::default()) {
                Ok(ticket) => waiting.push_back((began, ticket)),
                Err(AppendError::Busy { .. }) => {
                    next = Some(batch);
                    partition.staging_space().wait().map_err(|_| BenchError::Ended)?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            if waiting.len() >= in_flight
                && let Some((began, ticket)) = waiting.pop_front()
            {
                ticket.wait().map_err(|_| BenchError::Ended)??;
                told(began.elapsed());
            }
        }
        count += 1;
    }
    for (began, ticket) in waiting {
        ticket.wait().map_err(|_| BenchError::Ended)??;
        told(began.elapsed());
    }
    Ok(count)
}
