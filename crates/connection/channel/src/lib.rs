//! The authenticated channel between a balancer and its servers.
//!
//! - [`trust`]: mutual TLS: which peers are of the pool;
//! - [`role`]: which of them may act as a balancer;
//! - [`channel`]: frames over the connection, both ways.
#![forbid(unsafe_code)]

pub mod channel;
pub mod role;
pub mod trust;
