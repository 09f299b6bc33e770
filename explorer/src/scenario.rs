//! What can happen in a run, by name.

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

/// All there are.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "takeovers",
        about: "several leaders at once, paused at any step, killed, deposed without knowing",
        hosts: 3,
        events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Assign, Event::Kill, Event::Pause],
        event_count: (4, 6),
        faults: &[NONE, Faults { kill: 300, ..NONE }, Faults { fence: 8, ..NONE }],
        endings: &[Ending::Killed],
        ..ORDINARY
    },
    Scenario {
        name: "handover",
        about: "one leader after the other, the earlier one in the middle of its work",
        hosts: 2,
        events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Assign, Event::Assign, Event::Assign],
        event_count: (2, 2),
        faults: &[NONE, Faults { fence: 8, ..NONE }],
        endings: &[Ending::Killed],
        busy: true,
        ..ORDINARY
    },
    Scenario {
        name: "power",
        about: "the volume loses power, also while leaders recover from the last time",
        hosts: 2,
        events: &[
            Event::Nothing,
            Event::Assign,
            Event::Assign,
            Event::Assign,
            Event::Kill,
            Event::LosePower,
            Event::LosePower,
        ],
        event_count: (5, 8),
        faults: &[NONE, Faults { kill: 100, ..NONE }, Faults { kill: 40, ..NONE }],
        endings: &[Ending::LostPower],
        ..ORDINARY
    },
    Scenario {
        name: "hosts",
        about: "hosts and the server crash, are cut off and come back; late writes land",
        hosts: 3,
        file_systems: &[FileSystem::Nfs, FileSystem::CephFs],
        events: &[
            Event::Nothing,
            Event::Assign,
            Event::Assign,
            Event::Assign,
            Event::Assign,
            Event::Pause,
            Event::CrashHost,
            Event::CutOff,
            Event::CutOff,
            Event::CrashServer,
        ],
        event_count: (5, 8),
        faults: &[NONE, Faults { kill: 300, ..NONE }, Faults { sync: 40, ..NONE }],
        endings: &[Ending::Killed, Ending::LostPower],
        ..ORDINARY
    },
    Scenario {
        name: "recovery",
        about: "a recovery that loses power at its first step, at its second, and so on",
        hosts: 2,
        events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Kill],
        event_count: (3, 4),
        faults: &[NONE, Faults { full: 6, ..NONE }],
        endings: &[Ending::RecoveryLosesPower],
        ..ORDINARY
    },
    Scenario {
        name: "faults",
        about: "calls that fail: full volumes, syncs, the fence, anything",
        hosts: 2,
        events: &[
            Event::Nothing,
            Event::Assign,
            Event::Assign,
            Event::Assign,
            Event::Kill,
            Event::Pause,
            Event::LosePower,
        ],
        event_count: (4, 7),
        faults: &[
            NONE,
            Faults { full: 5, ..NONE },
            Faults { sync: 30, ..NONE },
            Faults { fence: 8, ..NONE },
            Faults { any: 100, ..NONE },
            Faults { kill: 300, full: 10, sync: 60, fence: 40, any: 300, halves: 0 },
        ],
        endings: &[Ending::Killed, Ending::LostPower],
        ..ORDINARY
    },
    Scenario {
        name: "retention",
        about: "segments deleted by size and time, under takeovers",
        hosts: 2,
        events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Kill, Event::Pause],
        event_count: (3, 6),
        faults: &[NONE, Faults { kill: 300, ..NONE }],
        endings: &[Ending::Killed, Ending::LostPower],
        retention: true,
        ..ORDINARY
    },
    Scenario {
        name: "unsynced",
        about: "flush.messages and flush.ms: committed without a sync, and takeovers without a loss of power",
        hosts: 3,
        events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Assign, Event::Kill, Event::Pause],
        event_count: (4, 6),
        faults: &[NONE, Faults { kill: 300, ..NONE }],
        endings: &[Ending::Killed],
        unsynced: true,
        ..ORDINARY
    },
    Scenario {
        name: "crowd",
        about: "several partitions in each process",
        hosts: 2,
        topics: 3,
        events: &[
            Event::Nothing,
            Event::Assign,
            Event::Assign,
            Event::Assign,
            Event::Assign,
            Event::Kill,
            Event::Pause,
        ],
        event_count: (6, 6),
        faults: &[NONE, Faults { kill: 400, ..NONE }, Faults { full: 8, ..NONE }],
        endings: &[Ending::Killed, Ending::LostPower],
        ..ORDINARY
    },
    Scenario {
        name: "transactions",
        about: "transactions that are committed and aborted, under takeovers and losses of power",
        events: LOCAL_EVENTS,
        event_count: (4, 6),
        faults: &[
            NONE,
            Faults { kill: 300, ..NONE },
            Faults { fence: 8, ..NONE },
            Faults { full: 8, ..NONE },
        ],
        endings: &[Ending::Killed, Ending::LostPower],
        transactions: true,
        ..ORDINARY
    },
    Scenario {
        name: "compaction",
        about: "a compacted topic, with transactions, on a disk that loses power",
        file_systems: &[FileSystem::Local],
        events: LOCAL_EVENTS,
        event_count: (5, 6),
        faults: &[
            NONE,
            Faults { kill: 300, ..NONE },
            Faults { kill: 60, ..NONE },
            Faults { full: 8, ..NONE },
            Faults { any: 100, ..NONE },
        ],
        endings: &[Ending::LostPower, Ending::Killed],
        transactions: true,
        compaction: true,
        ..ORDINARY
    },
    Scenario {
        name: "compactionflush",
        about: "a compacted topic with flush.messages and flush.ms: committed without a sync, and no loss of power",
        hosts: 3,
        events: &[
            Event::Nothing,
            Event::Assign,
            Event::Assign,
            Event::Assign,
            Event::Assign,
            Event::Kill,
            Event::Pause,
        ],
        event_count: (5, 6),
        faults: &[NONE, Faults { kill: 300, ..NONE }, Faults { full: 8, ..NONE }],
        unsynced: true,
        transactions: true,
        compaction: true,
        ..ORDINARY
    },
    Scenario {
        name: "compactionsteps",
        about: "a round of compaction that loses power at its first step, at its second, and so on",
        file_systems: &[FileSystem::Local],
        events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Kill],
        event_count: (3, 4),
        endings: &[Ending::CompactionLosesPower],
        transactions: true,
        compaction: true,
        ..ORDINARY
    },
    Scenario {
        name: "compactionhosts",
        about: "a compacted topic, with transactions, on hosts that crash, are cut off, and go on after they were deposed",
        hosts: 3,
        file_systems: &[FileSystem::Nfs, FileSystem::CephFs],
        events: HOST_EVENTS,
        event_count: (5, 6),
        faults: &[
            NONE,
            Faults { kill: 300, ..NONE },
            Faults { fence: 8, ..NONE },
            Faults { sync: 40, ..NONE },
            Faults { any: 100, ..NONE },
        ],
        endings: &[Ending::Killed, Ending::LostPower],
        transactions: true,
        compaction: true,
        ..ORDINARY
    },
    Scenario {
        name: "journals",
        about: "a slot's journal and its coordinators: takeovers, pauses, kills, hosts that are cut off and come back",
        hosts: 3,
        file_systems: &[FileSystem::Nfs, FileSystem::CephFs],
        events: HOST_EVENTS,
        event_count: (5, 8),
        faults: &[
            NONE,
            Faults { kill: 150, ..NONE },
            Faults { fence: 8, ..NONE },
            Faults { sync: 30, ..NONE },
            Faults { kill: 300, full: 10, sync: 60, fence: 40, any: 300, halves: 4 },
        ],
        endings: &[Ending::Killed, Ending::LostPower],
        ..OF_SLOTS
    },
    Scenario {
        name: "journalpower",
        about: "a slot's journal on a volume that loses power, also while coordinators take over",
        hosts: 2,
        events: &[
            Event::Nothing,
            Event::Assign,
            Event::Assign,
            Event::Assign,
            Event::Assign,
            Event::Kill,
            Event::LosePower,
            Event::LosePower,
        ],
        event_count: (5, 8),
        faults: &[
            NONE,
            Faults { kill: 40, ..NONE },
            Faults { full: 5, ..NONE },
            Faults { sync: 20, ..NONE },
            Faults { any: 100, ..NONE },
        ],
        endings: &[Ending::LostPower],
        ..OF_SLOTS
    },
    Scenario {
        name: "journalrecovery",
        about: "a takeover of a slot that loses power at its first step, at its second, and so on",
        hosts: 2,
        events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Kill],
        event_count: (3, 4),
        faults: &[NONE, Faults { full: 6, ..NONE }, Faults { kill: 60, ..NONE }],
        endings: &[Ending::RecoveryLosesPower],
        ..OF_SLOTS
    },
    Scenario {
        name: "claims",
        about: "records of the fence that are torn, by claimants that die or pause in the middle of writing them",
        hosts: 3,
        slots: 1,
        events: LOCAL_EVENTS,
        event_count: (5, 8),
        faults: &[
            Faults { halves: 3, ..NONE },
            Faults { halves: 1, ..NONE },
            Faults { halves: 2, kill: 60, ..NONE },
        ],
        endings: &[Ending::Killed, Ending::LostPower],
        ..ORDINARY
    },
    Scenario {
        name: "repair",
        about: "files that are damaged, and repairs beside leaders that live, pause, come late and take over",
        hosts: 3,
        events: REPAIR_EVENTS,
        event_count: (5, 9),
        faults: &[
            NONE,
            Faults { kill: 300, ..NONE },
            Faults { kill: 60, ..NONE },
            Faults { fence: 8, ..NONE },
            Faults { any: 100, ..NONE },
        ],
        endings: &[Ending::Mended { loses_power: false }, Ending::Mended { loses_power: true }],
        ..ORDINARY
    },
    Scenario {
        name: "repairsteps",
        about: "a repair that dies, or loses power, at its first step, at its second, and so on",
        hosts: 2,
        events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Kill],
        event_count: (3, 4),
        endings: &[Ending::RepairDies { loses_power: false }, Ending::RepairDies { loses_power: true }],
        ..ORDINARY
    },
];

