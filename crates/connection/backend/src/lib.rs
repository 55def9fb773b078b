//! `unlade backend`: a fast object server that also answers on connections that it adopts; the sidecar
//! of `unlade agent`, which adopts them beside any local server; and the listener with which a server
//! in Rust adopts them itself.
//!
//! Use [`HandoffListener`] in your own server: it yields the client connections that a balancer
//! hands over, each at a request, as a [`HandoffStream`] with the client's address, TLS included.
//! Use [`Server`] for objects as files of a directory over HTTP/1.1 and HTTPS. Use [`Sidecar`] to
//! forward the requests of adopted connections to a local server as it is.
//!
//! A server that adopts connections (it needs root, and a balancer; `docs/adoption.md` has the
//! set-up):
//!
//! ```no_run
//! use std::io;
//!
//! use tokio::io::AsyncWriteExt;
//! use tokio::task::{LocalSet, spawn_local};
//! use unlade_backend::{HandoffConfig, HandoffListener, HandoffStream, TrustFiles};
//!
//! async fn answer(mut stream: HandoffStream) -> io::Result<()> {
//!     while let Some(head) = stream.next_request().await? {
//!         let body = format!("{} asked for {}\n", stream.peer_addr(), head.path(stream.input()));
//!         stream.consume(head.head_bytes());
//!         let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
//!         stream.write_all((head + &body).as_bytes()).await?;
//!     }
//!     Ok(()) // the connection has ended, or gone back to its balancer
//! }
//!
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! let trust = TrustFiles {
//!     ca: "pool-ca.crt".into(),
//!     certificate: "server.crt".into(),
//!     key: "server.key".into(),
//! };
//! let config = HandoffConfig::new("10.0.0.21:7900".parse()?, trust);
//! let serve = async {
//!     let mut listener = HandoffListener::bind(&config)?;
//!     loop {
//!         spawn_local(answer(listener.accept().await));
//!     }
//! };
//! LocalSet::new().run_until(serve).await
//! # }
//! ```
//!
//! # Life of a request
//! - [`accept`]: accepts a connection on the worker's own listeners, with `tls` for HTTPS;
//! - [`serve`]: reads the next head, dispatches it and answers, one request after another;
//! - GET and HEAD: [`condition`], [`range`], [`cache`] and [`store`] select the response, [`reply`]
//!   writes the head, [`transfer`] sends head and file;
//! - PUT and DELETE: [`body`] reads the body, [`upload`] makes it durable, [`store`] applies the
//!   change;
//! - in a [`sidecar`]: [`upstream`] forwards the request and relays the response.
//!
//! [`listener`] yields the connections that balancers hand over: other servers get them as a
//! [`HandoffStream`] ([`connection`]), this one as a [`release::Lease`] that [`adopted`] serves.
//! [`agent`] implements the control protocol; `unread` moves input that exceeds a snapshot.
//!
//! Other modules: [`objects`] (state of the object server), [`name`] (object names), [`session`]
//! (deadlines of a connection), [`drain`], [`context`] (state of a worker), [`clock`], [`config`].
//!
//! # Limits
//! A thread for each core, each with its connections; futures are not [`Send`]. Adoption needs
//! Linux with CAP_NET_ADMIN. No listing of objects, no dynamic content, no compression, no HTTP/2.
//! Responses on plaintext connections are not buffered in user space. No `unsafe`.
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
pub mod drain;
mod exchange;
mod get;
mod greet;
pub mod listener;
pub mod name;
pub mod objects;
pub mod range;
pub mod release;
pub mod reply;
mod returned;
mod run;
mod scopes;
mod sealing;
pub mod serve;
pub mod session;
pub mod sidecar;
mod signals;
pub mod store;
mod tls;
pub mod transfer;
mod unread;
pub mod upload;
pub mod upstream;

pub use config::{BackendConfig, ConfigError};
pub use connection::HandoffStream;
pub use context::Context;
pub use listener::{Handoff, HandoffConfig, HandoffError, HandoffListener};
pub use run::{BackendError, Server, run, run_with};
pub use sidecar::Sidecar;
pub use unlade_channel::trust::TrustFiles;
pub use unlade_runtime::identity::IdentityError as TlsError;
pub use upstream::config::SidecarConfig;
