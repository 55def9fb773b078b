//! Copy units of a thread: the processor, and optionally a device that copies by itself.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use unlade_copy_kernels::device::{Batch, Device, Failure, Progress, Refused};
use unlade_copy_kernels::dsa::{Dsa, probe};
use unlade_copy_kernels::{Guard, PlaceCopy, Reach, Unit};
use unlade_copy_scheduler::dispatch::{self, Division, Part};
use unlade_copy_scheduler::plan::Chunk;

use crate::calibration;
use crate::config::Units;
use crate::counters::Counters;

/// Assumed copy rate of the processor before it is measured, in bytes per microsecond.
const CPU_BYTES_PER_US: u64 = 20_000;
/// Number of consecutive failures after which a device is not used any more.
const FAILURES_MAX: u32 = 8;
/// Granularity of a split: a cache line.
const CUT_BYTES: u64 = 64;

/// Opens the device for a thread number, if there is one.
type Open = dyn Fn(usize) -> Option<Box<dyn Device + Send>> + Send + Sync;

/// Source of the devices of a service's threads.
#[derive(Clone, Default)]
pub struct Devices {
    open: Option<Arc<Open>>,
    cpu: Option<dispatch::Unit>,
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (has_devices, cpu) = (self.open.is_some(), &self.cpu);
        f.debug_struct("Devices").field("has_devices", &has_devices).field("cpu", cpu).finish()
    }
}

impl Devices {
    /// No devices: the processor copies everything.
    pub fn none() -> Devices {
        Devices::default()
    }

    /// Devices from `open`, which each thread calls when it starts.
    pub fn with(
        open: impl Fn(usize) -> Option<Box<dyn Device + Send>> + Send + Sync + 'static,
    ) -> Devices {
        Devices { open: Some(Arc::new(open)), cpu: None }
    }

    /// Replaces the measured copy rate of the processor.
    #[must_use]
    pub fn beside(self, cpu: dispatch::Unit) -> Devices {
        Devices { cpu: Some(cpu), ..self }
    }

    /// Intel's accelerator, if this process may use a queue of it. A shared queue serves all
    /// threads; dedicated ones serve one thread each.
    pub fn found() -> Devices {
        let (found, guard) = (probe::probe(), unlade_copy_kernels::guard::install());
        for (name, why) in &found.unusable {
            tracing::info!(queue = name, %why, "a queue of the copy accelerator is not used");
        }
        let Ok(guard) = guard else { return Devices::none() };
        if found.usable.is_empty() {
            return Devices::none();
        }
        Devices::with(move |thread| open_dsa(&found.usable, thread, guard))
    }

    pub(crate) fn of(units: Units) -> Devices {
        match units {
            Units::Auto => Devices::found(),
            Units::None => Devices::none(),
        }
    }
}

fn open_dsa(
    queues: &[probe::Queue],
    thread: usize,
    guard: Guard,
) -> Option<Box<dyn Device + Send>> {
    let shared: Vec<_> = queues.iter().filter(|queue| queue.mode == probe::Mode::Shared).collect();
    let mut dedicated = queues.iter().filter(|queue| queue.mode == probe::Mode::Dedicated);
    let by_turns = || shared.get(thread % shared.len().max(1)).copied();
    let queue = dedicated.nth(thread).or_else(by_turns)?;
    match Dsa::open(queue, guard) {
        Ok(device) => Some(Box::new(device)),
        Err(error) => {
            let name = &queue.name;
            tracing::warn!(queue = name, %error, "a queue of the copy accelerator does not open");
            None
        }
    }
}

/// Parts that a device copies.
pub(crate) struct Flight {
    pub batch: Batch,
    pub parts: Parts,
}

pub(crate) type Parts = SmallVec<[Part; 8]>;

/// Copy units of one thread.
pub(crate) struct Engine {
    cpu: dispatch::Unit,
    is_cpu_stated: bool,
    unit: Option<Unit>,
    /// Expected performance of the device; `None` when it is not used any more.
    device: Option<dispatch::Unit>,
    failures: u32,
}

impl Engine {
    /// Opens the thread's device.
    pub fn new(devices: &Devices, thread: usize) -> Engine {
        let unit = devices.open.as_ref().and_then(|open| open(thread)).map(Unit::new);
        let device = unit.as_ref().map(|unit| {
            let known = unit.characteristics();
            tracing::info!(thread, unit = known.name, "copying with a device beside the processor");
            dispatch::Unit {
                name: known.name.to_owned(),
                start_ns: known.start_ns,
                bytes_per_us: known.bytes_per_us,
                min_bytes: known.bytes_min as u64,
            }
        });
        let usual = || dispatch::Unit {
            name: "cpu".to_owned(),
            start_ns: 0,
            bytes_per_us: CPU_BYTES_PER_US,
            min_bytes: 0,
        };
        let (is_cpu_stated, cpu) =
            (devices.cpu.is_some(), devices.cpu.clone().unwrap_or_else(usual));
        Engine { cpu, is_cpu_stated, unit, device, failures: 0 }
    }

