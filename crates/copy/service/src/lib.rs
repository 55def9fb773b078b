//! The copy service: threads that poll clients' queues, and copy.
//!
//! Modules, in the order in which a task reaches them:
//! - [`service`]: the threads, and the attachment of clients; [`config`] has its options;
//! - `worker`: one thread: polls, serves the client with the least service, sleeps; `scaling`
//!   decides the number of threads and assigns clients to them; `mailbox` carries messages to
//!   threads;
//! - `client`: one client: accepts lines, copies, reports completions; `view` gives the plan
//!   access to its progress; `steps` copies in preemptible steps; `transfer` copies from and to
//!   sockets; `prepare` maps new destinations;
//! - `dispatch`: copies with a device in addition to the processor; [`units`] has the devices,
//!   `calibration` the copy costs of the machine;
//! - [`error`]: reasons of a task's failure;
//! - [`counters`]: the statistics of the service;
//! - `handler_event`: notifies clients with event loops about handlers;
//! - [`manual`]: a client without threads, for tests and fuzz targets;
//! - [`daemon`]: the service as a process of its own, and the messages between it and its clients.
//!
//! [`unlade_copy_scheduler`] decides the order of the copies, [`unlade_copy_kernels`] copies, and
//! [`unlade_shm`] is the memory that clients and service share.
#![forbid(unsafe_code)]

mod calibration;
mod client;
pub mod config;
pub mod counters;
pub mod daemon;
mod dispatch;
pub mod error;
mod handler_event;
mod mailbox;
pub mod manual;
mod placement;
mod prepare;
mod round;
mod scaling;
pub mod service;
mod state;
mod steps;
mod transfer;
pub mod units;
mod view;
mod worker;

pub use config::{Config, Polling, Units};
pub use counters::{Counters, Counts};
pub use error::TaskFailure;
pub use service::{AttachError, Attachment, Scenario, Service, StartError};
pub use units::Devices;
