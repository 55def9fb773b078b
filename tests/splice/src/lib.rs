//! Clients, a balancer and servers in virtual time: each socket is the TCP of `research/tcp`, and
//! the lines between the hosts lose, duplicate, delay and reorder packets.
//!
//! A client sends requests, also before earlier responses have arrived, and checks every byte of
//! the responses. The balancer takes a server's connection from a pool for each request and relays
//! the response, or begins a splice: before the request is sent (early: the server's host looks at
//! the response's head), or after it has relayed a part of the response (late).

#![forbid(unsafe_code)]

pub mod balancer;
pub mod client;
pub mod line;
pub mod message;
pub mod server;
pub mod simulation;

pub use line::Conditions;
pub use simulation::{Outcome, Plan, Simulation};
