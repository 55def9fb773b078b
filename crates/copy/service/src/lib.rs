//! The copy service: threads that poll clients' queues, and copy.
//!
//! In the order that a task meets them:
//! - [`service`]: the threads, and how clients attach; [`config`] says how it works;
//! - `worker`: one thread: polls, serves the client that was served least, sleeps;
//!   `scaling` says how many there are and who serves whom, `post` is where they are reached;
//! - `client`: one client: lines in, copies, completions out; `view` shows its progress to the plan;
//!   `steps` copies, and lets others come between; `transfer` is for copies from and to sockets,
//!   `prepare` for destinations that are new;
//! - `dispatch`: copies with a device beside the processor; [`units`] has the devices,
//!   `calibration` what the machine's copies cost;
//! - [`error`]: what a task ends with that could not be copied;
//! - [`counters`]: what was done;
//! - `notice`: tells clients with event loops of handlers;
//! - [`manual`]: a client without threads, for tests and fuzz targets;
//! - [`daemon`]: the service as a process of its own, and what clients say to it.
//!
//! What is copied next is [`unlade_copy_scheduler`]'s to decide, how is [`unlade_copy_kernels`]'s, and where clients and
//! service meet is [`unlade_shm`]'s.
#![forbid(unsafe_code)]

mod calibration;
mod client;
pub mod config;
pub mod counters;
pub mod daemon;
mod dispatch;
pub mod error;
pub mod manual;
mod notice;
mod place;
mod post;
mod prepare;
mod scaling;
pub mod service;
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
