//! Samples from timed copies that are queued: the time of the submission, the time until the first
//! sync, and the time that all syncs waited.
//!
//! A copy may be synced by token or by address, in parts, together with others, by any thread, or
//! not at all. It yields one sample: when a sync finds all of it done, when another operation
//! notices that it is over, or at the latest when its slot is reused.

use std::num::NonZeroU16;
use std::ops::Range;
use std::time::Instant;

use unlade_copy_kernels::probes::{self, NOT_MEASURED_NS};
use unlade_copy_scheduler::admit::QueuedTiming;
use unlade_shm::{Ticket, segment};

use crate::admission::{Place, nanos};
use crate::cache_probe::line_ns;
use crate::copier::Copier;
use crate::error::{CopyError, to_result};
use crate::pending::{Kind, Queued, Timed};
use crate::window_probe::Window;

/// Upper limit of a recorded submission time, in nanoseconds: 15 bits.
const SUBMIT_NS_MAX: u32 = 0x7fff;
/// Number of tasks that are inspected to compute the backlog; the rest is extrapolated.
const BACKLOG_LOOKS_MAX: u64 = 32;

impl Copier {
    /// Records a timed copy that was synchronous.
    pub(crate) fn learn_at_once(&self, place: Place, len: usize, copy_ns: u32) {
        self.admission().learn_at_once(place, len, copy_ns, None);
    }

    /// A copy that was to be timed was queued, and is over.
    pub(crate) fn learn_queued(&self, place: (Place, bool), len: u32, seen: &QueuedTiming) {
        self.admission().learn_queued(place, len, seen);
    }

    /// Records the window of a synchronous copy, if a sync has ended it.
    pub(crate) fn learn_window(&self, window: Option<Window>) {
        if let Some((place, window_ns)) = window {
            self.admission().learn_window(place, window_ns);
        }
    }

    /// Waits until `bits` of a copy that is not timed are done, and records how late they were.
    #[cold]
    pub(crate) fn complete_late(&self, ticket: Ticket, bits: u32) {
        let Some(place) = self.pending().place(ticket) else {
            self.complete_slowly(ticket, bits, 0);
            probes::waited(ticket.0, NOT_MEASURED_NS);
            return;
        };
        let began = Instant::now();
        self.complete_slowly(ticket, bits, 0);
        let wait_ns = nanos(began);
        probes::waited(ticket.0, wait_ns.into());
        self.admission().learn_late(place, wait_ns);
    }

    /// Number of bytes that the service must copy before a task that is queued now.
    pub(crate) fn backlog_bytes(&self) -> u64 {
        let head = self.queue().head().0;
        let oldest = self.oldest_pending().0;
        let (mut bytes, mut at) = (0, oldest);
        while at < head {
            let looks = at - oldest;
            if looks == BACKLOG_LOOKS_MAX {
                return bytes + (head - at).saturating_mul(bytes) / looks;
            }
            let ticket = Ticket(at);
            // A task that waits for a socket, or is deferred, does not delay others.
            let queued = self.pending().get(ticket);
            if let Some(queued) = queued.filter(|it| it.kind == Kind::Copy && !it.is_lazy) {
                let left = queued.all() & !self.queue().progress(ticket).done();
                bytes += u64::from(left.count_ones()) << queued.granule_shift;
            }
            at += 1;
        }
        bytes
    }

    /// Marks a copy as timed, with a submission from `began` to now.
    pub(crate) fn note_timing(&self, ticket: Ticket, place: Place, began: Instant, is_awake: bool) {
        let submit_ns = u64::from(nanos(began).min(SUBMIT_NS_MAX)) << 1 | u64::from(is_awake);
        let since = self.since_origin_ns(Instant::now());
        self.pending().note_timing(ticket, since << 16 | submit_ns, place);
    }

    /// Nanoseconds from the recorded submission of a copy to `now`.
    fn window_ns(&self, timing: u64, now: Instant) -> u32 {
        // Both are truncated to 48 bits.
        let window_ns = (self.since_origin_ns(now) << 16).wrapping_sub(timing & !0xffff) >> 16;
        window_ns.try_into().unwrap_or(u32::MAX)
    }

    /// Syncs a timed copy by its token.
    #[cold]
    pub(crate) fn sync_timed(&self, ticket: Ticket, bits: u32) -> Result<(), CopyError> {
        let completed = match self.pending().get(ticket) {
            Some(queued) => {
                // The holder of the token is about to use the bytes.
                let kept = queued.written();
                self.complete_learning(ticket, &queued, bits, &kept)
            }
            None => self.complete_unreported(ticket, bits),
        };
        completed.map_err(|code| {
            self.failures().mark_reported(ticket, code);
            to_result(Some(code))
                .err()
                .unwrap_or(CopyError::Failed(unlade_copy_service::TaskFailure::of(code)))
        })
    }

