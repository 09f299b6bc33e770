//! All targets in one program: which one is said by the environment, see `fuzz/run`.
#![no_main]

use std::sync::OnceLock;

static TARGET: OnceLock<kaas_fuzz::Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        TARGET.get_or_init(kaas_fuzz::chosen);
    },
    |data: &[u8]| TARGET.get_or_init(kaas_fuzz::chosen)(data)
);
