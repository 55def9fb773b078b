//! The service as a process of its own: `unlade copyd`. It shares memory with its clients, and
//! believes none of what they write there.
//!
//! In the order in which a client meets them:
//! - `config`: the file;
//! - `listen`: the socket, and who may connect;
//! - [`message`], [`socket`]: what is said on it;
//! - `session`: one client from HELLO to its end;
//! - `weight`: how much of the service it gets;
//! - `serve`: the process: one control thread for all sessions, the threads that copy, the end.
//!
//! Only `message` and `socket` are there without the feature `daemon`: clients need no more.

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
mod weight;

#[cfg(feature = "daemon")]
pub use config::{ConfigError, DaemonConfig};
#[cfg(feature = "daemon")]
pub use listen::BindError;
#[cfg(feature = "daemon")]
pub use serve::{Daemon, DaemonError, run, run_from};

/// Where the daemon listens, unless it is told otherwise.
pub const SOCKET: &str = "/run/unlade/copyd.sock";
