//! `memcpy` and its relatives.
//!
//! A short copy costs one comparison and one jump to the C library's function. A long one of ranges
//! that do not overlap is made by the faster of two loops: the C library's, and `rep movsb`. A
//! contest at each call site decides. A long move to a lower address within the same range is told
//! to [`crate::receives`].

use std::arch::naked_asm;
use std::ffi::c_void;

use crate::clock::clock_ns;
use crate::contest::{Contest, Way};
use crate::counters::{self, add};
use crate::movsb::rep_movsb;
use crate::options::{self, Choice};
use crate::real::{self, Move, MoveChecked, Real};
use crate::receives;
use crate::sites::{SITES_MAX, Sites, vacant};

/// Minimum length of a copy with a choice of the loop. Shorter ones were never faster by another.
pub const LOOP_BYTES_MIN: usize = 512 << 10;
/// Minimum length of a move that counts as a shift.
pub const SHIFT_BYTES_MIN: usize = 32 << 10;
/// Highest ratio of times at which the other loop is used.
const LIMIT_PERMILLE: u64 = 950;
/// Copies between the first two contests of a site.
const REST_COPIES: u64 = 2048;

static LOOPS: Sites<Contest> = Sites([const { vacant(Contest::new()) }; SITES_MAX]);

/// Copies `len` bytes.
///
/// # Safety
/// As for `memcpy` of the C library.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn memcpy(dst: *mut c_void, src: *const c_void, len: usize) -> *mut c_void {
    naked_asm!(
        "cmp rdx, {min}",
        "jae 2f",
        "jmp qword ptr [rip + {real}]",
        "2:",
        "mov rcx, qword ptr [rsp]",
        "jmp {large}",
        min = const LOOP_BYTES_MIN,
        real = sym real::MEMCPY,
        large = sym large_memcpy,
    )
}

/// Copies `len` bytes of ranges that may overlap.
///
/// # Safety
/// As for `memmove` of the C library.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn memmove(dst: *mut c_void, src: *const c_void, len: usize) -> *mut c_void {
    naked_asm!(
        "cmp rdx, {min}",
        "jae 2f",
        "jmp qword ptr [rip + {real}]",
        "2:",
        "mov rcx, qword ptr [rsp]",
        "jmp {large}",
        min = const SHIFT_BYTES_MIN,
        real = sym real::MEMMOVE,
        large = sym large_memmove,
    )
}

/// `memcpy` of a fortified program: ends it if the destination has less than `len` bytes.
///
/// # Safety
/// As for `__memcpy_chk` of the C library.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __memcpy_chk(
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    room: usize,
) -> *mut c_void {
    naked_asm!(
        "cmp rdx, {min}",
        "jae 2f",
        "jmp qword ptr [rip + {real}]",
        "2:",
        "mov r8, qword ptr [rsp]",
        "jmp {large}",
        min = const LOOP_BYTES_MIN,
        real = sym real::MEMCPY_CHK,
        large = sym large_memcpy_chk,
    )
}

/// `memmove` of a fortified program: ends it if the destination has less than `len` bytes.
///
/// # Safety
/// As for `__memmove_chk` of the C library.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __memmove_chk(
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    room: usize,
) -> *mut c_void {
    naked_asm!(
        "cmp rdx, {min}",
        "jae 2f",
        "jmp qword ptr [rip + {real}]",
        "2:",
        "mov r8, qword ptr [rsp]",
        "jmp {large}",
        min = const SHIFT_BYTES_MIN,
        real = sym real::MEMMOVE_CHK,
        large = sym large_memmove_chk,
    )
}

unsafe extern "C" fn large_memcpy(
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    site: usize,
) -> *mut c_void {
    // SAFETY: the arguments are those of `memcpy`.
    unsafe { large(&real::MEMCPY, dst, src, len, site) }
}

unsafe extern "C" fn large_memmove(
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    site: usize,
) -> *mut c_void {
    // SAFETY: the arguments are those of `memmove`.
    unsafe { large(&real::MEMMOVE, dst, src, len, site) }
}

