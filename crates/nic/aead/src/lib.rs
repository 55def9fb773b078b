//! AES-GCM for who sees a record in pieces, and CRC32C for who sees a message in pieces.
//!
//! A network device works on packets. A record begins somewhere in one packet and ends somewhere in
//! another; one packet is lost, the next is sent again. So the state between two pieces is a value
//! ([`Progress`], at most 64 bytes): it stops after any byte, is copied, goes on later, or starts
//! in the middle ([`Progress::part`]); neighbouring parts are put together ([`Key::combine`]).
//!
//! - [`key`]: a key with its round keys and powers of the hash key, and what is done with it;
//! - [`progress`]: how far one message has come;
//! - [`backend`]: the instructions that do it, chosen at run time; `engine` is a key of one of them:
//!   `vaes512` (sixteen blocks at a time), `lanes` with `x86_64` or `aarch64` (eight), over the
//!   round keys and powers of `schedule`; `portable` (the RustCrypto crates, also what the others
//!   are compared with);
//! - [`crc32c`]: the checksum of NVMe/TCP and iSCSI;
//! - [`checksum`]: the sums of TCP's.
//!
//! With the feature `baseline` there is aws-lc's incremental interface too, for measurements.
//!
//! Nothing here knows of TLS or NVMe: nonces and additional data come from the caller, and so does
//! the decision what to do with bytes that were decrypted before their tag was seen. Time depends
//! on lengths and offsets, never on keys or data. Nonces are 96 bits, tags 128.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod backend;
#[cfg(feature = "baseline")]
pub mod baseline;
pub mod checksum;
pub mod crc32c;
mod engine;
pub mod key;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
mod portable;
pub mod progress;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod schedule;
#[cfg(target_arch = "x86_64")]
mod vaes512;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use backend::Backend;
pub use key::{Forged, Key, KeyError, NotNeighbours, Tag};
pub use progress::{DATA_BYTES_MAX, Progress};
