//! AES-GCM for records, and CRC32C for messages, that are processed in chunks.
//!
//! Use it where a message is sealed, opened or checked in pieces that arrive at different times,
//! more than once, or out of order. A network device processes packets: a record begins within one
//! packet and ends within another; a packet is lost, and the next one is retransmitted. The state
//! between two chunks is therefore a value ([`Progress`], at most 64 bytes): it stops after any
//! byte, can be copied, continues later, or starts in the middle ([`Progress::part`]); adjacent
//! parts are combined ([`Key::combine`]). Use aws-lc or ring for whole messages.
//!
//! 1. [`key`]: a [`Key`] with its round keys and powers of the hash key, and its operations;
//! 2. [`progress`]: the state of one message;
//! 3. [`backend`]: the processor instructions, chosen at run time; `engine` is a key of one
//!    backend: `vaes512` (sixteen blocks at a time), `lanes` with `x86_64` or `aarch64` (eight),
//!    over the round keys and powers of `schedule`; `portable` (the RustCrypto crates, also the
//!    reference for the others);
//! 4. [`crc32c`]: the checksum of NVMe/TCP and iSCSI;
//! 5. [`checksum`]: partial sums of the Internet checksum.
//!
//! ```
//! use unlade_aead::{Key, Progress};
//!
//! let key = Key::new(&[7; 16])?;
//! let (nonce, aad) = ([1; 12], b"header");
//! let mut record = *b"a record that is in two packets";
//!
//! // Sealed in two parts; the state between them may be kept, copied or sent elsewhere.
//! let mut at = key.begin(&nonce, aad);
//! let (first, second) = record.split_at_mut(13);
//! key.encrypt(&mut at, first);
//! key.encrypt(&mut at, second);
//! let tag = key.tag(&at);
//!
//! // Opened, although the second packet comes first.
//! let (first, second) = record.split_at_mut(13);
//! let mut end = Progress::part(&nonce, 13);
//! key.decrypt(&mut end, second);
//! let mut start = key.begin(&nonce, aad);
//! key.decrypt(&mut start, first);
//! let whole = key.combine(&start, &end)?;
//! key.verify(&whole, &tag.0)?;
//! assert_eq!(&record, b"a record that is in two packets");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The feature `baseline` adds aws-lc's incremental interface, for measurements.
//!
//! # Limits
//! The crate is independent of TLS and NVMe: the caller supplies nonces, each once, and additional
//! data, and decides on bytes that were decrypted before their tag was verified. Nonces are 96
//! bits, tags 128, messages at most [`DATA_BYTES_MAX`]. The run time depends on lengths and
//! offsets, never on keys or data. A [`Key`] may be shared between threads. No I/O. `unsafe` is in
//! vector instructions, each block with its proof; the Armv8 code ran in emulation only.

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
