//! The error of the agent.

use std::io;
use std::path::PathBuf;

use unlade_config::SettingsError;
use unlade_runtime::WorkersError;
use unlade_runtime::admin::AdminError;
use unlade_steering::SteerError;

/// Error of the agent, for the operator to resolve.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The configuration cannot be read or does not parse.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A value is out of range.
    #[error("{key} = {value} is outside {allowed}; correct it, or leave it out for the default")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The allowed range.
        allowed: &'static str,
    },
    /// The key file cannot be read.
    #[error("key_file {}: {source}; make it with `openssl rand -hex 16`", path.display())]
    KeyUnreadable {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The permissions of the key file include other users.
    #[error(
        "key_file {}: mode {mode:03o} lets other users read the key; `chmod 600` it",
        path.display()
    )]
    KeyExposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The key file has other contents.
    #[error(
        "key_file {}: it must have 32 hexadecimal digits; make it with `openssl rand -hex 16`",
        path.display()
    )]
    KeyMalformed {
        /// The file.
        path: PathBuf,
    },
    /// The programs are not attached, or refuse access.
    #[error("interface {interface}: {source}")]
    Steer {
        /// The interface.
        interface: String,
        /// The cause.
        source: Box<SteerError>,
    },
    /// The admin endpoint.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The agent's thread failed.
    #[error(transparent)]
    Workers(#[from] WorkersError),
}
