//! NVMe/TCP above the host's own TCP, also below TLS. Reads: the device has placed the data and
//! verified the digests, so that the host processes only headers. Writes: the data is not copied,
//! and the device fills in the digests.
//!
//! The sending side:
//! - [`capsule`]: commands, and the headers of the PDUs that answer them;
//! - [`open`]: the first PDUs of a connection;
//! - [`writer`]: data that the controller requests; sans-IO;
//! - [`frame`]: the encoding of a PDU;
//! - [`send`]: PDUs for TCP, kept until acknowledged; [`sealed`]: in records that the device
//!   seals.
//!
//! The receiving side:
//! - [`reader`]: received PDUs, and the states of commands; sans-IO.
//!
//! Both: [`initiator`], over a connection of a [`Stack`](crate::stack::Stack).

pub mod capsule;
pub mod error;
pub mod frame;
pub mod initiator;
mod kept;
pub mod open;
pub mod reader;
pub mod sealed;
pub mod send;
pub mod writer;

#[cfg(test)]
mod tests;
