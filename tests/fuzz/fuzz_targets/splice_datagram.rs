//! See `unlade_fuzz::splice::splice_datagram`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::splice::splice_datagram(data));
