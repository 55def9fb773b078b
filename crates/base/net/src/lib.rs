//! Packets, flows and the state of one TCP connection. No I/O.
//!
//! - [`packet`]: Ethernet, IPv4/IPv6 and TCP as checked views and parsed values;
//! - [`seq`]: sequence numbers ([`SeqNumber`]);
//! - [`flow`]: the 4-tuple that names a TCP connection ([`FlowKey`]);
//! - [`state`]: the state of a connection's socket and of its TLS record layer.
//!
//! Every packet is untrusted: a parser returns an error and never panics.
#![forbid(unsafe_code)]

pub mod flow;
pub mod packet;
pub mod seq;
pub mod state;

pub use flow::FlowKey;
pub use seq::SeqNumber;
