//! Error of a copy.

use std::io;
use std::num::NonZeroU16;

use unlade_copy_service::TaskFailure;

/// Reason why bytes were not copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CopyError {
    /// The service could not make the copy.
    #[error("the copy failed: {0}")]
    Failed(TaskFailure),
}

/// The failure becomes the source; a stream that ended early is `UnexpectedEof`.
impl From<CopyError> for io::Error {
    fn from(error: CopyError) -> io::Error {
        let CopyError::Failed(failure) = error;
        let kind = match failure {
            TaskFailure::Ended => io::ErrorKind::UnexpectedEof,
            TaskFailure::Socket(code) => io::Error::from_raw_os_error(code.get().into()).kind(),
            TaskFailure::BadAddress | TaskFailure::Refused => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// Converts an error code to the result of a sync.
#[inline]
pub(crate) fn to_result(code: Option<NonZeroU16>) -> Result<(), CopyError> {
    code.map_or(Ok(()), |code| Err(CopyError::Failed(TaskFailure::of(code))))
}
