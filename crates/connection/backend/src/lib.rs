//! `unlade backend`: a fast object server that also answers on connections it adopts.
//!
//! The stages of a request, in order:
//! - [`accept`]: a connection of the worker's own listeners, with `tls` where it begins with a
//!   handshake;
//! - [`serve`]: the next head, dispatch, the answer; one connection's requests in turn;
//! - GET and HEAD: [`condition`], [`range`], [`cache`] and [`store`] decide,
//!   [`reply`] writes the head, [`transfer`] sends head and file;
//! - PUT and DELETE: [`body`] reads, [`upload`] makes durable, [`store`] changes.
//!
//! Connections that balancers hand over come in by [`listener`]; for another server they come out
//! there as a [`HandoffStream`] ([`connection`]), for this one as a [`release::Lease`] that
//! [`adopted`] serves. [`agent`] speaks with the balancers; `unread` moves what no snapshot has room
//! for.
//!
//! Beside them: [`name`] (what a path may name), [`session`] (a connection's deadlines),
//! [`context`] (a worker's state), [`clock`], [`config`].
//!
//! What is absent: no listing of objects, no dynamic content, no compression, no buffering of a
//! response in user space on plaintext connections.
#![forbid(unsafe_code)]

pub mod accept;
mod adopt;
pub mod adopted;
pub mod agent;
pub mod body;
pub mod cache;
mod change;
pub mod clock;
pub mod condition;
pub mod config;
pub mod connection;
pub mod context;
mod get;
mod greet;
pub mod listener;
pub mod name;
pub mod range;
pub mod release;
pub mod reply;
mod run;
mod scopes;
pub mod serve;
pub mod session;
pub mod store;
mod tls;
pub mod transfer;
mod unread;
pub mod upload;

pub use config::{BackendConfig, ConfigError};
pub use connection::HandoffStream;
pub use context::Context;
pub use listener::{Handoff, HandoffConfig, HandoffError, HandoffListener};
pub use run::{BackendError, Server, run, run_from, run_with};
pub use tls::TlsError;
pub use unlade_channel::trust::TrustFiles;
