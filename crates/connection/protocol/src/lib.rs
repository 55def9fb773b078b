//! The messages about a connection between a balancer and a server, as bytes.
//!
//! Use it to write an agent or a balancer that speaks Unlade's control protocol over any transport;
//! the crate `unlade-channel` is the transport that Unlade uses. All input is hostile: a decoder
//! returns an error, never panics, and allocates no more than its named limits.
//!
//! 1. [`snapshot`]: the state of one connection between two owners: TCP, TLS and unread input;
//! 2. [`frame`]: the frames of the control channel, and a [`frame::Deframer`] for received bytes.
//!
//! ```
//! use unlade_handoff_protocol::frame::{ConnectionId, Deframer, Epoch, Frame};
//!
//! let id = ConnectionId(7);
//! let (restore_tcp_ns, restore_tls_ns, held_ns) = (90_000, 12_000, 0);
//! let ready = Frame::Ready { id, epoch: Epoch(1), restore_tcp_ns, restore_tls_ns, held_ns };
//! let mut bytes = Vec::new();
//! ready.encode(&mut bytes);
//!
//! // Bytes arrive in any pieces.
//! let mut deframer = Deframer::default();
//! deframer.push(&bytes[..3]);
//! assert_eq!(deframer.next_frame()?, None);
//! deframer.push(&bytes[3..]);
//! assert_eq!(deframer.next_frame()?, Some(ready));
//!
//! // A length above the limit is refused before its bytes are waited for.
//! deframer.push(&[0xff; 8]);
//! assert!(deframer.next_frame().is_err());
//! # Ok::<(), unlade_bytes::DecodeError>(())
//! ```
//!
//! # Limits
//! Both ends must have the same [`frame::PROTOCOL_VERSION`]. A frame has at most
//! [`frame::FRAME_BYTES_MAX`] bytes. Secrets are wiped when a snapshot is dropped; the transport
//! must encrypt them. No I/O, no thread, no `unsafe`.
#![forbid(unsafe_code)]

pub mod frame;
pub mod snapshot;
