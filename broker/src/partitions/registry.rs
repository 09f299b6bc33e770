//! Which partitions are open, and the opening of them.
//!
//! Each partition is in one of three states here: being opened (whoever asks waits for the same outcome), open,
//! or failed a moment ago (whoever asks gets the same error, so that a broken volume is not hammered). Absent
//! means: not asked for since the start.
//!
//! The locks are held for memory work only. A partition of a topic that is being deleted is never opened.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kaas_control::ControlError;
use kaas_control::election::Controller;
use kaas_control::metadata::{ConfigMap, Topic, TopicId};
use kaas_engine::LogConfig;
use kaas_engine::identity::Identity;
use kaas_engine::leadership::ClaimError;
use kaas_engine::types::Epoch;
use kaas_engine::{Engine, EngineError};
use kaas_engine::{OpenPartition, Partition, ReadError, State};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::due::is_due;
use super::log_config;
use crate::config::{BrokerConfigs, EffectiveTopicConfig};
use crate::repeated::{Repeated, verify_hint};

/// How long a failure to open is remembered.
const FAILURE_MEMORY: Duration = Duration::from_millis(250);
/// How long a partition that failed soon after it was opened is left alone: each opening takes a new epoch, and a volume
/// that fails every write would use them up by the thousand.
const REOPEN_AFTER: Duration = Duration::from_secs(1);
/// Epochs that are tried in one attempt to open.
const CLAIM_ATTEMPTS: usize = 16;

/// Why a partition cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The engine cannot open it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The controller gave no epoch.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Too many calls wait for the volume.
    #[error("too many calls wait for the file system")]
    Overloaded,
    /// The topic is being deleted.
    #[error("the topic is being deleted")]
    Gone,
    /// The process is stopping.
    #[error("the broker is stopping")]
    Stopping,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    topic: TopicId,
    partition: u32,
}

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Failing {
    Opening,
    Reading,
}

type Outcome = Result<Arc<Partition>, Arc<OpenError>>;

enum Slot {
    Opening(Opening),
    Open(Open),
    Failed { error: Arc<OpenError>, until: Instant },
}

struct Opening {
    outcome: watch::Receiver<Option<Outcome>>,
    /// The topic's configs, which may change meanwhile.
    overrides: Arc<ConfigMap>,
}

struct Open {
    partition: Arc<Partition>,
    since: Instant,
    /// The topic's configs that the partition was last told.
    overrides: Arc<ConfigMap>,
}

/// The partitions of this broker.
pub struct Partitions {
    pub(super) engine: Engine,
    pub(super) controller: Arc<Controller>,
    /// Partitions that may be opened at once, so that commits find I/O threads meanwhile.
    opens: Semaphore,
    slots: RwLock<HashMap<Key, Slot>>,
    /// Topics that are being deleted.
    taken: Mutex<HashSet<TopicId>>,
    /// The broker's layers, for the defaults of topic configs.
    layers: RwLock<Arc<BrokerConfigs>>,
    /// Failures to open and to read.
    failures: Repeated<(Key, Failing)>,
}

impl Partitions {
    /// No partition is open. `io_threads` is the number of the engine's I/O threads.
    pub fn new(
        engine: Engine,
        controller: Arc<Controller>,
        layers: BrokerConfigs,
        io_threads: usize,
    ) -> Self {
        Self {
            engine,
            controller,
            opens: Semaphore::new((io_threads / 2).max(1)),
            slots: RwLock::default(),
            taken: Mutex::default(),
            layers: RwLock::new(Arc::new(layers)),
            failures: Repeated::default(),
        }
    }

    /// The partition, opened if it is not. Waits for that; dropping the wait stops nothing.
    pub async fn get(self: &Arc<Self>, topic: &Arc<Topic>, partition: u32) -> Outcome {
        let key = Key { topic: topic.id, partition };
        if let Some(Slot::Open(open)) = self.slots.read().get(&key)
            && is_usable(&open.partition)
        {
            return Ok(Arc::clone(&open.partition));
        }
        let mut opening = match self.begin(key, topic) {
            Begun::Here(outcome) => return outcome,
            Begun::Wait(opening) => opening,
        };
        let outcome = opening.wait_for(Option::is_some).await;
        match outcome {
            Ok(outcome) => outcome.clone().unwrap_or(Err(Arc::new(OpenError::Stopping))),
            Err(_) => Err(Arc::new(OpenError::Stopping)),
        }
    }

