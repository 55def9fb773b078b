//! The messages about a connection between a balancer and a server. No I/O.
//!
//! - [`snapshot`]: the state of one connection between two owners;
//! - [`frame`]: the frames of the control channel.
//!
//! All input is hostile: a decoder returns an error, never panics, and allocates no more than its
//! named limits.
#![forbid(unsafe_code)]

pub mod frame;
pub mod snapshot;
