//! Slots' journals, and the fence.

use super::{HOST_EVENTS, LOCAL_EVENTS, NONE, ORDINARY, Scenario};
use crate::audit::Ending;
use crate::director::Event;
use crate::process::Faults;
use crate::storage::FileSystem;

/// What the scenarios of slots have.
const OF_SLOTS: Scenario = Scenario { topics: 0, slots: 1, ..ORDINARY };

pub(super) const JOURNALS: Scenario = Scenario {
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
};

pub(super) const JOURNALPOWER: Scenario = Scenario {
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
};

pub(super) const JOURNALRECOVERY: Scenario = Scenario {
    name: "journalrecovery",
    about: "a takeover of a slot that loses power at its first step, at its second, and so on",
    hosts: 2,
    events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Kill],
    event_count: (3, 4),
    faults: &[NONE, Faults { full: 6, ..NONE }, Faults { kill: 60, ..NONE }],
    endings: &[Ending::RecoveryLosesPower],
    ..OF_SLOTS
};

pub(super) const CLAIMS: Scenario = Scenario {
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
};
