//! Bytes and their meaning, without I/O: what crosses a link or a channel.
//!
//! Stages, in the order a connection meets them:
//! - [`packet`]: Ethernet, IPv4/IPv6 and TCP as checked views and values; [`SeqNumber`];
//! - [`flow`]: the 4-tuple that names a TCP connection;
//! - [`http`]: strict HTTP/1.1 heads and body framing;
//! - [`snapshot`]: the state of one connection between two owners;
//! - [`frame`]: the control channel between balancer and server;
//! - [`nvme`]: NVMe over TCP;
//! - [`guest`]: between a function instance, its host and the gateway.
//!
//! Everything decoded here is hostile: a decoder returns an error, never panics, and allocates
//! no more than its named limits.
#![forbid(unsafe_code)]

pub mod codec;
pub mod flow;
pub mod frame;
pub mod guest;
pub mod http;
pub mod nvme;
pub mod packet;
pub mod seq;
pub mod snapshot;

pub use flow::FlowKey;
pub use seq::SeqNumber;
