//! Volumes that fail when they are told to are as good as any other until then.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use kaas_fault_injection::faulty::{Faulty, Rules};
use kaas_fault_injection::power::Volatile;
use kaas_substrate::conformance::{Hosts, run};
use kaas_substrate::{Memory, Substrate};

#[test]
fn without_a_rule_everything_passes() {
    let failed = run(|| {
        let memory: Arc<dyn Substrate> = Arc::new(Memory::new());
        let host = || Arc::new(Faulty::new(Arc::clone(&memory), Rules::new([])));
        Hosts { first: host(), second: host() }
    });
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn a_volume_that_can_lose_power_is_a_volume_until_then() {
    let failed = run(|| {
        let volume = Volatile::new();
        Hosts { first: Arc::new(volume.clone()), second: Arc::new(volume) }
    });
    assert!(failed.is_empty(), "{failed:?}");
}
