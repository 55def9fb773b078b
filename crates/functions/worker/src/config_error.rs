//! Errors of a configuration.

use unlade_config::SettingsError;

use crate::store::credentials::CredentialsError;

/// An error in a configuration, or in a file that it names. The operator is at fault.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text cannot be parsed.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The keys cannot be read.
    #[error("[store.credentials] {0}")]
    Credentials(#[from] CredentialsError),
    /// A value is invalid.
    #[error("{key}: {why}")]
    Value {
        /// The key.
        key: &'static str,
        /// The reason.
        why: String,
    },
}

/// The error of a value.
pub fn value(key: &'static str, why: impl std::fmt::Display) -> ConfigError {
    ConfigError::Value { key, why: why.to_string() }
}
