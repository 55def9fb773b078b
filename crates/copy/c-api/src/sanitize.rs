//! CopierSanitizer (SOSP 2025, §5.1.2): if AddressSanitizer is in the process, the bytes of an
//! unsynced copy are poisoned, and accesses to them are reported with the place that submitted the
//! copy.
//!
//! AddressSanitizer's functions are looked up at the first copy, so that one library serves
//! programs with and without it. AddressSanitizer does not detect the free of poisoned memory; for
//! this its free hook is used. The service and waiters copy with their own loops, which are not
//! instrumented.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::transmute_copy;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::abi::CallSite;
use crate::lock::Lock;
use crate::ranges::{Access, Ranges, Sides, Submitted};

/// Maximum depth of the stack walk for the caller.
const FRAMES_MAX: usize = 16;

type Region = unsafe extern "C" fn(*const c_void, usize);
type RegionCheck = unsafe extern "C" fn(*const c_void, usize) -> *const c_void;
type Locate = unsafe extern "C" fn(
    *const c_void,
    *mut c_char,
    usize,
    *mut *mut c_void,
    *mut usize,
) -> *const c_char;
type ReportAccess = unsafe extern "C" fn(*const c_void, usize);
type ReportAddress = unsafe extern "C" fn() -> *const c_void;
type Callback = extern "C" fn(*const c_char);
type SetCallback = unsafe extern "C" fn(Callback);
type MallocHook = extern "C" fn(*const c_void, usize);
type FreeHook = extern "C" fn(*const c_void);
type InstallHooks = unsafe extern "C" fn(MallocHook, FreeHook) -> c_int;
type Symbolize = unsafe extern "C" fn(*const c_void, *const c_char, *mut c_char, usize);

/// AddressSanitizer's functions (sanitizer/asan_interface.h and common_interface_defs.h).
struct Asan {
    poison: Region,
    unpoison: Region,
    region_is_poisoned: Option<RegionCheck>,
    locate: Option<Locate>,
    report_load: Option<ReportAccess>,
    report_store: Option<ReportAccess>,
    report_address: Option<ReportAddress>,
    symbolize: Option<Symbolize>,
}

static ASAN: AtomicPtr<Asan> = AtomicPtr::new(ptr::null_mut());
static TABLE: Lock<Ranges> = Lock::new(Ranges::new());
/// Set with the first checked copy: earlier frees need no check.
static HAS_WATCHED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Set while the thread is in this module: its frees then belong to the table.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with the table.
fn with_table<R>(f: impl FnOnce(&mut Ranges) -> R) -> R {
    let before = INSIDE.replace(true);
    let result = TABLE.with(f);
    INSIDE.set(before);
    result
}

/// Takes the table until [`release_after_fork`]; frees by fork itself are not checked.
pub(crate) fn hold_for_fork() {
    INSIDE.set(true);
    TABLE.hold_for_fork();
}

pub(crate) fn release_after_fork() {
    TABLE.release_after_fork();
    INSIDE.set(false);
}

/// Returns true if copies are checked.
#[inline]
pub(crate) fn is_on() -> bool {
    !ASAN.load(Ordering::Relaxed).is_null()
}

fn asan() -> Option<&'static Asan> {
    // SAFETY: null, or a value leaked by `start`.
    unsafe { ASAN.load(Ordering::Acquire).as_ref() }
}

/// Looks up a function of the process by name.
///
/// # Safety
/// `F` is the function pointer type of that function.
unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the name is null-terminated.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: `F` has the size of an address; the caller promises that it is such a function.
    (!address.is_null()).then(|| unsafe { transmute_copy::<*mut c_void, F>(&address) })
}

/// Detects AddressSanitizer, once.
pub(crate) fn start(watch_sources: bool) {
    if is_on() {
        return;
    }
    // SAFETY: the types are those of sanitizer/asan_interface.h.
    let found = unsafe {
        let poison = function(c"__asan_poison_memory_region");
        let unpoison = function(c"__asan_unpoison_memory_region");
        poison.zip(unpoison).map(|(poison, unpoison)| Asan {
            poison,
            unpoison,
            region_is_poisoned: function(c"__asan_region_is_poisoned"),
            locate: function(c"__asan_locate_address"),
            report_load: function(c"__asan_report_load_n"),
            report_store: function(c"__asan_report_store_n"),
            report_address: function(c"__asan_get_report_address"),
            symbolize: function(c"__sanitizer_symbolize_pc"),
        })
    };
    let Some(found) = found else { return };
    unlade_copy_kernels::kernel::keep_from_libc();
    with_table(|table| table.set_watch_sources(watch_sources));
    ASAN.store(Box::into_raw(Box::new(found)), Ordering::Release);
    // SAFETY: the types are those of the sanitizer's headers; the functions live as long as the
    // process.
    unsafe {
        if let Some(set) = function::<SetCallback>(c"__asan_set_error_report_callback") {
            set(explain);
        }
        if let Some(install) =
            function::<InstallHooks>(c"__sanitizer_install_malloc_and_free_hooks")
        {
            install(on_malloc, on_free);
        }
    }
}

