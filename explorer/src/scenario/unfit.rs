//! Volumes that do not keep their word. Problems are expected, so these are run by name only.

use kaas_fault_injection::simulated::Broken;

use super::{NONE, ORDINARY, Scenario};
use crate::audit::Ending;
use crate::director::Event;
use crate::storage::FileSystem;

pub(super) const ON_NFS: Scenario = Scenario {
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

pub(super) const UNFITRENAME: Scenario = Scenario {
    name: "unfitrename",
    about: "as onnfs, on a volume whose renames are not atomic (P1 broken)",
    broken: Broken { rename: true, ..Broken::NOTHING },
    ..ON_NFS
};

pub(super) const UNFITCREATE: Scenario = Scenario {
    name: "unfitcreate",
    about: "as onnfs, on a volume whose exclusive creates have two winners (P2 broken)",
    broken: Broken { exclusive_create: true, ..Broken::NOTHING },
    ..ON_NFS
};

pub(super) const UNFITREAD: Scenario = Scenario {
    name: "unfitread",
    about: "as onnfs, on a volume whose uncached reads are cached (P3 broken)",
    broken: Broken { uncached_read: true, ..Broken::NOTHING },
    ..ON_NFS
};

pub(super) const UNFITSYNC: Scenario = Scenario {
    name: "unfitsync",
    about: "as onnfs, on a volume whose syncs lie (P4 broken)",
    broken: Broken { sync: true, ..Broken::NOTHING },
    ..ON_NFS
};
