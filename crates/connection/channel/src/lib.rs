//! The authenticated channel between a balancer and its servers.
//!
//! - [`trust`]: mutual TLS: the members of a pool;
//! - [`role`]: the members that may act as a balancer;
//! - [`channel`]: frames over the connection, both ways.
#![forbid(unsafe_code)]

pub mod channel;
pub mod role;
pub mod trust;
