//! The copy service for C programs: `libunlade_copier`, with the interface of Copier (SOSP 2025,
//! Table 2).
//!
//! Modules, in the order in which a copy uses them:
//! - `abi`: structures and constants of the C interface;
//! - `exports`: the functions;
//! - `options`: options of the process; `process`: the service, started with the first copy, and
//!   forks; `channel`: one queue; `queues`: queues created by the program, by descriptor;
//! - `submit`: submission of copies; `completion`: handlers of copies in several parts;
//! - `sync`: waiting for copies;
//! - `descriptor`, `shm`: copies into memory shared with other processes;
//! - `ranges`, `sanitize`: support for AddressSanitizer;
//! - `errno`, `lock`: shared helpers.
//!
//! The C header is generated from `abi` and `exports` and is checked in as
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
mod sync_all;

pub use abi::*;
pub use exports::*;
