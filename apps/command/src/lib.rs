//! Parts that the command lines of `unlade` and `unlade-lab` share.
//!
//! - [`output`]: standard output; [`input`]: standard input as a sign of life;
//! - [`tools`]: the system's own tools; [`namespace`]: work inside a network namespace;
//! - [`http`]: one request to a server;
//! - [`failure`]: how a command that fails ends; [`program`]: where the two programs are.
#![forbid(unsafe_code)]

pub mod failure;
pub mod http;
pub mod input;
pub mod namespace;
pub mod output;
pub mod program;
pub mod tools;
