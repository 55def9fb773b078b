//! See `unlade_fuzz::targets::stack_request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::stack_request(data));
