//! A device beside the processor: the simulated time of both together; failures, stalls and
//! delays.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use unlade_copy::{Config, Copier, CopyError, CopyOptions, Service, TaskFailure, Token};
use unlade_copy_kernels::device::{Batch, Characteristics, Chunk, Device, Progress, Refused};
use unlade_copy_kernels::model::{Clock, Failing, Model, Paced};
use unlade_copy_kernels::{Guard, OwnMemory};
use unlade_copy_scheduler::dispatch;
use unlade_copy_service::{Attachment, Devices, Polling};
use unlade_shm::{Task, Ticket};

/// Bytes per microsecond, of the processor and of the device.
const CPU_RATE: u64 = 10_000;
const UNIT: Characteristics = Characteristics {
    name: "model",
    start_ns: 400,
    bytes_per_us: 10_000,
    bytes_min: 512,
    bytes_max: 64 << 10,
    chunks_max: 4,
    depth: 16,
};

fn config() -> Config {
    Config { polling: Polling::Always, ..Config::default() }
}

fn cpu() -> dispatch::Unit {
    dispatch::Unit { name: "cpu".into(), start_ns: 0, bytes_per_us: CPU_RATE, min_bytes: 0 }
}

fn guard() -> Guard {
    unlade_copy_kernels::guard::install().expect("the services of these tests need it anyway")
}

/// One unit for the one thread of a service.
fn devices(unit: impl Device + Send + 'static) -> Devices {
    let unit = Mutex::new(Some(unit));
    let open = move |_| {
        let unit = unit.lock().unwrap_or_else(PoisonError::into_inner).take();
        unit.map(|unit| Box::new(unit) as Box<dyn Device + Send>)
    };
    Devices::with(open).beside(cpu())
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}

/// A service whose copies take simulated time, and its client.
fn paced(unit: Model, clock: &Clock) -> (unlade_copy_service::Service, Attachment) {
    let service = unlade_copy_service::Service::start_with(config(), devices(unit)).unwrap();
    // SAFETY: the tests copy only between their own vectors, which they do not access until the
    // copies are done.
    let memory = Arc::new(unsafe { OwnMemory::new(guard()) });
    let space = Paced::new(memory, clock, 0, CPU_RATE);
    let attachment = service.attach(Arc::new(space), 1).unwrap();
    (service, attachment)
}

/// Makes copies, all of which are queued when the service sees the first one. Returns their
/// duration in simulated time.
fn copy_all(attachment: &Attachment, clock: &Clock, buffers: &mut [(Vec<u8>, Vec<u8>)]) -> u64 {
    let queue = attachment.queue();
    let tickets: Vec<Ticket> = buffers.iter().map(|_| queue.try_acquire().unwrap()).collect();
    let begin_ns = clock.now_ns();
    let mut bits = Vec::new();
    // The first one is published last.
    for (ticket, (from, to)) in tickets.iter().zip(buffers.iter_mut()).rev() {
        let (src, dst) = (from.as_ptr().expose_provenance(), to.as_mut_ptr().expose_provenance());
        let task = Task::copy(dst as u64, src as u64, from.len() as u32);
        bits.push((*ticket, task.bits()));
        queue.publish(*ticket, &task);
    }
    attachment.ring();
    for (ticket, bits) in bits {
        eventually("it is copied", || queue.progress(ticket).is_done(bits));
        assert_eq!(queue.progress(ticket).error(), None);
    }
    eventually("the slots are free", || queue.tail() == queue.head());
    assert!(buffers.iter().all(|(from, to)| from == to));
    clock.now_ns() - begin_ns
}

fn pair(bytes: usize, seed: u8) -> (Vec<u8>, Vec<u8>) {
    let from = (0..bytes).map(|at| (at % 251) as u8 ^ seed).collect();
    (from, vec![0; bytes])
}

#[test]
fn a_large_copy_is_divided_so_that_both_finish_together() {
    let clock = Clock::default();
    let unit = Model::new(UNIT, 1, &clock, guard()).polled_in_ns(20);
    let (service, attachment) = paced(unit, &clock);
    let mut buffers = [pair(1 << 20, 1)];
    let took_ns = copy_all(&attachment, &clock, &mut buffers);
    let alone_ns = (1 << 20) * 1000 / CPU_RATE;
    // Both are equally fast, but for the device's start: once in each batch of 4 chunks of 64 KiB.
    let ideal_ns = (1 << 20) * 1000 / (CPU_RATE + UNIT.bytes_per_us);
    assert!(took_ns < alone_ns * 55 / 100, "{took_ns} of {alone_ns}");
    assert!((ideal_ns..ideal_ns * 105 / 100).contains(&took_ns), "{took_ns} for {ideal_ns}");
    let counts = service.counts();
    assert!((400_000..600_000).contains(&counts.unit_bytes), "{counts:?}");
    assert_eq!((counts.copied_bytes, counts.unit_failures, counts.unit_refusals), (1 << 20, 0, 0));
}

