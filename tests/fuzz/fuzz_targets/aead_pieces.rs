//! See `unlade_fuzz::targets::aead_pieces`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::aead_pieces(data));
