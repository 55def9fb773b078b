//! See `unlade_fuzz::targets::psk`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::psk(data));
