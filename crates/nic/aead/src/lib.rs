//! AES-GCM for records, and CRC32C for messages, that are processed in chunks.
//!
//! A network device processes packets. A record begins within one packet and ends within another;
//! a packet is lost, and the next one is retransmitted. The state between two chunks is therefore
//! a value ([`Progress`], at most 64 bytes): it stops after any byte, can be copied, continues
//! later, or starts in the middle ([`Progress::part`]); adjacent parts are combined
//! ([`Key::combine`]).
//!
//! - [`key`]: a key with its round keys and powers of the hash key, and its operations;
//! - [`progress`]: the state of one message;
//! - [`backend`]: the processor instructions, chosen at run time; `engine` is a key of one
//!   backend: `vaes512` (sixteen blocks at a time), `lanes` with `x86_64` or `aarch64` (eight),
//!   over the round keys and powers of `schedule`; `portable` (the RustCrypto crates, also the
//!   reference for the others);
//! - [`crc32c`]: the checksum of NVMe/TCP and iSCSI;
//! - [`checksum`]: partial sums of the Internet checksum.
//!
//! The feature `baseline` adds aws-lc's incremental interface, for measurements.
//!
//! The crate is independent of TLS and NVMe: the caller supplies nonces and additional data, and
//! decides on bytes that were decrypted before their tag was verified. The run time depends on
//! lengths and offsets, never on keys or data. Nonces are 96 bits, tags 128.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod backend;
#[cfg(feature = "baseline")]
pub mod baseline;
pub mod checksum;
mod chunk;
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
