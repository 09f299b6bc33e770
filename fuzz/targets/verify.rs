#![no_main]

libfuzzer_sys::fuzz_target!(
    init: kaas_fuzz::seeds_only("verify"),
    |data: &[u8]| kaas_fuzz::verify(data)
);
