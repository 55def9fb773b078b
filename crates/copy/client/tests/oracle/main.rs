//! Random copies, syncs, reads and writes against plain `memcpy`: every byte that a program may
//! read is the same.
//!
//! `UNLADE_SEED` repeats a run, `UNLADE_CASES` sets the number of operations: 100 million take some ten
//! minutes of two cores, `cargo test --release -p unlade-copy --test oracle`.

mod buffers;
mod faults;
mod shadow;
mod world;

use std::sync::Mutex;
use std::time::Duration;

use unlade_copy::{Config, Copier, Counts, Polling, Service};
use unlade_testkit::{Random, setting};

use faults::Faults;
use world::World;

/// Operations with the same service and clients.
const EPOCH_STEPS: u64 = 50_000;
/// Maximum number of threads that share a client.
const THREADS_MAX: usize = 3;
/// One operation in this number is a scene of bad addresses, if these are enabled.
const FAULTS_EVERY: u64 = 500;

/// Random service configuration.
fn config(random: &mut Random) -> Config {
    let threads_max = random.pick(&[1, 1, 2]);
    Config {
        threads_min: random.pick(&[1, threads_max]),
        threads_max,
        scale_after: Duration::from_millis(1),
        slots: random.pick(&[16, 64, 64, 256, 1024]),
        slice_bytes: random.pick(&[4 << 10, 64 << 10, 1 << 20]),
        run_bytes: random.pick(&[1 << 10, 16 << 10]),
        polling: random.pick(&[Polling::Adaptive, Polling::Scenario, Polling::Always]),
        sleep_max: Duration::from_millis(random.pick(&[1, 10])),
        ..Config::default()
    }
}

/// Runs threads with one service: each has one memory with a shared client, and one with its own
/// client.
struct Epoch<'t> {
    totals: &'t Mutex<Totals>,
    /// Dropped in the middle by one of the threads, if the service is to stop.
    service: Mutex<Option<Service>>,
    stops: bool,
    threads: usize,
    steps: u64,
    arena: usize,
}

/// Counts of the services, to check that the test was effective.
#[derive(Debug, Default)]
struct Totals {
    epochs: u64,
    stops: u64,
    at_once: u64,
    queued: u64,
    never_made: u64,
    helped_bytes: u64,
    copied_bytes: u64,
    absorbed_bytes: u64,
    aborted_segments: u64,
    promotions: u64,
    faults: u64,
    sleeps: u64,
}

impl Totals {
    fn add(&mut self, counts: Counts) {
        self.copied_bytes += counts.copied_bytes;
        self.absorbed_bytes += counts.absorbed_bytes;
        self.aborted_segments += counts.aborted_segments;
        self.promotions += counts.promotions;
        self.faults += counts.faults;
        self.sleeps += counts.sleeps;
    }

    fn add_client(&mut self, copier: &Copier) {
        let stats = copier.stats().read();
        self.at_once += stats.at_once;
        self.queued += stats.queued;
        self.never_made += copier.never_made().0;
        self.helped_bytes += stats.helped_bytes;
    }
}

impl Epoch<'_> {
    fn run(&self, random: &mut Random) {
        let attach = || {
            let service = self.service.lock().unwrap();
            Copier::new(service.as_ref().unwrap().attach().unwrap())
        };
        let shared = &attach();
        std::thread::scope(|scope| {
            for thread in 0..self.threads {
                let (own, seeds) = (attach(), [random.next(), random.next(), random.next()]);
                let faults = (thread == 0 && !self.stops).then(|| Faults::new(attach(), seeds[2]));
                scope.spawn(move || {
                    self.one_thread(thread, shared, &own, faults, seeds);
                    self.totals.lock().unwrap().add_client(&own);
                });
            }
        });
        let mut totals = self.totals.lock().unwrap();
        totals.add_client(shared);
        totals.epochs += 1;
        if let Some(service) = &*self.service.lock().unwrap() {
            totals.add(service.counts());
        }
    }

    fn stop(&self) {
        if let Some(service) = self.service.lock().unwrap().take() {
            let mut totals = self.totals.lock().unwrap();
            totals.add(service.counts());
            totals.stops += 1;
        }
    }

    fn one_thread(
        &self,
        thread: usize,
        shared: &Copier,
        own: &Copier,
        mut faults: Option<Faults>,
        [first, second, third]: [u64; 3],
    ) {
        let mut worlds =
            [World::new(shared, self.arena, first), World::new(own, self.arena, second)];
        let mut random = Random::new(third);
        let steps = self.steps / self.threads as u64;
        for step in 0..steps {
            worlds[random.below(2)].step();
            if step % FAULTS_EVERY == 0
                && let Some(faults) = &mut faults
            {
                faults.scene();
            }
            if self.stops && thread == 0 && step == steps / 2 {
                self.stop();
            }
        }
        worlds.into_iter().for_each(World::finish);
    }
}

#[test]
fn every_byte_is_as_after_memcpy() {
    let seed = setting("UNLADE_SEED").unwrap_or(1);
    let steps = setting("UNLADE_CASES").unwrap_or(200_000);
    println!("UNLADE_SEED={seed} UNLADE_CASES={steps}");
    let begin = std::time::Instant::now();
    let (mut random, mut done) = (Random::new(seed), 0);
    let totals = Mutex::new(Totals::default());
    while done < steps {
        let config = config(&mut random);
        let epoch = Epoch {
            totals: &totals,
            service: Mutex::new(Some(Service::start(config).unwrap())),
            stops: random.once_in(4),
            threads: 1 + random.below(THREADS_MAX),
            steps: EPOCH_STEPS.min(steps - done),
            arena: random.pick(&[8 << 10, 32 << 10, 256 << 10]),
        };
        epoch.run(&mut random);
        assert_eq!(buffers::wrong_handlers(), 0, "every handler once");
        done += epoch.steps;
        if (done / EPOCH_STEPS).is_multiple_of(100) {
            println!("{done} operations in {:?}", begin.elapsed());
        }
    }
    let totals = totals.into_inner().unwrap();
    println!("{totals:?}");
    assert!(totals.absorbed_bytes > 0 && totals.aborted_segments > 0 && totals.faults > 0);
    assert!(totals.never_made > 0);
}

#[test]
fn a_service_that_stops_leaves_the_copies_to_who_waits() {
    let service = Service::start(Config::default()).unwrap();
    let copier = Copier::new(service.attach().unwrap());
    let mut world = World::new(&copier, 256 << 10, 77);
    for _ in 0..2000 {
        world.step();
    }
    drop(service);
    for _ in 0..2000 {
        world.step();
    }
    world.finish();
}
