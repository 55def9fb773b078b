//! What is wrong with a configuration.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// What is wrong with a configuration. The author of the file is at fault in every variant but
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
        /// What the system says.
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
        /// What the parser says.
        message: String,
    },
    /// A key that nothing reads.
    #[error("{place}: unknown key `{key}`{}; {advice}", inside(table))]
    UnknownKey {
        /// `file:line`.
        place: String,
        /// The key.
        key: String,
        /// The table that holds it, as `[pool.objects]` or `[[route]]`; empty at the top level.
        table: String,
        /// The key that was probably meant, or all that are known.
        advice: String,
    },
    /// A word that is not among those a key may have.
    #[error("{place}: `{key}`{}: unknown value `{value}`; {advice}", inside(table))]
    UnknownValue {
        /// `file:line`.
        place: String,
        /// The key.
        key: String,
        /// The table that holds it.
        table: String,
        /// The word found.
        value: String,
        /// The word that was probably meant, or all that are known.
        advice: String,
    },
    /// A key that must be there is not.
    #[error("{place}: the key `{key}` is missing{}; add it", inside(table))]
    MissingKey {
        /// `file:line` where the table begins.
        place: String,
        /// The key.
        key: String,
        /// The table that lacks it.
        table: String,
    },
    /// A value of another type, or out of range, or malformed.
    #[error("{place}: `{key}`{}: {message}", inside(table))]
    BadValue {
        /// `file:line`.
        place: String,
        /// The key.
        key: String,
        /// The table that holds it.
        table: String,
        /// What was found and what was expected.
        message: String,
    },
    /// Values that are well-formed each but not together; raised by whoever reads them.
    #[error("{origin}: {key}: {message}")]
    Refused {
        /// The file.
        origin: String,
        /// The keys concerned, as `pool.objects.servers`.
        key: String,
        /// What was wrong, and what to do.
        message: String,
    },
}

impl SettingsError {
    /// Values that are well-formed each but not together, in the file `origin`.
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
