//! The I/O worker of a tenant: SDK, TLS and TCP of its functions, executed once on the host.
//!
//! Use it through `unlade fn serve`, which starts one for each tenant, or run it from a
//! [`WorkerConfig`] with [`run`]. An instance submits calls in memory that it shares with the
//! worker (`docs/guest-protocol.md`). The worker checks the policy, sends the request to the store,
//! and places the response where the function reads it. Only the worker has credentials.
//!
//! ```
//! use unlade_fn_worker::WorkerConfig;
//!
//! let text = "control = \"/run/unlade/worker.sock\"\n[store]\nregion = \"eu-west-1\"\n";
//! let config: WorkerConfig = unlade_config::parse(text, "worker.toml")?;
//! config.check()?;
//! assert_eq!(config.instance, Default::default());
//! // `unlade_fn_worker::run(&config)` serves until SIGTERM.
//!
//! let wrong = text.replace("region = \"eu-west-1\"", "endpoint = \"ftp://store\"");
//! let config: WorkerConfig = unlade_config::parse(&wrong, "worker.toml")?;
//! let error = config.check().unwrap_err().to_string();
//! assert_eq!(error, "[store] endpoint: http://HOST[:PORT] or https://HOST[:PORT]");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Modules, in the order in which a call passes them:
//! - [`worker`]: the process of one tenant, or [`shared`]: of several, which [`tenant_list`] reads
//!   and [`scheduler`] schedules; [`serve`]: the service of one tenant; [`open`]: its construction;
//!   [`config`]: the configuration, with [`config_error`] and [`tls`]; [`control`]: the socket where the gateway attaches instances;
//!   [`gateway`]: messages to it; [`rights`]: those of a role;
//! - [`tenant`]: the state that all instances share; [`quota`]: its resource limits;
//! - [`session`]: one instance; [`channel`]: its stream; [`session_epoch`]: its epoch; [`region`]:
//!   its memory, with [`runs`] of slots; [`lending`]: what is lent of it;
//! - [`submission`]: the way of a submission through the stages, with its context ([`caller`]);
//! - [`decode`]: its text and body, copied and checked; [`stage`]: a body that is buffered;
//!   [`copies`]: the copies of long bodies;
//! - [`authorise`]: the request of a call, if the role allows it; [`parsed`]: its parameters;
//!   [`form`]: the same of a form that others will send;
//! - [`call`]: a local answer, or a request to the store: [`perform`]; [`invalidation`]: what it
//!   makes stale; [`stream`]: a large body, sent to the store while it arrives, from its
//!   [`stream_input`];
//! - [`cut`]: requests to services other than S3, prepared by the function's SDK;
//! - [`behalf_store`]: operations of S3 that the gateway asks for;
//! - [`prefetch`]: objects fetched before the function requests them;
//! - [`writeback`]: writes acknowledged before they are durable; [`journal`]: the record of those
//!   that must survive the worker;
//! - [`store`]: requests over HTTP;
//! - [`fetch`]: the transfer of an object into slots, from its [`flow`];
//! - [`complete`]: the completion of every submission with its [`answer`];
//! - [`relay`]: connections of instances that keep an SDK of their own.
//!
//! A guest is untrusted: its words are read once, copied and checked. A protocol violation ends its
//! channel. A guest can corrupt only its own results and use up only its own quota.
//!
//! Tenants of one process share its thread and nothing else: no region, no prefetched object, no
//! pending write, no connection, no key.
//!
//! # Limits
//! A worker has one thread. A tenant that needs more has more workers. The thread of the copy
//! service starts with the first copy that benefits from it. No `unsafe`.
#![forbid(unsafe_code)]

pub mod answer;
pub mod authorise;
pub mod behalf_store;
pub mod call;
pub mod caller;
pub mod channel;
pub mod complete;
pub mod config;
pub mod config_error;
pub mod control;
pub mod copies;
pub mod cut;
pub mod decode;
pub mod fetch;
pub mod flow;
pub mod form;
pub mod gateway;
pub mod invalidation;
pub mod journal;
pub mod lending;
pub mod open;
pub mod parsed;
pub mod perform;
pub mod prefetch;
pub mod quota;
pub mod region;
pub mod relay;
pub mod rights;
pub mod runs;
pub mod scheduler;
pub mod serve;
pub mod session;
pub mod session_epoch;
pub mod shared;
pub mod stage;
pub mod store;
pub mod stream;
pub mod stream_input;
pub mod submission;
pub mod tenant;
pub mod tenant_list;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod worker;
pub mod writeback;

pub use config::WorkerConfig;
pub use open::WorkerError;
pub use shared::run_shared;
pub use tenant_list::TenantList;
pub use worker::run;
