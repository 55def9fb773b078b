//! TLS records above the host's own TCP, sealed and opened by the device, by software, or by whichever
//! can. Keys come from a handshake that was done elsewhere.
//!
//! - [`keys`]: keys of one direction, and what software does with them;
//! - [`send`]: plaintext becomes records, kept until they are acknowledged;
//! - [`receive`]: records become plaintext, whatever the device has done to them.

pub mod keys;
pub mod receive;
pub mod send;

/// Who seals and opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Software does; the device only cuts and joins segments.
    Software,
    /// The device does, and software what the device could not.
    Offload,
}
