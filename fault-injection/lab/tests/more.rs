//! The same on nfs-ganesha and on CephFS, and longer on the kernel's NFS server. Not part of `./test`: run
//! `fault-injection/lab/run-all`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use kaas_fault_injection::lab;
use kaas_lab::conformance::broken_rules;
use kaas_lab::site::{CephFuse, Guests, Site};

const ACTOR: &str = env!("CARGO_BIN_EXE_kaas-lab-actor");

/// A kind of site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    KernelNfs,
    Ganesha,
    CephFuse,
    CephKernel,
}

impl Kind {
    fn parts(self) -> &'static [&'static str] {
        match self {
            Self::KernelNfs => &["nfs"],
            Self::Ganesha => &["nfs", "ganesha"],
            Self::CephFuse => &["ceph"],
            Self::CephKernel => &["nfs", "ceph"],
        }
    }

    fn up(self) -> Box<dyn Site + Send> {
        let actor = Path::new(ACTOR);
        match self {
            Self::KernelNfs => Box::new(Guests::on_nfs(actor)),
            Self::Ganesha => Box::new(Guests::on_ganesha(actor)),
            Self::CephFuse => Box::new(CephFuse::up(actor)),
            Self::CephKernel => Box::new(Guests::on_ceph(actor)),
        }
    }
}

/// The lab that is up: one at a time, for this machine is small, and for as long as the tests that follow are of its kind. It
/// goes away with this process.
static LAB: Mutex<Option<(Kind, Box<dyn Site + Send>)>> = Mutex::new(None);

struct Lab(MutexGuard<'static, Option<(Kind, Box<dyn Site + Send>)>>);

impl Lab {
    /// These tests are run by who wants them: a lab that cannot be had is a failure.
    #[track_caller]
    fn of(kind: Kind) -> Self {
        if let Some(reason) = lab::why_not(kind.parts()) {
            panic!("no lab: {reason}");
        }
        let mut lab = LAB.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if lab.as_ref().is_none_or(|(other, _)| *other != kind) {
            // The old one first: they need the same memory.
            *lab = None;
            *lab = Some((kind, kind.up()));
        }
        Self(lab)
    }
}

impl std::ops::Deref for Lab {
    type Target = dyn Site;

    fn deref(&self) -> &Self::Target {
        &*self.0.as_ref().unwrap().1
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Nobody knows what state it is in: the next test gets another.
            *self.0 = None;
        }
    }
}

/// Runs a scenario as often as `KAAS_LAB_ROUNDS` says.
fn run(kind: Kind, scenario: impl Fn(&dyn Site)) {
    let rounds: u32 = std::env::var("KAAS_LAB_ROUNDS")
        .map_or(1, |rounds| rounds.parse().expect("KAAS_LAB_ROUNDS is a number"));
    let lab = Lab::of(kind);
    for _ in 0..rounds {
        scenario(&*lab);
    }
}

fn conform(kind: Kind) {
    let lab = Lab::of(kind);
    let broken = broken_rules(lab.actor(1, "conformance"), lab.actor(2, "conformance"));
    assert_eq!(broken, Vec::<String>::new(), "{}", lab.name());
}

/// Every scenario on one kind of site, a test each.
macro_rules! faults {
    ($kind:expr) => {
        use std::time::Duration;

        use kaas_lab::scenarios;

        use super::{Kind, run};

        #[test]
        #[ignore = "minutes: fault-injection/lab/run-all"]
        fn process_paused() {
            run($kind, scenarios::paused_process);
        }

        #[test]
        #[ignore = "minutes: fault-injection/lab/run-all"]
        fn host_frozen() {
            run($kind, |site| scenarios::frozen_host(site, Duration::from_secs(15)));
        }

        #[test]
        #[ignore = "minutes: fault-injection/lab/run-all"]
        fn cut_off() {
            run($kind, |site| scenarios::cut_off(site, Duration::from_secs(15)));
        }

        #[test]
        #[ignore = "minutes: fault-injection/lab/run-all"]
        fn host_loses_power() {
            run($kind, scenarios::host_loses_power);
        }

        #[test]
        #[ignore = "minutes: fault-injection/lab/run-all"]
        fn server_restarts() {
            run($kind, scenarios::server_restarts);
        }

        #[test]
        #[ignore = "minutes: fault-injection/lab/run-all"]
        fn server_freezes() {
            run($kind, |site| scenarios::server_freezes(site, Duration::from_secs(8)));
        }

        #[test]
        #[ignore = "minutes: fault-injection/lab/run-all"]
        fn all_lose_power() {
            run($kind, scenarios::all_lose_power);
        }

        #[test]
        #[ignore = "minutes: fault-injection/lab/run-all"]
        fn to_and_fro() {
            run($kind, |site| scenarios::to_and_fro(site, 12));
        }
    };
}

/// What `./test` has, for longer.
mod kernel_nfs {
    faults!(Kind::KernelNfs);
}

mod ganesha {
    faults!(Kind::Ganesha);

    #[test]
    #[ignore = "minutes: fault-injection/lab/run-all"]
    fn conformance() {
        super::conform(Kind::Ganesha);
    }
}

mod ceph_fuse {
    faults!(Kind::CephFuse);

    #[test]
    #[ignore = "minutes: fault-injection/lab/run-all"]
    fn conformance() {
        super::conform(Kind::CephFuse);
    }

    #[test]
    #[ignore = "minutes: fault-injection/lab/run-all"]
    fn shut_out() {
        run(Kind::CephFuse, scenarios::shut_out);
    }
}

mod ceph_kernel {
    faults!(Kind::CephKernel);

    #[test]
    #[ignore = "minutes: fault-injection/lab/run-all"]
    fn conformance() {
        super::conform(Kind::CephKernel);
    }

    #[test]
    #[ignore = "minutes: fault-injection/lab/run-all"]
    fn shut_out() {
        run(Kind::CephKernel, scenarios::shut_out);
    }
}
