//! What happens when a copy is over: its handler runs once, after the last part.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::abi::Func;
use crate::sanitize;

/// What the parts of a copy share; the last one frees it.
struct Completion {
    parts_left: AtomicUsize,
    func: Func,
    /// The sanitizer's record.
    record: Option<u64>,
}

/// A handler for each of `parts` parts, as [`unlade_copy::How`] wants it. Nothing where there is no
/// function.
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

/// Calls a handler as [`handler`] gave it.
///
/// # Safety
/// It is one that [`handler`] gave, and this is one of its parts.
pub(crate) unsafe fn call((function, argument): (usize, usize)) {
    // SAFETY: `handler` gives addresses of functions that take one address; the caller's promise.
    let function =
        unsafe { std::mem::transmute::<*const (), extern "C" fn(usize)>(function as *const ()) };
    function(argument);
}

/// Takes `parts` of a handler's parts for over that will never be submitted.
///
/// # Safety
/// As for [`call`], of so many parts.
pub(crate) unsafe fn give_up((_, shared): (usize, usize), parts: usize) {
    end_parts(shared as *mut Completion, parts);
}

extern "C" fn part_is_over(shared: usize) {
    end_parts(shared as *mut Completion, 1);
}

/// `shared` is [`handler`]'s, and this ends `parts` of its parts.
fn end_parts(shared: *mut Completion, parts: usize) {
    // SAFETY: `handler` made it, for as many parts as there are; these are some of them, so it
    // is not freed yet.
    if unsafe { &*shared }.parts_left.fetch_sub(parts, Ordering::AcqRel) > parts {
        return;
    }
    // SAFETY: made by `Box::into_raw`; this is the last call.
    let Completion { func, record, .. } = *unsafe { Box::from_raw(shared) };
    if let Some(record) = record {
        sanitize::over(|other, _| other == record);
    }
    run(func);
}

fn run(Func { function, argument }: Func) {
    let Some(function) = function else { return };
    let function: unsafe extern "C" fn(*mut c_void) = function;
    // SAFETY: who submitted the copy promised that it may be called with this argument now.
    unsafe { function(argument) };
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn count(argument: *mut c_void) {
        // SAFETY: the tests give a live counter.
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
    fn parts_that_are_given_up_are_over() {
        let calls = AtomicUsize::new(0);
        let func = Func { function: Some(count), argument: (&raw const calls).cast_mut().cast() };
        let handler = handler(Some(func), 1 << 40, None).unwrap();
        // SAFETY: one part, and all the others.
        unsafe { call(handler) };
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        // SAFETY: as above.
        unsafe { give_up(handler, (1 << 40) - 1) };
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn no_function_is_no_handler() {
        assert!(handler(None, 3, None).is_none());
        let func = Func { function: None, argument: std::ptr::null_mut() };
        assert!(handler(Some(func), 1, Some(2)).is_none());
    }
}
