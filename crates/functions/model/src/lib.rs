//! The model of functions and of the scheduling of their instances. No clock, no thread, no I/O.
//!
//! - [`manifest`]: the description of a function by its author;
//! - [`pool`]: the assignment of invocations to instances;
//! - [`lambda`]: the types of the Invoke API: requests, refusals and failures;
//! - [`isolation`]: the trait of isolation backends: processes, virtual machines.
#![forbid(unsafe_code)]

pub mod isolation;
pub mod lambda;
pub mod manifest;
pub mod pool;

pub use manifest::{Manifest, ManifestError};
