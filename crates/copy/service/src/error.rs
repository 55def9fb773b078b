//! Failure codes of tasks, as in the progress line.

use std::num::NonZeroU16;

const EFAULT: u16 = 14;
const EINVAL: u16 = 22;
const ENODATA: u16 = 61;

/// Reason of a task's failure. The codes are errno values, which C programs can interpret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TaskFailure {
    /// An address is not mapped, or may not be written (EFAULT). The bytes before it may have been
    /// copied.
    #[error("a source or destination is not mapped, or may not be accessed")]
    BadAddress,
    /// The task is invalid, or needs a later version of the service (EINVAL).
    #[error("the service refused the task: its ranges overlap, wrap, or its kind is unknown")]
    Refused,
    /// The peer of a socket sent less than the task was to receive (ENODATA).
    #[error("the peer ended the stream before all of it was received")]
    Ended,
    /// A socket's error.
    #[error("the socket: {}", std::io::Error::from_raw_os_error(i32::from(.0.get())))]
    Socket(NonZeroU16),
}

impl TaskFailure {
    /// The service stopped in the middle of a stream (ECANCELED).
    pub const CANCELLED: TaskFailure = TaskFailure::Socket(NonZeroU16::new(125).unwrap());

    /// Returns the code in the progress line.
    pub fn code(self) -> NonZeroU16 {
        let code = match self {
            TaskFailure::BadAddress => EFAULT,
            TaskFailure::Refused => EINVAL,
            TaskFailure::Ended => ENODATA,
            TaskFailure::Socket(code) => return code,
        };
        NonZeroU16::new(code).unwrap_or(NonZeroU16::MAX)
    }

    /// Returns the reason for a code.
    pub fn of(code: NonZeroU16) -> TaskFailure {
        match code.get() {
            EFAULT => TaskFailure::BadAddress,
            EINVAL => TaskFailure::Refused,
            ENODATA => TaskFailure::Ended,
            _ => TaskFailure::Socket(code),
        }
    }

    /// Returns the reason for a socket's error.
    pub fn of_socket(error: &std::io::Error) -> TaskFailure {
        let code = error.raw_os_error().and_then(|code| u16::try_from(code).ok());
        code.and_then(NonZeroU16::new).map_or(TaskFailure::Refused, TaskFailure::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back() {
        let reset = TaskFailure::Socket(NonZeroU16::new(104).unwrap());
        for failure in [TaskFailure::BadAddress, TaskFailure::Refused, TaskFailure::Ended, reset] {
            assert_eq!(TaskFailure::of(failure.code()), failure);
        }
        let error = std::io::Error::from_raw_os_error(104);
        assert_eq!(TaskFailure::of_socket(&error), reset);
        assert!(reset.to_string().contains("reset"), "{reset}");
    }
}
