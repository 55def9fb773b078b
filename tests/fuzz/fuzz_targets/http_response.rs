//! See `unlade_fuzz::targets::http_response`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::http_response(data));
