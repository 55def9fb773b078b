//! An NVMe/TCP target: it serves files and memory as namespaces.
//!
//! In the order in which a command meets them:
//! - [`config`]: what is served, and all limits;
//! - `serve`: the process: listeners, workers, signals, metrics;
//! - `connection`: one TCP connection, from ICReq to its end;
//! - `receive`: PDUs from the stream, with their digests checked;
//! - [`identity`]: what tells namespaces and subsystems apart, kept beside the images;
//! - `subsystem`: which connections belong together, and to which controller;
//! - `controller`: the commands of the admin queue (sans-IO);
//! - `io`: what a command of an I/O queue asks for, checked (sans-IO);
//! - `transfer`: the data of writes that the target asks for (R2T; sans-IO);
//! - `queue`: the commands in work, their share of memory, and their answers;
//! - `namespace`, `ram`: where the blocks are;
//! - `send`: PDUs to the stream, data from where it lies.
//!
//! A host is hostile: what it breaks ends its connection, or fails its command, and is counted.
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

pub use config::{ConfigError, NamespaceConfig, Source, TargetConfig};
pub use connection::{Accepted, Acceptor, ByteStream, serve_stream};
pub use counters::Counts;
pub use identity::{Identities, Identity, IdentityError};
pub use namespace::OpenError;
pub use serve::{Target, TargetError, run, run_from};
pub use subsystem::Subsystem;
