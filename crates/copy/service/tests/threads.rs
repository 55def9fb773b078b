//! Threads start and stop while clients copy: no byte is wrong, and no client is forgotten.
//!
//! The threads sleep without a time limit, so a lost wake-up hangs the test.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use unlade_copy_kernels::{Fault, Space};
use unlade_copy_service::{Attachment, Config, Service, StartError};
use unlade_shm::Task;

const BYTES: usize = 64 << 10;

/// Memory of a client, twice [`BYTES`].
struct Memory(Mutex<Vec<u8>>);

impl Memory {
    fn with<T>(&self, look: impl FnOnce(&mut [u8]) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Space for Memory {
    fn place(&self, _region: u16, offset: u64, len: u64) -> Option<u64> {
        (offset.checked_add(len)? <= 2 * BYTES as u64).then_some(offset)
    }

    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault> {
        let (dst, src, len) = (dst as usize, src as usize, len as usize);
        self.with(|bytes| bytes.copy_within(src..src + len, dst));
        Ok(())
    }
}

struct Client {
    memory: Arc<Memory>,
    attachment: Attachment,
    rounds: u8,
}

impl Client {
    fn new(service: &Service) -> Client {
        let memory = Arc::new(Memory(Mutex::new(vec![0; 2 * BYTES])));
        let attachment = service.attach(Arc::clone(&memory) as _, 1).unwrap();
        Client { memory, attachment, rounds: 0 }
    }

    /// Submits `tasks` copies of `len` bytes, and waits for them without copying itself.
    fn copy(&mut self, tasks: u64, len: usize) {
        self.rounds = self.rounds.wrapping_add(1);
        let value = self.rounds;
        self.memory.with(|bytes| {
            bytes[..len].fill(value);
            bytes[BYTES..BYTES + len].fill(!value);
        });
        let queue = self.attachment.queue();
        let mut last = None;
        for _ in 0..tasks {
            let ticket = queue.try_acquire().expect("the queue is long enough");
            let task = Task::copy(BYTES as u64, 0, len as u32);
            queue.publish(ticket, &task);
            self.attachment.ring();
            last = Some((ticket, task.bits()));
        }
        let (ticket, bits) = last.expect("at least one");
        let begin = Instant::now();
        while !queue.progress(ticket).is_done(bits) {
            assert!(begin.elapsed() < Duration::from_secs(30), "the client is not served");
            std::thread::yield_now();
        }
        self.memory.with(|bytes| {
            assert!(bytes[BYTES..BYTES + len] == vec![value; len]);
        });
        while queue.tail() != queue.head() {
            assert!(begin.elapsed() < Duration::from_secs(30), "slots are not freed");
            std::thread::yield_now();
        }
    }
}

fn config() -> Config {
    Config {
        threads_max: 4,
        high_load_percent: 40,
        low_load_percent: 25,
        scale_after: Duration::from_millis(5),
        sleep_max: Duration::from_secs(3600),
        ..Config::default()
    }
}

/// Number of copies that a busy client submits at once. It is large enough to keep the threads
/// busy even if the clients are preempted before they submit more.
const BUSY_TASKS: u64 = 256;
/// Time limit; only a failing test reaches it.
const PATIENCE: Duration = Duration::from_secs(300);

/// Runs clients that alternate between many and few copies, until `is_enough`.
fn sway(service: &Service, clients: usize, is_enough: impl Fn() -> bool) {
    let (is_busy, is_over) = (AtomicBool::new(true), AtomicBool::new(false));
    let copies = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..clients {
            let (is_busy, is_over, copies) = (&is_busy, &is_over, &copies);
            scope.spawn(move || {
                let mut client = Client::new(service);
                while !is_over.load(Ordering::Relaxed) {
                    if is_busy.load(Ordering::Relaxed) {
                        client.copy(BUSY_TASKS, BYTES);
                    } else {
                        client.copy(1, 1000 + number);
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    if copies.fetch_add(1, Ordering::Relaxed) % 97 == 0 {
                        // Attach again, so clients come and go as well.
                        client = Client::new(service);
                    }
                }
            });
        }
        let begin = Instant::now();
        while !is_enough() && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(80));
            is_busy.fetch_xor(true, Ordering::Relaxed);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(is_enough(), "{:?}", service.counts());
}

#[test]
fn clients_are_served_while_threads_come_and_go() {
    let service = Service::start(config()).unwrap();
    assert_eq!(service.threads(), 1);
    sway(&service, 6, || {
        let counts = service.counts();
        counts.threads_started >= 6 && counts.threads_stopped >= 4 && counts.moves >= 20
    });
    assert!(service.is_whole());
    let counts = service.counts();
    assert_eq!((counts.faults, counts.refused), (0, 0), "{counts:?}");
    assert_eq!(counts.tasks, counts.completed);
}

#[test]
fn fixed_threads_share_the_clients_out() {
    let service = Service::start(Config { threads_min: 3, threads_max: 3, ..config() }).unwrap();
    assert_eq!(service.threads(), 3);
    let mut clients: Vec<Client> = (0..6).map(|_| Client::new(&service)).collect();
    for round in 0..50 {
        clients.iter_mut().for_each(|client| client.copy(2, 100 + 1000 * round));
    }
    let counts = service.counts();
    assert_eq!((service.threads(), counts.threads_started), (3, 3));
    assert_eq!(counts.threads_stopped, 0);
}

#[test]
fn a_service_ends_while_its_threads_come_and_go() {
    for round in 0..20 {
        let service = Service::start(config()).unwrap();
        let mut clients: Vec<Client> = (0..4).map(|_| Client::new(&service)).collect();
        std::thread::scope(|scope| {
            for client in &mut clients {
                scope.spawn(move || (0..round * 4).for_each(|_| client.copy(8, BYTES)));
            }
        });
        drop(service);
        assert!(clients.iter().all(|client| !client.attachment.is_served()));
    }
}

#[test]
fn numbers_of_threads_that_make_no_sense_are_refused() {
    for (min, max) in [(0, 1), (2, 1), (1, 65), (0, 0)] {
        let started = Service::start(Config { threads_min: min, threads_max: max, ..config() });
        let Err(error) = started else { panic!("{min} to {max} threads") };
        assert!(matches!(error, StartError::Threads { .. }));
        assert!(error.to_string().contains("1 to 64"), "{error}");
    }
}
