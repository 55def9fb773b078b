//! Copy units of the copy service: copy loops for the processor at hand, guarded copies, and
//! devices.
//!
//! Use it to copy by the loop that is fastest on this machine for each length, to copy from
//! addresses that may be bad without a signal reaching the program, or to drive an asynchronous
//! copy device. It does not decide the order of copies or the unit for each one: the crate
//! `unlade-copy-scheduler` does.
//!
//! ```
//! use unlade_copy_kernels::{calibrate, guard, kernel};
//!
//! let source: Vec<u8> = (0..1 << 16).map(|at| at as u8).collect();
//! let mut target = vec![0; source.len()];
//! for kernel in kernel::available() {
//!     kernel.copy_slice(&mut target, &source);
//!     assert!(target == source, "{}", kernel.name());
//! }
//!
//! // From now on, `kernel::copy` takes the loop that was fastest here for each length.
//! calibrate::calibrate().apply();
//!
//! // A bad address is the error of its copy.
//! let guard = guard::install()?;
//! let bad = std::ptr::without_provenance::<u8>(4096);
//! // SAFETY: the destination is exclusive, and the guard catches the bad source.
//! let fault = unsafe { guard.copy_guarded(target.as_mut_ptr(), bad, 64, kernel::Hint::Reuse) };
//! assert!(fault.is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Modules, in the order in which a copy reaches them:
//! - [`populate`]: a table of address ranges that the kernel has mapped;
//! - [`kernel`]: the copy loops, chosen at run time by processor and length; their code is in
//!   `x86_64`, `aarch64` and `portable`;
//! - [`stream`]: loops that store around the caches;
//! - [`guard`]: turns a bad address in a copy loop into an error of that copy;
//! - [`remap`]: copies that the page tables make, where the source is given up;
//! - [`area`]: mapped memory;
//! - [`freeze`]: memory at one time, copied while the program writes on;
//! - [`space`]: a client's address space, and copies within it;
//! - [`regions`]: the address space of a client in another process, which shares memory;
//! - [`relay`]: bytes from socket to socket;
//! - [`thread`]: threads within a program, which leave its signals to the program;
//! - [`probes`]: static user probes for tracers, of all crates of the copy service;
//! - [`fork`]: a snapshot by fork(2), for measurements;
//! - [`calibrate`]: measures the fastest loop for each length on this machine;
//! - [`device`]: interface of asynchronous units;
//! - [`dsa`]: Intel's Data Streaming Accelerator;
//! - [`mod@unit`]: safe access to a device;
//! - [`model`]: a simulated unit with a stated latency and bandwidth, for tests.
//!
//! # Limits
//! Source and destination of one copy may not overlap: a move is two copies. Addresses may be
//! arbitrary in [`guard::Guard::copy_guarded`], and only there; the guard installs handlers for
//! SIGSEGV and SIGBUS once in a process. All functions may be called from any thread. `unsafe` code
//! is in vector instructions, signal handlers, mappings and the device's portal, each block with
//! its proof. No accelerator was available: `dsa` ran against a simulated one only.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub mod area;
pub mod calibrate;
pub mod device;
pub mod dsa;
mod evict;
pub mod fork;
pub mod freeze;
pub mod guard;
pub mod kernel;
pub mod model;
mod pagemap;
pub mod populate;
mod portable;
mod prefetch;
pub mod probes;
pub mod regions;
pub mod relay;
pub mod remap;
mod routine;
pub mod space;
pub mod stream;
pub mod thread;
pub mod unit;
mod userfault;
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
