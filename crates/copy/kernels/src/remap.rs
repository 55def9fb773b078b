//! Copies without copying: pages of the source become pages of the destination.
//!
//! The program gives up the source: it stays mapped, with undefined content. Pages move by
//! `UFFDIO_MOVE` (Linux 6.8) in two cases, which are the ones that were faster than a copy:
//!
//! - **The pages of the destination are absent**, as in memory that was just allocated. The source
//!   has absent pages then. A copy would have the kernel allocate and clear each page first.
//! - **Both sides are huge pages** at the same place in 2 MiB. They are exchanged, through spare
//!   addresses, so that neither side is touched anew later.
//!
//! The kernel checks what matters: each range is in one mapping of private anonymous memory, both
//! have the same protection, no other process has the page, and no device may access it. It
//! refuses, and stops at the first page that is not so. Whatever it moved is moved; the caller copies the
//! rest. Mappings are split during a call and joined again at its end.
//!
//! Addresses may be arbitrary: nothing here reads or writes them.

mod costs;
mod sites;

use std::ops::Range;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use once_cell::race::OnceBox;

use crate::area::{Area, HUGE_BYTES};
use crate::pagemap::Pagemap;
use crate::populate::{is_resident, page_bytes};
use crate::userfault::{FEATURE_MOVE, Userfault};
use costs::Costs;
use sites::Sites;

/// Shorter copies are never made by pages, in bytes.
pub const REMAP_BYTES_MIN: usize = 128 << 10;
/// Spare addresses for exchanges, in bytes.
const SPARE_BYTES: usize = 16 * HUGE_BYTES;
/// The costs are measured after copies of this number of bytes, which takes longer than to measure.
const MEASURED_AFTER_BYTES: usize = 1 << 20;
/// Maximum number of descriptors that one memory opens: processes after vfork(2) share it.
const OPENED_MAX: u32 = 16;

/// Which copies of a source that is given up are made by moving pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Those for which that was measured to take less time.
    #[default]
    Measured,
    /// All for which it is possible.
    Always,
    /// None.
    Never,
}

/// How pages move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To absent pages.
    ToAbsent,
    /// Huge pages, in both directions.
    Exchange,
}

/// A part of a copy that can be made by moving pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How.
    pub way: Way,
    /// The bytes, from the start of the copy.
    pub bytes: Range<usize>,
    dst: usize,
    src: usize,
    site: usize,
}

/// Moves pages of this process.
#[derive(Debug)]
pub struct Remapper {
    userfault: Userfault,
    pagemap: Pagemap,
    spare: Mutex<Area>,
    process: libc::pid_t,
    costs: OnceBox<Option<Costs>>,
    /// Bytes of copies that could be made by pages.
    asked_bytes: AtomicUsize,
    sites: Sites,
}

static CURRENT: AtomicPtr<Remapper> = AtomicPtr::new(ptr::null_mut());
static OPENED: AtomicU32 = AtomicU32::new(0);
/// The process in which opening failed.
static WITHOUT: AtomicU32 = AtomicU32::new(0);

/// The whole blocks of `block` bytes of a copy, from its start; `None` if there is none, or if
/// source and destination lie differently in their blocks.
fn blocks(dst: usize, src: usize, len: usize, block: usize) -> Option<Range<usize>> {
    let end = dst.checked_add(len)?;
    src.checked_add(len)?;
    let first = dst.checked_next_multiple_of(block)?;
    let last = end - end % block;
    let is_alike = dst % block == src % block;
    (is_alike && first < last).then(|| first - dst..last - dst)
}

