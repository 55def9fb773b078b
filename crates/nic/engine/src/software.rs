//! The software part of the offload. In the order in which a connection uses it:
//! - [`sent`]: sent messages, until they are completely acknowledged;
//! - [`runs`]: the same, for messages whose bytes are stored by TCP;
//! - [`boundaries`]: message boundaries, for the device's resynchronisation requests;
//! - [`records`]: received TLS records, decrypted by the device completely, partly or not at all;
//! - [`open`]: decryption of a partly decrypted record;
//! - [`ambiguity`]: ambiguous delivery, in which the device delivered bytes both sealed and
//!   decrypted;
//! - [`pdus`]: received NVMe/TCP PDUs, with checked digests and placed data;
//! - [`composed`]: PDUs in records.

pub mod ambiguity;
pub mod boundaries;
pub mod composed;
pub mod open;
pub mod pdus;
pub mod records;
pub mod runs;
pub mod sent;