/// Events of partitions that are damaged and repaired while they are led.
const REPAIR_EVENTS: &[Event] = &[
    Event::Nothing,
    Event::Assign,
    Event::Assign,
    Event::Assign,
    Event::Assign,
    Event::Kill,
    Event::Pause,
    Event::Damage,
    Event::Damage,
    Event::DamageStopped,
    Event::Repair,
    Event::Repair,
    Event::Repair,
];

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

/// What the scenarios of slots have.
const OF_SLOTS: Scenario = Scenario { topics: 0, slots: 1, ..ORDINARY };

/// What breaks if the volume does not keep its word; beside the same on one that does. Problems are expected, so these are
/// run by name only.
pub const UNFIT: &[Scenario] = &[
    ON_NFS,
    Scenario {
        name: "unfitrename",
        about: "as onnfs, on a volume whose renames are not atomic (P1 broken)",
        broken: Broken { rename: true, ..Broken::NOTHING },
        ..ON_NFS
    },
    Scenario {
        name: "unfitcreate",
        about: "as onnfs, on a volume whose exclusive creates have two winners (P2 broken)",
        broken: Broken { exclusive_create: true, ..Broken::NOTHING },
        ..ON_NFS
    },
    Scenario {
        name: "unfitread",
        about: "as onnfs, on a volume whose uncached reads are cached (P3 broken)",
        broken: Broken { uncached_read: true, ..Broken::NOTHING },
        ..ON_NFS
    },
    Scenario {
        name: "unfitsync",
        about: "as onnfs, on a volume whose syncs lie (P4 broken)",
        broken: Broken { sync: true, ..Broken::NOTHING },
        ..ON_NFS
    },
];

const ON_NFS: Scenario = Scenario {
    name: "onnfs",
    about: "takeovers on NFS, and crashes of everything",
    hosts: 3,
    file_systems: &[FileSystem::Nfs],
    events: &[
        Event::Nothing,
        Event::Assign,
        Event::Assign,
        Event::Assign,
        Event::Pause,
        Event::CrashHost,
        Event::CrashServer,
        Event::LosePower,
    ],
    event_count: (5, 6),
    faults: &[NONE],
    endings: &[Ending::Killed, Ending::LostPower],
    ..ORDINARY
};

/// The scenario of that name.
pub fn by_name(name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().chain(UNFIT).find(|scenario| scenario.name == name)
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
