//! What a task ends with that could not be copied: the code in its progress line.

use std::num::NonZeroU16;

const EFAULT: u16 = 14;
const EINVAL: u16 = 22;
const ENODATA: u16 = 61;

/// Why a task failed. The codes are those of the system's errors, so that C programs know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TaskFailure {
    /// An address is not mapped, or may not be written (EFAULT). The bytes before it may have been
    /// copied.
    #[error("a source or destination is not mapped, or may not be accessed")]
    BadAddress,
    /// The task makes no sense, or the service is too old for it (EINVAL).
    #[error("the service refused the task: its ranges overlap, wrap, or its kind is unknown")]
    Refused,
    /// The peer of a socket sent less than was to be received (ENODATA).
    #[error("the peer ended the stream before all of it was received")]
    Ended,
    /// A socket's error.
    #[error("the socket: {}", std::io::Error::from_raw_os_error(i32::from(.0.get())))]
    Socket(NonZeroU16),
}

impl TaskFailure {
    /// The service stopped in the middle of a stream (ECANCELED).
    pub const CANCELLED: TaskFailure = TaskFailure::Socket(NonZeroU16::new(125).unwrap());

    /// The code in the progress line.
    pub fn code(self) -> NonZeroU16 {
        let code = match self {
            TaskFailure::BadAddress => EFAULT,
            TaskFailure::Refused => EINVAL,
            TaskFailure::Ended => ENODATA,
            TaskFailure::Socket(code) => return code,
        };
        NonZeroU16::new(code).unwrap_or(NonZeroU16::MAX)
    }

    /// What a code means.
    pub fn of(code: NonZeroU16) -> TaskFailure {
        match code.get() {
            EFAULT => TaskFailure::BadAddress,
            EINVAL => TaskFailure::Refused,
            ENODATA => TaskFailure::Ended,
            _ => TaskFailure::Socket(code),
        }
    }

    /// What a socket's error is for a task.
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