    /// Waits until `bits` of a task are done, helps, and records the times. The caller keeps the
    /// addresses `kept` valid: those that it is about to use. All others may be freed by another
    /// thread as soon as the task is done.
    #[inline]
    pub(crate) fn complete_learning(
        &self,
        ticket: Ticket,
        queued: &Queued,
        bits: u32,
        kept: &Range<usize>,
    ) -> Result<(), NonZeroU16> {
        match self.pending().is_timed(ticket) {
            true => self.complete_timed(ticket, queued, bits, kept),
            false => self.complete_unreported(ticket, bits),
        }
    }

    #[cold]
    fn complete_timed(
        &self,
        ticket: Ticket,
        queued: &Queued,
        bits: u32,
        kept: &Range<usize>,
    ) -> Result<(), NonZeroU16> {
        let began = Instant::now();
        let window_ns = self.window_ns(self.pending().timing(ticket), began);
        let is_late = !self.queue().progress(ticket).is_done(bits);
        let completed = self.complete_unreported(ticket, bits);
        let wait_ns = nanos(began);
        if is_late {
            probes::waited(ticket.0, wait_ns.into());
        }
        self.pending().add_wait(ticket, window_ns, wait_ns);
        // Later syncs may have to wait for the rest.
        if completed.is_ok() && self.queue().progress(ticket).is_done(queued.all()) {
            self.learn_from(ticket, queued, Some((bits, kept)));
        }
        completed
    }

    /// Records a task that is over, if it is timed: it may never be synced.
    #[inline]
    pub(crate) fn learn_over(&self, ticket: Ticket, queued: &Queued) {
        if self.pending().is_timed(ticket) {
            self.learn_from(ticket, queued, None);
        }
    }

    /// Records the timed task whose slot `next` is about to reuse.
    #[inline]
    pub(crate) fn learn_before(&self, next: Ticket) {
        if let Some(before) = self.pending().timed_before(next) {
            self.learn_last(before);
        }
    }

    #[cold]
    fn learn_last(&self, ticket: Ticket) {
        match self.pending().get(ticket) {
            Some(queued) => self.learn_from(ticket, &queued, None),
            None => drop(self.pending().take_timing(ticket)),
        }
    }

    /// Records a copy that is over; `synced` has the segments that the caller has just synced, and
    /// the addresses that it keeps valid.
    #[cold]
    fn learn_from(&self, ticket: Ticket, queued: &Queued, synced: Option<(u32, &Range<usize>)>) {
        let progress = self.queue().progress(ticket);
        let (error, is_aborted) = (progress.error(), progress.is_aborted());
        let Some(Timed { timing, place, seen }) = self.pending().take_timing(ticket) else {
            return;
        };
        if error.is_some() || is_aborted {
            return;
        }
        // No sync has waited for it, and none will.
        let never_synced = || (self.window_ns(timing, Instant::now()), 0);
        let (window_ns, wait_ns) = seen.unwrap_or_else(never_synced);
        let line_ns = synced.and_then(|(bits, kept)| self.line_ns_of(ticket, queued, bits, kept));
        let submit_ns = timing as u32 >> 1 & SUBMIT_NS_MAX;
        let seen = QueuedTiming { submit_ns, window_ns, wait_ns, line_ns };
        self.learn_queued((place, timing & 1 != 0), queued.len_bytes, &seen);
    }

