//! Errors in a configuration.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// An error in a configuration. The author of the file is at fault in every variant except
/// [`Unreadable`](SettingsError::Unreadable).
#[derive(Debug, Error)]
pub enum SettingsError {
    /// There is no such file.
    #[error(
        "{}: there is no such file; create it, or name another one with --config FILE",
        path.display()
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is larger than any configuration.
    #[error("{}: exceeds {limit} bytes; is this the configuration?", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The named limit.
        limit: u64,
    },
    /// The text is not TOML.
    #[error("{place}: not TOML: {message}")]
    Syntax {
        /// `file:line`.
        place: String,
        /// The message of the parser.
        message: String,
    },
    /// A key that no structure has.
    #[error("{place}: unknown key `{key}`{}; {advice}", inside(table))]
    UnknownKey {
        /// `file:line`.
        place: String,
        /// The key.
        key: String,
        /// The table of the key, as `[pool.objects]` or `[[route]]`; empty at the top level.
        table: String,
        /// The most similar known key, or all known keys.
        advice: String,
    },
    /// A value that is not among the allowed values of its key.
    #[error("{place}: `{key}`{}: unknown value `{value}`; {advice}", inside(table))]
    UnknownValue {
        /// `file:line`.
        place: String,
        /// The key.
        key: String,
        /// The table of the key.
        table: String,
        /// The value found.
        value: String,
        /// The most similar allowed value, or all allowed values.
        advice: String,
    },
    /// A required key is missing.
    #[error("{place}: the key `{key}` is missing{}; add it", inside(table))]
    MissingKey {
        /// `file:line` where the table begins.
        place: String,
        /// The key.
        key: String,
        /// The table without the key.
        table: String,
    },
    /// A value of the wrong type, out of range, or malformed.
    #[error("{place}: `{key}`{}: {message}", inside(table))]
    BadValue {
        /// `file:line`.
        place: String,
        /// The key.
        key: String,
        /// The table of the key.
        table: String,
        /// The value found and the value expected.
        message: String,
    },
    /// Values that are each well-formed but contradict each other; the code that reads them raises
    /// this.
    #[error("{origin}: {key}: {message}")]
    Refused {
        /// The file.
        origin: String,
        /// The keys concerned, as `pool.objects.servers`.
        key: String,
        /// The problem, and a remedy.
        message: String,
    },
}

impl SettingsError {
    /// Makes the error for values of the file `origin` that contradict each other.
    pub fn refused(
        origin: impl Into<String>,
        key: impl Into<String>,
        message: impl Into<String>,
    ) -> SettingsError {
        SettingsError::Refused { origin: origin.into(), key: key.into(), message: message.into() }
    }
}

fn inside(table: &str) -> String {
    match table {
        "" => String::new(),
        table => format!(" in {table}"),
    }
}
