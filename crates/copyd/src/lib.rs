//! The copy service: threads that poll clients' queues, and copy.
//!
//! In the order that a task meets them:
//! - [`service`]: the threads, and how clients attach; [`config`] says how it works;
//! - `worker`: one thread: polls, serves the client that was served least, sleeps;
//! - `client`: one client: lines in, copies, completions out; `view` shows its progress to the plan;
//!   `transfer` is for copies from and to sockets;
//! - [`error`]: what a task ends with that could not be copied;
//! - [`counters`]: what was done;
//! - [`daemon`]: the service as a process of its own, and what clients say to it.
//!
//! What is copied next is [`copyplan`]'s to decide, how is [`copyunit`]'s, and where clients and
//! service meet is [`ring`]'s.
#![forbid(unsafe_code)]

mod client;
pub mod config;
pub mod counters;
pub mod daemon;
pub mod error;
pub mod service;
mod transfer;
mod view;
mod worker;

pub use config::{Config, Polling};
pub use counters::{Counters, Counts};
pub use error::TaskFailure;
pub use service::{AttachError, Attachment, Scenario, Service, StartError};
