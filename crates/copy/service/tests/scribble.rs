//! A client in another process that writes random data into its queue's memory while the service
//! reads it: torn lines, jumping positions, claims that appear and disappear. The service
//! continues, no byte outside the client's regions changes, and another client is served normally.
//!
//! `UNLADE_SEED` selects the data, `UNLADE_CASES` the number of cases.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use unlade_copy_kernels::{Guard, Regions};
use unlade_copy_service::{Config, Polling, Service, Share};
use unlade_shm::{Arena, Flags, Memory, Queue, SyncKind, SyncTask, Task, Ticket};
use unlade_testkit::{Random, count, setting};

const SLOTS: u32 = 64;
const REGION_BYTES: u64 = 64 << 10;

fn again(arena: &Arena) -> std::os::fd::OwnedFd {
    arena.fd().try_clone_to_owned().unwrap()
}

/// The client's side: its queue and its only region.
struct Client {
    queue: Queue,
    region: std::fs::File,
    _attachment: unlade_copy_service::Attachment,
}

impl Client {
    fn attach(service: &Service, guard: Guard) -> Client {
        let region = Arena::create("region", REGION_BYTES as usize).unwrap();
        let regions = Regions::new(guard, 1, REGION_BYTES);
        regions.add(1, REGION_BYTES, again(&region)).unwrap();
        let arena = Arena::create("queue", Queue::bytes_for(SLOTS).unwrap()).unwrap();
        let other = Arena::attach(again(&arena)).unwrap();
        let queue = Queue::create(Memory::from(arena), SLOTS).unwrap();
        let served = Queue::attach(Memory::from(other)).unwrap();
        let held = Arc::new(());
        let share = Share::whole(service.group(1));
        let attachment = service.attach_remote(served, Arc::new(regions), share, held).unwrap();
        Client { queue, region: again(&region).into(), _attachment: attachment }
    }

    /// Writes random words anywhere in the queue's memory.
    fn scribble(&self, random: &mut Random) {
        let memory = self.queue.memory();
        let at = random.below(memory.len_bytes() as u64 / 8) * 8;
        let near = self.queue.tail().0.wrapping_add(random.below(SLOTS.into()));
        let value = match random.below(4) {
            0 => random.next(),
            1 => random.below(1 << 20),
            2 => near,
            _ => near << 32 | random.below(1 << 32),
        };
        rustix::io::pwrite(memory.fd().unwrap().as_fd(), &value.to_le_bytes(), at).unwrap();
    }

    /// Submits a more or less valid line, and its requests.
    fn submit(&self, random: &mut Random) {
        let near = Ticket(self.queue.tail().0.wrapping_add(random.below(SLOTS.into())));
        let ticket = self.queue.try_acquire().filter(|_| random.below(8) != 0).unwrap_or(near);
        let len = 1 + random.below(REGION_BYTES / 2) as u32;
        let (dst, src) = (random.below(REGION_BYTES), random.below(REGION_BYTES));
        let mut task = Task { dst_region: 1, src_region: 1, ..Task::copy(dst, src, len) };
        if random.below(4) == 0 {
            task.flags = task.flags | Flags::LAZY | Flags::HANDLER;
            task.delay_us = random.below(1000) as u32;
        }
        self.queue.publish(ticket, &task);
        let kind = if random.below(2) == 0 { SyncKind::Promote } else { SyncKind::Abort };
        let wish = SyncTask { ticket: near, bits: random.next() as u32, kind };
        // A full ring is acceptable.
        let _ = self.queue.push_sync(wish);
        let progress = self.queue.progress(near);
        match random.below(6) {
            0 => _ = progress.claim(random.next() as u32),
            1 => _ = progress.finish(random.next() as u32),
            2 => progress.release(random.next() as u32),
            3 => _ = progress.take_handler(),
            _ => {}
        }
    }

    /// Copies a range through the service alone, and checks it.
    fn copy_and_check(&self, random: &mut Random) {
        let half = REGION_BYTES / 2;
        let len = 1 + random.below(half);
        let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        self.region.write_all_at(&bytes, half).unwrap();
        let ticket = self.queue.try_acquire().expect("one task at a time");
        let task = Task { dst_region: 1, src_region: 1, ..Task::copy(0, half, len as u32) };
        self.queue.publish(ticket, &task);
        let (progress, begin) = (self.queue.progress(ticket), Instant::now());
        while !progress.is_done(task.bits()) {
            assert!(begin.elapsed() < Duration::from_secs(60), "the neighbour is served");
            std::thread::yield_now();
        }
        let mut found = vec![0; bytes.len()];
        self.region.read_exact_at(&mut found, 0).unwrap();
        assert!(found == bytes, "the neighbour's bytes");
    }
}

#[test]
fn who_scribbles_in_its_queue_harms_nobody_else() {
    let (seed, cases) = (setting("UNLADE_SEED").unwrap_or(1), count(300));
    println!("UNLADE_SEED={seed} UNLADE_CASES={cases}");
    let guard = match unlade_copy_kernels::guard::install() {
        Ok(guard) => guard,
        Err(why) => return println!("skipped: {why}"),
    };
    let config = Config { polling: Polling::Always, run_bytes: 4 << 10, ..Config::default() };
    let service = Service::start(config).unwrap();
    let neighbour = Client::attach(&service, guard);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (service, is_over) = (&service, &is_over);
            scope.spawn(move || {
                let mut random = Random::new(seed.wrapping_mul(2).wrapping_add(thread));
                while !is_over.load(Ordering::Relaxed) {
                    // A damaged client is dropped, as at the end of its process.
                    let client = Client::attach(service, guard);
                    for _ in 0..500 {
                        match random.below(3) {
                            0 => client.scribble(&mut random),
                            _ => client.submit(&mut random),
                        }
                    }
                }
            });
        }
        let mut random = Random::new(seed);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..cases).for_each(|_| neighbour.copy_and_check(&mut random));
        }));
        is_over.store(true, Ordering::Relaxed);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(service.is_whole(), "no thread of the service panicked");
}
