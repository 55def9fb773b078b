//! Configuration text: TOML into structures. Errors state the problem, its place, and a remedy.
//!
//! Stages: [`load`] reads a file, [`parse`] parses text, [`SettingsError`] describes failures.
//! Types for values that TOML does not have: [`ByteSize`], and [`duration`] for
//! `#[serde(with = "unlade_config::duration")]`.
//!
//! Structures carry `#[serde(deny_unknown_fields)]`: an unknown key is an error, because it is
//! most often a misspelt known key.
#![forbid(unsafe_code)]

mod bytes;
mod error;
mod load;
mod locate;

pub use bytes::{ByteSize, ByteSizeError};
pub use error::SettingsError;
pub use load::{FILE_BYTES_MAX, load, parse};

/// Durations as text such as `5s`, `250ms` or `1h 30m`: for `#[serde(with = "unlade_config::duration")]`
/// on a [`std::time::Duration`], and `unlade_config::duration::option` on an `Option` of one.
pub use humantime_serde as duration;
