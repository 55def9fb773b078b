//! A software NIC: a device that works on the messages of TLS and NVMe/TCP on other cores while TCP
//! stays where it is, and the software above it.
//!
//! In the device, in the order that a frame meets it:
//! - [`classify`]: what a frame is, once its checksums are right;
//! - [`flow`]: flows and what their machines do.
//!
//! With the kernel's TCP: [`bump`]; TLS in front of other programs: [`terminator`].
#![forbid(unsafe_code)]

pub mod bump;
pub mod classify;
pub mod flow;
#[cfg(test)]
mod random;
pub mod terminator;
