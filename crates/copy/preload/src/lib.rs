//! `libunlade_preload`: fewer and faster large copies in dynamically linked programs, unmodified.
//!
//! ```sh
//! LD_PRELOAD=target/release/libunlade_preload.so redis-server
//! ```
//!
//! Two mechanisms, each used only where a contest at the call site measured a gain:
//! - **Shortened reads**: the first read of a long message returns only its begin, so the program
//!   does not move the whole message down over its header.
//! - **Another loop**: copies from 512 KiB on are made by `rep movsb` where that is faster than the
//!   C library's copy.
//!
//! `docs/copy/preload.md` has the figures, also those of mechanisms that did not pay.
//!
//! The library replaces `memcpy`, `memmove`, `__memcpy_chk`, `__memmove_chk`, `read`, `recv`,
//! `epoll_ctl` and `setsockopt`. Short calls cost one comparison. All of them may be called from
//! signal handlers, by any thread, after fork(2) and vfork(2), and before the library's own start.
//! Do not link the library into a program as a Rust dependency: it replaces these functions there.
//!
//! Modules, in the order of a call:
//! - [`copies`], [`receives`]: the replaced functions;
//! - [`real`]: the C library's functions;
//! - [`sites`]: tables of call sites; [`contest`]: the comparison of two ways; [`windows`]: the
//!   measurement of reads; [`stream`]: messages of one socket;
//! - [`movsb`]: the other loop; [`clock`]: clocks;
//! - [`options`]: the environment variable; [`counters`]: counters; [`process`]: start, forks, the report at the end.
//!
//! The library is for Linux on x86-64; on other machines it is empty.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod clock;
pub mod contest;
pub mod copies;
pub mod counters;
pub mod movsb;
pub mod options;
pub mod process;
pub mod real;
pub mod receives;
pub mod sites;
pub mod stream;
pub mod windows;
