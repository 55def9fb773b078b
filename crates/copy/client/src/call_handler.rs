//! The call of a handler.

/// Calls a handler.
///
/// # Safety
/// `function` is the address of an `extern "C" fn(usize)` that may be called with `argument` now.
pub(crate) unsafe fn call_handler(function: usize, argument: usize) {
    if function == 0 {
        return;
    }
    // SAFETY: the caller promises that it is the address of such a function, and it is not null.
    let function: extern "C" fn(usize) =
        unsafe { core::mem::transmute::<usize, extern "C" fn(usize)>(function) };
    function(argument);
}
