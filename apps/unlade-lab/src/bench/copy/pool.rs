//! Buffers that go round: a copy takes a pair, and gives it back when it is made.

use anyhow::Result;
use std::collections::VecDeque;
use unlade_copy::{Copier, Owned};

/// A source and a destination.
pub type Pair = (Vec<u8>, Vec<u8>);

/// `count` pairs of `bytes` each, whose pages are there.
pub fn pairs(count: usize, bytes: usize) -> VecDeque<Pair> {
    let source = |number: usize| (0..bytes).map(|at| ((at + number) % 251) as u8).collect();
    (0..count).map(|number| (source(number), vec![1; bytes])).collect()
}

/// Copies of one client that are queued, oldest first, and the buffers of those to come.
pub struct Flow<'c> {
    copier: &'c Copier,
    free: VecDeque<Pair>,
    queued: VecDeque<Owned<'c>>,
    queued_max: usize,
    /// Copies that are made.
    pub made: u64,
}

impl<'c> Flow<'c> {
    /// With so many copies queued at a time, at most.
    pub fn new(copier: &'c Copier, pairs: VecDeque<Pair>, queued_max: usize) -> Flow<'c> {
        let queued = VecDeque::with_capacity(queued_max);
        Flow { copier, free: pairs, queued, queued_max, made: 0 }
    }

    /// Queues as many as there may be.
    pub fn fill(&mut self) {
        while self.queued.len() < self.queued_max {
            let Some((source, destination)) = self.free.pop_front() else { return };
            self.queued.push_back(self.copier.queue_owned(source, destination));
        }
    }

    /// Takes back what is made, without waiting for anything.
    ///
    /// # Errors
    /// A copy failed.
    pub fn reap(&mut self) -> Result<()> {
        while self.queued.front().is_some_and(Owned::is_ready) {
            self.wait()?;
        }
        Ok(())
    }

    /// Waits for the oldest, and helps, as a sync does.
    ///
    /// # Errors
    /// It failed.
    pub fn wait(&mut self) -> Result<()> {
        if let Some(copy) = self.queued.pop_front() {
            self.free.push_back(copy.wait()?);
            self.made += 1;
        }
        Ok(())
    }

    /// Waits for all; gives the buffers back, and says how many copies were made.
    ///
    /// # Errors
    /// A copy failed.
    pub fn finish(mut self) -> Result<(VecDeque<Pair>, u64)> {
        while !self.queued.is_empty() {
            self.wait()?;
        }
        Ok((self.free, self.made))
    }
}
