//! Reads over NVMe/TCP above the host's own TCP: whose data the device has put where it belongs, and
//! whose digests it has checked, so that the host only looks at headers.
//!
//! - [`capsule`]: a command to read, and its completion, in octets;
//! - [`reader`]: PDUs that come, and what becomes of commands; sans-IO;
//! - [`initiator`]: over a connection of a [`Stack`](crate::stack::Stack).

pub mod capsule;
pub mod initiator;
pub mod reader;

#[cfg(test)]
mod tests;
