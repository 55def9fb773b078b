//! Code that the random and the threaded tests share.
#![allow(dead_code)]

use std::sync::Arc;

use unlade_shm::{Arena, Memory, Queue};
use unlade_testkit::Random;

/// Returns a few bits, many, or all.
pub fn bits(random: &mut Random) -> u32 {
    let [one, two] = [random.next(), random.next()].map(|word| word as u32);
    match random.below(4) {
        0 => one & two,
        1 => one,
        2 => u32::MAX,
        _ => 1 << (one % 32),
    }
}

/// Returns a value that is often near a limit.
pub fn hostile(random: &mut Random) -> u64 {
    let word = random.next();
    match random.below(6) {
        0 => 0,
        1 => u64::MAX,
        2 => word % 256,
        3 => u64::MAX - word % 256,
        4 => 1 << (word % 64),
        _ => word,
    }
}

pub fn on_the_heap(slots: u32) -> Arc<Queue> {
    let memory = Memory::heap(Queue::bytes_for(slots).unwrap()).unwrap();
    Arc::new(Queue::create(memory, slots).unwrap())
}

/// Returns the client's and the service's queue over two mappings of one file, and a third
/// mapping.
pub fn mapped(slots: u32) -> (Queue, Queue, Arena) {
    let arena = Arena::create("ring-test", Queue::bytes_for(slots).unwrap()).unwrap();
    let again = || Arena::attach(arena.fd().try_clone_to_owned().unwrap()).unwrap();
    let (second, third) = (again(), again());
    let client = Queue::create(arena.into(), slots).unwrap();
    (client, Queue::attach(second.into()).unwrap(), third)
}
