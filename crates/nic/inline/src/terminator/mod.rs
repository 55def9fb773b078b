//! TLS in front of programs that speak none, over the host's TCP, with the crypto on the engine's
//! core: `unlade nic run`.
//!
//! - [`config`]: what is terminated, what is originated, and over which devices;
//! - [`devices`]: the TAP device, its addresses, the wire;
//! - [`handshake`]: either side's, over a socket, counting bytes;
//! - [`stream`]: an established connection, offloaded or not;
//! - [`mod@file`]: what such a connection sends of a file, without a copy;
//! - [`relay`]: between it and a plain one;
//! - `live`: the configuration of new connections, and its reload;
//! - `seldom`: log lines that peers can cause, at a limited rate;
//! - [`metrics`]: what is counted;
//! - [`run`](mod@run): the process.

pub mod config;
pub mod devices;
pub mod file;
pub mod handshake;
mod live;
pub mod metrics;
pub mod relay;
pub mod run;
mod seldom;
pub mod stream;
#[cfg(test)]
mod tests;

pub use config::{Config, ConfigError};
pub use run::{RunError, run};
