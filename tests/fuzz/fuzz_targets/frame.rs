//! See `unlade_fuzz::targets::frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::frame(data));
