//! A simulated copy unit for tests, with a stated latency and bandwidth in simulated time, and
//! with planned failures.
//!
//! It has one or several engines. A batch goes to the engine that is free first, and occupies it
//! for [`Characteristics::time_ns`]. With several engines a later batch can be done before an
//! earlier one. The bytes are copied when a batch is polled at or after its completion time, not
//! before: an early read finds the old bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::{Batch, Characteristics, Chunk, Device, Failure, Progress, Refused};
use crate::guard::{Fault, Guard};
use crate::kernel::Hint;
use crate::space::{Reach, Space};

/// Maximum number of engines of a unit.
pub const ENGINES_MAX: usize = 64;
/// Maximum number of planned failures.
pub const FAILURES_MAX: usize = 1024;
/// Status of a planned failure.
pub const STATUS_PLANNED: u8 = 0xff;
/// The status of a batch that [`Device::stop`] ended.
pub const STATUS_STOPPED: u8 = 0xfe;

/// Simulated time of a test, in nanoseconds. Clones share the same time.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Returns the time.
    pub fn now_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Advances the time.
    pub fn advance_ns(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::SeqCst);
    }
}

/// A planned failure of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// The whole batch fails: nothing of it is copied.
    Batch,
    /// One chunk fails: those before are copied, this one by half, those behind not at all. An
    /// index behind the last chunk lets the batch succeed.
    Chunk(usize),
    /// The batch is never done unless it is stopped; nothing of it is copied then.
    Stall,
    /// The batch is late by this number of nanoseconds, and cannot be stopped before.
    Late(u64),
}

struct Flying {
    chunks: Vec<Chunk>,
    due_ns: u64,
    failing: Option<Failing>,
}

/// The simulated unit.
pub struct Model {
    characteristics: Characteristics,
    clock: Clock,
    guard: Guard,
    /// Time at which each engine is free again.
    engines_ns: Vec<u64>,
    flying: BTreeMap<u64, Flying>,
    failing: BTreeMap<u64, Failing>,
    submitted: u64,
    /// Duration of a poll of a batch that is not done.
    poll_ns: u64,
    is_stopped: bool,
}

impl Model {
    /// Creates a unit with this number of engines, from 1 to [`ENGINES_MAX`].
    pub fn new(
        characteristics: Characteristics,
        engines: usize,
        clock: &Clock,
        guard: Guard,
    ) -> Model {
        Model {
            characteristics,
            clock: clock.clone(),
            guard,
            engines_ns: vec![0; engines.clamp(1, ENGINES_MAX)],
            flying: BTreeMap::new(),
            failing: BTreeMap::new(),
            submitted: 0,
            poll_ns: 0,
            is_stopped: false,
        }
    }

    /// Advances the time by `ns` with every poll of a batch that is not done, so that a polling
    /// waiter makes progress.
    #[must_use]
    pub fn polled_in_ns(mut self, ns: u64) -> Model {
        self.poll_ns = ns;
        self
    }

    /// Returns the number of accepted batches, which is the number of the next one.
    pub fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Plans a failure for the batch with this number; returns false if [`FAILURES_MAX`] failures
    /// are planned.
    pub fn fail(&mut self, number: u64, failing: Failing) -> bool {
        let room = self.failing.len() < FAILURES_MAX;
        if room {
            self.failing.insert(number, failing);
        }
        room
    }

    /// Returns the next completion time of a batch in progress, in nanoseconds.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.flying.values().map(|flying| flying.due_ns).min()
    }

    fn perform(&self, flying: &Flying) -> Progress {
        match flying.failing {
            Some(Failing::Batch) => return planned(0),
            Some(Failing::Stall) => {
                let why = Failure::Unit { status: STATUS_STOPPED };
                return Progress::Failed { chunk: 0, why };
            }
            _ => {}
        }
        for (at, chunk) in flying.chunks.iter().enumerate() {
            let failing = flying.failing == Some(Failing::Chunk(at));
            let len = if failing { chunk.len / 2 } else { chunk.len };
            // SAFETY: the submitter guarantees that the chunk belongs to the unit until it is
            // reported, which happens below.
            let copied = unsafe { self.guard.copy_guarded(chunk.dst, chunk.src, len, Hint::Reuse) };
            match copied {
                Err(fault) => return Progress::Failed { chunk: at, why: fault.into() },
                Ok(()) if failing => return planned(at),
                Ok(()) => {}
            }
        }
        Progress::Done
    }
}

fn planned(chunk: usize) -> Progress {
    Progress::Failed { chunk, why: Failure::Unit { status: STATUS_PLANNED } }
}

impl Device for Model {
    fn characteristics(&self) -> Characteristics {
        self.characteristics
    }

