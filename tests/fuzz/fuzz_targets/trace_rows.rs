//! See `unlade_fuzz::targets::trace_rows`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::trace_rows(data));
