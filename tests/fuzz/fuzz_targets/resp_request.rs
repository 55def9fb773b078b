//! See `unlade_fuzz::targets::resp_request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::resp_request(data));
