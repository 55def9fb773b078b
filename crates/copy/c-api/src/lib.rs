//! The copy service for C programs: `libunlade_copier`, with the interface of Copier (SOSP 2025,
//! Table 2).
//!
//! In the order that a copy meets them:
//! - `abi`: structures and constants, as C programs see them;
//! - `exports`: the functions;
//! - `options`: what is set for the process; `process`: the service, made when the first copy needs
//!   it, and forks; `channel`: one queue; `queues`: those that a program made, by descriptor;
//! - `submit`: copies in; `completion`: handlers of copies of several parts;
//! - `sync`: bytes out;
//! - `descriptor`, `shm`: copies into memory shared with other processes;
//! - `ranges`, `sanitize`: what AddressSanitizer is told;
//! - `errno`, `lock`: what all of them use.
//!
//! The C header is made from `abi` and `exports` and is checked in as
//! `include/unlade/copier.h`; the manual is `man/unlade_copier.3`.

mod abi;
mod channel;
mod completion;
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
mod submit;
mod sync;

pub use abi::*;
pub use exports::*;
