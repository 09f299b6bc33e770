#![no_main]

libfuzzer_sys::fuzz_target!(
    init: kaas_fuzz::seeds_only("producer_state"),
    |data: &[u8]| kaas_fuzz::producer_state(data)
);
