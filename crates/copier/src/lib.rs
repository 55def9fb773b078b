//! Copies that the copy service makes: submit, go on, sync what you touch.
#![deny(unsafe_code)]
#[allow(unsafe_code)]
mod copier;
mod error;
#[allow(unsafe_code)]
mod handler;
mod ledger;
mod link;
mod pending;
#[allow(unsafe_code)]
mod process;
#[allow(unsafe_code)]
mod remote;
#[allow(unsafe_code)]
pub mod scope;
#[allow(unsafe_code)]
mod settle;
mod site;
mod stats;
#[allow(unsafe_code)]
mod stream;

pub use copier::{Copier, How, TASK_BYTES_MAX, Token};
pub use copyd::daemon::SOCKET;
pub use copyd::daemon::message::{Class, Limits, Refusal};
pub use copyd::{AttachError, Attachment, Config, Counts, Polling, Scenario, TaskFailure};
pub use error::CopyError;
pub use link::Link;
pub use process::{Service, StartError};
pub use remote::{Options, Remote, RemoteError, Shared};
pub use scope::{Pending, Scope};
pub use stats::{Stats, StatsRead};
