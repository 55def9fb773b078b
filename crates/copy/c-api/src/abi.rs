//! Structures and constants of the C interface.
//!
//! Structures that a program passes in begin with their size, as compiled into the program. Later
//! versions can therefore add fields at the end: missing fields of a shorter structure are zero,
//! and a longer structure is refused (E2BIG) unless its unknown fields are zero.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::AtomicU32;

use unlade_copy::Token;

/// Major version of the interface.
pub const COPIER_VERSION_MAJOR: u32 = 0;
/// Minor version of the interface.
pub const COPIER_VERSION_MINOR: u32 = 1;
/// Patch version of the interface.
pub const COPIER_VERSION_PATCH: u32 = 0;

/// Flag of a copy: defer it for `lazy_us` microseconds, or until something needs the bytes.
pub const COPIER_LAZY: u32 = 1;
/// Flag of a copy, a receive or a send: queue it, even if it is small.
pub const COPIER_QUEUED: u32 = 2;
/// Flag of a send or a copy: nothing will look at its bytes again, nor, if amemcpy_lazily() would write
/// exactly what is sent, at the source of that copy. Their content is undefined afterwards. Bytes that
/// are not received yet may go from socket to socket; pages of a copy may move to the destination.
pub const COPIER_LAST_USE: u32 = 4;

/// Delay of a lazy copy: until something needs the bytes. The copy is never made if its destination
/// is overwritten by another copy before, or if it is aborted.
pub const COPIER_UNTIL_NEEDED: u32 = u32::MAX;

/// Flag of `_csync`: also wait until no copy reads the bytes, before they are changed or freed.
pub const COPIER_SYNC_WRITE: u32 = 1;
/// Flag of `_csync`: do not wait; EAGAIN if the bytes are not copied yet.
pub const COPIER_SYNC_TRY: u32 = 2;

/// Polling: a service thread without work sleeps after a while. The default.
pub const COPIER_POLL_ADAPTIVE: u32 = 1;
/// Polling: a service thread without work sleeps at once, except while the scenario is on.
pub const COPIER_POLL_SCENARIO: u32 = 2;
/// Polling: service threads never sleep.
pub const COPIER_POLL_ALWAYS: u32 = 3;

/// Value of a switch in `struct copier_opt`: on.
pub const COPIER_ON: u32 = 1;
/// Value of a switch in `struct copier_opt`: off.
pub const COPIER_OFF: u32 = 2;

/// Flag of a call site: it has the field `state`, and may be written.
pub const COPIER_SITE_HAS_STATE: u32 = 1;

/// A call site of copies in the program. It is identified by its address, so it must be static;
/// the macros of the header create it.
#[repr(C)]
pub struct CallSite {
    /// The source file, or NULL.
    pub file: *const c_char,
    /// The line.
    pub line: u32,
    /// COPIER_SITE_HAS_STATE.
    pub flags: u32,
    /// Private to the library; 0 at first.
    pub state: AtomicU32,
}

// Explanations read these two: `unlade_copy::explain::SiteNames::CallSite`.
const _: () = assert!(std::mem::offset_of!(CallSite, file) == 0);
const _: () = assert!(std::mem::offset_of!(CallSite, line) == size_of::<usize>());

impl Default for CallSite {
    fn default() -> CallSite {
        CallSite {
            file: std::ptr::null(),
            line: 0,
            flags: COPIER_SITE_HAS_STATE,
            state: AtomicU32::new(0),
        }
    }
}

/// A handler. It is called once, when a copy is over and its source is no longer read: in
/// post_handlers(), csync_all(), or, for a synchronous copy, in the submitting call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Func {
    /// The function.
    pub function: Option<unsafe extern "C" fn(argument: *mut c_void)>,
    /// Argument of the function.
    pub argument: *mut c_void,
}

/// Maximum number of tokens in a descriptor. The rest of longer copies (4 MiB and more) is found
/// by address.
pub(crate) const DESCR_TOKENS: usize = 4;

/// A copy's descriptor, in the program's memory: _csync() with a descriptor needs no lookup. Zero
/// it before its first use; each copy overwrites it. It may be copied, and used by several
/// threads.
#[repr(C)]
pub struct Descr {
    /// 0: no copy yet. All other values, and all following fields, are private to the library.
    pub state: u32,
    /// Number of tokens in `data`.
    pub tokens: u32,
    /// Number of the queue.
    pub queue: u64,
    /// The destination.
    pub dst: *mut c_void,
    /// Bytes of the copy.
    pub len_bytes: usize,
    /// Bytes of each part of the copy.
    pub part_bytes: usize,
    /// The tokens.
    pub data: [u64; 32],
}

const _: () = assert!(size_of::<Token>() * DESCR_TOKENS <= size_of::<[u64; 32]>());
const _: () = assert!(align_of::<Token>() <= align_of::<Descr>());

/// Options of a copy, a receive or a send; NULL is the same as all zeroes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct TaskOpts {
    /// sizeof(struct copier_task_opts).
    pub size: u32,
    /// COPIER_LAZY, COPIER_QUEUED, COPIER_LAST_USE.
    pub flags: u32,
    /// With COPIER_LAZY: the delay in microseconds; COPIER_UNTIL_NEEDED.
    pub lazy_us: u32,
    /// Maximum size of a segment, the unit of progress; at least 1024. 0: the library chooses.
    pub granularity_bytes: u32,
}

/// Options of a sync; NULL is the same as all zeroes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct SyncOpts {
    /// sizeof(struct copier_sync_opts).
    pub size: u32,
    /// COPIER_SYNC_WRITE, COPIER_SYNC_TRY.
    pub flags: u32,
}