/// Checks and poisons the ranges of a copy that is about to be submitted. Returns its record
/// number.
pub(crate) fn submitted(
    queue: u64,
    dst: usize,
    src: usize,
    len: usize,
    site: usize,
) -> Option<u64> {
    let asan = asan()?;
    check(asan, dst, len, asan.report_store);
    check(asan, src, len, asan.report_load);
    let (dst_heap, src_heap) = (heap(asan, dst), heap(asan, src));
    let caller = if site == 0 { caller() } else { 0 };
    let sides = Sides::Both;
    add(asan, queue, Submitted { sides, dst, src, len, dst_heap, src_heap, site, caller })
}

/// Checks the buffer of a receive, before its number of bytes is known.
pub(crate) fn will_receive(dst: usize, len: usize) {
    if let Some(asan) = asan() {
        check(asan, dst, len, asan.report_store);
    }
}

/// Poisons bytes that are being received.
pub(crate) fn received(queue: u64, dst: usize, len: usize, site: usize) -> Option<u64> {
    let asan = asan()?;
    let caller = if site == 0 { caller() } else { 0 };
    let (sides, dst_heap) = (Sides::Destination, heap(asan, dst));
    let (src, src_heap) = (0, 0);
    add(asan, queue, Submitted { sides, dst, src, len, dst_heap, src_heap, site, caller })
}

/// Checks and poisons bytes that are to be sent. Returns the record number.
pub(crate) fn will_send(queue: u64, src: usize, len: usize, site: usize) -> Option<u64> {
    let asan = asan()?;
    check(asan, src, len, asan.report_load);
    let caller = if site == 0 { caller() } else { 0 };
    let (sides, src_heap) = (Sides::Source, heap(asan, src));
    let (dst, dst_heap) = (0, 0);
    add(asan, queue, Submitted { sides, dst, src, len, dst_heap, src_heap, site, caller })
}

fn add(asan: &Asan, queue: u64, copy: Submitted) -> Option<u64> {
    with_table(|table| {
        let (record, poisoned) = table.add(queue, copy)?;
        HAS_WATCHED.store(true, Ordering::Relaxed);
        poisoned.iter().for_each(|range| poison(asan, range));
        Some(record)
    })
}

/// Unpoisons bytes of a queue's copies that were synced.
pub(crate) fn synced(queue: u64, address: usize, len: usize, access: Access) {
    let range = address..address.saturating_add(len);
    open(|table| table.release(queue, &range, access));
}

/// Unpoisons all copies for which `is_over_for(record, queue)` returns true.
pub(crate) fn over(is_over_for: impl Fn(u64, u64) -> bool) {
    open(|table| table.release_all(is_over_for));
}

fn open(release: impl FnOnce(&mut Ranges) -> Vec<Range<usize>>) {
    let Some(asan) = asan() else { return };
    with_table(|table| {
        let freed = release(table);
        freed.iter().for_each(|range| unpoison(asan, range));
        table.still_poisoned(&freed).iter().for_each(|range| poison(asan, range));
    });
}

fn poison(asan: &Asan, range: &Range<usize>) {
    // SAFETY: the bytes belong to the program, which promised to keep them until they are synced;
    // only AddressSanitizer's shadow of them is written.
    unsafe { (asan.poison)(range.start as *const c_void, range.len()) };
}

fn unpoison(asan: &Asan, range: &Range<usize>) {
    // SAFETY: as in `poison`.
    unsafe { (asan.unpoison)(range.start as *const c_void, range.len()) };
}

/// Reports bytes of a copy's range that were already poisoned by AddressSanitizer, as its
/// interceptor of `memcpy` would.
fn check(asan: &Asan, address: usize, len: usize, report: Option<ReportAccess>) {
    let (Some(is_poisoned), Some(report)) = (asan.region_is_poisoned, report) else { return };
    let end = address.saturating_add(len);
    let mut at = address;
    while at < end {
        // SAFETY: only reads the shadow.
        let bad = unsafe { is_poisoned(at as *const c_void, end - at) } as usize;
        if bad == 0 {
            return;
        }
        match with_table(|table| table.poisoned_until(bad)) {
            Some(until) => at = until.max(bad + 1),
            // SAFETY: reports, and ends the process unless that was disabled.
            None => return unsafe { report(bad as *const c_void, end - bad) },
        }
    }
}

/// Start of the heap allocation that contains the byte; 0 if it is not on the heap.
fn heap(asan: &Asan, address: usize) -> usize {
    let Some(locate) = asan.locate else { return 0 };
    let (mut begin, mut size) = (ptr::null_mut(), 0);
    let mut name = [0 as c_char; 8];
    // SAFETY: the buffer for the name has the given size, and both results are written to locals.
    let kind = unsafe {
        locate(address as *const c_void, name.as_mut_ptr(), name.len(), &mut begin, &mut size)
    };
    // SAFETY: a constant string of the sanitizer, or null.
    let is_heap = !kind.is_null() && unsafe { CStr::from_ptr(kind) } == c"heap";
    if is_heap { begin as usize } else { 0 }
}

