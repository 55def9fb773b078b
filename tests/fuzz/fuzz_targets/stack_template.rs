//! See `unlade_fuzz::targets::stack_template`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::stack_template(data));