    unsafe fn submit(&mut self, chunks: &[Chunk]) -> Result<Batch, Refused> {
        self.characteristics.check(chunks)?;
        if self.is_stopped {
            return Err(Refused::Broken(std::io::Error::from(std::io::ErrorKind::NotConnected)));
        }
        if self.flying.len() >= self.characteristics.depth {
            return Err(Refused::Full);
        }
        let bytes = chunks.iter().fold(0_usize, |sum, chunk| sum.saturating_add(chunk.len));
        let number = self.submitted;
        self.submitted += 1;
        let free_ns = self.engines_ns.iter_mut().min().expect("there is at least one engine");
        let due_ns =
            (*free_ns).max(self.clock.now_ns()).saturating_add(self.characteristics.time_ns(bytes));
        *free_ns = due_ns;
        let failing = self.failing.remove(&number);
        let due_ns = match failing {
            Some(Failing::Stall) => u64::MAX,
            Some(Failing::Late(ns)) => due_ns.saturating_add(ns),
            _ => due_ns,
        };
        self.flying.insert(number, Flying { chunks: chunks.to_vec(), due_ns, failing });
        Ok(Batch(number))
    }

    fn poll(&mut self, batch: &Batch) -> Progress {
        match self.flying.get(&batch.0) {
            None => Progress::Failed { chunk: 0, why: Failure::Unknown },
            Some(flying) if self.clock.now_ns() < flying.due_ns => {
                self.clock.advance_ns(self.poll_ns);
                Progress::Pending
            }
            Some(flying) => {
                let progress = self.perform(flying);
                self.flying.remove(&batch.0);
                progress
            }
        }
    }

    fn stop(&mut self) -> bool {
        self.is_stopped = true;
        let now_ns = self.clock.now_ns();
        for flying in self.flying.values_mut() {
            if !matches!(flying.failing, Some(Failing::Late(_))) && flying.due_ns > now_ns {
                (flying.failing, flying.due_ns) = (Some(Failing::Stall), 0);
            }
        }
        self.flying.values().all(|flying| flying.due_ns <= now_ns)
    }
}

/// Memory of a test with copies by the processor in simulated time: every copy takes the stated
/// time, and the bytes are really copied.
pub struct Paced {
    memory: Arc<dyn Space>,
    clock: Clock,
    start_ns: u64,
    bytes_per_us: u64,
}

impl Paced {
    /// Wraps `memory`; a copy takes `start_ns`, and a microsecond for every `bytes_per_us` bytes.
    pub fn new(memory: Arc<dyn Space>, clock: &Clock, start_ns: u64, bytes_per_us: u64) -> Paced {
        Paced { memory, clock: clock.clone(), start_ns, bytes_per_us: bytes_per_us.max(1) }
    }
}

impl Space for Paced {
    fn place(&self, region: u16, offset: u64, len: u64) -> Option<u64> {
        self.memory.place(region, offset, len)
    }

    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault> {
        let moving_ns = len.saturating_mul(1000) / self.bytes_per_us;
        self.clock.advance_ns(self.start_ns.saturating_add(moving_ns));
        self.memory.copy(dst, src, len)
    }

