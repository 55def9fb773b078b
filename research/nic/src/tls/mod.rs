//! TLS records above the host's own TCP, sealed and opened by the device or by software. Keys
//! come from a handshake outside this crate.
//!
//! - [`keys`]: keys of one direction, and their use in software;
//! - [`send`]: plaintext becomes records, kept until they are acknowledged;
//! - [`receive`]: records become plaintext, after any work of the device.

pub mod keys;
pub mod receive;
pub mod send;

/// The side that seals and opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Software; the device only segments and merges.
    Software,
    /// The device, and software for the rest.
    Offload,
}
