//! See `unlade_fuzz::targets::offload_rx`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::offload_rx(data));
