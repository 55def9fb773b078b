//! See `unlade_fuzz::targets::nvme_initiator`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::nvme_initiator(data));
