//! Shared-memory rings of tasks: one client's queues of the copy service, in memory that client
//! and service share.
//!
//! The memory is the heap of one process, or a sealed memfd mapped by two processes that do not
//! trust each other. Stages in the order in which a task meets them:
//!
//! - [`memory`]: where the lines live, and plain byte regions for a daemon;
//! - [`shared`]: bytes of such a region, copied in and out;
//! - [`layout`]: the header, which offset is what, what an attach believes;
//! - [`ticket`]: a task's place in the order, and in the ring;
//! - [`segment`]: bytes of a task as at most 32 segments;
//! - [`task`]: the 64-byte line of one task;
//! - [`queue`]: many producers acquire and publish, the service peeks and retires;
//! - [`progress`]: who copies which segment, which are done, how the task ended;
//! - [`wait`]: until segments are done: spin, then sleep;
//! - [`sync`]: what clients want first, or not at all;
//! - [`handler`]: what is to be run in the client;
//! - [`doorbell`]: whether the service sleeps, and how it is woken.
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
//! **The peer is hostile.** What is read from shared memory is copied, then checked, then used;
//! indices are masked; a slot count is believed once, at the attach. A peer can spoil its own
//! queue: lie about progress, wake for nothing, keep it full. It cannot make the other side read or
//! write outside the memory, panic, or loop without end. All shared words are atomics, which is
//! what makes references to them sound.
//!
//! **Unsafe** is in three files only: `memory.rs` (allocation, mapping), `shared.rs` (copies of bytes
//! that a peer may be changing) and `sections.rs` (from bytes to lines).
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
