//! Copies that the copy service makes: submit, continue, sync the bytes that you touch.
//!
//! Use it in a program that copies or receives large buffers (some tens of KiB and more) and has
//! work to do between the copy and the use of its bytes. A copy that is used at once gains nothing;
//! the admission measures each call site and queues only where that is faster. A waiter copies any
//! part that no thread has begun, so a service that sleeps or is dead costs time, never a copy.
//!
//! In the order in which a program uses them:
//! 1. [`Service`]: threads of this process that copy; or [`Remote`]: the daemon `unlade copyd`;
//! 2. [`Copier`]: a queue of copies, shared by any number of threads; each copy sees the bytes as
//!    the earlier ones leave them;
//! 3. [`Copier::scope`] with [`Scope::copy`] and [`Pending::sync`]: copies for safe code;
//!    [`Copier::queue_owned`] for copies that outlive a function; [`Copier::submit`] for raw
//!    memory;
//! 4. [`Inbound`], [`Incoming`], [`Copier::forward`](Forwarding) and [`Sent`]: receives, forwards
//!    and sends at sockets, as tasks; [`channel`]: messages to another process;
//! 5. [`CopyError`]: the failure of one copy, at its sync; [`Stats`]: what was queued and what was
//!    not; [`explain`]: the reason, for each call site.
//!
//! ```
//! use unlade_copy::{Config, Copier, CopyError, Service};
//!
//! let service = Service::start(Config::default())?;
//! let copier = Copier::new(service.attach()?);
//!
//! let source = vec![7_u8; 1 << 16];
//! let mut destination = vec![0_u8; 1 << 16];
//! let sum: u64 = copier.scope(|scope| {
//!     let pending = scope.copy(&source, &mut destination); // returns at once
//!     let other_work: u64 = (0..1000).sum();
//!     let head = pending.sync(0..64)?; // waits for these bytes only
//!     assert_eq!(head, &[7; 64]);
//!     Ok::<u64, CopyError>(other_work)
//! })?; // the scope waits for the rest
//! assert_eq!((destination == source, sum), (true, 499_500));
//!
//! // A copy that owns its buffers and outlives this function:
//! let owned = copier.queue_owned(source, destination);
//! let (_source, destination) = owned.wait()?;
//! assert_eq!(destination[..3], [7; 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A destination is borrowed until its scope ends: bytes that are not synced cannot be read,
//! because such a program does not compile ([`Copier::scope`] shows it).
//!
//! # Limits
//! Linux; the measured loops are those of x86-64 and Arm. One task has at most [`TASK_BYTES_MAX`]
//! bytes; longer copies are several. A queue has [`Config::slots`] tasks; a full one means a
//! synchronous copy. In a child after fork(2) copies are synchronous. `unsafe` is denied except in
//! the modules that name it below, whose blocks state their proofs.
#![deny(unsafe_code)]
mod abort;
mod admission;
#[allow(unsafe_code)]
mod arena;
#[allow(unsafe_code)]
mod at_once;
mod attention;
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
mod deferred;
mod error;
pub mod explain;
mod failures;
#[allow(unsafe_code)]
mod fork;
mod forward;
#[allow(unsafe_code)]
mod gather;
#[allow(unsafe_code)]
mod handler;
#[allow(unsafe_code)]
mod held;
#[allow(unsafe_code)]
mod inbound;
#[allow(unsafe_code)]
mod incoming;
#[allow(unsafe_code)]
mod learn;
mod link;
#[allow(unsafe_code)]
mod owned;
#[allow(unsafe_code)]
mod page_memory;
mod passed;
mod pending;
#[allow(unsafe_code)]
mod process;
#[allow(unsafe_code)]
mod put_off;
mod receive_tuner;
#[allow(unsafe_code)]
mod remap;
#[allow(unsafe_code)]
mod remote;
#[allow(unsafe_code)]
pub mod scope;
#[allow(unsafe_code)]
mod snapshot;
#[allow(unsafe_code)]
mod sockets;
mod stats;
#[allow(unsafe_code)]
mod stream;
#[allow(unsafe_code)]
mod synchronous;
mod window_probe;

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
pub use page_memory::PageMemory;
pub use process::{Service, StartError};
pub use remote::{Options, Remote, RemoteError, SharedMemory};
pub use rustix::net::{RecvFlags, SendFlags};
pub use scope::{Pending, Scope};
pub use snapshot::{Snapshot, SnapshotError, SnapshotOptions};
pub use sockets::Sent;
pub use stats::{Stats, StatsRead};
pub use unlade_copy_kernels::prefetch;
pub use unlade_copy_kernels::remap::Choice as Remaps;
pub use unlade_copy_service::daemon::SOCKET;
pub use unlade_copy_service::daemon::message::{Class, Limits, Refusal};
pub use unlade_copy_service::{
    AttachError, Attachment, Config, Counts, Devices, Group, Polling, Scenario, TaskFailure, Units,
};
pub use unlade_shm::layout::{SLOTS_MAX, SLOTS_MIN};
