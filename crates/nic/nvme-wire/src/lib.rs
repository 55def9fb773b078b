//! NVMe over TCP: what a host and a controller say to each other.
//!
//! In the order in which a connection meets them:
//! - [`pdu`]: the units of the stream, their headers and where their parts are;
//! - [`command`]: submission and completion queue entries, and where a command's data is;
//! - [`opcode`], [`status`]: what is asked for, and how it ended;
//! - [`fabrics`]: connecting, properties, disconnecting;
//! - [`identify`]: what a controller and its namespaces are;
//! - [`discovery`]: which subsystems there are.
//!
//! Sources: "NVMe Base" is the NVM Express Base Specification 2.0, "NVMe/TCP" the TCP Transport
//! Specification 1.0, "NVM" the NVM Command Set Specification 1.0. All numbers are little-endian.
#![forbid(unsafe_code)]

pub mod command;
pub mod discovery;
pub mod fabrics;
mod field;
pub mod identify;
pub mod opcode;
pub mod pdu;
pub mod status;

pub use command::{Command, Completion, DataPlace};
pub use fabrics::Nqn;
pub use opcode::{AdminOpcode, FabricsType, IoOpcode};
pub use pdu::{CommonHeader, Digests, Layout, Pdu, PduError, PduKind};
pub use status::Status;

#[cfg(test)]
mod tests;
