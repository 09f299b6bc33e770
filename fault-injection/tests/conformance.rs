//! Volumes that fail when they are told to are as good as any other until then, and so is what each simulated host sees.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use kaas_fault_injection::faulty::{Faulty, Odds, Rules, Seeded};
use kaas_fault_injection::simulated::{Profile, Simulation, seeded};
use kaas_substrate::conformance::{Hosts, run};
use kaas_substrate::{Memory, Substrate};

#[test]
fn without_a_rule_everything_passes() {
    let failed = run(|| {
        let memory: Arc<dyn Substrate> = Arc::new(Memory::new());
        let first = Arc::new(Faulty::new(Arc::clone(&memory), Rules::new([])));
        // By seed, and nothing ever happens.
        let second = Arc::new(Faulty::new(Arc::clone(&memory), Seeded::new(1, Odds::default())));
        Hosts { first, second }
    });
    assert!(failed.is_empty(), "{failed:?}");
}

fn conforms(profile: &Profile, second: usize) {
    let mut seed = 0;
    let failed = run(|| {
        seed += 1;
        let simulation = Simulation::new(profile.clone(), seeded(seed));
        let second = Arc::new(Faulty::new(simulation.host(second), Rules::new([])));
        Hosts { first: simulation.host(0), second }
    });
    assert!(failed.is_empty(), "{profile:?}: {failed:#?}");
}

#[test]
fn every_simulated_file_system_is_a_volume_for_the_processes_of_one_host() {
    for profile in [Profile::local(), Profile::nfs(), Profile::cephfs()] {
        conforms(&profile, 0);
    }
}

#[test]
fn every_simulated_shared_file_system_is_a_volume_for_two_hosts() {
    for profile in [Profile::nfs(), Profile::cephfs()] {
        conforms(&profile, 1);
    }
}
