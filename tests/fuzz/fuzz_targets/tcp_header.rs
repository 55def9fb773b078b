//! See `unlade_fuzz::targets::tcp_header`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::tcp_header(data));
