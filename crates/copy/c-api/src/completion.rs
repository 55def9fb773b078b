//! Handlers of copies in several parts: a handler runs once, after the last part.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::abi::Func;
use crate::sanitize;

/// State shared by the parts of a copy; the last part frees it.
struct Completion {
    parts_left: AtomicUsize,
    func: Func,
    /// Number of the sanitizer's record.
    record: Option<u64>,
}

/// Creates a handler for each of `parts` parts, as in [`unlade_copy::CopyOptions`]. `None` if there
/// is no function.
pub(crate) fn handler(
    func: Option<Func>,
    parts: usize,
    record: Option<u64>,
) -> Option<(usize, usize)> {
    let func = func.filter(|func| func.function.is_some())?;
    let parts_left = AtomicUsize::new(parts);
    let shared = Box::into_raw(Box::new(Completion { parts_left, func, record }));
    Some((part_is_over as *const () as usize, shared as usize))
}

/// Calls a handler created by [`handler`].
///
/// # Safety
/// The handler is from [`handler`], and this call is for one of its parts.
pub(crate) unsafe fn call((function, argument): (usize, usize)) {
    // SAFETY: `handler` returns addresses of functions that take one address; the caller's
    // promise.
    let function =
        unsafe { std::mem::transmute::<*const (), extern "C" fn(usize)>(function as *const ()) };
    function(argument);
}

/// Frees a handler of which no part was submitted, without a call.
///
/// # Safety
/// As for [`call`], for all parts.
pub(crate) unsafe fn forget((_, shared): (usize, usize)) {
    // SAFETY: created by `Box::into_raw` in `handler`; this is the only use.
    drop(unsafe { Box::from_raw(shared as *mut Completion) });
}

/// Ends `parts` parts of a handler that will never be submitted.
///
/// # Safety
/// As for [`call`], for `parts` parts.
pub(crate) unsafe fn skip_parts((_, shared): (usize, usize), parts: usize) {
    end_parts(shared as *mut Completion, parts);
}

extern "C" fn part_is_over(shared: usize) {
    end_parts(shared as *mut Completion, 1);
}

/// Ends `parts` parts of the copy of `shared`, which [`handler`] has created.
fn end_parts(shared: *mut Completion, parts: usize) {
    // SAFETY: `handler` created it for all parts; these are some of them, so it is not freed yet.
    if unsafe { &*shared }.parts_left.fetch_sub(parts, Ordering::AcqRel) > parts {
        return;
    }
    // SAFETY: created by `Box::into_raw`; this is the last use.
    let Completion { func, record, .. } = *unsafe { Box::from_raw(shared) };
    if let Some(record) = record {
        sanitize::over(|other, _| other == record);
    }
    run(func);
}

fn run(Func { function, argument }: Func) {
    let Some(function) = function else { return };
    let function: unsafe extern "C" fn(*mut c_void) = function;
    // SAFETY: the submitter promised that the function may be called with this argument now.
    unsafe { function(argument) };
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn count(argument: *mut c_void) {
        // SAFETY: the tests pass a live counter.
        unsafe { &*argument.cast::<AtomicUsize>() }.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn a_handler_runs_once_after_the_last_part() {
        for (parts, record) in [(1, None), (1, Some(7)), (3, None), (3, Some(9))] {
            let calls = AtomicUsize::new(0);
            let argument = (&raw const calls).cast_mut().cast();
            let func = Func { function: Some(count), argument };
            let handler = handler(Some(func), parts, record).unwrap();
            for left in (0..parts).rev() {
                // SAFETY: one call for each part.
                unsafe { call(handler) };
                assert_eq!(calls.load(Ordering::Relaxed), usize::from(left == 0));
            }
        }
    }

    #[test]
    fn skipped_parts_count_as_over() {
        let calls = AtomicUsize::new(0);
        let func = Func { function: Some(count), argument: (&raw const calls).cast_mut().cast() };
        let handler = handler(Some(func), 1 << 40, None).unwrap();
        // SAFETY: one part, and all the others.
        unsafe { call(handler) };
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        // SAFETY: as above.
        unsafe { skip_parts(handler, (1 << 40) - 1) };
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn without_a_function_there_is_no_handler() {
        assert!(handler(None, 3, None).is_none());
        let func = Func { function: None, argument: std::ptr::null_mut() };
        assert!(handler(Some(func), 1, Some(2)).is_none());
    }
}
