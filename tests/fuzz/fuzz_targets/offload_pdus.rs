//! See `unlade_fuzz::targets::offload_pdus`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::offload_pdus(data));
