//! The logs of the slots on a volume: one journal a slot, in `slots/groups/<nn>/`.
//!
//! A slot is born and claimed on first use, at the controller's current epoch. A slot that has to be opened again in
//! the same run (its journal failed) is claimed at a higher one, which the controller takes first. All that blocks
//! runs on the I/O pool.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use kaas_control::election::Controller;
use kaas_engine::Reserve;
use kaas_engine::io::IoPool;
use kaas_engine::journal::{Journal, JournalError, JournalSettings, JournalTicket, OpenError, birth};
use kaas_engine::layout::{GROUPS_DIR, SLOTS_DIR, group_slot_dir};
use kaas_engine::leadership::{ClaimError, Claimant};
use kaas_engine::types::Epoch;
use kaas_substrate::{ErrorClass, Substrate};
use parking_lot::Mutex;
use uuid::Uuid;

use super::log::{GroupLog, GroupLogError, GroupLogs, LogFuture, OpenedLog};
use super::state::{Record, SlotSnapshot};
use crate::repeated::verify_hint;

/// How often a slot is claimed anew because a higher epoch was found in it.
const CLAIMS_MAX: usize = 4;

/// Who claims slots, and at which epochs.
pub trait SlotEpochs: Send + Sync {
    /// Who claims.
    fn claimant(&self) -> Claimant;

    /// The epoch at which slots are claimed now.
    fn current(&self) -> Epoch;

    /// Takes an epoch above `above`. Blocks.
    ///
    /// # Errors
    /// This process may not lead any more, or the volume fails; in words.
    fn advance_above(&self, above: Epoch) -> Result<Epoch, String>;
}

impl SlotEpochs for Controller {
    fn claimant(&self) -> Claimant {
        Controller::claimant(self).clone()
    }

    fn current(&self) -> Epoch {
        Controller::current(self)
    }

    fn advance_above(&self, above: Epoch) -> Result<Epoch, String> {
        Controller::advance_above(self, above).map_err(|error| error.to_string())
    }
}

/// The journals of all slots of a data directory.
pub struct JournalLogs {
    shared: Arc<Shared>,
}

struct Shared {
    /// Rooted at the data directory.
    substrate: Arc<dyn Substrate>,
    epochs: Arc<dyn SlotEpochs>,
    io: Arc<IoPool>,
    settings: JournalSettings,
    /// What a full volume has for opening slots.
    reserve: Arc<Reserve>,
    /// The epoch at which this run last claimed a slot, or tried to; an epoch is used once.
    claimed: Mutex<BTreeMap<usize, Epoch>>,
}

impl JournalLogs {
    /// The journals of the data directory that `substrate` is rooted at. Touches nothing yet. `reserve` is that of the
    /// same volume: slots may be opened when it is full, but nothing is appended while the reserve is in use.
    pub fn new(
        substrate: Arc<dyn Substrate>,
        epochs: Arc<dyn SlotEpochs>,
        io: Arc<IoPool>,
        settings: JournalSettings,
        reserve: Arc<Reserve>,
    ) -> Self {
        let claimed = Mutex::new(BTreeMap::new());
        Self { shared: Arc::new(Shared { substrate, epochs, io, settings, reserve, claimed }) }
    }

    /// Runs a blocking call on the I/O pool.
    fn blocking<T: Send + 'static>(
        &self,
        slot: usize,
        call: impl FnOnce(&Shared) -> Result<T, GroupLogError> + Send + 'static,
    ) -> LogFuture<T> {
        let shared = Arc::clone(&self.shared);
        let unavailable =
            move |reason: &dyn ToString| GroupLogError::Unavailable { slot, reason: reason.to_string() };
        match self.shared.io.run(move || call(&shared)) {
            Ok(ticket) => Box::pin(async move { ticket.await.map_err(|error| unavailable(&error))? }),
            Err(saturated) => Box::pin(std::future::ready(Err(unavailable(&saturated)))),
        }
    }
}

impl GroupLogs for JournalLogs {
    fn existing(&self) -> LogFuture<Vec<usize>> {
        self.blocking(0, Shared::existing)
    }

    fn open(&self, slot: usize) -> LogFuture<OpenedLog> {
        self.blocking(slot, move |shared| shared.open(slot))
    }

    fn damage_hint(&self, slot: usize) -> Option<String> {
        Some(verify_hint(&*self.shared.substrate, &group_slot_dir(slot)))
    }
}

impl Shared {
    fn existing(&self) -> Result<Vec<usize>, GroupLogError> {
        let dir = Path::new(SLOTS_DIR).join(GROUPS_DIR);
        let entries = match self.substrate.list(&dir) {
            Err(error) if error.is_not_found() => return Ok(Vec::new()),
            entries => {
                entries.map_err(|error| GroupLogError::Unavailable { slot: 0, reason: error.to_string() })?
            }
        };
        // What is not a slot's name is not ours: a slot being born, or somebody's own.
        Ok(entries
            .into_iter()
            .filter_map(|entry| {
                entry.name.to_str()?.parse().ok().filter(|slot| slot_name_is(&entry.name, *slot))
            })
            .collect())
    }

