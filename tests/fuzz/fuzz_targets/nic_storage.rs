//! See `unlade_fuzz::targets::nic_storage`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::nic_storage(data));