#[test]
fn small_copies_share_the_device() {
    let clock = Clock::default();
    let unit = Model::new(UNIT, 1, &clock, guard()).polled_in_ns(20);
    let (service, attachment) = paced(unit, &clock);
    let mut buffers: Vec<_> = (0..16).map(|number| pair(8 << 10, number)).collect();
    let took_ns = copy_all(&attachment, &clock, &mut buffers);
    let alone_ns = 16 * (8 << 10) * 1000 / CPU_RATE;
    // Every chunk is expected to cost a start, so the device gets a little less than half.
    assert!((alone_ns / 2..alone_ns * 7 / 10).contains(&took_ns), "{took_ns} of {alone_ns}");
    let counts = service.counts();
    assert!(counts.unit_bytes >= 5 * (8 << 10), "{counts:?}");
}

#[test]
fn small_copies_are_made_by_the_processor() {
    let clock = Clock::default();
    let slow = Characteristics { start_ns: 1_000_000, ..UNIT };
    let (service, attachment) = paced(Model::new(slow, 1, &clock, guard()), &clock);
    let took_ns = copy_all(&attachment, &clock, &mut [pair(200_000, 1)]);
    assert_eq!((took_ns / 1000, service.counts().unit_batches), (20, 0));
}

#[test]
fn a_failing_unit_loses_no_byte() {
    let clock = Clock::default();
    let mut unit = Model::new(UNIT, 1, &clock, guard()).polled_in_ns(20);
    assert!(unit.fail(0, Failing::Batch) && unit.fail(2, Failing::Chunk(1)));
    let (service, attachment) = paced(unit, &clock);
    copy_all(&attachment, &clock, &mut [pair(1 << 20, 1), pair(300_000, 2)]);
    let counts = service.counts();
    assert_eq!((counts.unit_failures, counts.faults), (2, 0), "{counts:?}");
    assert_eq!(counts.copied_bytes, (1 << 20) + 300_000);
    assert!(counts.unit_bytes > 0);
}

#[test]
fn a_unit_that_always_fails_is_disabled() {
    let clock = Clock::default();
    let mut unit = Model::new(UNIT, 1, &clock, guard()).polled_in_ns(20);
    assert!((0..1000).all(|number| unit.fail(number, Failing::Batch)));
    let (service, attachment) = paced(unit, &clock);
    for seed in 0..4 {
        copy_all(&attachment, &clock, &mut [pair(1 << 20, seed)]);
    }
    let counts = service.counts();
    assert!((8..16).contains(&counts.unit_failures), "{counts:?}");
    assert_eq!((counts.unit_bytes, counts.copied_bytes), (0, 4 << 20));
}

const QUEUED: CopyOptions = CopyOptions { lazy_us: None, queued: true, handler: None, site: 0 };

/// A service of this process, and a client; its copies take no simulated time.
fn beside(unit: impl Device + Send + 'static) -> (Service, Copier) {
    let service = Service::start_beside(config(), devices(unit)).unwrap();
    let copier = Copier::new(service.attach().unwrap());
    (service, copier)
}

fn submit(copier: &Copier, dst: &mut [u8], src: &[u8]) -> Token {
    assert_eq!(dst.len(), src.len());
    // SAFETY: every test waits before it accesses either buffer.
    unsafe { copier.submit(dst.as_mut_ptr(), src.as_ptr(), src.len(), &QUEUED) }
}

#[test]
fn a_unit_that_stalls_is_given_up_and_the_processor_copies() {
    let clock = Clock::default();
    let mut unit = Model::new(UNIT, 1, &clock, guard());
    assert!(unit.fail(0, Failing::Stall));
    let (service, copier) = beside(unit);
    for round in 0..3 {
        let (from, mut to) = pair(200_000, round);
        let token = submit(&copier, &mut to, &from);
        eventually("it is copied", || copier.is_ready(&token, 0..200_000));
        copier.sync(&token, 0..200_000).unwrap();
        assert!(from == to);
    }
    let counts = service.counts();
    assert_eq!((counts.unit_stalls, counts.unit_bytes, counts.faults), (1, 0, 0), "{counts:?}");
    assert_eq!(counts.copied_bytes, 600_000);
}

