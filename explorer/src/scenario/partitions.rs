//! Partitions under takeovers, losses of power and faults.

use super::{LOCAL_EVENTS, NONE, ORDINARY, Scenario};
use crate::audit::Ending;
use crate::director::Event;
use crate::process::Faults;
use crate::storage::FileSystem;

pub(super) const TAKEOVERS: Scenario = Scenario {
    name: "takeovers",
    about: "several leaders at once, paused at any step, killed, deposed without knowing",
    hosts: 3,
    events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Assign, Event::Kill, Event::Pause],
    event_count: (4, 6),
    faults: &[NONE, Faults { kill: 300, ..NONE }, Faults { fence: 8, ..NONE }],
    endings: &[Ending::Killed],
    ..ORDINARY
};

pub(super) const HANDOVER: Scenario = Scenario {
    name: "handover",
    about: "one leader after the other, the earlier one in the middle of its work",
    hosts: 2,
    events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Assign, Event::Assign, Event::Assign],
    event_count: (2, 2),
    faults: &[NONE, Faults { fence: 8, ..NONE }],
    endings: &[Ending::Killed],
    busy: true,
    ..ORDINARY
};

pub(super) const POWER: Scenario = Scenario {
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
};

pub(super) const HOSTS: Scenario = Scenario {
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
};

pub(super) const RECOVERY: Scenario = Scenario {
    name: "recovery",
    about: "a recovery that loses power at its first step, at its second, and so on",
    hosts: 2,
    events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Kill],
    event_count: (3, 4),
    faults: &[NONE, Faults { full: 6, ..NONE }],
    endings: &[Ending::RecoveryLosesPower],
    ..ORDINARY
};

pub(super) const FAULTS: Scenario = Scenario {
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
};

pub(super) const RETENTION: Scenario = Scenario {
    name: "retention",
    about: "segments deleted by size and time, under takeovers",
    hosts: 2,
    events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Kill, Event::Pause],
    event_count: (3, 6),
    faults: &[NONE, Faults { kill: 300, ..NONE }],
    endings: &[Ending::Killed, Ending::LostPower],
    retention: true,
    ..ORDINARY
};

pub(super) const UNSYNCED: Scenario = Scenario {
    name: "unsynced",
    about: "flush.messages and flush.ms: committed without a sync, and takeovers without a loss of power",
    hosts: 3,
    events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Assign, Event::Kill, Event::Pause],
    event_count: (4, 6),
    faults: &[NONE, Faults { kill: 300, ..NONE }],
    endings: &[Ending::Killed],
    unsynced: true,
    ..ORDINARY
};

pub(super) const CROWD: Scenario = Scenario {
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
};

pub(super) const TRANSACTIONS: Scenario = Scenario {
    name: "transactions",
    about: "transactions that are committed and aborted, under takeovers and losses of power",
    events: LOCAL_EVENTS,
    event_count: (4, 6),
    faults: &[NONE, Faults { kill: 300, ..NONE }, Faults { fence: 8, ..NONE }, Faults { full: 8, ..NONE }],
    endings: &[Ending::Killed, Ending::LostPower],
    transactions: true,
    ..ORDINARY
};
