//! The chassis every long-running command stands on.
//!
//! In the order a process meets them:
//! - [`logs`]: where the process says what it does;
//! - [`listen`]: its sockets, one listener a worker; [`holder`]: who has an address in use;
//! - [`workers`]: a thread a core, each with a runtime of its own; nothing on the way of a
//!   request crosses threads;
//! - [`beat`]: when what happens from time to time happens;
//! - [`control`]: run, drain, stop, reload: the few things every worker is told;
//! - [`admin`]: `/metrics`, `/healthz`, `/version`, on a thread of their own;
//! - [`handshake`]: from an accepted socket to an established TLS connection;
//! - [`stream`]: a client connection, plain or TLS, whose records a device may take over;
//! - [`descriptors`]: files that are handed to another process;
//! - [`system`]: why a command does not run; [`restart`]: when what has ended is started again.
//!
//! What is absent: no work stealing, no lock on the way of a request, no process-wide state but
//! the log subscriber and the panic hook.
#![forbid(unsafe_code)]

pub mod admin;
pub mod beat;
mod carried;
pub mod control;
pub mod descriptors;
pub mod handshake;
pub mod holder;
pub mod listen;
pub mod logs;
pub mod restart;
mod stall;
pub mod stream;
pub mod system;
pub mod workers;

pub use control::{Control, Phase, Watch};
pub use stream::Stream;
pub use workers::{Ended, WorkerInfo, WorkersConfig, WorkersError, run_workers};
