//! What can happen in a run, by name.

mod compacted;
mod partitions;
mod repairs;
mod slots;
mod unfit;

use kaas_engine::journal::JournalSettings;
use kaas_engine::{EngineSettings, LogConfig};
use kaas_fault_injection::simulated::Broken;

use crate::audit::Ending;
use crate::choices::Stream;
use crate::director::Event;
use crate::journals;
use crate::process::Faults;
use crate::scheduler::Scheduler;
use crate::storage::FileSystem;

/// A kind of run.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    pub hosts: usize,
    /// Each run chooses one of these; the first is the plainest.
    pub file_systems: &'static [FileSystem],
    pub topics: usize,
    /// Slots of consumer groups.
    pub slots: usize,
    /// The volume is a whole data directory, whose cluster is led, too. Damage and repairs are of what is around the partitions.
    pub data_dir: bool,
    /// The first is nothing.
    pub events: &'static [Event],
    /// Events of a run: at least the first, less than the second number more.
    pub event_count: (u64, u64),
    /// Each run chooses one of these; the first is the plainest.
    pub faults: &'static [Faults],
    pub endings: &'static [Ending],
    /// Records that may be committed without a sync are committed so, now and then; no power is lost then.
    pub unsynced: bool,
    /// Segments are deleted by size and by time.
    pub retention: bool,
    /// Some producers are transactional, and consumers read what is committed.
    pub transactions: bool,
    /// The topic is compacted: records have keys, segments are small, and rounds of compaction run beside everything else.
    pub compaction: bool,
    /// Clients do little but produce, and a cycle takes one batch: several are under way at once.
    pub busy: bool,
    /// Properties that the volume does not keep.
    pub broken: Broken,
}

const EVERY: &[FileSystem] = &[FileSystem::Local, FileSystem::Nfs, FileSystem::CephFs];

const NONE: Faults = Faults { kill: 0, full: 0, sync: 0, fence: 0, any: 0, halves: 0 };

/// What most scenarios have; what happens in one is its own.
const ORDINARY: Scenario = Scenario {
    name: "",
    about: "",
    hosts: 2,
    file_systems: EVERY,
    topics: 1,
    slots: 0,
    data_dir: false,
    events: &[Event::Nothing],
    event_count: (1, 1),
    faults: &[NONE],
    endings: &[Ending::Killed],
    unsynced: false,
    retention: false,
    transactions: false,
    compaction: false,
    busy: false,
    broken: Broken::NOTHING,
};

/// Events on one host's disk.
const LOCAL_EVENTS: &[Event] = &[
    Event::Nothing,
    Event::Assign,
    Event::Assign,
    Event::Assign,
    Event::Assign,
    Event::Kill,
    Event::Pause,
    Event::LosePower,
];

/// Events of several hosts and their server.
const HOST_EVENTS: &[Event] = &[
    Event::Nothing,
    Event::Assign,
    Event::Assign,
    Event::Assign,
    Event::Assign,
    Event::Assign,
    Event::Kill,
    Event::Pause,
    Event::CrashHost,
    Event::CutOff,
    Event::CrashServer,
];

/// All there are.
pub const SCENARIOS: &[&Scenario] = &[
    &partitions::TAKEOVERS,
    &partitions::HANDOVER,
    &partitions::POWER,
    &partitions::HOSTS,
    &partitions::RECOVERY,
    &partitions::FAULTS,
    &partitions::RETENTION,
    &partitions::UNSYNCED,
    &partitions::CROWD,
    &partitions::TRANSACTIONS,
    &compacted::COMPACTION,
    &compacted::COMPACTIONFLUSH,
    &compacted::COMPACTIONSTEPS,
    &compacted::COMPACTIONHOSTS,
    &slots::JOURNALS,
    &slots::JOURNALPOWER,
    &slots::JOURNALRECOVERY,
    &slots::CLAIMS,
    &repairs::REPAIR,
    &repairs::REPAIRSTEPS,
    &repairs::REPAIRFILES,
    &repairs::REPAIRFILESTEPS,
];

