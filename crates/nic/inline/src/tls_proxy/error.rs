//! Errors of the process.

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use unlade_runtime::WorkersError;
use unlade_runtime::admin::AdminError;
use unlade_runtime::listen::ListenError;

use super::config::ConfigError;
use super::devices::DeviceError;

/// An error that prevents the start of the process, or ends it early.
#[derive(Debug, Error)]
pub enum RunError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The devices cannot be set up.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The admin endpoint cannot be started.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The connections' thread cannot be started.
    #[error(transparent)]
    Workers(#[from] WorkersError),
    /// A listener cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The contents of a file are invalid.
    #[error("{}: {said}", path.display())]
    Tls {
        /// Its path.
        path: PathBuf,
        /// The error.
        said: String,
    },
    /// A name is not valid.
    #[error("name = {0:?} is not a server's name")]
    Name(String),
    /// The new configuration is invalid.
    #[error("{0}")]
    Reload(String),
    /// A thread cannot be pinned.
    #[error("host_core = {core}: {error}")]
    Core {
        /// The processor.
        core: usize,
        /// Error of the kernel.
        error: io::Error,
    },
}
