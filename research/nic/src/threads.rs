//! Engine threads: pinned, active while there is work, asleep otherwise.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};
use std::{hint, io};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::engine::{Engine, Report};
use crate::port::Port;

/// Number of polls without work before the thread yields.
const SPINS_MAX: u32 = 4096;
/// Number of yields before the thread sleeps.
const YIELDS_MAX: u32 = 64;
/// Longest sleep of a thread without a wakeup: received frames do not wake it.
const SLEEP: Duration = Duration::from_micros(200);
/// Timeout of a report.
const REPORT_WAIT: Duration = Duration::from_secs(1);

/// Placement of the engine threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadsConfig {
    /// The processors to which the threads are pinned, in order; empty for the kernel's choice.
    pub processors: Vec<usize>,
}

/// The state that a thread and its owner share.
struct ThreadState {
    stop: AtomicBool,
    asleep: AtomicBool,
    /// Number of requested reports, and of answered requests.
    asked: AtomicU64,
    given: AtomicU64,
    report: Mutex<Report>,
}

/// Wakes an engine. To be called after an entry was put into its send ring.
#[derive(Clone)]
pub struct Doorbell {
    shared: Arc<ThreadState>,
    thread: Thread,
}

impl Doorbell {
    /// Wakes the engine if it sleeps; otherwise the cost is one load.
    pub fn ring(&self) {
        if self.shared.asleep.load(Ordering::SeqCst)
            && self.shared.asleep.swap(false, Ordering::SeqCst)
        {
            self.thread.unpark();
        }
    }
}

struct Running<P> {
    shared: Arc<ThreadState>,
    handle: JoinHandle<Engine<P>>,
}

/// Running engines; dropping it stops them.
pub struct Threads<P> {
    running: Vec<Running<P>>,
}

impl<P: Port + 'static> Threads<P> {
    /// Starts a thread for each engine.
    ///
    /// # Errors
    /// Errors of the kernel, for example a processor that this process may not use. Threads that
    /// were started are stopped again.
    pub fn start(engines: Vec<Engine<P>>, config: &ThreadsConfig) -> io::Result<Threads<P>> {
        let mut threads = Threads { running: Vec::new() };
        let begun = Instant::now();
        for (index, mut engine) in engines.into_iter().enumerate() {
            let processor = match config.processors.len() {
                0 => None,
                count => Some(config.processors[index % count]),
            };
            let shared = Arc::new(ThreadState {
                stop: AtomicBool::new(false),
                asleep: AtomicBool::new(false),
                asked: AtomicU64::new(0),
                given: AtomicU64::new(0),
                report: Mutex::default(),
            });
            let mine = Arc::clone(&shared);
            let (pinned, result) = mpsc::sync_channel(1);
            let handle = thread::Builder::new().name(format!("nic-{index}")).spawn(move || {
                let placed = processor.map_or(Ok(()), pin);
                let usable = placed.is_ok();
                if pinned.send(placed).is_ok() && usable {
                    run(&mut engine, &mine, begun);
                }
                engine
            })?;
            threads.running.push(Running { shared, handle });
            result.recv().map_err(io::Error::other)??;
        }
        Ok(threads)
    }

    /// The bell of the engine `index`.
    pub fn bell(&self, index: usize) -> Option<Doorbell> {
        let running = self.running.get(index)?;
        let shared = Arc::clone(&running.shared);
        Some(Doorbell { shared, thread: running.handle.thread().clone() })
    }

    /// The sum of all engines' counters. An engine that has ended, or takes longer than a second
    /// to answer, contributes its last report.
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

    /// Stops the threads, and returns their engines, without those that have panicked.
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

fn pin(processor: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        set.set(processor);
    }
    sched_setaffinity(None, &set).map_err(|error| {
        io::Error::other(format!(
            "no thread can run on processor {processor} ({error}); choose one that nproc counts"
        ))
    })
}

/// Polls until the stop flag is set.
fn run<P: Port>(engine: &mut Engine<P>, shared: &ThreadState, begun: Instant) {
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

/// Sleeps, unless work has arrived in the meantime.
fn sleep<P: Port>(engine: &mut Engine<P>, shared: &ThreadState, begun: Instant) {
    shared.asleep.store(true, Ordering::SeqCst);
    if engine.poll(begun.elapsed().as_nanos() as u64) == 0 {
        thread::park_timeout(SLEEP);
    }
    shared.asleep.store(false, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use unlade_net::packet::{Direction, Segment, TcpFlags, TcpOptions};
    use unlade_net::{FlowKey, SeqNumber};
    use unlade_nic_engine::resync::Request;

    use super::*;
    use crate::command::{Addressed, Command};
    use crate::flow::FlowId;
    use crate::port::{Frame, memory};
    use crate::queue::{QueueConfig, TxEntry, pair};

    fn frame(number: u32) -> Frame {
        let client = ([10, 0, 0, 1], 4000).into();
        let service = ([10, 0, 0, 2], 443).into();
        let raw = Segment {
            flow: FlowKey::new(client, service),
            direction: Direction::ToService,
            seq: SeqNumber(number * 100),
            ack: SeqNumber(0),
            flags: TcpFlags::ACK,
            window: 1,
            options: TcpOptions::default(),
            payload: &number.to_be_bytes(),
        }
        .ethernet_frame([2; 6], [4; 6])
        .unwrap();
        let mut frame = Frame::new(raw.len());
        frame.copy_from(&raw);
        frame
    }

    #[test]
    fn a_thread_works_reports_sleeps_wakes_and_stops() {
        let (ours, mut theirs) = memory::pair(256, 2048);
        let (mut host, device) = pair(QueueConfig::default());
        let engine = Engine::new(ours, device);
        let config = ThreadsConfig { processors: vec![0] };
        let threads = Threads::start(vec![engine], &config).unwrap();
        for number in 0..200 {
            theirs.send(frame(number));
        }
        let mut came = 0;
        while came < 200 {
            let Ok(batch) = host.rx.pop() else { continue };
            for segment in &batch.segments {
                let payload = &batch.raw[segment.payload.clone()];
                assert_eq!(payload, (came as u32).to_be_bytes());
                came += 1;
            }
        }
        // Idle for long enough to sleep; then it is woken.
        let bell = threads.bell(0).unwrap();
        while !bell.shared.asleep.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let request = Request { tcpsn: SeqNumber(0), key: 0, generation: 0 };
        let response = unlade_nic_engine::resync::Response { request, number: None };
        let addressed = Addressed { flow: FlowId(0), command: Command::Respond(response) };
        assert!(host.tx.push(TxEntry::Command(Box::new(addressed))).is_ok());
        bell.ring();
        while threads.report().counters.commands_refused == 0 {
            thread::yield_now();
        }
        assert_eq!(threads.report().counters.rx_frames, 200);
        let engines = threads.stop();
        assert_eq!(engines.len(), 1);
        assert_eq!(engines[0].report().counters.rx_segments, 200);
        assert!(threads_on(usize::MAX).is_err() && threads_on(CpuSet::MAX_CPU - 1).is_err());
    }

    fn threads_on(processor: usize) -> io::Result<Threads<memory::MemoryPort>> {
        let (ours, _) = memory::pair(256, 2048);
        let (_, device) = pair(QueueConfig::default());
        Threads::start(
            vec![Engine::new(ours, device)],
            &ThreadsConfig { processors: vec![processor] },
        )
    }
}
