//! See `unlade_fuzz::targets::copyd_message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::copyd_message(data));
