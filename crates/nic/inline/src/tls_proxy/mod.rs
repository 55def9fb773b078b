//! A TLS proxy for programs without TLS, over the host's TCP, with the crypto on the engine's
//! core: `unlade nic run`.
//!
//! - [`config`]: the listeners, and the devices;
//! - [`devices`]: the TAP device, its addresses, the wire;
//! - [`handshake`]: the handshakes of both sides, over a socket, with bytes counted;
//! - [`stream`]: an established connection, offloaded or not;
//! - [`mod@file`]: zero-copy sends from a file over such a connection;
//! - [`relay`]: the relay between it and a plain one;
//! - `live`: the configuration of new connections, and its reload;
//! - `rate_limit`: log lines that peers can cause, at a limited rate;
//! - [`metrics`]: the counters;
//! - [`run`](mod@run): the process.

pub mod config;
pub mod devices;
mod error;
pub mod file;
pub mod handshake;
mod live;
pub mod metrics;
mod rate_limit;
pub mod relay;
pub mod run;
pub mod stream;
#[cfg(test)]
mod tests;

pub use config::{Config, ConfigError};
pub use error::RunError;
pub use run::run;
