//! A software NIC: a device that works on the messages of TLS and NVMe/TCP on other cores while TCP
//! stays where it is, and the software above it.
//!
//! In the device, in the order that a frame meets it:
//! - [`classify`]: what a frame is, once its checksums are right;
//! - [`flow`]: flows and what their machines do.
#![forbid(unsafe_code)]

pub mod classify;
pub mod flow;
