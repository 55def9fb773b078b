//! See `unlade_fuzz::targets::aead_chunks`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::aead_chunks(data));