    /// The partition if it is open, or if maintenance has something to do there; then it is opened.
    pub(super) async fn get_if_due(
        self: &Arc<Self>,
        topic: &Arc<Topic>,
        partition: u32,
    ) -> Result<Option<Arc<Partition>>, Arc<OpenError>> {
        if let Some(open) = self.get_open(topic.id, partition) {
            return Ok(Some(open));
        }
        let Some(config) = self.log_config(&topic.config) else { return Ok(None) };
        let engine = self.engine.clone();
        let dir = topic.partition_dir(partition);
        let identity = identity_of(topic, partition);
        let look = move || is_due(&**engine.substrate(), &dir, &identity, &config, engine.clock().now().0);
        let ticket = self.engine.io().run(look).map_err(|_| Arc::new(OpenError::Overloaded))?;
        match ticket.await.map_err(|_| Arc::new(OpenError::Stopping))? {
            Ok(false) => Ok(None),
            Ok(true) => self.get(topic, partition).await.map(Some),
            Err(error) => {
                warn!(topic = %topic.name, partition, %error, "cannot tell whether old segments are to be deleted");
                Ok(None)
            }
        }
    }

    /// Has the partition opened if it is not, without waiting.
    pub fn prepare(self: &Arc<Self>, topic: &Arc<Topic>, partition: u32) {
        if self.get_open(topic.id, partition).is_none() {
            let _ = self.begin(Key { topic: topic.id, partition }, topic);
        }
    }

    /// The partition, if it is open and serves.
    pub fn get_open(&self, topic: TopicId, partition: u32) -> Option<Arc<Partition>> {
        match self.slots.read().get(&Key { topic, partition }) {
            Some(Slot::Open(open)) if is_usable(&open.partition) => Some(Arc::clone(&open.partition)),
            _ => None,
        }
    }

    /// The epoch that a partition is led at, or will be when it is opened. Costs no I/O.
    pub fn leader_epoch(&self, topic: TopicId, partition: u32) -> Epoch {
        self.get_open(topic, partition).map_or_else(|| self.controller.current(), |open| open.epoch())
    }

    /// Every partition that is open.
    pub fn all_open(&self) -> Vec<Arc<Partition>> {
        let slots = self.slots.read();
        slots
            .values()
            .filter_map(|slot| match slot {
                Slot::Open(open) => Some(Arc::clone(&open.partition)),
                _ => None,
            })
            .collect()
    }

    fn begin(self: &Arc<Self>, key: Key, topic: &Arc<Topic>) -> Begun {
        let mut slots = self.slots.write();
        let stale = match slots.get(&key) {
            Some(Slot::Opening(opening)) => return Begun::Wait(opening.outcome.clone()),
            Some(Slot::Failed { error, until }) if *until > Instant::now() => {
                return Begun::Here(Err(Arc::clone(error)));
            }
            Some(Slot::Open(open)) if is_usable(&open.partition) => {
                return Begun::Here(Ok(Arc::clone(&open.partition)));
            }
            Some(Slot::Open(open)) => match open.partition.status().state {
                State::Poisoned { reason } if open.since.elapsed() < REOPEN_AFTER => {
                    return Begun::Here(Err(Arc::new(EngineError::Poisoned { reason }.into())));
                }
                _ => Some(Arc::clone(&open.partition)),
            },
            Some(Slot::Failed { .. }) | None => None,
        };
        if self.taken.lock().contains(&topic.id) {
            return Begun::Here(Err(Arc::new(OpenError::Gone)));
        }
        let (sender, receiver) = watch::channel(None);
        let overrides = Arc::clone(&topic.config);
        slots.insert(key, Slot::Opening(Opening { outcome: receiver.clone(), overrides }));
        drop(slots);
        let (registry, topic) = (Arc::clone(self), Arc::clone(topic));
        tokio::spawn(async move {
            let outcome = registry.open(&topic, key.partition, stale).await;
            // Nobody waiting any more is fine.
            let _ = sender.send(Some(registry.publish(key, &topic, outcome)));
        });
        Begun::Wait(receiver)
    }

