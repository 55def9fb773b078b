//! A small zero-copy TCP that keeps the device's metadata of each segment. Segments, buffers and
//! the time are arguments.
//!
//! Use it above a device or driver that takes *super-segments* and gives metadata with received
//! bytes, and in simulations that need a real TCP without sockets. Use `smoltcp` for embedded
//! systems, and the kernel's TCP for everything else; no product uses this one.
//!
//! ```text
//!  received: Header + buffers ─► connection/arrive ─► receive (in order? first wins) ─► read()
//!                                       │
//!                                       ▼ acknowledge ──► recover (lost?), rtt, congestion
//!  send(buffer) ──► send (queue) ──► connection/transmit ──► Transmit: header + gather list
//! ```
//!
//! 1. [`Stack`] demultiplexes segments to connections, listens, and keeps the timers of all
//!    connections; [`Connection`] is one of them, of use alone;
//! 2. [`Header`] and buffers of any [`Payload`] are a received segment; [`Transmit`] and a gather
//!    list are one to send;
//! 3. [`Config`] and [`Algorithm`] (CUBIC, NewReno) are its settings, [`Stats`] its counters.
//!
//! ```
//! use bytes::Bytes;
//! use unlade_research_tcp::{Config, Connection, SeqNumber, Time};
//!
//! let now = Time::from_ms(1);
//! let mut gather = Vec::new();
//! let mut near: Connection<Bytes> = Connection::connect(Config::default(), now, SeqNumber(1));
//! let syn = near.poll_transmit(now, &mut gather).ok_or("no SYN")?.header;
//! let mut far: Connection<Bytes> =
//!     Connection::accept(Config::default(), now, SeqNumber(2), &syn).ok_or("no SYN")?;
//!
//! near.send(Bytes::from_static(b"hello"))?; // kept without a copy until it is acknowledged
//! // The "wire": each end's segments are given to the other one.
//! for _ in 0..4 {
//!     while let Some(segment) = far.poll_transmit(now, &mut gather) {
//!         near.receive(now, &segment.header, &mut gather.clone());
//!     }
//!     while let Some(segment) = near.poll_transmit(now, &mut gather) {
//!         far.receive(now, &segment.header, &mut gather.clone());
//!     }
//! }
//! assert!(near.is_established() && far.is_established());
//! assert_eq!(far.read().map(|(_, bytes)| bytes), Some(Bytes::from_static(b"hello")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Output is a *super-segment* of up to 64 KiB, which the device or driver segments into packets.
//! Input may be several coalesced segments. Metadata of the device remains attached when a buffer
//! is divided ([`Marked`]).
//!
//! # Limits
//! It does not build packets: addresses, checksums and segmentation belong to the device. There is
//! no urgent data, no ECN, no path MTU discovery, no TCP Fast Open. No I/O, no thread, no clock, no
//! `unsafe`.
#![forbid(unsafe_code)]

#[cfg(test)]
mod ablation_tests;
mod algorithm;
mod config;
mod congestion;
mod connection;
mod cubic;
mod id;
mod isn;
mod listen;
#[cfg(test)]
mod network;
mod new_reno;
mod options;
mod payload;
mod receive;
mod recover;
mod rtt;
mod rule;
mod segment;
mod send;
mod stack;
mod stats;
mod time;

pub use algorithm::Algorithm;
pub use config::{BUFFER_BYTES_MAX, Config, MSS_BYTES_MIN};
pub use congestion::{CONGESTION_WINDOW_BYTES_MAX, Congestion};
pub use connection::{CHALLENGES_PER_S_MAX, Connection, ConnectionError, State};
pub use cubic::Cubic;
pub use id::Id;
pub use isn::InitialSequence;
pub use new_reno::NewReno;
pub use options::{HEADER_BYTES_MAX, HEADER_BYTES_MIN, WINDOW_SCALE_MAX};
pub use payload::{Marked, Payload};
pub use receive::{OUT_OF_ORDER_CHUNKS_MAX, RECEIVE_CHUNKS_MAX};
pub use recover::SCOREBOARD_ENTRIES_MAX;
pub use segment::{Header, Range, SACK_BLOCKS_MAX, SackBlocks, Timestamps, Transmit};
pub use send::SendError;
pub use stack::{
    Accepting, ConnectError, ListenError, Outgoing, STRAY_RESETS_MAX, Stack, StackConfig,
};
pub use stats::Stats;
pub use time::Time;
pub use unlade_net::SeqNumber;
