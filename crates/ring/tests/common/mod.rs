//! What the random and the threaded tests share.
#![allow(dead_code)]

use std::sync::Arc;

use ring::{Arena, Memory, Queue};

/// Random numbers (SplitMix64) from a seed that is printed, so that a failure can be repeated.
pub struct Random(u64);

impl Random {
    /// Seeded by `UNLADE_SEED`, otherwise differently in each run.
    pub fn new() -> Random {
        let seed = match std::env::var("UNLADE_SEED") {
            Ok(text) => text.parse().expect("UNLADE_SEED is a number"),
            Err(_) => std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
        };
        println!("repeat with UNLADE_SEED={seed}");
        Random(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit
    }

    /// A few bits, many, or all.
    pub fn bits(&mut self) -> u32 {
        let [one, two] = [self.word(), self.word()].map(|word| word as u32);
        match self.below(4) {
            0 => one & two,
            1 => one,
            2 => u32::MAX,
            _ => 1 << (one % 32),
        }
    }

    /// Often at an edge.
    pub fn hostile(&mut self) -> u64 {
        let word = self.word();
        match self.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => word % 256,
            3 => u64::MAX - word % 256,
            4 => 1 << (word % 64),
            _ => word,
        }
    }
}

pub fn on_the_heap(slots: u32) -> Arc<Queue> {
    let memory = Memory::heap(Queue::bytes_for(slots).unwrap()).unwrap();
    Arc::new(Queue::create(memory, slots).unwrap())
}

/// A client's and a service's queue over two mappings of one file, and a third mapping.
pub fn mapped(slots: u32) -> (Queue, Queue, Arena) {
    let arena = Arena::create("ring-test", Queue::bytes_for(slots).unwrap()).unwrap();
    let again = || Arena::attach(arena.fd().try_clone_to_owned().unwrap()).unwrap();
    let (second, third) = (again(), again());
    let client = Queue::create(arena.into(), slots).unwrap();
    (client, Queue::attach(second.into()).unwrap(), third)
}
