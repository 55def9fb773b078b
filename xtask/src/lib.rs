//! Checks of the repository; each of them is an ordinary test as well.
//!
//! - [`layers`]: dependencies between crates point down; `unsafe` stays in the allowed crates; files
//!   of a crate import from each other without circles ([`circles`], from [`imports`]);
//! - [`tidy`]: files are short and clean, and some code counts every metric and label value
//!   ([`metrics`]);
//! - [`documents`], a part of it: the documents name existing things, stay within their sizes, and
//!   link to what exists ([`promises`], [`links`], [`readmes`]).
//!
//! [`driven`] compares the metrics that a run of the tests drove with those that exist.
//! [`changed`] names the packages that a change touches.
//!
//! A check returns problems, one per line: `file:line: problem; remedy`.
#![forbid(unsafe_code)]

use std::path::PathBuf;

pub mod changed;
pub mod circles;
pub mod documents;
pub mod driven;
pub mod imports;
pub mod layers;
pub mod links;
pub mod metrics;
pub mod promises;
pub mod readmes;
pub mod tidy;

/// The root of the repository.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), |parent| parent.to_owned())
}
