//! Isolation backends, which implement [`unlade_fn_model::isolation::Isolation`].
//!
//! - [`process`]: a zygote in namespaces of its own, which forks instances;
//! - [`qemu`]: a virtual machine, restored from a snapshot of its memory.
#![forbid(unsafe_code)]

pub mod process;
pub mod qemu;
