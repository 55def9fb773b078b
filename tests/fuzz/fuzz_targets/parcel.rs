//! See `unlade_fuzz::targets::parcel`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| unlade_fuzz::targets::parcel(data));
