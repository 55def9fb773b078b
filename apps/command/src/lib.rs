//! Parts that the command lines of `unlade` and `unlade-lab` share.
//!
//! Use it in a command that prints lines, runs the system's tools, works inside a network
//! namespace, or starts the other of the two programs. Errors are `anyhow`'s, with the remedy in
//! their text.
//!
//! 1. [`program`]: where the two programs are;
//! 2. [`tools`]: the system's own tools; [`namespace`]: work inside a network namespace;
//! 3. [`http`]: one request to a server;
//! 4. [`output`]: standard output, whose reader may be gone; [`input`]: standard input as a sign of
//!    life;
//! 5. [`failure`]: how a command that fails ends.
//!
//! ```
//! use unlade_command::{failure, output, tools};
//!
//! let text = tools::run_with_input("sort", &["-n"], "10\n9\n")?;
//! assert_eq!(text, "9\n10\n");
//! assert!(tools::find_program("no-such-tool").is_none());
//!
//! output::line("two numbers were sorted")?;
//! let status = failure::status("unlade", Ok(std::process::ExitCode::SUCCESS));
//! # let _ = status;
//! # Ok::<(), anyhow::Error>(())
//! ```
//!
//! # Limits
//! Blocking calls. [`namespace::inside`] runs the work on a thread of its own, and needs root. No
//! `unsafe`.
#![forbid(unsafe_code)]

pub mod failure;
pub mod http;
pub mod input;
pub mod namespace;
pub mod output;
pub mod program;
pub mod tools;