    /// Time to read a line of the bytes just synced, as far as they are kept valid; none if other
    /// copies write them, or if they are too few.
    fn line_ns_of(
        &self,
        ticket: Ticket,
        queued: &Queued,
        bits: u32,
        kept: &Range<usize>,
    ) -> Option<f32> {
        let run = segment::runs(bits & queued.all()).next().filter(|_| queued.writes())?;
        let bytes = segment::bytes_of(run, queued.len_bytes, queued.granule_shift);
        let start = kept.start.max(queued.dst + bytes.start as usize);
        let end = kept.end.min(queued.dst + bytes.end as usize);
        let (dst, len) = (start, end.saturating_sub(start));
        let head = self.queue().head();
        let mut at = ticket.next();
        while at < head {
            if self.pending().get(at).is_none_or(|younger| younger.writing(dst, len) != 0) {
                return None;
            }
            at = at.next();
        }
        // SAFETY: the caller of the sync keeps these bytes valid until it returns: it is about to
        // use them. They are copied, and no other copy writes them.
        unsafe { line_ns(dst as *const u8, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, CopyOptions, Polling, Service};
    use std::time::Duration;
    use unlade_copy_kernels::Hint;

    const BYTES: usize = 64 << 10;
    const SITE: usize = 0x1000;
    const QUEUED: CopyOptions = CopyOptions { lazy_us: None, queued: true, handler: None, site: 0 };
    const PUT_OFF: CopyOptions = CopyOptions { lazy_us: Some(u32::MAX), ..QUEUED };

    fn client() -> (Service, Copier) {
        let config = Config { polling: Polling::Always, ..Config::default() };
        let service = Service::start(config).unwrap();
        let copier = Copier::new(service.attach().unwrap());
        let begin = Instant::now();
        while !copier.is_awake() {
            assert!(begin.elapsed() < Duration::from_secs(30), "the service wakes up");
            std::thread::yield_now();
        }
        (service, copier)
    }

    fn submit(copier: &Copier, dst: &mut [u8], src: &[u8], options: &CopyOptions) -> crate::Token {
        // SAFETY: the tests sync before they read, change or free either buffer.
        unsafe { copier.submit(dst.as_mut_ptr(), src.as_ptr(), src.len(), options) }
    }

    /// Queues a timed copy, as the admission does.
    fn queue_timed(copier: &Copier, dst: *mut u8, src: *const u8) -> crate::Token {
        let place = Place::of(SITE, BYTES);
        // The admission learns of sites that it knows.
        let _ = copier.decide(BYTES, place);
        let (began, hint) = (Instant::now(), Hint::Reuse);
        let part = crate::copier::Part { dst, src, len: BYTES, hint, place };
        let ticket = copier.queue().try_acquire().unwrap();
        let options = CopyOptions { site: SITE, ..CopyOptions::default() };
        let token = copier.enqueue(ticket, part, &options);
        copier.note_timing(ticket, place, began, true);
        token
    }

    /// The window of the site, if one was recorded.
    fn window_ns(copier: &Copier) -> Option<f32> {
        copier.admission().window_ns(Place::of(SITE, BYTES))
    }

    /// Checks that windows are known after some copies that are synced like this: of synchronous
    /// copies, and of queued ones.
    fn is_learnt(sync: impl Fn(&Copier, usize)) {
        let (source, mut destination) = (vec![1u8; BYTES], vec![0u8; BYTES]);
        let options = CopyOptions { site: SITE, ..CopyOptions::default() };
        let (_service, copier) = client();
        let _token = submit(&copier, &mut destination, &source, &options);
        assert!(copier.stats().read().queued == 0 && window_ns(&copier).is_none());
        sync(&copier, destination.as_ptr().addr());
        assert!(window_ns(&copier).is_some());
        let (_service, copier) = client();
        let token = queue_timed(&copier, destination.as_mut_ptr(), source.as_ptr());
        assert!(copier.pending().is_timed(token.ticket) && window_ns(&copier).is_none());
        sync(&copier, destination.as_ptr().addr());
        copier.sync_all().unwrap();
        assert!(window_ns(&copier).is_some() && !copier.pending().is_timed(token.ticket));
    }

    #[test]
    fn whoever_syncs_however_teaches() {
        is_learnt(|copier, address| copier.sync_range(address, BYTES).unwrap());
        is_learnt(|copier, address| copier.sync_range(address + 5000, 1).unwrap());
        is_learnt(|copier, address| copier.sync_for_write(address, BYTES).unwrap());
        is_learnt(|copier, _| copier.sync_all().unwrap());
        is_learnt(|copier, address| {
            (0..BYTES).step_by(1000).for_each(|at| copier.sync_range(address + at, 1000).unwrap());
        });
        is_learnt(|copier, address| {
            std::thread::scope(|scope| {
                scope.spawn(|| copier.sync_range(address, BYTES).unwrap());
            });
        });
    }

    #[test]
    fn bytes_that_the_caller_does_not_keep_are_not_read() {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        let (_service, copier) = client();
        let source = vec![1u8; BYTES];
        for sync_all in [true, false].repeat(20) {
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping, which nothing else uses.
            let dst = unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, protection, flags) };
            let dst = dst.unwrap().cast::<u8>();
            let token = queue_timed(&copier, dst, source.as_ptr());
            while !copier.is_ready(&token, 0..BYTES) {
                std::thread::yield_now();
            }
            // As another thread may do that has synced the copy, while this one is in a sync too.
            // SAFETY: the copy is done, and nothing refers to the mapping.
            unsafe { munmap(dst.cast(), BYTES) }.unwrap();
            match sync_all {
                true => copier.sync_all().unwrap(),
                // A task that reads these bytes; its destination is another's.
                false => copier.sync_for_write(source.as_ptr().addr(), BYTES).unwrap(),
            }
            assert!(!copier.pending().is_timed(token.ticket), "the copy was recorded");
        }
    }

