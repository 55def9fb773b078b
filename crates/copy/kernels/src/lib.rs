//! The units that move bytes for the copy service.
//!
//! In the order in which a copy meets them:
//!
//! - [`populate`]: are these addresses there? A table of ranges that the kernel has mapped;
//! - [`kernel`]: the copy loops, chosen at run time by processor and by size of copy;
//!   their code is in `x86_64`, `aarch64` and `portable`;
//! - [`stream`]: loops that store around the caches, and when to use them;
//! - [`guard`]: a bad address in a copy loop is an error of that copy, not the end of the process;
//! - [`space`]: where a client's addresses are, and copies between them;
//! - [`regions`]: the addresses of a client in another process, which shares memory;
//! - [`calibrate`]: which loop is fastest for which size, measured on this machine;
//! - [`device`]: what asynchronous units have in common;
//! - [`dsa`]: Intel's Data Streaming Accelerator, where the machine has one;
//! - [`mod@unit`]: a device in the hands of safe code, which has only places;
//! - [`model`]: a unit with a stated latency and bandwidth, for tests of what drives them.
//!
//! Nothing here decides what is copied, in which order or by whom. Source and destination of one
//! copy may not overlap: a move is two copies. Addresses may be anybody's invention where
//! [`guard::Guard::copy_guarded`] copies, and only there.

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
pub use unit::{Places, Unit};
