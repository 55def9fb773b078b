//! Errors of calls to a namespace or its controller.

use std::sync::Arc;

use thiserror::Error;
use unlade_nvme_wire::identify::IdentifyError;

use super::driver::CommandError;

/// The reason that the controller is gone.
#[derive(Clone, Debug, Error)]
#[error("the controller is gone: {0}")]
pub struct Gone(pub Arc<str>);

/// An error of a call.
#[derive(Clone, Debug, Error)]
pub enum DeviceError {
    /// A command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The controller is gone for good.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// Offset or length is not a multiple of the block size.
    #[error("offset {offset} and length {bytes} are not of whole blocks of {block_bytes} bytes")]
    Misaligned {
        /// Offset, bytes.
        offset: u64,
        /// Length, bytes.
        bytes: u64,
        /// Bytes of a block.
        block_bytes: u32,
    },
    /// The range exceeds the namespace.
    #[error("offset {offset} and length {bytes} go beyond the namespace's {size_bytes} bytes")]
    OutOfRange {
        /// Offset, bytes.
        offset: u64,
        /// Length, bytes.
        bytes: u64,
        /// Bytes of the namespace.
        size_bytes: u64,
    },
    /// The namespace is read-only.
    #[error("the namespace is read-only")]
    ReadOnly,
    /// The controller does not support the command.
    #[error("the controller does not support {0}")]
    Unsupported(&'static str),
    /// The namespace does not exist.
    #[error("there is no namespace {number}; {}", listed(.there))]
    NoNamespace {
        /// The requested number.
        number: u32,
        /// The existing namespaces.
        there: Vec<u32>,
    },
    /// The Identify data is invalid.
    #[error("the controller's identification: {0}")]
    Identify(#[from] IdentifyError),
    /// The controller violates the protocol.
    #[error("the controller violates the protocol: {0}")]
    Misbehaved(&'static str),
}

/// Largest number of namespaces in a message.
const LISTED_MAX: usize = 16;

fn listed(numbers: &[u32]) -> String {
    let shown: Vec<String> = numbers.iter().take(LISTED_MAX).map(u32::to_string).collect();
    let more = numbers.len().saturating_sub(shown.len());
    match (shown.as_slice(), more) {
        ([], _) => "the subsystem has none".to_owned(),
        ([only], _) => format!("the only one is {only}"),
        (_, 0) => format!("there are {}", shown.join(", ")),
        _ => format!("there are {} and {more} more", shown.join(", ")),
    }
}