impl Remapper {
    /// The one of this process; `None` if this kernel cannot move pages, or does not permit it.
    pub fn of_process() -> Option<&'static Remapper> {
        // SAFETY: the call has no preconditions.
        let process = unsafe { libc::getpid() };
        let current = CURRENT.load(Ordering::Acquire);
        // SAFETY: null, or a leaked value.
        match unsafe { current.as_ref() } {
            Some(remapper) if remapper.process == process => Some(remapper),
            _ => Remapper::open_for(process, current),
        }
    }

    #[cold]
    fn open_for(process: libc::pid_t, stale: *mut Remapper) -> Option<&'static Remapper> {
        if WITHOUT.load(Ordering::Relaxed) == process as u32
            || OPENED.fetch_add(1, Ordering::Relaxed) >= OPENED_MAX
        {
            return None;
        }
        let Ok(remapper) = Remapper::open(process) else {
            WITHOUT.store(process as u32, Ordering::Relaxed);
            return None;
        };
        let opened = Box::into_raw(Box::new(remapper));
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        match CURRENT.compare_exchange(stale, opened, success, failure) {
            // SAFETY: leaked: it is never freed from now on. A child keeps that of its parent, too.
            Ok(_) => Some(unsafe { &*opened }),
            Err(_) => {
                // SAFETY: made above, and seen by no other thread.
                drop(unsafe { Box::from_raw(opened) });
                // Another thread has just opened one; the next copy takes it.
                None
            }
        }
    }

    fn open(process: libc::pid_t) -> std::io::Result<Remapper> {
        let userfault = Userfault::open(FEATURE_MOVE, false)?;
        let pagemap = Pagemap::open()?;
        let spare = Area::new(SPARE_BYTES)?;
        spare.keep_from_children();
        // Asks once what is asked for each copy: a kernel that cannot tell is found here.
        pagemap.is_untouched(&spare.pages())?;
        userfault.register(&spare.pages())?;
        Ok(Remapper {
            userfault,
            pagemap,
            spare: Mutex::new(spare),
            process,
            costs: OnceBox::new(),
            asked_bytes: AtomicUsize::new(0),
            sites: Sites::default(),
        })
    }

    /// The part of a copy of `len` bytes that should be made by moving pages; `None` if all of it
    /// should be copied. Sites at which pages cannot move are tried seldom if that is measured;
    /// `site` identifies one.
    pub fn plan(
        &self,
        dst: usize,
        src: usize,
        len: usize,
        site: usize,
        choice: Choice,
    ) -> Option<Plan> {
        let bytes = blocks(dst, src, len, page_bytes())?;
        if bytes.len() < REMAP_BYTES_MIN
            || choice == Choice::Measured && !self.sites.of(site).is_tried()
        {
            return None;
        }
        let costs = match choice {
            Choice::Never => return None,
            Choice::Always => None,
            Choice::Measured => Some(self.costs(len)?),
        };
        let plan = |way, bytes: Range<usize>| {
            Some(Plan { way, dst: dst + bytes.start, src: src + bytes.start, site, bytes })
        };
        let place = |base: usize, bytes: &Range<usize>| base + bytes.start..base + bytes.end;
        // One page tells most of it, and a look at all small pages takes as long as their copy.
        if !is_resident(dst + bytes.start) && self.pagemap.is_untouched(&place(dst, &bytes)).ok()? {
            let pages = bytes.len() / page_bytes();
            let pays = costs.is_none_or(|costs| costs.fresh_pays(pages));
            return if pays { plan(Way::ToAbsent, bytes) } else { None };
        }
        let huge = blocks(dst, src, len, HUGE_BYTES);
        let first = |bytes: &Range<usize>| bytes.start..bytes.start + page_bytes();
        let is_huge = |bytes: &Range<usize>| {
            let is_huge = |base| self.pagemap.is_huge(&place(base, bytes)).unwrap_or(false);
            is_huge(dst) && is_huge(src)
        };
        let Some(bytes) = huge.filter(|bytes| is_huge(&first(bytes)) && is_huge(bytes)) else {
            self.sites.of(site).fail();
            return None;
        };
        let pays = costs.is_none_or(|costs| costs.exchange_pays(bytes.len() / HUGE_BYTES));
        if pays { plan(Way::Exchange, bytes) } else { None }
    }

    fn costs(&self, len: usize) -> Option<&Costs> {
        if self.costs.get().is_none()
            && self.asked_bytes.fetch_add(len, Ordering::Relaxed).saturating_add(len)
                < MEASURED_AFTER_BYTES
        {
            return None;
        }
        if let Some(costs) = self.costs.get() {
            return costs.as_ref();
        }
        // One thread measures, while no other one exchanges pages: an exchange that gives way to
        // another one would be taken for one that is not possible.
        let spare = self.spare.try_lock().ok()?;
        self.costs.get_or_init(|| Box::new(self.measure(&spare))).as_ref()
    }

    fn measure(&self, spare: &Area) -> Option<Costs> {
        // SAFETY: the measurement gives areas of its own.
        let fresh = |dst: Range<usize>, src: Range<usize>| unsafe {
            self.move_to_absent(dst.start, src.start, src.len()) == src.len()
        };
        // SAFETY: as above.
        let exchange = |dst: Range<usize>, src: Range<usize>| unsafe {
            self.exchange_by(spare, dst.start, src.start, src.len()) == src.len()
        };
        let is_huge = |pages: Range<usize>| self.pagemap.is_huge(&pages).unwrap_or(false);
        Costs::measure(&fresh, &exchange, &is_huge)
    }

    /// Moves the pages of a plan. Returns the number of bytes that are in the destination now, from
    /// the first on: fewer than planned if the kernel stopped. The rest of the source is unchanged,
    /// and the rest of the destination has undefined content, or is unchanged.
    ///
    /// # Safety
    /// The program has given up the content of both ranges of the copy for which the plan was made:
    /// no reference points there, and no other thread accesses them during the call.
    pub unsafe fn run(&self, plan: &Plan) -> usize {
        let len = plan.bytes.len();
        // SAFETY: the caller's promise.
        let moved = unsafe {
            match plan.way {
                Way::ToAbsent => self.move_to_absent(plan.dst, plan.src, len),
                Way::Exchange => self.exchange(plan.dst, plan.src, len),
            }
        };
        let site = self.sites.of(plan.site);
        match moved {
            0 => site.fail(),
            _ => site.succeed(),
        }
        moved
    }

    /// # Safety
    /// As for [`Remapper::run`].
    unsafe fn move_to_absent(&self, dst: usize, src: usize, len: usize) -> usize {
        self.registered(dst, src, len, || {
            // SAFETY: the caller's promise.
            unsafe { self.userfault.move_pages(dst, src, len) }.0
        })
    }

    /// Runs `run` while both ranges are registered. Returns 0 if they cannot be: another descriptor
    /// watches one of them, such as that of a snapshot ([`crate::freeze`]).
    fn registered(&self, dst: usize, src: usize, len: usize, run: impl FnOnce() -> usize) -> usize {
        let (to, from) = (dst..dst + len, src..src + len);
        if self.userfault.register(&to).is_err() {
            return 0;
        }
        let is_registered = self.userfault.register(&from).is_ok();
        let moved = if is_registered { run() } else { 0 };
        // Pages that stay registered, because the kernel refuses, behave as before: none is
        // protected.
        if is_registered {
            let _ = self.userfault.unregister(&from);
        }
        let _ = self.userfault.unregister(&to);
        moved
    }

    /// # Safety
    /// As for [`Remapper::run`].
    unsafe fn exchange(&self, dst: usize, src: usize, len: usize) -> usize {
        // A thread that has the lock is in an exchange, or was at a fork.
        let Ok(spare) = self.spare.try_lock() else { return 0 };
        // SAFETY: the caller's promise.
        unsafe { self.exchange_by(&spare, dst, src, len) }
    }

    /// As [`Remapper::exchange`], with the locked spare addresses.
    ///
    /// # Safety
    /// As for [`Remapper::run`].
    unsafe fn exchange_by(&self, spare: &Area, dst: usize, src: usize, len: usize) -> usize {
        self.registered(dst, src, len, || {
            let mut done = 0;
            while done < len {
                let part = SPARE_BYTES.min(len - done);
                // SAFETY: the caller's promise.
                let moved = unsafe { self.exchange_part(spare, dst + done, src + done, part) };
                done += moved;
                if moved < part {
                    break;
                }
            }
            done
        })
    }

    /// Exchanges at most [`SPARE_BYTES`] of registered pages.
    ///
    /// # Safety
    /// As for [`Remapper::run`].
    unsafe fn exchange_part(&self, spare: &Area, dst: usize, src: usize, len: usize) -> usize {
        let between = spare.pages().start;
        // SAFETY: the caller's promise; the spare area is locked, and nothing else uses it.
        unsafe {
            // Pages that devices may access stay here, so they stay in the destination.
            let (cleared, _) = self.userfault.move_pages(between, dst, len);
            let (moved, _) = match cleared == len {
                true => self.userfault.move_pages(dst, src, len),
                false => (0, Ok(())),
            };
            // The content of the source is undefined, so nothing is lost if these stay absent.
            let (returned, _) = match moved == len {
                true => self.userfault.move_pages(src, between, len),
                false => (0, Ok(())),
            };
            if returned < cleared {
                spare.clear();
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_costs_are_not_measured_beside_an_exchange() {
        // SAFETY: the call has no preconditions.
        let Ok(remapper) = Remapper::open(unsafe { libc::getpid() }) else {
            println!("skipped: this kernel has no UFFDIO_MOVE, or userfaultfd is not permitted");
            return;
        };
        let exchange = remapper.spare.lock().unwrap();
        assert!(remapper.costs(MEASURED_AFTER_BYTES).is_none() && remapper.costs.get().is_none());
        drop(exchange);
        let _ = remapper.costs(1);
        assert!(remapper.costs.get().is_some());
        // Known costs need no lock.
        let _exchange = remapper.spare.lock().unwrap();
        assert_eq!(remapper.costs(1).is_some(), remapper.costs.get().unwrap().is_some());
    }

    #[test]
    fn only_whole_blocks_that_lie_alike_are_moved() {
        assert_eq!(blocks(0x5000, 0x9000, 0x3000, 0x1000), Some(0..0x3000));
        assert_eq!(blocks(0x5010, 0x9010, 0x3000, 0x1000), Some(0xff0..0x2ff0));
        assert_eq!(blocks(0x5010, 0x9011, 0x3000, 0x1000), None);
        assert_eq!(blocks(0x5010, 0x9010, 0x1fef, 0x1000), None);
        assert_eq!(blocks(0x5010, 0x9010, 0x1ff0, 0x1000), Some(0xff0..0x1ff0));
        assert_eq!(blocks(0x5000, 0x9000, 0, 0x1000), None);
        let top = usize::MAX - 0x1000;
        assert_eq!(blocks(top, 0x9fff, 0x2000, 0x1000), None);
        assert_eq!(blocks(0x9fff, top, 0x2000, 0x1000), None);
        assert_eq!(blocks(top, top, 0x1000, 0x1000), None);
    }
}