    async fn open(
        self: &Arc<Self>,
        topic: &Arc<Topic>,
        partition: u32,
        stale: Option<Arc<Partition>>,
    ) -> Result<Arc<Partition>, OpenError> {
        let _permit = self.opens.acquire().await.map_err(|_| OpenError::Stopping)?;
        let after = match stale {
            Some(stale) => {
                // Its files are closed before they are opened anew; what it had not committed is decided by what
                // the volume holds. Awaited here: a job that waited for a job could use up the threads.
                let _ = stale.abandon().await;
                stale.epoch()
            }
            None => Epoch::NONE,
        };
        let (registry, topic) = (Arc::clone(self), Arc::clone(topic));
        let job = move || registry.open_blocking(&topic, partition, after);
        let ticket = self.engine.io().run(job).map_err(|_| OpenError::Overloaded)?;
        ticket.await.map_err(|_| OpenError::Stopping)?
    }

    /// Claims at an epoch above `after`, and opens; on an I/O thread.
    fn open_blocking(
        &self,
        topic: &Topic,
        partition: u32,
        after: Epoch,
    ) -> Result<Arc<Partition>, OpenError> {
        let mut epoch = self.controller.current();
        if epoch <= after {
            epoch = self.engine.reserve().with(|| self.controller.advance_above(after))?;
        }
        for _ in 0..CLAIM_ATTEMPTS {
            match self.engine.open_partition(self.request(topic, partition, epoch)) {
                Err(EngineError::Claim(claim)) => match &*claim {
                    ClaimError::Refused { highest, .. } => {
                        let above = epoch.max(*highest);
                        epoch = self.engine.reserve().with(|| self.controller.advance_above(above))?;
                    }
                    _ => return Err(EngineError::Claim(claim).into()),
                },
                outcome => return Ok(outcome?),
            }
        }
        Err(EngineError::Deposed { by: epoch }.into())
    }

    fn request(&self, topic: &Topic, partition: u32, epoch: Epoch) -> OpenPartition {
        OpenPartition {
            dir: topic.partition_dir(partition),
            identity: identity_of(topic, partition),
            epoch,
            claimant: self.controller.claimant().clone(),
            config: self.log_config(&topic.config).unwrap_or_default(),
        }
    }

    fn log_config(&self, overrides: &ConfigMap) -> Option<LogConfig> {
        let layers = Arc::clone(&self.layers.read());
        match EffectiveTopicConfig::resolve(overrides, &layers) {
            Ok(effective) => Some(log_config(&effective)),
            Err(error) => {
                error!(%error, "the stored topic configs are invalid");
                None
            }
        }
    }

    /// Makes the outcome of an opening known to those who come later.
    fn publish(&self, key: Key, topic: &Topic, outcome: Result<Arc<Partition>, OpenError>) -> Outcome {
        let mut slots = self.slots.write();
        let outcome = match outcome {
            Ok(partition) if self.taken.lock().contains(&key.topic) => {
                drop(partition.abandon());
                Err(OpenError::Gone)
            }
            outcome => outcome,
        };
        match outcome {
            Ok(partition) => {
                debug!(topic = %topic.name, partition = key.partition, epoch = %partition.epoch(), "opened");
                self.failures.works(&(key, Failing::Opening));
                let overrides = match slots.get(&key) {
                    Some(Slot::Opening(opening)) => Arc::clone(&opening.overrides),
                    _ => Arc::clone(&topic.config),
                };
                // It was opened with what was in force when that began.
                if let Some(config) = self.log_config(&overrides) {
                    partition.set_config(config);
                }
                let open = Open { partition: Arc::clone(&partition), since: Instant::now(), overrides };
                slots.insert(key, Slot::Open(open));
                Ok(partition)
            }
            Err(error) => {
                self.tell_unopened(key, topic, &error);
                let error = Arc::new(error);
                let until = Instant::now() + FAILURE_MEMORY;
                slots.insert(key, Slot::Failed { error: Arc::clone(&error), until });
                Err(error)
            }
        }
    }

    /// Clients try again at once and for ever, so not each attempt is worth a line.
    fn tell_unopened(&self, key: Key, topic: &Topic, error: &OpenError) {
        if matches!(error, OpenError::Gone | OpenError::Stopping) {
            return;
        }
        let reason = error.to_string();
        let Some(times) = self.failures.failed((key, Failing::Opening), &reason) else { return };
        let is_damaged = matches!(error, OpenError::Engine(EngineError::Damaged { .. }));
        let hint = is_damaged.then(|| self.verify_hint(&topic.partition_dir(key.partition)));
        error!(topic = %topic.name, partition = key.partition, %error, hint, times, "cannot open");
    }