/// The first address on the stack above this library. Frames of the sanitizer may be below it.
fn caller() -> usize {
    let mut frames = [ptr::null_mut::<c_void>(); FRAMES_MAX];
    // SAFETY: the array has the given length.
    let count = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES_MAX as c_int) };
    let own = module(caller as *const c_void);
    let frames = &frames[..count.clamp(0, FRAMES_MAX as c_int) as usize];
    let inside = frames.iter().skip_while(|frame| module(**frame) != own);
    let outside = inside.into_iter().find(|frame| module(**frame) != own);
    // If the library is linked statically, the frames above are the library's functions.
    outside.or(frames.get(4)).map_or(0, |frame| *frame as usize)
}

/// Load address of the module that contains the address.
fn module(address: *const c_void) -> usize {
    // SAFETY: all zeroes are a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address; the result is written to a local.
    let found = unsafe { libc::dladdr(address, &mut info) };
    if found == 0 { 0 } else { info.dli_fbase as usize }
}

extern "C" fn on_malloc(_: *const c_void, _: usize) {}

/// Called by the allocator, before memory is freed.
extern "C" fn on_free(heap: *const c_void) {
    if INSIDE.get() || !HAS_WATCHED.load(Ordering::Relaxed) {
        return;
    }
    let Some(asan) = asan() else { return };
    let heap = heap as usize;
    let Some((copy, is_destination, byte)) = with_table(|table| table.in_allocation(heap)) else {
        return;
    };
    let side = if is_destination { "destination" } else { "source" };
    report(&format!(
        "==unlade== ERROR: memory is freed that is the {side} of a copy which is not synced\n{}",
        describe(asan, &copy)
    ));
    match asan.report_store {
        // SAFETY: reports, with the stack, and ends the process unless that was disabled.
        Some(report) => unsafe { report(byte as *const c_void, 1) },
        None => std::process::abort(),
    }
}

/// Called by AddressSanitizer after its report.
extern "C" fn explain(_: *const c_char) {
    let Some(asan) = asan() else { return };
    let Some(address) = asan.report_address else { return };
    // SAFETY: this function is called while a report is made.
    let address = unsafe { address() } as usize;
    if INSIDE.get() {
        return;
    }
    let Some((copy, is_destination)) = with_table(|table| table.at(address)) else { return };
    let (base, side, cure) = match is_destination {
        true => (copy.dst, "destination", "csync() the bytes before they are used"),
        false => (
            copy.src,
            "source",
            "csync_write() the bytes before they are changed or freed (csync() before they are \
             read; see sanitize_sources in unlade_copier(3))",
        ),
    };
    report(&format!(
        "==unlade== the address is byte {} of the {side} of an unsynced copy\n{}\
         ==unlade==   {cure}\n",
        address.wrapping_sub(base),
        describe(asan, &copy)
    ));
}

fn describe(asan: &Asan, copy: &Submitted) -> String {
    let Submitted { sides, dst, src, len, .. } = copy;
    let task = match sides {
        Sides::Both => format!("copy of {len} bytes, {src:#x} to {dst:#x}"),
        Sides::Destination => format!("receive of {len} bytes to {dst:#x}"),
        Sides::Source => format!("send of {len} bytes from {src:#x}"),
    };
    let mut text = format!("==unlade==   unsynced {task}, submitted at ");
    let place = place(asan, copy).unwrap_or_else(|| format!("{:#x}", copy.caller));
    // Writing to a string does not fail.
    let _ = writeln!(text, "{place}");
    text
}

/// File and line of the submission.
fn place(asan: &Asan, copy: &Submitted) -> Option<String> {
    if copy.site != 0 {
        // SAFETY: the submitter promised that the call site is static.
        let site = unsafe { &*(copy.site as *const CallSite) };
        // SAFETY: as above; the file name is a string of the program, or null.
        let file = (!site.file.is_null()).then(|| unsafe { CStr::from_ptr(site.file) })?;
        return Some(format!("{}:{}", file.to_string_lossy(), site.line));
    }
    let symbolize = asan.symbolize?;
    let mut text = [0 as c_char; 512];
    // The call instruction is before the return address.
    let pc = copy.caller.checked_sub(1)? as *const c_void;
    // SAFETY: the buffer has the given size, and the result is null-terminated.
    let text = unsafe {
        symbolize(pc, c"%S in %f".as_ptr(), text.as_mut_ptr(), text.len());
        CStr::from_ptr(text.as_ptr())
    };
    Some(format!("{} ({:#x})", text.to_string_lossy(), copy.caller))
}

fn report(text: &str) {
    // A failed write cannot be reported.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
