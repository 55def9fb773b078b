//! See `unlade_fuzz::targets::notifications`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::notifications(data));
