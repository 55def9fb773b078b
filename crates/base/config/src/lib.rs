//! Configuration files in TOML, as structures; errors that state the problem, its place and a
//! remedy.
//!
//! Use it for the configuration of a program that people write by hand. A structure with
//! `#[serde(deny_unknown_fields)]` is the schema: an unknown key is an error, because it is most
//! often a misspelt known key, and the message proposes the known one.
//!
//! 1. [`load`] reads a file, [`parse`] takes text;
//! 2. [`ByteSize`] (`16MiB`) and [`duration`] (`1m 30s`) are the values that TOML does not have;
//! 3. [`SettingsError`] is every failure, with file and line.
//!
//! ```
//! use std::time::Duration;
//!
//! use serde::Deserialize;
//! use unlade_config::ByteSize;
//!
//! #[derive(Debug, Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Limits {
//!     #[serde(with = "unlade_config::duration")]
//!     timeout: Duration,
//!     body_max: ByteSize,
//! }
//!
//! let text = "timeout = \"1m 30s\"\nbody_max = \"16MiB\"\n";
//! let limits: Limits = unlade_config::parse(text, "lb.toml")?;
//! assert_eq!((limits.timeout, limits.body_max), (Duration::from_secs(90), ByteSize(16 << 20)));
//!
//! let error = unlade_config::parse::<Limits>("\ntimeuot = \"1s\"\n", "lb.toml").unwrap_err();
//! assert_eq!(error.to_string(), "lb.toml:2: unknown key `timeuot`; did you mean `timeout`?");
//! # Ok::<(), unlade_config::SettingsError>(())
//! ```
//!
//! # Limits
//! A file has at most [`FILE_BYTES_MAX`] bytes. There are no includes, no environment variables and
//! no merging of files. Checks between keys are the caller's. [`load`] reads one file and blocks;
//! no thread, no `unsafe`.
#![forbid(unsafe_code)]

mod bytes;
mod error;
mod key_file;
mod load;
mod locate;

pub use bytes::{ByteSize, ByteSizeError};
pub use error::SettingsError;
pub use key_file::{KeyFileError, read_key};
pub use load::{FILE_BYTES_MAX, load, parse};

/// Durations as text such as `5s`, `250ms` or `1h 30m`: for `#[serde(with = "unlade_config::duration")]`
/// on a [`std::time::Duration`], and `unlade_config::duration::option` on an `Option` of one.
pub use humantime_serde as duration;
