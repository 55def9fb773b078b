//! Bad addresses between good copies: only affected copies fail, and every byte that does not
//! depend on them is right.

use std::time::{Duration, Instant};

use unlade_copy::{Copier, CopyError, CopyOptions, TaskFailure, Token};
use unlade_testkit::Random;

use crate::shadow::Shadow;

const BYTES: usize = 16 << 10;
/// Copies of a scene: fewer than slots.
const COPIES_MAX: usize = 6;
/// An address that is never mapped.
const NOWHERE: usize = 64;

struct Submitted {
    token: Token,
    len: usize,
    is_bad: bool,
    reads_unknown: bool,
}

/// A client whose copies are made by the service, or by waiters.
pub struct Faults {
    copier: Copier,
    memory: Box<[u8]>,
    random: Random,
}

impl Faults {
    pub fn new(copier: Copier, seed: u64) -> Faults {
        let mut random = Random::new(seed);
        let memory = (0..BYTES).map(|_| random.next() as u8).collect();
        Faults { copier, memory, random }
    }

    /// Submits a few copies, some with unmapped addresses; all are over at its end.
    pub fn scene(&mut self) {
        let mut shadow = Shadow::of(&self.memory);
        let base = self.memory.as_mut_ptr();
        let count = 1 + self.random.below(COPIES_MAX);
        let mut all = Vec::new();
        for _ in 0..count {
            let len = 1 + self.random.below(BYTES / 4);
            let (dst, src) = (self.random.below(BYTES - len), self.random.below(BYTES - len));
            let (to_nowhere, from_nowhere) = (self.random.once_in(6), self.random.once_in(4));
            if !to_nowhere && !from_nowhere && src.abs_diff(dst) < len {
                continue;
            }
            if to_nowhere && from_nowhere {
                continue;
            }
            let lazy_us = self.random.once_in(4).then(|| self.random.below(500) as u32);
            let options = CopyOptions { queued: true, lazy_us, ..CopyOptions::default() };
            let nowhere = std::ptr::without_provenance_mut::<u8>(NOWHERE);
            // SAFETY: the memory is not accessed before all is over; the service detects unmapped
            // addresses.
            let token = unsafe {
                let to = if to_nowhere { nowhere } else { base.add(dst) };
                let from = if from_nowhere { nowhere } else { base.add(src) };
                self.copier.submit(to, from, len, &options)
            };
            // A service that has not run for a while has not retired the slots of the scene before.
            // Without a slot the copy is made at once, with the same result.
            // A good copy that reads around a failed one uses the same bad address, and fails,
            // too.
            let reads_unknown = !from_nowhere && !shadow.is_known(src..src + len);
            if !to_nowhere {
                shadow.copy(dst, src, len);
                if from_nowhere || reads_unknown {
                    shadow.forget(dst..dst + len);
                }
            }
            all.push(Submitted { token, len, is_bad: to_nowhere || from_nowhere, reads_unknown });
        }
        self.complete(&all);
        assert_eq!(shadow.difference(0, &self.memory), None, "beside bad addresses");
    }

    fn complete(&mut self, all: &[Submitted]) {
        let begin = Instant::now();
        // Only the service, or also waiters.
        let waits = self.random.once_in(2);
        for copy in all {
            while !waits && !self.copier.is_ready(&copy.token, 0..copy.len) {
                assert!(begin.elapsed() < Duration::from_secs(60), "every copy comes to an end");
                std::thread::yield_now();
            }
            // A retired ticket has no error any more.
            match self.copier.sync(&copy.token, 0..copy.len) {
                Ok(()) => {}
                Err(CopyError::Failed(TaskFailure::BadAddress)) => {
                    assert!(copy.is_bad || copy.reads_unknown, "a good copy failed");
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}