    /// Tells people of a read that the volume has failed, or that met damage; not each time, since clients try again.
    pub fn tell_unread(&self, partition: &Partition, error: &ReadError) {
        let is_damaged = matches!(error, ReadError::Damaged { .. });
        if !is_damaged && !matches!(error, ReadError::Storage(_)) {
            return;
        }
        let identity = partition.identity();
        let key = Key { topic: TopicId(identity.topic_id), partition: identity.partition };
        let Some(times) = self.failures.failed((key, Failing::Reading), &error.to_string()) else { return };
        let hint = is_damaged.then(|| self.verify_hint(partition.dir()));
        error!(topic = %identity.topic, partition = identity.partition, %error, hint, times, "cannot read");
    }

    fn verify_hint(&self, dir: &Path) -> String {
        verify_hint(&**self.engine.substrate(), dir)
    }

    /// Tells open partitions what their configs have become. `topic` finds a topic by its id.
    pub fn apply_configs(&self, layers: &BrokerConfigs, topic: impl Fn(TopicId) -> Option<Arc<Topic>>) {
        let all = **self.layers.read() != *layers;
        if all {
            *self.layers.write() = Arc::new(layers.clone());
        }
        let mut changed = Vec::new();
        for (key, slot) in self.slots.write().iter_mut() {
            let Some(topic) = topic(key.topic) else { continue };
            match slot {
                Slot::Opening(opening) => opening.overrides = Arc::clone(&topic.config),
                Slot::Open(open) if all || !Arc::ptr_eq(&open.overrides, &topic.config) => {
                    open.overrides = Arc::clone(&topic.config);
                    changed.push((Arc::clone(&open.partition), Arc::clone(&topic.config)));
                }
                Slot::Open(_) | Slot::Failed { .. } => {}
            }
        }
        for (partition, overrides) in changed {
            if let Some(config) = self.log_config(&overrides) {
                partition.set_config(config);
            }
        }
    }

    /// Keeps the partitions of a topic from being opened, and gives those that are open.
    pub(super) fn take(&self, topic: TopicId) -> Vec<Arc<Partition>> {
        let mut slots = self.slots.write();
        self.taken.lock().insert(topic);
        let mut open = Vec::new();
        slots.retain(|key, slot| match slot {
            Slot::Open(slot) if key.topic == topic => {
                open.push(Arc::clone(&slot.partition));
                false
            }
            Slot::Failed { .. } if key.topic == topic => false,
            // Its task publishes to an entry, and finds the topic taken.
            _ => true,
        });
        open
    }

    /// Lets the partitions of a topic that was taken be opened again.
    pub(super) fn give_back(&self, topic: TopicId) {
        self.taken.lock().remove(&topic);
    }

    /// Forgets topics that exist no more.
    pub(super) fn forget(&self, exists: impl Fn(TopicId) -> bool) {
        let mut slots = self.slots.write();
        slots.retain(|key, slot| !matches!(slot, Slot::Failed { .. }) || exists(key.topic));
        self.failures.retain(|(key, _)| exists(key.topic));
        self.taken.lock().retain(|topic| exists(*topic));
    }

    /// Closes every partition, at most until `deadline`. No other is opened from then on.
    pub async fn close(&self, deadline: Instant) {
        self.opens.close();
        let open: Vec<Slot> = self.slots.write().drain().map(|(_, slot)| slot).collect();
        let mut tickets = Vec::new();
        for slot in open {
            if let Slot::Open(open) = slot {
                tickets.push((Arc::clone(&open.partition), open.partition.close()));
            }
        }
        let count = tickets.len();
        for (partition, ticket) in tickets {
            let identity = partition.identity();
            match tokio::time::timeout_at(deadline, ticket).await {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(error))) => {
                    info!(topic = %identity.topic, partition = identity.partition, %error, "not closed cleanly");
                }
                Ok(Err(_)) => {}
                Err(_) => {
                    error!(topic = %identity.topic, partition = identity.partition, "not closed in time; the next start recovers it");
                }
            }
        }
        debug!(count, "partitions closed");
    }
}

enum Begun {
    Here(Outcome),
    Wait(watch::Receiver<Option<Outcome>>),
}

/// What the files of a partition say whose they are.
pub(super) fn identity_of(topic: &Topic, partition: u32) -> Identity {
    Identity { topic: topic.name.to_string(), partition, topic_id: topic.id.0 }
}

/// Whether a partition can be worked with, or may be again without being opened anew.
fn is_usable(partition: &Partition) -> bool {
    matches!(partition.status().state, State::Leading | State::Unsure)
}

impl fmt::Debug for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partitions").field("slots", &self.slots.read().len()).finish()
    }
}
