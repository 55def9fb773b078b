//! What a copy ends with that was not made.

use copyd::TaskFailure;

/// Why bytes are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CopyError {
    /// The service could not make the copy.
    #[error("the copy failed: {0}")]
    Failed(TaskFailure),
}
