//! Checks of the repository; each of them is an ordinary test as well.
//!
//! - [`layers`]: dependencies between crates point down; `unsafe` stays in the allowed crates;
//! - [`tidy`]: files are short and clean, the documents name existing things, and some code counts
//!   every metric and label value ([`metrics`]).
//!
//! [`changed`] names the packages that a change touches.
//!
//! A check returns problems, one per line: `file:line: problem; remedy`.
#![forbid(unsafe_code)]

use std::path::PathBuf;

pub mod changed;
pub mod documents;
pub mod layers;
pub mod metrics;
pub mod tidy;

/// The root of the repository.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), |parent| parent.to_owned())
}