unsafe extern "C" fn large_memcpy_chk(
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    room: usize,
    site: usize,
) -> *mut c_void {
    if len > room {
        // SAFETY: it ends the process, without access to memory.
        return unsafe { checked(&real::MEMCPY_CHK)(dst, src, len, room) };
    }
    // SAFETY: the arguments are those of `memcpy`.
    unsafe { large(&real::MEMCPY, dst, src, len, site) }
}

unsafe extern "C" fn large_memmove_chk(
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    room: usize,
    site: usize,
) -> *mut c_void {
    if len > room {
        // SAFETY: it ends the process, without access to memory.
        return unsafe { checked(&real::MEMMOVE_CHK)(dst, src, len, room) };
    }
    // SAFETY: the arguments are those of `memmove`.
    unsafe { large(&real::MEMMOVE, dst, src, len, site) }
}

fn checked(real: &Real) -> MoveChecked {
    // SAFETY: the functions with this type are the only arguments.
    unsafe { std::mem::transmute::<*mut (), MoveChecked>(real.address()) }
}

/// Copies with the loop that the call site prefers.
///
/// # Safety
/// As for `memmove`; `real` is `MEMCPY` or `MEMMOVE`.
unsafe fn large(
    real: &Real,
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    site: usize,
) -> *mut c_void {
    // SAFETY: both functions have this type.
    let libc_move = unsafe { std::mem::transmute::<*mut (), Move>(real.address()) };
    let overlap =
        dst.addr().wrapping_sub(src.addr()) < len || src.addr().wrapping_sub(dst.addr()) < len;
    if overlap {
        if dst < src.cast_mut() {
            receives::note_shift(src.addr() + len);
        }
        // SAFETY: guaranteed by the caller.
        return unsafe { libc_move(dst, src, len) };
    }
    if len < LOOP_BYTES_MIN {
        // SAFETY: guaranteed by the caller.
        return unsafe { libc_move(dst, src, len) };
    }
    let copy = |way| match way {
        // SAFETY: guaranteed by the caller.
        Way::Old => unsafe {
            libc_move(dst, src, len);
        },
        Way::New => {
            add(counters::COPIES_REP, 1);
            add(counters::COPIED_REP_BYTES, len as u64);
            // SAFETY: guaranteed by the caller; the ranges do not overlap.
            unsafe { rep_movsb(dst, src, len) };
        }
    };
    match options::copy_loop(len) {
        Choice::Never => copy(Way::Old),
        Choice::Always => copy(Way::New),
        Choice::Auto => contested(len, site, copy),
    }
    dst
}

/// Copies in the way that is next at the site; the time of it is a sample.
fn contested(len: usize, address: usize, copy: impl Fn(Way)) {
    let Some(site) = LOOPS.find(address, len.ilog2() as u8) else {
        add(counters::SITES_REFUSED, 1);
        return copy(Way::Old);
    };
    let next = site.with(|contest| match contest.rests() {
        true => {
            contest.pass(1);
            (contest.winner(), false)
        }
        false => (contest.turn(), true),
    });
    let (way, is_sample) = next.unwrap_or((Way::Old, false));
    if !is_sample {
        return copy(way);
    }
    let start = clock_ns(libc::CLOCK_MONOTONIC);
    copy(way);
    let elapsed = clock_ns(libc::CLOCK_MONOTONIC).saturating_sub(start);
    let cost = (elapsed << 20) / len as u64;
    site.with(|contest| {
        // Another thread may have taken the same turn meanwhile.
        if contest.rests() || contest.turn() != way {
            return;
        }
        if let Some(winner) = contest.record(cost, LIMIT_PERMILLE, REST_COPIES) {
            add(counters::LOOP_CONTESTS, 1);
            add(counters::LOOP_RATIOS_PERMILLE, contest.permille());
            add(counters::LOOP_CONTESTS_WON, u64::from(winner == Way::New));
        }
    });
}

/// Releases the locks of the sites in a child after fork(2).
pub fn after_fork() {
    LOOPS.release();
}
