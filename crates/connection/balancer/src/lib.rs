//! The L7 balancer: it reads requests, chooses servers, and either proxies or hands connections
//! over.
//!
//! # Life of a request
//! 1. [`run`] binds every listener once a worker (SO_REUSEPORT); the kernel spreads connections
//!    over the workers, and a connection stays with its worker. `accept` admits it within the
//!    limits (all, listener, client); `tls` performs the handshake.
//! 2. `connection` waits for a head, within `[timeouts]`, and answers everything that is not
//!    strictly a request with the right error status, counted by reason.
//! 3. `route` finds the route (host, then longest prefix), `pool` the server (policy, health,
//!    load).
//! 4. `offload` decides: hand the connection over, or proxy. A connection that cannot be handed
//!    over, or comes back unmoved, is proxied; the reason is counted. `auto` learns the costs of
//!    both.
//! 5. Proxied: `head` rewrites the request, `upstream` provides a connection to the server,
//!    `proxy` sends the request and waits (`upload` for the body), `deliver` sends the response:
//!    from a buffer, or by splice(2) where the body is large and neither side has TLS. A server
//!    that changes the protocol ends HTTP on the connection: `upgrade` decides which changes pass,
//!    `tunnel` moves the bytes from there on.
//! 6. The next request of the connection follows, or its end.
//!
//! `plan` is a loaded configuration; SIGHUP creates another, which every worker uses from its next
//! request on. `health` checks servers on the first worker. On SIGTERM listeners close, idle
//! connections close, and requests in flight are finished.
//!
//! # What is absent
//! No request takes a lock or waits for another core: workers share counters, and the atomics of
//! servers. No HTTP/2: its streams cannot be handed over one by one. No cache, no rewriting.
#![forbid(unsafe_code)]

mod accept;
mod auto;
mod bodies;
mod body;
mod buffer;
mod busy;
mod channel;
mod clients;
pub mod config;
mod connection;
mod deliver;
mod fallback;
mod flows;
mod frames;
mod freeze;
mod head;
mod health;
mod idle_time;
mod incoming;
mod journal;
mod lingering;
mod machine;
mod mean;
mod migration_manager;
mod offload;
mod pace;
mod plan;
mod pool;
mod proxy;
mod reclaim;
mod respond;
mod route;
mod run;
mod scopes;
mod splice;
mod timer;
mod tls;
mod tunnel;
mod upgrade;
mod upload;
mod upstream;
mod worker;

pub use config::{BalancerConfig, ConfigError};
pub use plan::PlanError;
pub use run::{Balancer, BalancerError, Handle, check, run};
pub use unlade_runtime::identity::IdentityError as TlsError;
