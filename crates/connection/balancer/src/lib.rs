//! The L7 balancer of `unlade lb`: it reads requests, chooses servers, and either proxies or hands
//! the connection over, so that the server answers the client directly.
//!
//! Use it through `unlade lb`, or embed it: a [`BalancerConfig`] from text or file,
//! [`Balancer::bind`], and [`Balancer::run`] on the calling thread; a [`Handle`] drains, stops and
//! reloads it, and has its metrics. Handovers need `trust` in a pool, and CAP_NET_ADMIN and
//! CAP_BPF; proxying needs neither.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::TcpStream;
//!
//! use unlade_balancer::{Balancer, BalancerConfig};
//!
//! let text = r#"
//!     [[listener]]
//!     address = "127.0.0.1:0"
//!     [[route]]
//!     prefix = "/"
//!     pool = "objects"
//!     offload = "off"
//!     [pool.objects]
//!     servers = ["127.0.0.1:9"] # nothing listens there
//! "#;
//! let balancer = Balancer::bind(BalancerConfig::parse(text, "lb.toml")?)?;
//! let (address, handle) = (balancer.addresses()[0], balancer.handle());
//! let running = std::thread::spawn(move || balancer.run(false)); // without signal handlers
//!
//! let mut client = TcpStream::connect(address)?;
//! client.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
//! let mut answer = String::new();
//! client.read_to_string(&mut answer)?;
//! assert!(answer.starts_with("HTTP/1.1 50"), "{answer}"); // no server answers
//! handle.drain();
//! running.join().expect("no panic")?;
//!
//! let error = BalancerConfig::parse(&text.replace("prefix", "prefx"), "lb.toml").unwrap_err();
//! assert!(error.to_string().contains("did you mean `prefix`?"), "{error}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Life of a request
//! 1. [`run`] binds every listener once a worker (SO_REUSEPORT); the kernel spreads connections
//!    over the workers, and a connection stays with its worker. `accept` admits it within the
//!    limits (all, listener, client); `tls` performs the handshake.
//! 2. `connection` waits for a head, within `[timeouts]`, and answers everything that is not
//!    strictly a request with the right error status, counted by reason.
//! 3. `placement` finds the route (`route`: host, then longest prefix) and the server (`pool`:
//!    policy, health, load).
//! 4. `offload` decides: hand the connection over, or proxy. A connection that cannot be handed
//!    over, or comes back unmoved, is proxied; the reason is counted. `auto` learns the costs of
//!    both.
//! 5. Proxied: `unlade_http::forward` rewrites heads, `upstream` connects to the server, `proxy`
//!    sends the request and waits (`upload` for the body), `deliver` sends the response: from a
//!    buffer, or by splice(2) where the body is large and neither side has TLS, or only its first
//!    part, where `direct_return` lets the rest bypass the sockets. A server that
//!    changes the protocol ends HTTP on the connection: `upgrade` decides which changes pass,
//!    `tunnel` moves the bytes from there on.
//! 6. The next request of the connection follows, or `connection` returns the outcome: a server has
//!    the connection, it is to be closed, or a tunnel follows. `accept` acts on it.
//!
//! A file uses only files below it: `run` starts all stages, and `worker`, the state that the stages
//! share, knows none of them. A connection that comes home from a server (`reclaim`) reaches
//! `accept` through a function that `run` passes down.
//!
//! `plan` is a loaded configuration; SIGHUP creates another, which every worker uses from its next
//! request on. `health` checks servers on the first worker. On SIGTERM listeners close, idle
//! connections close, and requests in flight are finished.
//!
//! # Limits
//! A thread for each core; no request takes a lock or waits for another core: workers share
//! counters, and the atomics of servers. No HTTP/2: its streams cannot be handed over one by one.
//! No cache, no rewriting. No `unsafe`.
#![forbid(unsafe_code)]

mod accept;
mod actions;
mod auto;
mod bodies;
mod buffer;
mod busy;
mod channel;
mod clients;
mod closing;
pub mod config;
mod connection;
mod deliver;
mod direct_pool;
mod direct_return;
mod exchange;
mod fallback;
mod flows;
mod frames;
mod freeze;
mod handover;
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
mod placement;
mod plan;
mod policy;
mod pool;
mod proxy;
mod reclaim;
mod respond;
mod retries;
mod route;
mod run;
mod scopes;
mod segments_report;
mod server;
mod splice;
mod splices;
mod timer;
mod tls;
mod tunnel;
mod upgrade;
mod upload;
mod upstream;
mod ways;
mod worker;

pub use config::{BalancerConfig, ConfigError};
pub use plan::PlanError;
pub use policy::PolicyConfig;
pub use run::{Balancer, BalancerError, Handle, check, run};
pub use unlade_runtime::identity::IdentityError as TlsError;
