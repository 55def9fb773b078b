//! Isolation backends of functions, which implement [`unlade_fn_model::isolation::Isolation`].
//!
//! Use [`process`] where functions trust the kernel and start in milliseconds; use [`qemu`] where
//! each instance needs a kernel of its own. Both prepare a template once (an interpreter that has
//! imported the function), and start instances from it.
//!
//! 1. [`process`]: a zygote in namespaces of its own, which forks instances;
//! 2. [`qemu`]: a virtual machine, restored from a snapshot of its memory.
//!
//! ```no_run
//! use unlade_fn_model::isolation::{Image, Isolation};
//! use unlade_fn_sandbox::process::{Launcher, Process, ProcessConfig};
//!
//! # async fn start(image: &Image) -> Result<(), Box<dyn std::error::Error>> {
//! // Needs root. The program starts itself again to make the sandbox: see `process::launch`.
//! let launcher = Launcher {
//!     program: "/proc/self/exe".into(),
//!     arguments: vec!["fn".into(), "sandbox".into()],
//!     init: vec!["fn".into(), "init".into()],
//! };
//! let backend = Process::new(ProcessConfig::default(), launcher);
//! backend.probe()?; // names what this machine lacks
//! let template = backend.prepare(image).await?;
//! let started = template.start("instance-1").await?;
//! println!("{} KiB of its own", started.instance.usage()?.private_bytes >> 10);
//! // The instance greets on `started.channel`; dropping `started.instance` kills it.
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//! Linux, root; functions in other languages than Python in sandboxed processes only; a template has at most [`process::INSTANCES_MAX`] instances.
//! Futures stay on one thread. Machines need QEMU 8.2 or later and are slow without KVM. No
//! `unsafe`.
#![forbid(unsafe_code)]

pub mod process;
pub mod qemu;
