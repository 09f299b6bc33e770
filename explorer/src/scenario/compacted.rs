//! Topics that are compacted.

use super::{HOST_EVENTS, LOCAL_EVENTS, NONE, ORDINARY, Scenario};
use crate::audit::Ending;
use crate::director::Event;
use crate::process::Faults;
use crate::storage::FileSystem;

pub(super) const COMPACTION: Scenario = Scenario {
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
};

pub(super) const COMPACTIONFLUSH: Scenario = Scenario {
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
};

pub(super) const COMPACTIONSTEPS: Scenario = Scenario {
    name: "compactionsteps",
    about: "a round of compaction that loses power at its first step, at its second, and so on",
    file_systems: &[FileSystem::Local],
    events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Kill],
    event_count: (3, 4),
    endings: &[Ending::CompactionLosesPower],
    transactions: true,
    compaction: true,
    ..ORDINARY
};

pub(super) const COMPACTIONHOSTS: Scenario = Scenario {
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
};