/// What breaks if the volume does not keep its word; beside the same on one that does. Problems are expected, so these are
/// run by name only.
pub const UNFIT: &[&Scenario] =
    &[&unfit::ON_NFS, &unfit::UNFITRENAME, &unfit::UNFITCREATE, &unfit::UNFITREAD, &unfit::UNFITSYNC];

/// The scenario of that name.
pub fn by_name(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().chain(UNFIT).copied().find(|scenario| scenario.name == name)
}

impl Scenario {
    /// Settings that make segments, checkpoints and cycles small, so that little work reaches far.
    pub fn settings(&self, scheduler: &Scheduler) -> (EngineSettings, LogConfig) {
        fn pick<T: Copy>(scheduler: &Scheduler, plainest: T, others: &[T]) -> T {
            let chosen = scheduler.below(Stream::SETUP, others.len() as u64 + 1);
            let at = usize::try_from(chosen).ok().and_then(|chosen| chosen.checked_sub(1));
            at.and_then(|at| others.get(at)).copied().unwrap_or(plainest)
        }
        let mut settings = EngineSettings {
            checkpoint_distance_bytes: pick(scheduler, 1 << 20, &[200, 600]),
            tail_bytes_max: pick(scheduler, 4 << 20, &[0, 300]),
            cycle_bytes_max: pick(scheduler, 1 << 20, &[100, 300]),
            open_segments_max: pick(scheduler, 256, &[1]),
            file_range_bytes_min: pick(scheduler, 64 << 10, &[1, 200]),
            stall_limit_ms: pick(scheduler, 30_000, &[50]),
            ..EngineSettings::default()
        };
        let mut config = LogConfig {
            segment_bytes: pick(scheduler, 1 << 20, &[250, 500]),
            segment_ms: pick(scheduler, 7 * 86_400_000, &[200]),
            index_interval_bytes: 60,
            ..LogConfig::default()
        };
        if self.busy {
            settings.cycle_bytes_max = 1;
        }
        if self.unsynced {
            config.flush_messages = pick(scheduler, 1, &[4, i64::MAX.unsigned_abs()]);
            config.flush_ms = pick(scheduler, i64::MAX, &[50, 500]);
        }
        if self.retention {
            config.retention_bytes = pick(scheduler, -1, &[0, 400]);
            config.retention_ms = pick(scheduler, 86_400_000, &[0, 300]);
        }
        if self.compaction {
            config.compact = true;
            config.segment_bytes = pick(scheduler, 400, &[250, 800]);
            config.delete = pick(scheduler, false, &[true]);
            config.retention_bytes = pick(scheduler, -1, &[-1, 600]);
            config.delete_retention_ms = pick(scheduler, 86_400_000, &[0]);
            config.min_compaction_lag_ms = pick(scheduler, 0, &[0, 0, 0, 0, 86_400_000]);
            config.max_compaction_lag_ms = pick(scheduler, i64::MAX, &[200]);
            // Room for three keys: a round comes no further than they do.
            settings.cleaner.dedupe_buffer_bytes = pick(scheduler, 128 << 20, &[128 << 20, 200]);
        }
        (settings, config)
    }

    /// Bounds of the slots' journals in this run.
    pub fn journal_settings(&self, scheduler: &Scheduler) -> JournalSettings {
        if self.slots == 0 { JournalSettings::default() } else { journals::settings(scheduler) }
    }

    /// What may fail in this run.
    pub fn faults_of(&self, scheduler: &Scheduler) -> Faults {
        scheduler.pick(Stream::SETUP, self.faults).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fit_into_a_line() {
        let all: Vec<_> = SCENARIOS.iter().chain(UNFIT).collect();
        for (at, scenario) in all.iter().enumerate() {
            assert!(scenario.name.bytes().all(|byte| byte.is_ascii_lowercase()), "{}", scenario.name);
            assert!(all[..at].iter().all(|other| other.name != scenario.name), "{}", scenario.name);
            assert_eq!(scenario.events.first(), Some(&Event::Nothing));
        }
    }
}
