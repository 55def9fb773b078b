//! A small zero-copy TCP that keeps the device's metadata of each segment. Sans-IO: segments,
//! buffers and the time are arguments.
//!
//! ```text
//!  received: Header + buffers ──► connection/arrive ──► receive (in order? first bytes win) ──► read()
//!                                        │
//!                                        ▼ acknowledge ──► recover (lost?), rtt, congestion
//!  send(buffer) ──► send (queue) ──► connection/transmit ──► Transmit: header + gather list
//! ```
//! Output is a *super-segment* of up to 64 KiB, which the device or driver segments into packets.
//! Input may be several coalesced segments. Buffers are any [`Payload`]; metadata of the device
//! remains attached when a buffer is divided. [`Stack`] demultiplexes segments to connections,
//! listens, and keeps the timers of all connections.
//!
//! It does not build packets: addresses, checksums and segmentation belong to the device. There is
//! no urgent data, no ECN, no path MTU discovery, no TCP Fast Open.
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