#[test]
fn nobody_writes_where_a_unit_may_still_write() {
    let clock = Clock::default();
    let mut unit = Model::new(UNIT, 1, &clock, guard());
    assert!(unit.fail(0, Failing::Late(1 << 30)));
    let (service, copier) = beside(unit);
    let (from, mut to) = pair(200_000, 1);
    let token = submit(&copier, &mut to, &from);
    eventually("it is told to stop", || service.counts().unit_stalls == 1);
    assert!(!copier.is_ready(&token, 0..200_000));
    let begun = service.counts().copied_bytes;
    assert!((50_000..200_000).contains(&begun), "the processor's part is there: {begun}");
    // Meanwhile the thread makes other copies.
    let (other_from, mut other_to) = pair(100_000, 2);
    let other = submit(&copier, &mut other_to, &other_from);
    eventually("the other one is copied", || copier.is_ready(&other, 0..100_000));
    assert!(other_from == other_to && !copier.is_ready(&token, 0..200_000));
    clock.advance_ns(1 << 31);
    copier.sync(&token, 0..200_000).unwrap();
    assert!(from == to);
    assert_eq!(service.counts().copied_bytes, 300_000);
}

#[test]
fn a_service_ends_after_its_unit() {
    let clock = Clock::default();
    let mut unit = Model::new(UNIT, 1, &clock, guard());
    assert!(unit.fail(0, Failing::Late(1 << 30)));
    let (service, copier) = beside(unit);
    let (from, mut to) = pair(200_000, 1);
    let token = submit(&copier, &mut to, &from);
    eventually("some of it is copied", || service.counts().copied_bytes > 0);
    let late = clock.clone();
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        late.advance_ns(1 << 31);
    });
    drop(service);
    assert!(clock.now_ns() > 1 << 30, "nothing is written after the service's end");
    copier.sync(&token, 0..200_000).unwrap();
    assert!(from == to);
    later.join().unwrap();
}

#[test]
fn a_bad_address_in_a_device_batch_fails_only_its_client() {
    let clock = Clock::default();
    let (service, bad) = beside(Model::new(UNIT, 1, &clock, guard()).polled_in_ns(50));
    let good = Copier::new(service.attach().unwrap());
    let mut nowhere = vec![0u8; 300_000];
    // SAFETY: the source is not mapped, which is detected; the destination is not accessed before
    // the copy is done.
    let token = unsafe {
        bad.submit(nowhere.as_mut_ptr(), std::ptr::without_provenance(64), 300_000, &QUEUED)
    };
    eventually("the fault is found", || bad.is_ready(&token, 0..300_000));
    let failed = Err(CopyError::Failed(TaskFailure::BadAddress));
    assert_eq!(bad.sync(&token, 0..300_000), failed);
    let (from, mut to) = pair(300_000, 3);
    let token = submit(&good, &mut to, &from);
    good.sync(&token, 0..300_000).unwrap();
    assert!(from == to);
    let counts = service.counts();
    assert!(counts.faults >= 1 && counts.unit_failures >= 1, "{counts:?}");
}

/// A unit that accepts no batch.
struct Full;

impl Device for Full {
    fn characteristics(&self) -> Characteristics {
        UNIT
    }

    unsafe fn submit(&mut self, _: &[Chunk]) -> Result<Batch, Refused> {
        Err(Refused::Full)
    }

    fn poll(&mut self, _: &Batch) -> Progress {
        Progress::Pending
    }

    fn stop(&mut self) -> bool {
        true
    }
}

#[test]
fn the_processor_copies_batches_that_a_unit_refuses() {
    let (service, copier) = beside(Full);
    let (from, mut to) = pair(1 << 20, 3);
    let token = submit(&copier, &mut to, &from);
    eventually("it is copied", || copier.is_ready(&token, 0..1 << 20));
    copier.sync(&token, 0..1 << 20).unwrap();
    assert!(from == to);
    let counts = service.counts();
    assert!(counts.unit_refusals > 0 && counts.unit_bytes == 0, "{counts:?}");
}

#[test]
fn a_large_unmapped_destination_is_populated_ahead() {
    let service = Service::start(config()).unwrap();
    let copier = Copier::new(service.attach().unwrap());
    let from = vec![7u8; 1 << 20];
    for round in 0..2 {
        let mut to: Vec<u8> = Vec::with_capacity(1 << 20);
        // SAFETY: all of it is allocated; it is read after the copy.
        let token = unsafe { copier.submit(to.as_mut_ptr(), from.as_ptr(), 1 << 20, &QUEUED) };
        eventually("it is copied", || copier.is_ready(&token, 0..1 << 20));
        copier.sync(&token, 0..1 << 20).unwrap();
        // SAFETY: all of it is initialised.
        unsafe { to.set_len(1 << 20) };
        assert!(from == to);
        let counts = service.counts();
        let windows = counts.populated_bytes / (128 << 10) + counts.populate_hits;
        assert_eq!(windows, 8 * (round + 1), "{counts:?}");
        if round == 0 {
            // The kernel may map more than requested, a huge page at a time.
            assert!(counts.populated_bytes >= 128 << 10, "{counts:?}");
        }
    }
}
