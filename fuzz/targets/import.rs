#![no_main]

libfuzzer_sys::fuzz_target!(
    init: kaas_fuzz::seeds_only("import"),
    |data: &[u8]| kaas_fuzz::import(data)
);
