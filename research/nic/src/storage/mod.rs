//! NVMe/TCP above the host's own TCP: reads whose data the device has put where it belongs and whose
//! digests it has checked, so that the host only looks at headers; writes whose data goes down as it
//! lies, and whose digests the device fills in; both below TLS too.
//!
//! Down:
//! - [`capsule`]: commands, and what comes for them, by headers;
//! - [`open`]: the first PDUs of a connection;
//! - [`writer`]: data that the controller asks for; sans-IO;
//! - [`frame`]: a PDU in bytes;
//! - [`send`]: PDUs for TCP, kept until they have arrived; [`sealed`]: in records that the device seals.
//!
//! Up:
//! - [`reader`]: PDUs that come, and what becomes of commands; sans-IO.
//!
//! Both: [`initiator`], over a connection of a [`Stack`](crate::stack::Stack).

pub mod capsule;
pub mod frame;
pub mod initiator;
pub mod open;
pub mod reader;
pub mod sealed;
pub mod send;
pub mod writer;

#[cfg(test)]
mod tests;