    fn open(&self, slot: usize) -> Result<OpenedLog, GroupLogError> {
        let unavailable = |reason: String| GroupLogError::Unavailable { slot, reason };
        self.birth(slot).map_err(|error| unavailable(error.to_string()))?;
        let mut epoch = self.epochs.current();
        for _ in 0..CLAIMS_MAX {
            let used = self.claimed.lock().get(&slot).copied();
            if let Some(used) = used.filter(|used| epoch <= *used) {
                epoch = self.epochs.advance_above(used).map_err(unavailable)?;
            }
            self.claimed.lock().insert(slot, epoch);
            let (dir, claimant) = (group_slot_dir(slot), self.epochs.claimant());
            let open =
                || Journal::open(&self.substrate, &dir, epoch, &claimant, &self.io, self.settings.clone());
            match self.reserve.with(open) {
                Ok((journal, replay)) => {
                    let large_bytes = self.settings.max_file_bytes / 2;
                    let reserve = Arc::clone(&self.reserve);
                    let log = JournalLog { journal: Arc::new(journal), reserve, slot, large_bytes };
                    return Ok(OpenedLog {
                        log: Arc::new(log),
                        snapshot: replay.snapshot,
                        entries: replay.entries.into_iter().map(|entry| entry.value).collect(),
                    });
                }
                // The slot may be ahead of the controller, after a copy or a crash; whether this process may pass
                // it is for the controller's own fence to say.
                Err(
                    OpenError::Claim(ClaimError::Refused { highest, .. })
                    | OpenError::Deposed { by: highest },
                ) => {
                    epoch = self.epochs.advance_above(highest).map_err(unavailable)?;
                }
                Err(
                    error @ (OpenError::Damaged { .. }
                    | OpenError::SnapshotMissing { .. }
                    | OpenError::JournalMissing { .. }
                    | OpenError::Foreign { .. }),
                ) => {
                    return Err(GroupLogError::Damaged { slot, reason: error.to_string() });
                }
                Err(error) => return Err(unavailable(error.to_string())),
            }
        }
        Err(GroupLogError::Deposed { slot })
    }

    fn birth(&self, slot: usize) -> kaas_substrate::Result<()> {
        let substrate = self.substrate.as_ref();
        let (slots, groups) = (Path::new(SLOTS_DIR), Path::new(SLOTS_DIR).join(GROUPS_DIR));
        for (dir, parent) in [(slots, Path::new("")), (groups.as_path(), slots)] {
            match substrate.create_dir(dir) {
                Err(error) if error.class != ErrorClass::Exists => return Err(error),
                // Also if it is there: who made it may have been killed before this.
                _ => substrate.sync_dir(parent)?,
            }
        }
        birth(substrate, &group_slot_dir(slot), &Uuid::new_v4().to_string())
    }
}

fn slot_name_is(name: &std::ffi::OsStr, slot: usize) -> bool {
    group_slot_dir(slot).file_name() == Some(name)
}

struct JournalLog {
    journal: Arc<Journal>,
    reserve: Arc<Reserve>,
    slot: usize,
    large_bytes: u64,
}

impl JournalLog {
    fn outcome(&self, ticket: JournalTicket) -> LogFuture<()> {
        let slot = self.slot;
        Box::pin(async move { ticket.await.map(|_| ()).map_err(|error| log_error(slot, &error)) })
    }
}

fn log_error(slot: usize, error: &JournalError) -> GroupLogError {
    let reason = error.to_string();
    match error {
        JournalError::Busy { .. } | JournalError::Full { .. } => GroupLogError::Busy { slot, reason },
        JournalError::TooLarge { .. } | JournalError::Unwritable { .. } => {
            GroupLogError::Refused { slot, reason }
        }
        JournalError::NoSpace { .. } => GroupLogError::NoSpace { slot, reason },
        JournalError::Deposed { .. } => GroupLogError::Deposed { slot },
        JournalError::Poisoned { .. } | JournalError::Closed => GroupLogError::Poisoned { slot, reason },
    }
}

impl GroupLog for JournalLog {
    fn append(&self, records: &[Record]) -> LogFuture<()> {
        if self.reserve.are_bytes_in_use() {
            let reason = "no space on the volume".to_owned();
            return Box::pin(std::future::ready(Err(GroupLogError::NoSpace { slot: self.slot, reason })));
        }
        self.outcome(self.journal.append(records))
    }

    fn confirm(&self) -> LogFuture<()> {
        // An append of nothing asks the fence only.
        self.outcome(self.journal.append::<Record>(&[]))
    }

    fn wants_snapshot(&self) -> bool {
        self.journal.file_bytes() > self.large_bytes
    }

    fn snapshot(&self, state: SlotSnapshot) -> LogFuture<()> {
        // Nothing is on its way, so everything that is committed is in `state`.
        let (journal, covers, slot) = (Arc::clone(&self.journal), self.journal.committed(), self.slot);
        // Writing it as JSON takes time, off the threads that serve requests.
        let staged = tokio::task::spawn_blocking(move || journal.write_snapshot(covers, &state));
        Box::pin(async move {
            let ticket =
                staged.await.map_err(|error| GroupLogError::Busy { slot, reason: error.to_string() })?;
            ticket.await.map(|_| ()).map_err(|error| log_error(slot, &error))
        })
    }

    fn close(&self) -> LogFuture<()> {
        let journal = Arc::clone(&self.journal);
        let closed = tokio::task::spawn_blocking(move || journal.close());
        let slot = self.slot;
        Box::pin(async move {
            closed.await.map_err(|error| GroupLogError::Unavailable { slot, reason: error.to_string() })
        })
    }
}
