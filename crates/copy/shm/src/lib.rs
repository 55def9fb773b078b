//! Shared-memory rings of tasks: one client's queues of the copy service, in memory that the client
//! and the service share.
//!
//! Use it between two processes that do not trust each other, or between threads: many producers
//! acquire and publish, one consumer peeks, claims segments and retires, and a waiter sleeps on the
//! progress of one task. The memory is the heap of one process, or a sealed memfd that two
//! processes map.
//!
//! Stages in the order in which a task meets them:
//! - [`memory`]: memory for the lines, and plain byte regions for a daemon;
//! - [`shared`]: copies in and out of such a region;
//! - [`layout`]: the header, the offsets, and the checks of an attach;
//! - [`ticket`]: a task's position in the order, and in the ring;
//! - [`segment`]: division of a task's bytes into at most 32 segments;
//! - [`task`]: the 64-byte line of one task;
//! - [`queue`]: many producers acquire and publish, the service peeks and retires;
//! - [`progress`]: claimed and done segments, and the result of the task;
//! - [`wait`]: waits for segments: spins, then sleeps;
//! - [`sync`]: requests to promote or abort tasks;
//! - [`handler`]: handlers that are due in the client;
//! - [`doorbell`]: wakes a sleeping service.
//!
//! ```
//! use unlade_shm::{Kind, Memory, Queue, Task};
//!
//! let queue = Queue::create(Memory::heap(Queue::bytes_for(16)?)?, 16)?;
//! let ticket = queue.try_acquire().ok_or("the queue is full: copy it yourself")?;
//! let task = Task::copy(0x1000, 0x9000, 4096);
//! queue.publish(ticket, &task);
//! // The service:
//! assert_eq!(queue.peek(ticket), Some(Ok(task)));
//! let mine = queue.progress(ticket).claim(task.bits());
//! queue.progress(ticket).finish(mine);
//! // The client:
//! assert!(queue.progress(ticket).is_done(task.bits()));
//! # assert_eq!(task.kind, Kind::Copy);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **The peer is hostile.** Data from shared memory is copied, then checked, then used. Indices are
//! masked, and the number of slots is read only once, at the attach. A peer can corrupt its own
//! queue: report false progress, cause spurious wake-ups, keep the queue full. It cannot make the
//! other side read or write outside the memory, panic, or loop endlessly. All shared words are
//! atomics, which makes references to them sound.
//!
//! # Limits
//! A queue has 16 to 4096 slots, a power of two. Linux only (futexes, memfds). The feature `loom`
//! checks the orders of all accesses with a model. **Unsafe** is in three files only: `memory.rs`
//! (allocation, mapping), `shared.rs` (copies of bytes that a peer may be changing) and
//! `sections.rs` (from bytes to lines).
#![deny(unsafe_code)]

mod atomic;
mod bounded;
pub mod doorbell;
mod futex;
pub mod handler;
pub mod layout;
#[allow(unsafe_code)]
pub mod memory;
pub mod progress;
pub mod queue;
#[allow(unsafe_code)]
#[cfg_attr(feature = "loom", path = "sections_model.rs")]
mod sections;
pub mod segment;
#[allow(unsafe_code)]
pub mod shared;
pub mod sync;
pub mod task;
pub mod ticket;
pub mod wait;

pub use bounded::Full;
pub use doorbell::{Doorbell, DoorbellLine, Scope};
pub use layout::LayoutError;
pub use memory::{Arena, Memory, MemoryError};
pub use progress::{HandlerState, Progress};
pub use queue::{Queue, QueueError};
pub use sync::{SyncError, SyncKind, SyncTask};
pub use task::{Flags, Kind, Task, TaskError};
pub use ticket::Ticket;
pub use wait::{Until, WaitPolicy, Waited};
