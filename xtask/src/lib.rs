//! Checks of the house, each of which is an ordinary test as well.
//!
//! - [`layers`]: dependencies between crates point down; `unsafe` stays where it may be;
//! - [`tidy`]: files are short and clean, the documents name what exists, and every
//!   metric and label value is counted by some code ([`metrics`]).
//!
//! A check yields problems, one a line: `file:line: what is wrong; what to do`.
#![forbid(unsafe_code)]

use std::path::PathBuf;

pub mod documents;
pub mod layers;
pub mod metrics;
pub mod tidy;

/// The root of the repository.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), |parent| parent.to_owned())
}
