//! Errors as C programs expect them: -1, and the reason in `errno`.

use std::ffi::c_int;

use unlade_copy::CopyError;

/// The number for what a copy ended with.
pub(crate) fn of_copy(error: CopyError) -> c_int {
    // More variants may come; a copy that failed otherwise is an I/O error.
    #[allow(unreachable_patterns)]
    match error {
        CopyError::Failed(failure) => c_int::from(failure.code().get()),
        _ => libc::EIO,
    }
}

/// 0, or -1 with `errno` set.
pub(crate) fn status(result: Result<(), c_int>) -> c_int {
    value(result.map(|()| 0))
}

/// The value, or -1 with `errno` set.
pub(crate) fn value(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|errno| {
        set(errno);
        -1
    })
}

fn set(errno: c_int) {
    // SAFETY: the C library says that the address is this thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
}

/// The calling thread's `errno`.
pub(crate) fn last() -> c_int {
    // SAFETY: as in `set`.
    unsafe { *libc::__errno_location() }
}
