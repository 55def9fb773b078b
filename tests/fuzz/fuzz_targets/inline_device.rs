//! See `unlade_fuzz::targets::inline_device`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::inline_device(data));
