//! Random copies, syncs, reads and writes against plain `memcpy`: every byte that a program may
//! read is the same.
//!
//! `UNLADE_SEED` repeats a run, `UNLADE_CASES` sets the number of operations.

use unlade_copy::{Config, Copier, CopyOptions, Devices, Service};
use unlade_copy_kernels::device::{Characteristics, Device};
use unlade_copy_kernels::model::{Clock, Failing, Model};
use unlade_testkit::{Random, setting};

const ARENA: usize = 256 << 10;

/// Mostly small, sometimes large.
fn length(random: &mut Random) -> usize {
    let most = 1 << (4 + random.below(13));
    1 + random.below(most)
}

/// Memory of the copies, and its expected content by `memcpy`.
struct World {
    memory: Box<[u8]>,
    base: *mut u8,
    oracle: Vec<u8>,
    copier: Copier,
    random: Random,
}

impl World {
    fn new(service: &Service, seed: u64) -> World {
        let mut random = Random::new(seed);
        let oracle: Vec<u8> = (0..ARENA).map(|_| random.next() as u8).collect();
        let mut memory = oracle.clone().into_boxed_slice();
        let base = memory.as_mut_ptr();
        let copier = Copier::new(service.attach().unwrap());
        World { memory, base, oracle, copier, random }
    }

    fn range(&mut self) -> (usize, usize) {
        let len = length(&mut self.random);
        (self.random.below(ARENA - len), len)
    }

    fn copy(&mut self) {
        let (dst, len) = self.range();
        let src = self.random.below(ARENA - len);
        if src.abs_diff(dst) < len {
            return;
        }
        let lazy_us = (self.random.below(4) == 0).then(|| self.random.below(2000) as u32);
        let options =
            CopyOptions { lazy_us, queued: self.random.below(8) != 0, ..CopyOptions::default() };
        // SAFETY: both ranges are in the arena, which lives as long as the copier; it is accessed
        // only after a sync.
        let token =
            unsafe { self.copier.submit(self.base.add(dst), self.base.add(src), len, &options) };
        self.oracle.copy_within(src..src + len, dst);
        if self.random.below(6) == 0 {
            self.copier.sync(&token, 0..len).unwrap();
        }
    }

    fn read(&mut self) {
        let (at, len) = self.range();
        self.copier.sync_range(self.base.addr() + at, len).unwrap();
        // SAFETY: in the arena, and synced.
        let seen = unsafe { std::slice::from_raw_parts(self.base.add(at), len) };
        assert_eq!(seen, &self.oracle[at..at + len], "at {at}");
    }

    fn write(&mut self) {
        let (at, len) = self.range();
        self.copier.sync_for_write(self.base.addr() + at, len).unwrap();
        let value = self.random.next() as u8;
        // SAFETY: in the arena, and no copy reads or writes it any more.
        unsafe { std::ptr::write_bytes(self.base.add(at), value, len) };
        self.oracle[at..at + len].fill(value);
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..60 => self.copy(),
            60..85 => self.read(),
            85..99 => self.write(),
            _ => self.copier.sync_all().unwrap(),
        }
    }
}

/// A unit that gets about half of all bytes, and fails or delays one batch in five.
fn unit(seed: u64) -> Box<dyn Device + Send> {
    let characteristics = Characteristics {
        name: "model",
        start_ns: 20,
        bytes_per_us: 10_000,
        bytes_min: 64,
        bytes_max: 16 << 10,
        chunks_max: 4,
        depth: 8,
    };
    let guard = unlade_copy_kernels::guard::install().unwrap();
    let mut unit = Model::new(characteristics, 2, &Clock::default(), guard).polled_in_ns(50);
    let mut random = Random::new(seed);
    for number in 0..5_000 {
        let failing = match random.below(20) {
            0 => Failing::Batch,
            1 => Failing::Chunk(random.below(4)),
            2..4 => Failing::Late(random.below(200_000) as u64),
            _ => continue,
        };
        unit.fail(number, failing);
    }
    Box::new(unit)
}

#[test]
fn every_byte_is_as_after_memcpy_with_a_unit_that_fails() {
    let seed = setting("UNLADE_SEED").unwrap_or(2);
    let steps = setting("UNLADE_CASES").unwrap_or(200_000);
    println!("UNLADE_SEED={seed} UNLADE_CASES={steps}");
    let cpu = unlade_copy_scheduler::dispatch::Unit {
        name: "cpu".into(),
        start_ns: 0,
        bytes_per_us: 10_000,
        min_bytes: 0,
    };
    let devices = Devices::with(move |_| Some(unit(seed))).beside(cpu);
    let service = Service::start_beside(Config::default(), devices).unwrap();
    let mut world = World::new(&service, seed);
    for _ in 0..steps {
        world.step();
    }
    world.copier.sync_all().unwrap();
    assert_eq!(&*world.memory, world.oracle, "at the end");
    let counts = service.counts();
    println!("{counts:?} {:?}", world.copier.stats().read());
    assert!(counts.unit_bytes > 0 && counts.unit_failures > 0, "{counts:?}");
    assert_eq!((counts.faults, counts.unit_stalls), (0, 0), "{counts:?}");
}
