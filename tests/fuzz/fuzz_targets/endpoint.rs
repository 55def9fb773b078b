//! See `unlade_fuzz::targets::endpoint`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::endpoint(data));
