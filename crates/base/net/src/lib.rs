//! Packets, flows and the state of one TCP connection.
//!
//! Use it where packets are read or written in user space (a TAP device, a raw socket, a simulated
//! NIC), and where the state of a live TCP connection is a value that moves. Every packet is
//! untrusted: a parser returns an error and never panics.
//!
//! 1. [`packet`]: Ethernet, IPv4/IPv6 and TCP as checked views and parsed values;
//!    [`packet::classify`] finds the TCP segment of a frame, [`packet::Segment`] writes one;
//! 2. [`flow`]: [`FlowKey`], the 4-tuple that names a TCP connection;
//! 3. [`seq`]: [`SeqNumber`], which wraps and has no total order;
//! 4. [`state`]: the state of a connection's socket ([`state::TcpSnapshot`]) and of its TLS record
//!    layer ([`state::TlsSnapshot`]).
//!
//! ```
//! use unlade_net::packet::{Direction, Segment, TcpFlags, TcpOptions, classify};
//! use unlade_net::{FlowKey, SeqNumber};
//!
//! let segment = Segment {
//!     flow: FlowKey::new("10.0.0.9:40000".parse()?, "10.0.0.1:443".parse()?),
//!     direction: Direction::ToService,
//!     seq: SeqNumber(u32::MAX - 1),
//!     ack: SeqNumber(7),
//!     flags: TcpFlags::ACK,
//!     window: 512,
//!     options: TcpOptions::default(),
//!     payload: b"hello",
//! };
//! let frame = segment.ethernet_frame([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])?;
//!
//! let found = classify(&frame).ok_or("no TCP segment")?;
//! assert_eq!((found.flow, found.payload_bytes), (segment.flow, 5));
//! let next = found.seq + found.sequence_bytes();
//! assert_eq!(next, SeqNumber(3)); // numbers wrap
//! assert!(found.seq.before(next));
//! assert_eq!(classify(&frame[..30]), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! No I/O, no thread, no `unsafe`. No reassembly of fragments, no UDP; IPv6 extension headers up to
//! [`packet::EXTENSIONS_MAX`]. Secrets in a TLS snapshot are wiped when it is dropped.
#![forbid(unsafe_code)]

pub mod flow;
pub mod packet;
pub mod seq;
pub mod state;

pub use flow::FlowKey;
pub use seq::SeqNumber;
