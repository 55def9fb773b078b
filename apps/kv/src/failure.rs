//! Reasons why a command has no result. The texts are those of Redis, because clients compare them.

/// Reason why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("ERR syntax error")]
    Syntax,
    #[error("ERR value is not an integer or out of range")]
    NotANumber,
    #[error("ERR value is not a valid float")]
    NotAFloat,
    #[error("ERR wrong number of arguments for '{0}' command")]
    WrongNumber(&'static str),
    #[error("ERR invalid expire time in '{0}' command")]
    ExpireTime(&'static str),
    #[error("OOM command not allowed when used memory > 'maxmemory'.")]
    Memory,
    #[error("ERR string exceeds maximum allowed size (proto-max-bulk-len)")]
    Size,
    #[error("ERR no such key")]
    NoKey,
    #[error("ERR DB index is out of range")]
    Database,
    #[error("ERR source and destination objects are the same")]
    SameObject,
    /// The value was acknowledged when its bytes were in the socket, so this is a bug of the
    /// server or the kernel.
    #[error("ERR the value was lost while it was received: set it again")]
    Lost,
    /// Any other text, with its code.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// Creates a failure with the general code.
    pub fn text(text: impl std::fmt::Display) -> Failure {
        Failure::Other(format!("ERR {text}"))
    }
}

/// Result of a command, which appends its answer to the output itself.
pub(crate) type Answer = Result<(), Failure>;
