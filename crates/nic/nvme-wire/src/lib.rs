//! Wire format of NVMe over TCP.
//!
//! In the order in which a connection uses them:
//! - [`pdu`]: PDUs, their headers and layout;
//! - [`command`]: submission and completion queue entries, and data descriptors;
//! - [`opcode`], [`status`]: opcodes and completion status;
//! - [`fabrics`]: Connect, properties, Disconnect;
//! - [`identify`]: properties of a controller and its namespaces;
//! - [`discovery`]: the discovery log page.
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
