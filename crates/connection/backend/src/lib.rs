//! `unlade backend`: a fast object server that also answers on connections it adopts.
//!
//! The stages of a request, in order:
//! - [`accept`]: accepts a connection on the worker's own listeners, with `tls` for HTTPS;
//! - [`serve`]: reads the next head, dispatches it and answers, one request after another;
//! - GET and HEAD: [`condition`], [`range`], [`cache`] and [`store`] select the response,
//!   [`reply`] writes the head, [`transfer`] sends head and file;
//! - PUT and DELETE: [`body`] reads the body, [`upload`] makes it durable, [`store`] applies the
//!   change.
//!
//! [`listener`] yields the connections that balancers hand over: other servers get them as a
//! [`HandoffStream`] ([`connection`]), this one as a [`release::Lease`] that [`adopted`] serves.
//! [`agent`] implements the control protocol; `unread` moves input that exceeds a snapshot.
//!
//! Other modules: [`name`] (object names), [`session`] (deadlines of a connection), [`context`]
//! (state of a worker), [`clock`], [`config`].
//!
//! Not supported: listing objects, dynamic content, compression. Responses on plaintext connections
//! are not buffered in user space.
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
pub use run::{BackendError, Server, run, run_with};
pub use unlade_channel::trust::TrustFiles;
pub use unlade_runtime::identity::IdentityError as TlsError;
