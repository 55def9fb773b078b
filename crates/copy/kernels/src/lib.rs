//! Copy units of the copy service.
//!
//! Modules, in the order in which a copy reaches them:
//!
//! - [`populate`]: a table of address ranges that the kernel has mapped;
//! - [`kernel`]: the copy loops, chosen at run time by processor and length; their code is in
//!   `x86_64`, `aarch64` and `portable`;
//! - [`stream`]: loops that store around the caches;
//! - [`guard`]: turns a bad address in a copy loop into an error of that copy;
//! - [`space`]: a client's address space, and copies within it;
//! - [`regions`]: the address space of a client in another process, which shares memory;
//! - [`calibrate`]: measures the fastest loop for each length on this machine;
//! - [`device`]: interface of asynchronous units;
//! - [`dsa`]: Intel's Data Streaming Accelerator;
//! - [`mod@unit`]: safe access to a device;
//! - [`model`]: a simulated unit with a stated latency and bandwidth, for tests.
//!
//! This crate does not decide the order of copies or the unit for each one. Source and destination
//! of one copy may not overlap: a move is two copies. Addresses may be arbitrary in
//! [`guard::Guard::copy_guarded`], and only there.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod calibrate;
pub mod device;
pub mod dsa;
mod evict;
pub mod guard;
pub mod kernel;
pub mod model;
pub mod populate;
mod portable;
mod prefetch;
pub mod regions;
pub mod relay;
mod routine;
pub mod space;
pub mod stream;
pub mod unit;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use portable::arch;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

pub use evict::evict;
pub use guard::{Fault, Guard};
pub use kernel::{Hint, Kernel, copy};
pub use prefetch::prefetch;
pub use regions::{RegionError, Regions};
pub use space::{Address, OwnMemory, Reach, Space};
pub use unit::{PlaceCopy, Unit};
