//! The error of the agent.

use unlade_backend::sidecar::SidecarError;
use unlade_config::{KeyFileError, SettingsError};
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
    /// The key file is unusable.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// The programs are not attached, or refuse access.
    #[error("interface {interface}: {source}")]
    Steer {
        /// The interface.
        interface: String,
        /// The cause.
        source: Box<SteerError>,
    },
    /// The sidecar.
    #[error(transparent)]
    Sidecar(#[from] SidecarError),
    /// A key that is needed without the sidecar, or beside another one.
    #[error(
        "the key `{key}` is missing: direct return needs `interface` and `key_file`; \
         add it, or the table [sidecar] instead of both"
    )]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// The command line names a local server, and nothing says how to adopt connections.
    #[error(
        "--upstream needs the table [sidecar] in the configuration, with `address`, `certificate`, \
         `key` and `ca` of the control channel"
    )]
    NoSidecar,
    /// The admin endpoint.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The agent's thread failed.
    #[error(transparent)]
    Workers(#[from] WorkersError),
}
