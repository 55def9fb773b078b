//! See `unlade_fuzz::targets::function_result`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::function_result(data));
