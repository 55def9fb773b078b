//! See `unlade_fuzz::targets::copyd_why`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::copyd_why(data));
