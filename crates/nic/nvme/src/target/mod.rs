//! An NVMe/TCP target: it serves files and memory as namespaces.
//!
//! The modules, in the order in which a command meets them:
//! - [`config`]: the namespaces, and all limits;
//! - `serve`: the process: listeners, workers, signals, metrics;
//! - `connection`: one TCP connection, from ICReq to its end;
//! - `receive`: PDUs from the stream, with their digests verified;
//! - [`identity`]: the identities of namespaces and subsystems, kept beside the images;
//! - `subsystem`: associations of connections, and their controllers;
//! - `controller`: the commands of the admin queue (sans-IO);
//! - `io`: validation of a command of an I/O queue (sans-IO);
//! - `transfer`: the data of writes that the target requests (R2T; sans-IO);
//! - `queue`: the running commands, their share of memory, and their answers;
//! - `namespace`, `ram`: the storage of the blocks;
//! - `send`: PDUs to the stream, without a copy of the data.
//!
//! Hosts are not trusted: a violation ends the connection, or fails its command, and is counted.
//! Specifications: see [`unlade_nvme_wire`].

pub mod config;
mod connection;
mod controller;
mod counters;
pub mod identity;
mod io;
mod namespace;
mod queue;
mod ram;
mod receive;
mod send;
mod serve;
mod subsystem;
mod transfer;

pub use config::{ConfigError, Identity, NamespaceConfig, Source, TargetConfig};
pub use connection::{Accepted, Acceptor, ByteStream, serve_stream};
pub use counters::Counts;
pub use identity::{Identities, IdentityError};
pub use namespace::OpenError;
pub use serve::{Target, TargetError, run};
pub use subsystem::Subsystem;
