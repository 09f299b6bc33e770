//! A faulty substrate without a fault is as good as what it wraps.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use kaas_fault_injection::faulty::{Faulty, Rules};
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
