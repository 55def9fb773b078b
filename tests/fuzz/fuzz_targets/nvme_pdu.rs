//! See `unlade_fuzz::targets::nvme_pdu`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::nvme_pdu(data));
