//! The protocol between a function instance and its host, version 1 (`docs/guest-protocol.md`), and
//! the one between the gateway and the worker of a tenant, as bytes.
//!
//! Use it to write a guest in another language's runtime, or a host. Both ends share memory and a
//! stream; neither trusts the other. This crate does not access shared memory: it decodes copies.
//!
//! Modules, in the order in which an instance uses them:
//! - [`control`]: the messages between gateway and worker; [`notification`]: those between gateway and
//!   built-in store;
//! - [`frame`]: the channel between guest and host: greeting, wake-ups, invocations;
//! - [`region`]: the header of the shared memory, and the offsets of its words;
//! - [`descriptor`]: submissions and completions, 64 bytes each;
//! - [`request`]: the text of REQUEST and of its answer; [`request_keys`]: keys in it;
//! - [`invocation`]: heads of INVOKE and REPLY.
//!
//! ```
//! use unlade_guest_protocol::{Deframer, Extent, Frame, Layout, Operation, Submission};
//!
//! // The guest greets over the stream.
//! let mut bytes = Vec::new();
//! Frame::Hello { nonce: 7 }.encode(&mut bytes)?;
//! let mut deframer = Deframer::default();
//! deframer.push(&bytes);
//! assert_eq!(deframer.next_frame()?, Some(Frame::Hello { nonce: 7 }));
//!
//! // The host lays the shared region out; the guest finds its parts in the header.
//! let sizes = Layout { ring_entries: 64, meta_bytes: 1 << 16, guest_slots: 16, host_slots: 16 };
//! let header = sizes.header(1)?;
//! assert_eq!(unlade_guest_protocol::Header::decode(&header.encode())?, header);
//!
//! // A call is one line of the submission ring.
//! let call = Submission {
//!     call: 1,
//!     operation: Operation::Call,
//!     more: false,
//!     epoch: 1,
//!     meta_offset: 0,
//!     meta_bytes: 96,
//!     body: Extent { first_slot: 0, bytes: 0 },
//!     token: 0,
//! };
//! assert_eq!(Submission::decode(&call.encode())?, call);
//! # Ok::<(), unlade_bytes::DecodeError>(())
//! ```
//!
//! # Limits
//! Integers are little-endian. A frame has at most [`frame::FRAME_BYTES_MAX`] bytes, a region at
//! most [`region::REGION_BYTES_MAX`]. Every decoder returns an error for hostile input and never
//! panics. No I/O, no thread, no `unsafe`.
#![forbid(unsafe_code)]

pub mod control;
pub mod descriptor;
pub mod frame;
pub mod invocation;
pub mod notification;
pub mod region;
pub mod request;
mod request_error;
pub mod request_keys;

pub use descriptor::{Completion, Operation, Status, Submission};
pub use frame::{Deframer, Frame};
pub use invocation::{CallContext, HandlerStatus, InvokeHead, ReplyHead};
pub use region::{Extent, Header, Layout};
pub use request::{AnswerHead, RequestHead, RequestMethod};
pub use request_error::RequestError;

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
