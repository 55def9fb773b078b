//! Wire format of NVMe over TCP: PDUs, commands and completions, as checked values.
//!
//! Use it to write an initiator, a target, a device or a dissector. Every parser checks each field
//! before its value is used, and names the field and its offset in its error, as the protocol wants
//! it in a termination request.
//!
//! In the order in which a connection uses them:
//! 1. [`pdu`]: PDUs, their headers and layout;
//! 2. [`command`]: submission and completion queue entries, and data descriptors;
//! 3. [`opcode`], [`status`]: opcodes and completion status;
//! 4. [`fabrics`]: Connect, properties, Disconnect;
//! 5. [`identify`]: properties of a controller and its namespaces;
//! 6. [`discovery`]: the discovery log page.
//!
//! ```
//! use unlade_nvme_wire::{Command, CommonHeader, DataPlace, Digests, IoOpcode, Pdu};
//!
//! // A read of 8 blocks from block 1000 of namespace 1, whose data comes in PDUs of its own.
//! let read = Command::build(IoOpcode::Read as u8, 7, 1)
//!     .with_blocks(1000, 8)
//!     .with_data(DataPlace::Transport { bytes: 8 * 4096 });
//! let capsule = Pdu::CommandCapsule(*read.as_bytes());
//! let bytes = capsule.without_data(Digests::NONE);
//!
//! let header = CommonHeader::parse(&bytes)?;
//! let Pdu::CommandCapsule(entry) = Pdu::parse(&header, &bytes)? else { panic!("a command") };
//! let found = Command::new(entry);
//! assert_eq!((found.id(), found.first_block(), found.block_count()), (7, 1000, 8));
//!
//! let error = CommonHeader::parse(&[0x77, 0, 8, 0, 8, 0, 0, 0]).unwrap_err();
//! let message = "PDU-Type at byte 0 of a PDU's header: 0x77 is not allowed there";
//! assert_eq!(error.to_string(), message);
//! # Ok::<(), unlade_nvme_wire::PduError>(())
//! ```
//!
//! Sources: "NVMe Base" is the NVM Express Base Specification 2.0, "NVMe/TCP" the TCP Transport
//! Specification 1.0, "NVM" the NVM Command Set Specification 1.0. All numbers are little-endian.
//!
//! # Limits
//! The subset that Unlade's initiator and target use: no reservations, no zoned namespaces, no
//! asymmetric access. Digests are computed elsewhere (crate `unlade-aead`). No I/O, no thread, no
//! `unsafe`.
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
