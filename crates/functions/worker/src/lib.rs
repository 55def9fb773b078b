//! The I/O worker of a tenant: SDK, TLS and TCP of its functions, run once on the host.
//!
//! An instance submits calls in memory that it shares with the worker (`docs/guest-protocol.md`);
//! the worker decides, asks the store, and puts what comes straight where the function reads it.
//! Credentials are here only.
//!
//! Stages, in the order a call meets them:
//! - [`worker`]: the process of one tenant, or [`shared`]: of several, which [`roster`] names, and
//!   which take [`turns`]; [`serve`]: one tenant; [`config`]: what it is told; [`control`]: where the
//!   gateway attaches its instances;
//! - [`tenant`]: what all instances share; [`quota`]: how much of it they use;
//! - [`session`]: one instance; [`channel`]: its stream; [`life`]: its epoch; [`region`]: its memory,
//!   with [`runs`] of slots;
//! - [`stage`]: the body of a call, copied before anything else; [`copies`]: who makes long copies;
//!   [`stream`]: a large body, which goes to the store while it comes;
//! - [`call`]: policy, what can be answered here, or the store: [`perform`];
//! - [`prefetch`]: objects fetched before they are asked for;
//! - [`writeback`]: writes acknowledged before they are durable; [`journal`]: those that outlive the
//!   worker;
//! - [`store`]: requests over HTTP;
//! - [`fetch`]: an object on its way into slots.
//!
//! A guest is hostile: what it writes is read once, copied, checked; what no guest does ends its
//! channel. It can spoil its own results, and use up its own share.
//!
//! Tenants of one process share its thread and nothing else: no region, no object that was fetched
//! ahead, no pending write, no connection, no key.
//!
//! What is absent: threads of its own (a worker has one; a tenant that needs more has more workers;
//! the copy service's thread starts with the first copy that is worth it).
#![forbid(unsafe_code)]

pub mod call;
pub mod channel;
pub mod config;
pub mod control;
pub mod copies;
pub mod fetch;
pub mod journal;
pub mod life;
pub mod perform;
pub mod prefetch;
pub mod quota;
pub mod region;
pub mod relay;
pub mod roster;
pub mod runs;
pub mod serve;
pub mod session;
pub mod shared;
pub mod stage;
pub mod store;
pub mod stream;
pub mod tenant;
#[cfg(test)]
mod testing;
pub mod turns;
pub mod worker;
pub mod writeback;

pub use config::{ConfigError, WorkerConfig};
pub use roster::Roster;
pub use shared::run_shared;
pub use worker::{WorkerError, run};
