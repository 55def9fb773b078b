//! The protocol between a function instance and its host, version 1 (`docs/guest-protocol.md`),
//! and the one between the gateway and the worker of a tenant.
//!
//! Modules, in the order in which an instance uses them:
//! - [`control`]: the messages between gateway and worker;
//! - [`frame`]: the channel between guest and host: greeting, wake-ups, invocations;
//! - [`region`]: the header of the shared memory, and the offsets of its words;
//! - [`descriptor`]: submissions and completions, 64 bytes each;
//! - [`invocation`]: heads of INVOKE and REPLY.
//!
//! Integers are little-endian. This crate does not access shared memory: it decodes copies.
#![forbid(unsafe_code)]

pub mod control;
pub mod descriptor;
pub mod frame;
pub mod invocation;
pub mod region;

pub use descriptor::{Completion, Operation, Status, Submission};
pub use frame::{Deframer, Frame};
pub use invocation::{HandlerStatus, InvokeHead, ReplyHead};
pub use region::{Extent, Header, Layout};

use unlade_bytes::DecodeError;

/// The version of the protocol.
pub const VERSION: u16 = 1;

/// Reads the `N` bytes of a little-endian integer at `at`.
fn le<const N: usize>(input: &[u8], at: usize) -> Result<[u8; N], DecodeError> {
    let found = input.get(at..at.saturating_add(N)).ok_or(DecodeError::Truncated)?;
    found.try_into().map_err(|_| DecodeError::Truncated)
}

fn u16_at(input: &[u8], at: usize) -> Result<u16, DecodeError> {
    le(input, at).map(u16::from_le_bytes)
}

fn u32_at(input: &[u8], at: usize) -> Result<u32, DecodeError> {
    le(input, at).map(u32::from_le_bytes)
}

fn u64_at(input: &[u8], at: usize) -> Result<u64, DecodeError> {
    le(input, at).map(u64::from_le_bytes)
}

/// Splits at the zero byte after a JSON text. JSON contains no zero byte (RFC 8259 §7).
fn split_head(content: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(0, content) {
        Some(at) => (&content[..at], &content[at + 1..]),
        None => (content, &[]),
    }
}
