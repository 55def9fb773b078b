//! The model of functions and of the scheduling of their instances.
//!
//! Use it to describe functions, to decide which instance serves which invocation within a memory
//! budget, and to write an isolation backend. The decisions take events and the time and return
//! actions; a gateway carries them out.
//!
//! 1. [`manifest`]: the description of a function by its author, [`Manifest`];
//! 2. [`pool`]: the assignment of invocations to instances: start, run, stop, refuse;
//! 3. [`lambda`]: the types of the Invoke API: requests, refusals and failures;
//! 4. [`lifecycle`]: versions, aliases, concurrency, tags and policies of a function;
//! 5. [`log`]: the log of a function: lines, their rate, the last ones; [`recent`]: its last seconds;
//! 6. [`asynchronous`]: the attempts and the end of an accepted event; [`destination`]: the ARNs that get it;
//! 7. [`source`]: queues that feed functions: the decisions of a poller;
//! 8. [`isolation`]: the trait of isolation backends: processes, virtual machines.
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use unlade_fn_model::Manifest;
//! use unlade_fn_model::pool::{Action, Limits, Pool, Refused, Share};
//!
//! let manifest: Manifest = unlade_config::parse("handler = \"app.handler\"\n", "function.toml")?;
//! manifest.check()?;
//!
//! let mut pool = Pool::new(Limits {
//!     memory_bytes_max: 1 << 30,
//!     instances_max: 10,
//!     waiting_max: 1,
//!     waiting_timeout: Duration::from_secs(1),
//!     starting_max: 4,
//! });
//! let keep_alive = Duration::from_secs(60);
//! pool.set(7, Share { concurrency: 1, keep_alive, charge_bytes: 128 << 20, warm: 0 });
//!
//! let now = Instant::now();
//! assert_eq!(pool.arrive(7, 100, now), [Action::Start { instance: 1, function: 7 }]);
//! let run = Action::Run { instance: 1, invocation: 100, is_first: true };
//! assert_eq!(pool.ready(1, now), [run]);
//! // The function has its one instance; one invocation waits, no more.
//! assert!(pool.arrive(7, 101, now).is_empty());
//! let refused = Action::Refuse { invocation: 102, why: Refused::Concurrency };
//! assert_eq!(pool.arrive(7, 102, now), [refused]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! No clock, no thread, no I/O, no `unsafe`. The pool knows one host: it places no instance
//! elsewhere.
#![forbid(unsafe_code)]

pub mod asynchronous;
pub mod destination;
pub mod isolation;
pub mod lambda;
pub mod lifecycle;
pub mod log;
pub mod manifest;
pub mod pool;
pub mod recent;
pub mod source;

pub use manifest::{Manifest, ManifestError};