    /// Returns true if there is an idle device.
    pub fn is_ready(&self) -> bool {
        self.device.is_some() && self.unit.as_ref().is_some_and(Unit::is_idle)
    }

    /// Divides orders that are outstanding together between processor and device.
    pub fn divide(&mut self, orders: &[&[Chunk]]) -> Division {
        if !self.is_cpu_stated
            && let Some(measured) = calibration::cpu_bytes_per_us()
        {
            self.cpu.bytes_per_us = measured;
        }
        dispatch::divide(orders, &self.cpu, self.device.as_ref())
    }

    /// Starts the device; adds the parts that it refuses to `left`.
    pub fn start(
        &mut self,
        reach: &Arc<dyn Reach>,
        parts: &[Part],
        left: &mut Parts,
        counters: &Counters,
    ) -> Vec<Flight> {
        let mut flights = Vec::new();
        let Some(unit) = &mut self.unit else {
            left.extend_from_slice(parts);
            return flights;
        };
        let known = unit.characteristics();
        let cut: Parts = parts.iter().flat_map(|part| cut(*part, known.bytes_max as u64)).collect();
        let mut is_broken = false;
        for parts in cut.chunks(known.chunks_max.max(1)) {
            let places: SmallVec<[PlaceCopy; 8]> = parts.iter().map(places).collect();
            match unit.submit(reach, &places) {
                Ok(batch) => {
                    counters.unit_batches.add(1);
                    flights.push(Flight { batch, parts: parts.into() });
                }
                Err(refused) => {
                    counters.unit_refusals.add(1);
                    tracing::debug!(%refused, "a device takes no more");
                    is_broken |= matches!(refused, Refused::Broken(_));
                    left.extend_from_slice(parts);
                }
            }
        }
        if is_broken {
            self.retire("it is broken");
        }
        flights
    }

    /// Returns the state of a batch.
    pub fn poll(&mut self, batch: &Batch) -> Progress {
        let nobodys = Progress::Failed { chunk: 0, why: Failure::Unknown };
        self.unit.as_mut().map_or(nobodys, |unit| unit.poll(batch))
    }

    /// Records a successful batch.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Records a batch that failed because of the device.
    pub fn failed(&mut self) {
        self.failures += 1;
        if self.failures >= FAILURES_MAX {
            self.retire("it has failed too often");
        }
    }

    /// Takes the device out of use, and stops its work as far as possible. Returns true for the
    /// first call.
    pub fn stop(&mut self) -> bool {
        let was_used = self.device.is_some();
        self.retire("it has stalled");
        if let Some(unit) = &mut self.unit {
            unit.stop();
        }
        was_used
    }

    fn retire(&mut self, why: &str) {
        if let Some(device) = self.device.take() {
            tracing::warn!(unit = device.name, why, "a copy device is not used any more");
        }
    }
}

/// Splits a part into chunks that a device accepts.
fn cut(part: Part, bytes_max: u64) -> impl Iterator<Item = Part> {
    let Part { order, chunk } = part;
    let count = chunk.len.div_ceil(bytes_max.max(CUT_BYTES));
    let size = chunk.len.div_ceil(count.max(1)).next_multiple_of(CUT_BYTES);
    let size = size.min(bytes_max.max(CUT_BYTES));
    (0..chunk.len.div_ceil(size.max(1))).map(move |number| {
        let at = number * size;
        let (dst, src) = (chunk.dst + at, chunk.src + at);
        Part { order, chunk: Chunk { dst, src, len: size.min(chunk.len - at) } }
    })
}

fn places(part: &Part) -> PlaceCopy {
    let Chunk { dst, src, len } = part.chunk;
    PlaceCopy { dst, src, len }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_to_what_a_device_takes() {
        for (len, bytes_max) in [(1, 64), (64, 64), (65, 64), (100_000, 4096), (4097, 4096)] {
            let part = Part { order: 3, chunk: Chunk { dst: 1000, src: 9000, len } };
            let mut at = 0;
            for Part { order, chunk } in cut(part, bytes_max) {
                assert_eq!((order, chunk.dst, chunk.src), (3, 1000 + at, 9000 + at));
                assert!((1..=bytes_max).contains(&chunk.len), "{len} {bytes_max}");
                at += chunk.len;
            }
            assert_eq!(at, len);
        }
    }

    #[test]
    fn without_a_device_there_is_nothing_to_share() {
        let mut engine = Engine::new(&Devices::of(Units::None), 0);
        assert!(!engine.is_ready());
        let chunks = [Chunk { dst: 0, src: 1 << 40, len: 1 << 20 }];
        assert!(engine.divide(&[&chunks]).device.is_empty());
    }
}
