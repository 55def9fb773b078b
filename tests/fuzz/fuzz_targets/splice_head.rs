//! See `unlade_fuzz::splice::splice_head`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::splice::splice_head(data));