/// Options of the whole process; a field that is 0 stays unchanged.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Opt {
    /// sizeof(struct copier_opt).
    pub size: u32,
    /// COPIER_ON or COPIER_OFF: use a service or not. Only before the first copy.
    pub enabled: u32,
    /// Maximum number of threads that copy. Only before the first copy.
    pub threads: u32,
    /// Capacity of a queue in tasks: a power of two, 16 to 4096. Only before the first copy.
    pub queue_len: u32,
    /// COPIER_POLL_...: when a thread without work sleeps. Only before the first copy.
    pub polling: u32,
    /// COPIER_ON keeps the threads awake, with COPIER_POLL_SCENARIO: set it while much is copied,
    /// and COPIER_OFF afterwards. At any time.
    pub scenario: u32,
}

/// Statistics of a queue.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CopierStats {
    /// sizeof(struct copier_stats), set by the caller.
    pub size: u32,
    /// 1 if a service serves the queue, 0 if all copies are synchronous.
    pub served: u32,
    /// Number of synchronous copies.
    pub at_once: u64,
    /// Number of queued copies.
    pub queued: u64,
    /// Bytes of queued copies.
    pub queued_bytes: u64,
    /// Bytes of queued copies that a waiting thread copied itself.
    pub helped_bytes: u64,
    /// Number of waits for the service.
    pub waits: u64,
    /// Number of copies with COPIER_UNTIL_NEEDED that were never made.
    pub never_made: u64,
    /// Bytes of these copies.
    pub never_made_bytes: u64,
    /// Bytes that asend() took from the source of such a copy.
    pub forwarded_bytes: u64,
    /// Bytes of these sends that were copied after all: they changed before the socket took them.
    pub saved_bytes: u64,
    /// Copies with COPIER_LAST_USE that were made by moving pages.
    pub remapped: u64,
    /// Bytes of these pages.
    pub remapped_bytes: u64,
    /// Such copies for which fewer pages were moved than planned.
    pub remaps_refused: u64,
    /// Bytes of copies with COPIER_LAST_USE that were copied nevertheless.
    pub last_use_copied_bytes: u64,
}

impl CopierStats {
    /// Size of the structure in the first version of the interface.
    pub(crate) const SIZE_MIN: usize = 48;
}

/// A structure that begins with its size.
///
/// # Safety
/// It consists of plain numbers in C layout, all zeroes are a valid value, and its first field is
/// the size.
pub(crate) unsafe trait Sized32: Copy + Default {
    /// Size of the structure in the first version of the interface.
    const SIZE_MIN: usize;
}

// SAFETY: four u32, the first is the size.
unsafe impl Sized32 for TaskOpts {
    const SIZE_MIN: usize = 16;
}
// SAFETY: two u32, the first is the size.
unsafe impl Sized32 for SyncOpts {
    const SIZE_MIN: usize = 8;
}
// SAFETY: six u32, the first is the size.
unsafe impl Sized32 for Opt {
    const SIZE_MIN: usize = 24;
}

/// Maximum size of a structure that is read.
const SIZE_MAX: usize = 4096;

/// Reads a structure of any version; zeroes for NULL.
///
/// # Errors
/// EINVAL: its size is invalid. E2BIG: it uses fields that this version does not have.
///
/// # Safety
/// `from` is NULL, or readable for the number of bytes in its first field.
pub(crate) unsafe fn read_sized<T: Sized32>(from: *const T) -> Result<T, c_int> {
    let mut value = T::default();
    if from.is_null() {
        return Ok(value);
    }
    // SAFETY: the first field is the size (`Sized32`), which the caller promises to be readable.
    let size = unsafe { from.cast::<u32>().read_unaligned() } as usize;
    if !(T::SIZE_MIN..=SIZE_MAX).contains(&size) {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller promises that `size` bytes are readable.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) };
    if bytes.iter().skip(size_of::<T>()).any(|byte| *byte != 0) {
        return Err(libc::E2BIG);
    }
    // SAFETY: not longer than `value`, nor than the readable bytes of `from`; any bytes are a
    // valid value.
    unsafe {
        std::ptr::copy_nonoverlapping(
            from.cast::<u8>(),
            std::ptr::from_mut(&mut value).cast::<u8>(),
            size.min(size_of::<T>()),
        );
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_of_other_versions_are_read_or_refused() {
        // SAFETY: NULL.
        assert_eq!(unsafe { read_sized::<SyncOpts>(std::ptr::null()) }.map(|o| o.flags), Ok(0));
        let read = |words: [u32; 4]| {
            // SAFETY: the size is at most that of the array, or the structure is refused unread.
            unsafe { read_sized::<SyncOpts>(words.as_ptr().cast()) }.map(|opts| opts.flags)
        };
        assert_eq!(read([8, 3, 9, 9]), Ok(3));
        assert_eq!(read([16, 3, 0, 0]), Ok(3));
        assert_eq!(read([16, 3, 0, 1]), Err(libc::E2BIG));
        assert_eq!(read([7, 3, 0, 0]), Err(libc::EINVAL));
        assert_eq!(read([0, 3, 0, 0]), Err(libc::EINVAL));
        assert_eq!(read([1 << 20, 3, 0, 0]), Err(libc::EINVAL));
    }

    #[test]
    fn the_version_is_the_packages() {
        let version =
            format!("{COPIER_VERSION_MAJOR}.{COPIER_VERSION_MINOR}.{COPIER_VERSION_PATCH}");
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
    }
}
