//! See `unlade_fuzz::targets::channel_word`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::channel_word(data));
