//! The foundation of a long-running command: a thread for each core, listeners, reload and drain,
//! the admin endpoint, and client streams.
//!
//! Use it for a server whose connections stay on the thread that accepted them. One call,
//! [`run_workers`], starts the threads, handles SIGTERM, SIGINT and SIGHUP, and returns when all
//! workers have ended. There is no work stealing, no lock on the way of a request, and no
//! process-wide state other than the log subscriber and the panic hook.
//!
//! In the order in which a process uses them:
//! - [`logs`]: the log of the process;
//! - [`listen`]: its sockets, one listener for each worker; [`holder`]: the process that uses an
//!   address;
//! - [`workers`]: a thread for each core, each with its own runtime; a request never crosses
//!   threads;
//! - [`ticker`]: a common tick for periodic work;
//! - [`control`]: run, drain, stop, reload, for all workers;
//! - [`admin`]: `/metrics`, `/healthz`, `/version`, on their own thread;
//! - [`identity`]: a certificate and its key, from files;
//! - [`handshake`]: from an accepted socket to an established TLS connection;
//! - [`stream`]: a client connection, plain or TLS, with records that a device may take over;
//!   [`peer`]: notices that its peer has sent something or is gone;
//! - [`descriptors`]: file descriptors passed to another process;
//! - [`limits`]: resource limits of the process;
//! - [`system`]: errors that stop a command; [`restart`]: pauses before a restart.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use unlade_runtime::listen::{ListenOptions, tcp};
//! use unlade_runtime::{Control, Ended, Phase, WorkersConfig, run_workers};
//!
//! // Here without signal handlers: `control` ends the workers.
//! let config = WorkersConfig { threads: 2, signals: false, ..WorkersConfig::new("example") };
//! let control = Control::new("greeting = 1".to_owned());
//! let reload = || Ok::<_, Infallible>("greeting = 2".to_owned()); // what SIGHUP calls
//!
//! control.drain(); // what the first SIGTERM does
//! let ended = run_workers(&config, &control, reload, |worker, mut watch| async move {
//!     let listener = tcp("127.0.0.1:0".parse().unwrap(), &ListenOptions::default())?;
//!     assert!(worker.index < worker.count && *watch.config() == "greeting = 1");
//!     tokio::select! {
//!         _ = listener.accept() => unreachable!("nobody connects here"),
//!         () = watch.reached(Phase::Draining) => {} // accept no more; finish what was accepted
//!     }
//!     Ok::<(), unlade_runtime::listen::ListenError>(())
//! })?;
//! assert_eq!(ended, Ended::Finished);
//! # Ok::<(), unlade_runtime::WorkersError>(())
//! ```
//!
//! # Limits
//! Linux only; at most [`workers::WORKERS_MAX`] threads. A worker must not block: all its
//! connections would wait. A panic in any task ends the process with an error. No `unsafe`.
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
pub mod peer;
pub mod restart;
mod sealing;
mod stall;
pub mod stream;
pub mod system;
pub mod ticker;
pub mod workers;

pub use control::{Control, Phase, Watch};
pub use stream::Stream;
pub use workers::{Ended, WorkerInfo, WorkersConfig, WorkersError, run_workers};
