#![no_main]

libfuzzer_sys::fuzz_target!(
    init: kaas_fuzz::seeds_only("recovery"),
    |data: &[u8]| kaas_fuzz::recovery(data)
);
