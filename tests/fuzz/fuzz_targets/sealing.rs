//! See `unlade_fuzz::sealing::sealing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::sealing::sealing(data));
