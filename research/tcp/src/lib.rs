//! A small TCP that copies nothing and keeps what a device says of each segment. Sans-IO: segments,
//! buffers and the time are arguments.
//!
//! ```text
//!  received: Header + buffers ──► connection/arrive ──► receive (in order? first bytes win) ──► read()
//!                                        │
//!                                        ▼ acknowledge ──► recover (lost?), rtt, congestion
//!  send(buffer) ──► send (queue) ──► connection/transmit ──► Transmit: header + gather list
//! ```
//! What leaves is a *super-segment*, up to 64 KiB: who sends it cuts it into packets. What is received
//! may be several segments in one. Buffers are any [`Payload`]; what a device has found out about their
//! bytes stays with them when they are divided. [`Stack`] finds the connection of a segment, listens,
//! and keeps everybody's timers.
//!
//! It does not make packets: addresses, checksums and cutting are the device's. There is no urgent
//! data, no ECN, no path MTU discovery, no TCP Fast Open.
#![forbid(unsafe_code)]

mod config;
mod congestion;
mod connection;
mod cubic;
mod isn;
mod listen;
#[cfg(test)]
mod mutants;
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

pub use config::{BUFFER_BYTES_MAX, Config, MSS_BYTES_MIN};
pub use congestion::{Algorithm, CONGESTION_WINDOW_BYTES_MAX, Congestion};
pub use connection::{CHALLENGES_PER_S_MAX, Connection, ConnectionError, State};
pub use cubic::Cubic;
pub use isn::InitialSequence;
pub use new_reno::NewReno;
pub use options::{HEADER_BYTES_MAX, HEADER_BYTES_MIN, WINDOW_SCALE_MAX};
pub use payload::{Marked, Payload};
pub use receive::{HELD_PIECES_MAX, RECEIVE_PIECES_MAX};
pub use recover::SCOREBOARD_ENTRIES_MAX;
pub use segment::{Header, Range, SACK_BLOCKS_MAX, SackBlocks, Timestamps, Transmit};
pub use send::SendError;
pub use stack::{
    Accepting, ConnectError, Id, ListenError, Outgoing, STRAY_RESETS_MAX, Stack, StackConfig,
};
pub use stats::Stats;
pub use time::Time;
pub use unlade_net::SeqNumber;
