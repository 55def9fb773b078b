//! The part of the protocol's software that belongs to the machines. In the order in which a
//! connection uses it:
//! - [`sent`]: messages that were sent, until they are acknowledged whole;
//! - [`runs`]: the same, where TCP has their bytes;
//! - [`boundaries`]: where received messages start, for the device's questions;
//! - [`records`]: received TLS records, of which the device has decrypted all, some or nothing;
//! - [`open`]: what is left to do for one of them;
//! - [`doubt`]: which copy TCP has kept of what the device has delivered twice;
//! - [`pdus`]: received NVMe/TCP PDUs, checked and placed likewise;
//! - [`composed`]: both, where PDUs are in records.

pub mod boundaries;
pub mod composed;
pub mod doubt;
pub mod open;
pub mod pdus;
pub mod records;
pub mod runs;
pub mod sent;
