//! The copy service for C programs: `libunlade_copier`, with the interface of Copier (SOSP 2025,
//! Table 2).
//!
//! Use it from C and C++: `amemcpy(dst, src, n)` instead of `memcpy`, `csync(dst, n)` before bytes
//! of the destination are used, `csync_write(src, n)` before the source is changed or freed. The
//! service starts with the first copy. `docs/copy/guide.md` builds and installs the library;
//! programs in Rust use [`unlade_copy`] instead, whose scopes need no `unsafe`.
//!
//! The same calls, from Rust:
//!
//! ```
//! use unlade_copier::{amemcpy, csync, csync_write};
//!
//! let mut source = vec![7_u8; 1 << 20];
//! let mut copy = vec![0_u8; 1 << 20];
//! // SAFETY: both ranges live until the copy is synced, and nothing touches them before.
//! unsafe {
//!     amemcpy(copy.as_mut_ptr().cast(), source.as_ptr().cast(), source.len());
//!     // ... other work, while the service copies ...
//!     assert_eq!(csync(copy.as_ptr().cast(), 64), 0); // these bytes are used now
//!     assert_eq!(copy[..64], [7; 64]);
//!     csync_write(source.as_mut_ptr().cast(), source.len()); // the source is changed now
//!     assert_eq!(csync(copy.as_ptr().cast(), copy.len()), 0);
//! }
//! source.fill(0);
//! assert_eq!(copy[1 << 19..], [7; 1 << 19]);
//! ```
//!
//! Modules, in the order in which a copy uses them:
//! - `abi`: structures and constants of the C interface;
//! - `exports`: the functions; `daemon`: those for the copy daemon;
//! - `options`: options of the process; `process`: the service, started with the first copy, and
//!   forks; `channel`: one queue; `queues`: queues created by the program, by descriptor;
//! - `site`: copies at once, by the state of their call site; `countdown`: the copies of a thread
//!   until the admission is asked; `submit`: submission of copies; `completion`: handlers of copies
//!   in several parts;
//! - `socket`: receives and sends;
//! - `sync`: waiting for copies;
//! - `descriptor`, `shm`: copies into memory shared with other processes;
//! - `ranges`, `sanitize`: support for AddressSanitizer;
//! - `errno`, `lock`: shared helpers;
//! - [`timed`]: one copy as a C program makes it, for measurements from Rust.
//!
//! The C header is generated from `abi`, `exports` and `daemon`, and is checked in as
//! `include/unlade/copier.h`; the manual is `man/unlade_copier.3`.
//!
//! # Limits
//! Every function may be called from any thread, none from a signal handler. The interface is of
//! raw pointers, hence `unsafe`: a missing sync is undefined behaviour, which AddressSanitizer
//! reports. The number of threads and slots is set by `COPIER_OPTIONS` before the first copy.

mod abi;
mod channel;
mod completion;
mod countdown;
mod daemon;
mod descriptor;
mod errno;
mod exports;
mod lock;
mod options;
mod process;
mod queues;
mod ranges;
mod sanitize;
mod shm;
mod site;
mod socket;
mod submit;
mod sync;
mod sync_all;
pub mod timed;

pub use abi::*;
pub use daemon::*;
pub use exports::*;
