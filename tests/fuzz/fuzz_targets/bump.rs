//! See `unlade_fuzz::targets::bump`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::bump(data));
