//! The service as a process of its own: `unlade copyd`. It shares memory with its clients, and
//! does not trust the contents of that memory.
//!
//! Modules, in the order in which a client reaches them:
//! - `config`: the configuration file;
//! - `listen`: the socket, and the permitted clients;
//! - [`message`], [`socket`]: the messages on the socket;
//! - `closer`: the thread that closes a client's descriptors;
//! - `session`: one client from HELLO to its end;
//! - `sockets`: the sockets that the client has passed, and the thread that uses them;
//! - `weight`: the client's share of the service;
//! - `serve`: the process: one control thread for all sessions, the copy threads, and the
//!   shutdown.
//!
//! Without the feature `daemon` only `message` and `socket` are built; clients need no more.

#[cfg(feature = "daemon")]
mod closer;
#[cfg(feature = "daemon")]
pub mod config;
#[cfg(feature = "daemon")]
mod listen;
pub mod message;
#[cfg(feature = "daemon")]
mod metrics;
#[cfg(feature = "daemon")]
pub mod serve;
#[cfg(feature = "daemon")]
mod session;
pub mod socket;
#[cfg(feature = "daemon")]
mod sockets;
#[cfg(feature = "daemon")]
mod weight;

#[cfg(feature = "daemon")]
pub use config::{ConfigError, DaemonConfig};
#[cfg(feature = "daemon")]
pub use listen::BindError;
#[cfg(feature = "daemon")]
pub use metrics::families as metric_families;
#[cfg(feature = "daemon")]
pub use serve::{Daemon, DaemonError, run};
#[cfg(feature = "daemon")]
pub use weight::KernelFiles;

/// Default path of the daemon's socket.
pub const SOCKET: &str = "/run/unlade/copyd.sock";
