//! The NIC engine inline: TLS of the kernel's TCP connections, done on another core while the packets
//! pass.
//!
//! - [`bump`]: the device between the kernel's stack and the link, and its side of a connection;
//! - [`terminator`]: TLS in front of other programs (`unlade nic run`);
//! - [`classify`]: what a frame is, once its checksums are right;
//! - [`impair`]: bad lines; [`capture`]: files of what passes.
#![forbid(unsafe_code)]

pub mod bump;
pub mod capture;
pub mod classify;
pub mod impair;
pub mod terminator;