    fn reach(self: Arc<Self>) -> Option<Arc<dyn Reach>> {
        Arc::clone(&self.memory).reach()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: Characteristics = Characteristics {
        name: "model",
        start_ns: 100,
        bytes_per_us: 1000,
        bytes_min: 1,
        bytes_max: 1 << 20,
        chunks_max: 4,
        depth: 3,
    };

    fn unit(engines: usize) -> Option<(Model, Clock)> {
        let clock = Clock::default();
        match crate::guard::install() {
            Ok(guard) => Some((Model::new(UNIT, engines, &clock, guard), clock)),
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    }

    /// Submits one chunk for each pair; the vectors outlive the unit in every test.
    fn submit(unit: &mut Model, pairs: &mut [(Vec<u8>, Vec<u8>)]) -> Result<Batch, Refused> {
        let chunk = |(from, to): &mut (Vec<u8>, Vec<u8>)| Chunk {
            dst: to.as_mut_ptr(),
            src: from.as_ptr(),
            len: from.len(),
        };
        let chunks: Vec<Chunk> = pairs.iter_mut().map(chunk).collect();
        // SAFETY: whole vectors of the same length, which the test does not touch until the batch
        // is reported.
        unsafe { unit.submit(&chunks) }
    }

    fn pair(bytes: usize) -> (Vec<u8>, Vec<u8>) {
        (vec![7; bytes], vec![0; bytes])
    }

    #[test]
    fn nothing_is_copied_before_its_time() {
        let Some((mut unit, clock)) = unit(1) else { return };
        let mut pairs = [pair(400), pair(500)];
        let batch = submit(&mut unit, &mut pairs).unwrap();
        assert_eq!(unit.next_due_ns(), Some(100 + 900));
        clock.advance_ns(999);
        assert_eq!(unit.poll(&batch), Progress::Pending);
        assert!(pairs.iter().all(|(_, to)| to.iter().all(|&byte| byte == 0)));
        clock.advance_ns(1);
        assert_eq!(unit.poll(&batch), Progress::Done);
        assert!(pairs.iter().all(|(from, to)| from == to));
        let again = unit.poll(&batch);
        assert_eq!(again, Progress::Failed { chunk: 0, why: Failure::Unknown });
    }

    #[test]
    fn one_engine_keeps_the_order_and_two_do_not() {
        for (engines, second_first) in [(1, false), (2, true)] {
            let Some((mut unit, clock)) = unit(engines) else { return };
            let (mut large, mut small) = ([pair(10_000)], [pair(10)]);
            let first = submit(&mut unit, &mut large).unwrap();
            let second = submit(&mut unit, &mut small).unwrap();
            clock.advance_ns(5_000);
            assert_eq!(unit.poll(&first), Progress::Pending);
            assert_eq!(unit.poll(&second) == Progress::Done, second_first);
            clock.advance_ns(10_000);
            assert_eq!(unit.poll(&first), Progress::Done);
        }
    }

    #[test]
    fn a_planned_failure_leaves_the_stated_bytes() {
        let Some((mut unit, clock)) = unit(1) else { return };
        assert!(unit.fail(0, Failing::Chunk(1)) && unit.fail(1, Failing::Batch));
        let mut pairs = [pair(8), pair(8), pair(8)];
        let batch = submit(&mut unit, &mut pairs).unwrap();
        clock.advance_ns(1_000);
        let why = Failure::Unit { status: STATUS_PLANNED };
        assert_eq!(unit.poll(&batch), Progress::Failed { chunk: 1, why });
        let targets: Vec<&[u8]> = pairs.iter().map(|(_, to)| to.as_slice()).collect();
        assert_eq!(targets, [[7; 8], [7, 7, 7, 7, 0, 0, 0, 0], [0; 8]]);
        let mut pairs = [pair(8)];
        let batch = submit(&mut unit, &mut pairs).unwrap();
        clock.advance_ns(1_000);
        assert_eq!(unit.poll(&batch), Progress::Failed { chunk: 0, why });
        assert_eq!(pairs[0].1, [0; 8]);
        assert_eq!(unit.submitted(), 2);
    }

    #[test]
    fn a_batch_that_stalls_is_ended_and_one_that_is_late_is_not() {
        let Some((mut unit, clock)) = unit(2) else { return };
        assert!(unit.fail(0, Failing::Stall) && unit.fail(1, Failing::Late(5_000)));
        let (mut stalled, mut late) = ([pair(8)], [pair(8)]);
        let first = submit(&mut unit, &mut stalled).unwrap();
        let second = submit(&mut unit, &mut late).unwrap();
        clock.advance_ns(1_000);
        assert_eq!(unit.poll(&first), Progress::Pending);
        assert!(!unit.stop(), "the second one may still write");
        let why = Failure::Unit { status: STATUS_STOPPED };
        assert_eq!(unit.poll(&first), Progress::Failed { chunk: 0, why });
        assert_eq!((unit.poll(&second), stalled[0].1[0]), (Progress::Pending, 0));
        assert!(matches!(submit(&mut unit, &mut [pair(8)]), Err(Refused::Broken(_))));
        clock.advance_ns(5_000);
        assert!(unit.stop());
        assert_eq!((unit.poll(&second), late[0].1[0]), (Progress::Done, 7));
    }

    #[test]
    fn a_full_unit_refuses_and_a_bad_address_fails() {
        let Some((mut unit, clock)) = unit(2) else { return };
        let mut pairs: Vec<_> = (0..4).map(|_| [pair(16)]).collect();
        for pair in &mut pairs[..3] {
            submit(&mut unit, pair).unwrap();
        }
        assert!(matches!(submit(&mut unit, &mut pairs[3]), Err(Refused::Full)));
        clock.advance_ns(10_000);
        assert_eq!(unit.poll(&Batch(2)), Progress::Done);
        let bad = Chunk { dst: std::ptr::without_provenance_mut(64), src: [0; 8].as_ptr(), len: 8 };
        // SAFETY: nothing is mapped on the first page of a process.
        let batch = unsafe { unit.submit(&[bad]) }.unwrap();
        clock.advance_ns(10_000);
        let progress = unit.poll(&batch);
        let Progress::Failed { chunk: 0, why: Failure::Fault(fault) } = progress else {
            panic!("{progress:?}");
        };
        assert_eq!(fault.address, 64);
    }
}
