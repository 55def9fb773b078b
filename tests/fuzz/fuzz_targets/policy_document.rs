//! See `unlade_fuzz::targets::policy_document`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::policy_document(data));
