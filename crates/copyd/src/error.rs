//! What a task ends with that could not be copied: the code in its progress line.

use std::num::NonZeroU16;

/// Why a task failed. The numbers are those of the system's errors, so that C programs know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u16)]
pub enum TaskFailure {
    /// An address is not mapped, or may not be written (EFAULT). The bytes before it may have been
    /// copied.
    #[error("a source or destination is not mapped, or may not be accessed")]
    BadAddress = 14,
    /// The task makes no sense, or the service is too old for it (EINVAL).
    #[error("the service refused the task: its ranges overlap, wrap, or its kind is unknown")]
    Refused = 22,
}

impl TaskFailure {
    /// The code in the progress line.
    pub fn code(self) -> NonZeroU16 {
        match NonZeroU16::new(self as u16) {
            Some(code) => code,
            None => NonZeroU16::MAX,
        }
    }

    /// What a code means; another service's unknown one is [`TaskFailure::Refused`].
    pub fn of(code: NonZeroU16) -> TaskFailure {
        match code.get() {
            14 => TaskFailure::BadAddress,
            _ => TaskFailure::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back() {
        for failure in [TaskFailure::BadAddress, TaskFailure::Refused] {
            assert_eq!(TaskFailure::of(failure.code()), failure);
        }
    }
}
