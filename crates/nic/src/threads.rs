//! Engines on threads of their own: pinned, awake while there is something to do, asleep otherwise.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};
use std::{hint, io};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::engine::{Engine, Report};
use crate::port::Port;

/// Polls in vain before the processor is offered to others.
const SPINS_MAX: u32 = 4096;
/// Times that it is offered before the thread sleeps.
const YIELDS_MAX: u32 = 64;
/// How long a thread sleeps that nobody wakes: frames that come ring no bell.
const SLEEP: Duration = Duration::from_micros(200);
/// How long a report may take.
const REPORT_WAIT: Duration = Duration::from_secs(1);

/// Where and how engines run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadsConfig {
    /// The processors, one after the other, on which the threads stay; none: where the kernel puts
    /// them.
    pub processors: Vec<usize>,
}

/// What a thread and its owner share.
struct Shared {
    stop: AtomicBool,
    asleep: AtomicBool,
    /// Reports that were asked for, and those that were given.
    asked: AtomicU64,
    given: AtomicU64,
    report: Mutex<Report>,
}

/// Wakes an engine. To be rung when something was put into its send ring.
#[derive(Clone)]
pub struct Bell {
    shared: Arc<Shared>,
    thread: Thread,
}

impl Bell {
    /// Wakes the engine if it sleeps; costs a load otherwise.
    pub fn ring(&self) {
        if self.shared.asleep.load(Ordering::SeqCst)
            && self.shared.asleep.swap(false, Ordering::SeqCst)
        {
            self.thread.unpark();
        }
    }
}

struct Running<P> {
    shared: Arc<Shared>,
    handle: JoinHandle<Engine<P>>,
}

/// Engines that run; dropped, they stop.
pub struct Threads<P> {
    running: Vec<Running<P>>,
}

impl<P: Port + 'static> Threads<P> {
    /// Starts a thread for each engine.
    ///
    /// # Errors
    /// The kernel's; a processor that this process may not use is one. Threads that were started are
    /// stopped again.
    pub fn start(engines: Vec<Engine<P>>, config: &ThreadsConfig) -> io::Result<Threads<P>> {
        let mut threads = Threads { running: Vec::new() };
        let begun = Instant::now();
        for (index, mut engine) in engines.into_iter().enumerate() {
            let processor = match config.processors.len() {
                0 => None,
                count => Some(config.processors[index % count]),
            };
            processor.map_or(Ok(()), check)?;
            let shared = Arc::new(Shared {
                stop: AtomicBool::new(false),
                asleep: AtomicBool::new(false),
                asked: AtomicU64::new(0),
                given: AtomicU64::new(0),
                report: Mutex::default(),
            });
            let mine = Arc::clone(&shared);
            let handle = thread::Builder::new().name(format!("nic-{index}")).spawn(move || {
                // It was allowed a moment ago; if it is not any more, the thread runs elsewhere.
                let _ = processor.map_or(Ok(()), pin);
                run(&mut engine, &mine, begun);
                engine
            })?;
            threads.running.push(Running { shared, handle });
        }
        Ok(threads)
    }

    /// The bell of engine `index`.
    pub fn bell(&self, index: usize) -> Option<Bell> {
        let running = self.running.get(index)?;
        let shared = Arc::clone(&running.shared);
        Some(Bell { shared, thread: running.handle.thread().clone() })
    }

    /// What all engines have counted so far. Of one that has ended, or takes longer than a second
    /// to answer, an earlier answer counts.
    pub fn report(&self) -> Report {
        let mut sum = Report::default();
        for Running { shared, handle } in &self.running {
            let asked = shared.asked.fetch_add(1, Ordering::SeqCst) + 1;
            handle.thread().unpark();
            let deadline = Instant::now() + REPORT_WAIT;
            while shared.given.load(Ordering::SeqCst) < asked
                && !handle.is_finished()
                && Instant::now() < deadline
            {
                thread::yield_now();
            }
            sum.add(&shared.report.lock().unwrap_or_else(PoisonError::into_inner));
        }
        sum
    }

    /// Stops the threads, and returns their engines, but for those that have panicked.
    pub fn stop(mut self) -> Vec<Engine<P>> {
        let running = std::mem::take(&mut self.running);
        running.iter().for_each(tell);
        running.into_iter().filter_map(|Running { handle, .. }| handle.join().ok()).collect()
    }
}

fn tell<P>(running: &Running<P>) {
    running.shared.stop.store(true, Ordering::SeqCst);
    running.handle.thread().unpark();
}

impl<P> Drop for Threads<P> {
    fn drop(&mut self) {
        self.running.iter().for_each(tell);
        for Running { handle, .. } in self.running.drain(..) {
            let _ = handle.join();
        }
    }
}

fn check(processor: usize) -> io::Result<()> {
    let usable = processor < CpuSet::MAX_CPU && sched_getaffinity(None)?.is_set(processor);
    match usable {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "this process may not use processor {processor}; choose one that taskset -p shows"
        ))),
    }
}

fn pin(processor: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

/// Polls until it is told to stop.
fn run<P: Port>(engine: &mut Engine<P>, shared: &Shared, begun: Instant) {
    let mut idle = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        let asked = shared.asked.load(Ordering::Relaxed);
        if shared.given.load(Ordering::Relaxed) < asked {
            *shared.report.lock().unwrap_or_else(PoisonError::into_inner) = engine.report();
            shared.given.store(asked, Ordering::SeqCst);
        }
        if engine.poll(begun.elapsed().as_nanos() as u64) > 0 {
            idle = 0;
            continue;
        }
        idle += 1;
        match idle {
            ..SPINS_MAX => hint::spin_loop(),
            _ if idle < SPINS_MAX + YIELDS_MAX => thread::yield_now(),
            _ => sleep(engine, shared, begun),
        }
    }
}

/// Sleeps, unless something came just before.
fn sleep<P: Port>(engine: &mut Engine<P>, shared: &Shared, begun: Instant) {
    shared.asleep.store(true, Ordering::SeqCst);
    if engine.poll(begun.elapsed().as_nanos() as u64) == 0 {
        thread::park_timeout(SLEEP);
    }
    shared.asleep.store(false, Ordering::SeqCst);
}
