//! See `unlade_fuzz::targets::offload_presume`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::offload_presume(data));
