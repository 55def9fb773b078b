//! What C programs see of the library: structures and constants.
//!
//! Structures that a program hands in begin with their size, as the program knows it. So later
//! versions can add fields at the end: a shorter structure stands for zeroes in what it lacks, a
//! longer one is refused (E2BIG) where what is not known here is not zero.

use std::ffi::{c_char, c_int, c_void};

use unlade_copy::Token;

/// Major version of the interface.
pub const COPIER_VERSION_MAJOR: u32 = 0;
/// Minor version of the interface.
pub const COPIER_VERSION_MINOR: u32 = 1;
/// Patch version of the interface.
pub const COPIER_VERSION_PATCH: u32 = 0;

/// Flag of a copy: put off for `lazy_us` microseconds, or until something needs the bytes.
pub const COPIER_LAZY: u32 = 1;
/// Flag of a copy: queue it, however small it is.
pub const COPIER_QUEUED: u32 = 2;

/// Flag of `_csync`: wait also until nobody reads the bytes, before they are changed or freed.
pub const COPIER_SYNC_WRITE: u32 = 1;
/// Flag of `_csync`: do not wait; EAGAIN where the bytes are not there.
pub const COPIER_SYNC_TRY: u32 = 2;

/// Polling: a service thread without work sleeps after a while. The default.
pub const COPIER_POLL_ADAPTIVE: u32 = 1;
/// Polling: it sleeps at once, but never while the scenario is on.
pub const COPIER_POLL_SCENARIO: u32 = 2;
/// Polling: it never sleeps.
pub const COPIER_POLL_ALWAYS: u32 = 3;

/// In a field of `struct copier_opt` that switches: on.
pub const COPIER_ON: u32 = 1;
/// In a field of `struct copier_opt` that switches: off.
pub const COPIER_OFF: u32 = 2;

/// A place in the program that asks for copies. Its address tells places apart, so it is static;
/// the header's macros make it.
#[repr(C)]
pub struct Site {
    /// The source file, or NULL.
    pub file: *const c_char,
    /// The line.
    pub line: u32,
    /// 0.
    pub reserved: u32,
}

/// A function that is called once when a copy is over and nobody reads its source any more: in
/// post_handlers(), csync_all(), or, for a copy made at once, in the submitting call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Func {
    /// The function.
    pub function: Option<unsafe extern "C" fn(argument: *mut c_void)>,
    /// What it is called with.
    pub argument: *mut c_void,
}

/// Tokens in a descriptor; of longer copies (4 MiB and more) what is beyond is found by address.
pub(crate) const DESCR_TOKENS: usize = 4;

/// A copy's descriptor, in the program's memory: _csync() with it looks nothing up. Zero it before
/// its first use; each copy fills it anew. It may be copied, and used by several threads.
#[repr(C)]
pub struct Descr {
    /// 0: no copy yet. Otherwise the library's, as all that follows.
    pub state: u32,
    /// How many tokens are in `data`.
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

/// How a copy is made; NULL stands for all zeroes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct TaskOpts {
    /// sizeof(struct copier_task_opts).
    pub size: u32,
    /// COPIER_LAZY, COPIER_QUEUED.
    pub flags: u32,
    /// With COPIER_LAZY: for so many microseconds.
    pub lazy_us: u32,
    /// Progress is told in segments of at most so many bytes, where that is 1024 or more; 0: the
    /// library chooses.
    pub granularity_bytes: u32,
}

/// How a copy is waited for; NULL stands for all zeroes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct SyncOpts {
    /// sizeof(struct copier_sync_opts).
    pub size: u32,
    /// COPIER_SYNC_WRITE, COPIER_SYNC_TRY.
    pub flags: u32,
}

/// What is set for the whole process; a field that is 0 stays as it is.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Opt {
    /// sizeof(struct copier_opt).
    pub size: u32,
    /// COPIER_ON or COPIER_OFF: whether there is a service at all. Only before the first copy.
    pub enabled: u32,
    /// Threads that copy, at most. Only before the first copy.
    pub threads: u32,
    /// Tasks that a queue holds: a power of two, 16 to 4096. Only before the first copy.
    pub queue_len: u32,
    /// COPIER_POLL_...: when a thread without work sleeps. Only before the first copy.
    pub polling: u32,
    /// COPIER_ON while much is copied, COPIER_OFF afterwards: keeps the threads awake, with
    /// COPIER_POLL_SCENARIO. At any time.
    pub scenario: u32,
}

/// What a queue has done.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CopierStats {
    /// sizeof(struct copier_stats), set by the caller.
    pub size: u32,
    /// 1 where a service serves the queue, 0 where everything is copied at once.
    pub served: u32,
    /// Copies made at once.
    pub at_once: u64,
    /// Copies that were queued.
    pub queued: u64,
    /// Bytes that were queued.
    pub queued_bytes: u64,
    /// Bytes of queued copies that a waiter copied itself.
    pub helped_bytes: u64,
    /// Times that a waiter had to wait.
    pub waits: u64,
}

/// A structure that begins with its size.
///
/// # Safety
/// It is plain numbers in C's layout, all zeroes are a value, and its first field is the size.
pub(crate) unsafe trait Sized32: Copy + Default {
    /// What the structure had in the first version of the interface.
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

/// Longest structure that is looked at.
const SIZE_MAX: usize = 4096;

/// Reads a structure of whatever version; zeroes for NULL.
///
/// # Errors
/// EINVAL: its size makes no sense. E2BIG: it asks for what this version does not know.
///
/// # Safety
/// `from` is NULL, or readable for as many bytes as its first field says.
pub(crate) unsafe fn read_sized<T: Sized32>(from: *const T) -> Result<T, c_int> {
    let mut value = T::default();
    if from.is_null() {
        return Ok(value);
    }
    // SAFETY: the first field is the size (`Sized32`), which the caller says can be read.
    let size = unsafe { from.cast::<u32>().read_unaligned() } as usize;
    if !(T::SIZE_MIN..=SIZE_MAX).contains(&size) {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller says that `size` bytes can be read.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) };
    if bytes.iter().skip(size_of::<T>()).any(|byte| *byte != 0) {
        return Err(libc::E2BIG);
    }
    // SAFETY: not more than `value` has and `from` can be read for; any bytes are a value.
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
            // SAFETY: no size below is above the array's but those that are refused unread.
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
