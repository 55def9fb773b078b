//! What a function is, and which of its instances serves which invocation. No clock, no thread, no
//! I/O.
//!
//! - [`manifest`]: what a function's author says of it;
//! - [`pool`]: which instance serves;
//! - [`lambda`]: how callers ask, and how refusals and failures are said;
//! - [`isolation`]: what an instance runs in, as a trait: processes, virtual machines.
#![forbid(unsafe_code)]

pub mod isolation;
pub mod lambda;
pub mod manifest;
pub mod pool;

pub use manifest::{Manifest, ManifestError};
