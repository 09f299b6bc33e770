//! Damage, and `verify --repair`.

use super::{NONE, ORDINARY, Scenario};
use crate::audit::Ending;
use crate::director::Event;
use crate::process::Faults;

pub(super) const REPAIR: Scenario = Scenario {
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
};

pub(super) const REPAIRSTEPS: Scenario = Scenario {
    name: "repairsteps",
    about: "a repair that dies, or loses power, at its first step, at its second, and so on",
    hosts: 2,
    events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Kill],
    event_count: (3, 4),
    endings: &[Ending::RepairDies { loses_power: false }, Ending::RepairDies { loses_power: true }],
    ..ORDINARY
};

pub(super) const REPAIRFILES: Scenario = Scenario {
    name: "repairfiles",
    about: "slots, topics' own files and cluster/ that are damaged, and repairs beside whoever leads there",
    hosts: 3,
    slots: 1,
    data_dir: true,
    events: REPAIR_EVENTS,
    event_count: (6, 10),
    faults: &[
        NONE,
        Faults { kill: 300, ..NONE },
        Faults { kill: 60, ..NONE },
        Faults { fence: 8, ..NONE },
        Faults { any: 100, ..NONE },
    ],
    endings: &[Ending::Mended { loses_power: false }, Ending::Mended { loses_power: true }],
    ..ORDINARY
};

pub(super) const REPAIRFILESTEPS: Scenario = Scenario {
    name: "repairfilesteps",
    about: "a repair of slots, topics' own files and cluster/ that dies, or loses power, at its first step, and so on",
    hosts: 2,
    slots: 1,
    data_dir: true,
    events: &[Event::Nothing, Event::Assign, Event::Assign, Event::Assign, Event::Kill],
    event_count: (4, 5),
    endings: &[Ending::RepairDies { loses_power: false }, Ending::RepairDies { loses_power: true }],
    ..ORDINARY
};

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
