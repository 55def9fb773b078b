//! See `unlade_fuzz::targets::http_event`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::http_event(data));