    #[test]
    fn unsynced_copies_are_recorded_when_their_slots_are_reused() {
        let config = Config { polling: Polling::Always, slots: 16, ..Config::default() };
        let service = Service::start(config).unwrap();
        let copier = Copier::new(service.attach().unwrap());
        let (source, mut destinations) = (vec![1u8; BYTES], vec![vec![0u8; BYTES]; 17]);
        let (last, first) = destinations.split_last_mut().unwrap();
        for destination in first {
            let token = queue_timed(&copier, destination.as_mut_ptr(), source.as_ptr());
            while !copier.is_ready(&token, 0..BYTES) {
                std::thread::yield_now();
            }
            assert!(copier.pending().is_timed(token.ticket));
        }
        assert!(window_ns(&copier).is_none());
        let begin = Instant::now();
        while window_ns(&copier).is_none() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", copier.stats().read());
            let token = submit(&copier, last, &source, &QUEUED);
            copier.sync(&token, 0..BYTES).unwrap();
        }
    }

    #[test]
    fn copies_that_are_done_are_no_backlog() {
        let (service, copier) = client();
        let (source, mut destinations) = (vec![1u8; BYTES], vec![vec![0u8; BYTES]; 8]);
        for number in 0..200 {
            let token = submit(&copier, &mut destinations[number % 8], &source, &QUEUED);
            copier.sync(&token, 0..BYTES).unwrap();
            assert_eq!(copier.backlog_bytes(), 0, "copy {number}");
        }
        // From here on only waiting threads copy.
        drop(service);
        let put_off = submit(&copier, &mut destinations[0], &source, &PUT_OFF);
        assert_eq!(copier.backlog_bytes(), 0, "nobody is at it");
        let tokens: Vec<_> = destinations[1..5]
            .iter_mut()
            .zip([BYTES, 4096, 20_000, BYTES])
            .map(|(dst, len)| submit(&copier, &mut dst[..len], &source[..len], &QUEUED))
            .collect();
        // Whole segments are counted.
        let most = 2 * BYTES + 4096 + (20 << 10);
        let left = copier.backlog_bytes() as usize;
        assert!((most - 1024..=most).contains(&left), "{left} of {most}");
        copier.sync(&tokens[3], 0..BYTES).unwrap();
        assert_eq!(copier.backlog_bytes() as usize, left - BYTES);
        copier.sync(&tokens[0], 0..BYTES / 2).unwrap();
        assert_eq!(copier.backlog_bytes() as usize, left - BYTES - BYTES / 2);
        copier.sync(&put_off, 0..BYTES).unwrap();
        copier.sync_all().unwrap();
        assert_eq!(copier.backlog_bytes(), 0);
    }

    #[test]
    fn parts_of_a_long_copy_have_the_stream_hint() {
        let (service, copier) = client();
        drop(service);
        let (source, mut destination) = (vec![1u8; BYTES], vec![0u8; BYTES]);
        for (whole_bytes, streams) in [(BYTES, false), (64 << 20, true)] {
            let (dst, src) = (destination.as_mut_ptr(), source.as_ptr());
            // SAFETY: neither buffer is used before the sync.
            let token = unsafe { copier.submit_part(dst, src, BYTES, whole_bytes, &QUEUED) };
            let task = copier.queue().peek(token.ticket).unwrap().unwrap();
            assert_eq!(task.flags.contains(unlade_shm::Flags::STREAMS), streams);
            assert_eq!(copier.pending().get(token.ticket).unwrap().streams, streams);
            copier.sync(&token, 0..BYTES).unwrap();
            assert_eq!(destination, source);
        }
    }

    #[test]
    fn a_long_backlog_is_extrapolated() {
        let (service, copier) = client();
        drop(service);
        let (source, mut destinations) = (vec![1u8; 4096], vec![vec![0u8; 4096]; 100]);
        for destination in &mut destinations {
            let _token = submit(&copier, destination, &source, &QUEUED);
        }
        assert_eq!(copier.backlog_bytes(), 100 * 4096);
        copier.sync_all().unwrap();
    }
}
