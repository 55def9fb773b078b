//! Errors in C style: return value -1, and the reason in `errno`.

use std::ffi::c_int;

use unlade_copy::CopyError;

/// Error number of a failed copy.
pub(crate) fn of_copy(error: CopyError) -> c_int {
    // More variants may be added; another failure is an I/O error.
    #[allow(unreachable_patterns)]
    match error {
        CopyError::Failed(failure) => c_int::from(failure.code().get()),
        _ => libc::EIO,
    }
}

/// Returns 0, or -1 with `errno` set.
pub(crate) fn status(result: Result<(), c_int>) -> c_int {
    value(result.map(|()| 0))
}

/// Returns the value, or -1 with `errno` set.
pub(crate) fn value(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|errno| {
        set(errno);
        -1
    })
}

fn set(errno: c_int) {
    // SAFETY: the C library returns the address of this thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
}

/// The calling thread's `errno`.
pub(crate) fn last() -> c_int {
    // SAFETY: as in `set`.
    unsafe { *libc::__errno_location() }
}
