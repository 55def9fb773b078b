//! The foundation of every long-running command.
//!
//! In the order in which a process uses them:
//! - [`logs`]: the log of the process;
//! - [`listen`]: its sockets, one listener per worker; [`holder`]: the process that uses an
//!   address;
//! - [`workers`]: a thread per core, each with its own runtime; a request never crosses threads;
//! - [`ticker`]: a common tick for periodic work;
//! - [`control`]: run, drain, stop, reload, for all workers;
//! - [`admin`]: `/metrics`, `/healthz`, `/version`, on their own thread;
//! - [`identity`]: a certificate and its key, from files;
//! - [`handshake`]: from an accepted socket to an established TLS connection;
//! - [`stream`]: a client connection, plain or TLS, with records that a device may take over;
//! - [`descriptors`]: file descriptors passed to another process;
//! - [`limits`]: resource limits of the process;
//! - [`system`]: errors that stop a command; [`restart`]: pauses before a restart.
//!
//! Deliberately absent: work stealing, locks in the request path, and process-wide state other
//! than the log subscriber and the panic hook.
#![forbid(unsafe_code)]

pub mod admin;
pub mod control;
pub mod descriptors;
pub mod handshake;
pub mod holder;
pub mod identity;
pub mod limits;
pub mod listen;
pub mod logs;
mod offloaded;
pub mod restart;
mod stall;
pub mod stream;
pub mod system;
pub mod ticker;
pub mod workers;

pub use control::{Control, Phase, Watch};
pub use stream::Stream;
pub use workers::{Ended, WorkerInfo, WorkersConfig, WorkersError, run_workers};
