//! See `unlade_fuzz::targets::tcp_connection`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::tcp_connection(data));
