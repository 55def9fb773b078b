//! Copies that the copy service makes: submit, go on, sync what you touch.
#![deny(unsafe_code)]
mod admission;
#[allow(unsafe_code)]
mod arena;
#[allow(unsafe_code)]
mod at_once;
#[allow(unsafe_code)]
mod blocking;
#[allow(unsafe_code)]
mod cache_probe;
#[allow(unsafe_code)]
mod call_handler;
#[allow(unsafe_code)]
mod chain;
#[allow(unsafe_code)]
pub mod channel;
mod client_tasks;
#[allow(unsafe_code)]
mod completion;
#[allow(unsafe_code)]
mod copier;
mod error;
mod failures;
#[allow(unsafe_code)]
mod fork;
mod forward;
#[allow(unsafe_code)]
mod handler;
#[allow(unsafe_code)]
mod inbound;
#[allow(unsafe_code)]
mod incoming;
#[allow(unsafe_code)]
mod learn;
mod link;
#[allow(unsafe_code)]
mod owned;
mod pending;
#[allow(unsafe_code)]
mod process;
mod receive_tuner;
#[allow(unsafe_code)]
mod remote;
#[allow(unsafe_code)]
pub mod scope;
#[allow(unsafe_code)]
mod sockets;
mod stats;
#[allow(unsafe_code)]
mod stream;

pub use arena::{ArenaCopy, AtOnceReason, FinishedCopy, StartedCopy};
pub use at_once::{AtOnce, is_refused};
pub use chain::Received;
pub use copier::{Copier, CopyOptions, TASK_BYTES_MAX, Token};
pub use error::CopyError;
pub use forward::{ForwardError, Forwarding};
pub use inbound::{CHUNK_BYTES_DEFAULT, FIRST_BYTES_DEFAULT, Inbound};
pub use incoming::{Incoming, ReceiveError, receive_some};
pub use link::Link;
pub use owned::Owned;
pub use process::{Service, StartError};
pub use remote::{Options, Remote, RemoteError, SharedMemory};
pub use scope::{Pending, Scope};
pub use sockets::Sent;
pub use stats::{Stats, StatsRead};
pub use unlade_copy_kernels::prefetch;
pub use unlade_copy_service::daemon::SOCKET;
pub use unlade_copy_service::daemon::message::{Class, Limits, Refusal};
pub use unlade_copy_service::{
    AttachError, Attachment, Config, Counts, Devices, Polling, Scenario, TaskFailure, Units,
};
pub use unlade_shm::layout::SLOTS_MIN;
