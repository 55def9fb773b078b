//! Packets, flows and the state of one TCP connection. No I/O.
//!
//! - [`packet`]: Ethernet, IPv4/IPv6 and TCP as checked views and parsed values;
//! - [`seq`]: sequence numbers ([`SeqNumber`]);
//! - [`flow`]: the 4-tuple that names a TCP connection ([`FlowKey`]);
//! - [`state`]: what a socket and its TLS record layer have to remember of a connection.
//!
//! Every packet is hostile: a parser returns an error and never panics.
#![forbid(unsafe_code)]

pub mod flow;
pub mod packet;
pub mod seq;
pub mod state;

pub use flow::FlowKey;
pub use seq::SeqNumber;
