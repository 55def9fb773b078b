//! The copy service: threads that poll clients' queues, and copy.
//!
//! Use [`Service`] to serve queues of your own making, or [`daemon`] to serve other processes.
//! Programs that only want copies use the client, the crate `unlade-copy`, which starts and
//! attaches to this one. The crate [`unlade_copy_scheduler`] decides the order of the copies,
//! [`unlade_copy_kernels`] copies, and [`unlade_shm`] is the memory that clients and service share.
//!
//! A client whose bytes are a shared memory file:
//!
//! ```
//! use std::os::unix::fs::FileExt;
//! use std::sync::Arc;
//!
//! use unlade_copy_kernels::{Regions, guard};
//! use unlade_copy_service::{Config, Service};
//! use unlade_shm::{Arena, Task};
//!
//! let region = Arena::create("region", 4096)?;
//! let file = std::fs::File::from(region.fd().try_clone_to_owned()?);
//! file.write_all_at(b"hello", 100)?;
//! let regions = Regions::new(guard::install()?, 1, 4096);
//! regions.add(1, 4096, region.fd().try_clone_to_owned()?)?;
//!
//! let service = Service::start(Config::default())?;
//! let client = service.attach(Arc::new(regions), 1)?;
//! let ticket = client.queue().try_acquire().ok_or("the queue is full")?;
//! let task = Task { dst_region: 1, src_region: 1, ..Task::copy(200, 100, 5) };
//! client.queue().publish(ticket, &task);
//! client.ring(); // wake the service, if it sleeps
//! while !client.queue().progress(ticket).is_done(task.bits()) {
//!     std::thread::yield_now(); // a client has better things to do
//! }
//! let mut bytes = [0; 5];
//! file.read_exact_at(&mut bytes, 200)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Modules, in the order in which a task reaches them:
//! - [`service`]: the threads, and the attachment of clients; [`config`] has its options;
//! - `worker`: one thread: polls, serves the client with the least service, sleeps; `scaling`
//!   decides the number of threads and assigns clients to them; `placement` their processors;
//!   `mailbox` carries messages to threads; [`group`] has the clients' shares;
//! - `client`: one client: accepts lines, copies, reports completions; `view` gives the plan access
//!   to its progress; `steps` copies in preemptible steps; `trace` tells tracers;
//!   `transfer` copies from and to sockets; [`held`] has sends whose bytes may move;
//!   `prepare` maps new destinations;
//! - `dispatch`: copies with a device in addition to the processor; [`units`] has the devices,
//!   `calibration` the copy costs of the machine;
//! - [`error`]: reasons of a task's failure;
//! - [`counters`]: the statistics of the service;
//! - `handler_event`: notifies clients with event loops about handlers;
//! - [`manual`]: a client without threads, for tests and fuzz targets;
//! - [`daemon`]: the service as a process of its own, and the messages between it and its clients.
//!
//! # Limits
//! [`Config::threads_min`] to [`Config::threads_max`] threads, which end when the service is
//! dropped; at most [`service::CLIENTS_MAX`] clients. A client can corrupt its own bytes only. No
//! `unsafe`: the crates below have it.
#![forbid(unsafe_code)]

mod calibration;
mod client;
pub mod config;
pub mod counters;
pub mod daemon;
mod dispatch;
pub mod error;
pub mod group;
mod handler_event;
pub mod held;
mod mailbox;
pub mod manual;
mod placement;
mod prepare;
mod round;
mod scaling;
pub mod service;
mod state;
mod steps;
mod trace;
mod transfer;
pub mod units;
mod view;
mod worker;

pub use config::{Config, Polling, Units};
pub use counters::{Counters, Counts};
pub use error::TaskFailure;
pub use group::{Group, Share};
pub use held::{HeldBytes, HeldSends};
pub use service::{AttachError, Attachment, Ringer, Scenario, Service, StartError};
pub use units::Devices;
