//! Configuration text: TOML into structures, with errors that say what was wrong, where, and what
//! to do next.
//!
//! Stages: [`load`] reads a file, [`parse`] understands text, [`SettingsError`] says what failed.
//! Values that TOML does not know have types here: [`ByteSize`], and [`duration`] for
//! `#[serde(with = "unlade_config::duration")]`.
//!
//! Structures that are read carry `#[serde(deny_unknown_fields)]`: a key that nobody reads is an
//! error, for it is most often a known one misspelt.
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
