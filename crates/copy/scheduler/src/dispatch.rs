//! Division of copies between the processor and a device that copies by itself (Copier, SOSP 2025,
//! §4.3).
//!
//! Submission to the device and the wait for it both take time. So the device gets only as much as
//! it completes before the processor completes the rest, in chunks that are long enough to pay,
//! and from the end, because the front is usually needed first. A large order may give the device
//! a part of a chunk (*i-piggyback*). Smaller orders give it whole chunks, those of later orders
//! first (*e-piggyback*). Outstanding orders never touch each other's bytes, so their chunks can
//! be distributed freely.

use smallvec::SmallVec;

use crate::plan::{Chunk, Order, Plan};
use crate::span::{Segments, Span};

/// Minimum length of an order whose chunks are split; smaller orders give the device whole chunks
/// only.
pub const DIVIDE_MIN_BYTES: u64 = 12 * 1024;
/// Granularity of a split, counted from the end of the chunk: a cache line.
pub const CUT_BYTES: u64 = 64;

impl Plan {
    /// Returns the memory that an outstanding order's task writes, and the task's segments. A unit
    /// that reports partial progress of an order needs both.
    pub fn target_of(&self, order: &Order) -> Option<(Span, Segments)> {
        let task = self.table.get(order.ticket)?;
        Some((task.writes()?, task.segments))
    }
}

/// A copy unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Name in logs and metrics.
    pub name: String,
    /// Fixed cost of a chunk, in nanoseconds.
    pub start_ns: u64,
    /// Bytes per microsecond.
    pub bytes_per_us: u64,
    /// Minimum length of a chunk for this unit.
    pub min_bytes: u64,
}

impl Unit {
    /// Returns the duration of a chunk, in nanoseconds.
    pub fn chunk_ns(&self, bytes: u64) -> u64 {
        self.start_ns.saturating_add(self.bytes_ns(bytes))
    }

    fn bytes_ns(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(1000) / self.bytes_per_us.max(1)
    }
}

/// A chunk of one of the orders, or a part of such a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the order.
    pub order: usize,
    /// Bytes to copy.
    pub chunk: Chunk,
}

/// Distribution of the chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Division {
    /// Parts for the processor, in the order of the orders.
    pub cpu: SmallVec<[Part; 8]>,
    /// Parts for the device, last chunk first, to be submitted before the processor starts.
    pub device: SmallVec<[Part; 8]>,
}

/// Divides the chunks of orders that are outstanding together; the orders are given oldest first.
pub fn divide(orders: &[&[Chunk]], cpu: &Unit, device: Option<&Unit>) -> Division {
    let parts = |(order, chunks): (usize, &&[Chunk])| {
        chunks.iter().map(|chunk| Part { order, chunk: *chunk }).collect::<SmallVec<[Part; 8]>>()
    };
    let all = orders.iter().enumerate().flat_map(parts).collect();
    let mut division = Division { cpu: all, device: SmallVec::new() };
    if let Some(device) = device {
        Balance::of(&division.cpu, cpu, device).distribute(orders, &mut division);
    }
    division
}

/// Completion times of both units, in nanoseconds from now.
struct Balance<'a> {
    cpu: &'a Unit,
    device: &'a Unit,
    cpu_ns: u64,
    device_ns: u64,
}

impl Balance<'_> {
    /// Assigns everything to the processor.
    fn of<'a>(parts: &[Part], cpu: &'a Unit, device: &'a Unit) -> Balance<'a> {
        let each = parts.iter().map(|part| cpu.chunk_ns(part.chunk.len));
        let cpu_ns = each.fold(0, u64::saturating_add);
        Balance { cpu, device, cpu_ns, device_ns: 0 }
    }

    /// Moves chunks to the device, starting with the last, while this makes both units finish
    /// earlier.
    fn distribute(&mut self, orders: &[&[Chunk]], division: &mut Division) {
        for place in (0..division.cpu.len()).rev() {
            let part = division.cpu[place];
            if part.chunk.len < self.device.min_bytes.max(1) {
                continue;
            }
            if self.takes(part.chunk.len) {
                division.device.push(division.cpu.remove(place));
                continue;
            }
            let bytes =
                orders[part.order].iter().fold(0, |sum: u64, chunk| sum.saturating_add(chunk.len));
            if bytes >= DIVIDE_MIN_BYTES {
                if let Some(len) = self.cut(part.chunk.len) {
                    let (head, tail) = split(part, part.chunk.len - len);
                    division.cpu[place] = head;
                    division.device.push(tail);
                }
                // The rest of the imbalance is smaller than a chunk that pays on the device.
                return;
            }
        }
    }

    /// Assigns a whole chunk to the device if the device then finishes no later than the
    /// processor.
    fn takes(&mut self, len: u64) -> bool {
        let cpu_ns = self.cpu_ns.saturating_sub(self.cpu.chunk_ns(len));
        let device_ns = self.device_ns.saturating_add(self.device.chunk_ns(len));
        let fits = device_ns <= cpu_ns;
        if fits {
            (self.cpu_ns, self.device_ns) = (cpu_ns, device_ns);
        }
        fits
    }

    /// Returns the number of bytes at the end of a chunk with which both units finish together, if
    /// that number pays on the device.
    fn cut(&mut self, len: u64) -> Option<u64> {
        let begun_ns = self.device_ns.saturating_add(self.device.start_ns);
        let spare_ns = u128::from(self.cpu_ns.checked_sub(begun_ns)?);
        let (cpu, device) = (self.cpu.bytes_per_us.max(1), self.device.bytes_per_us.max(1));
        let both = u128::from(cpu) + u128::from(device);
        let bytes = spare_ns * u128::from(cpu) * u128::from(device) / both / 1000;
        let bytes = u64::try_from(bytes).ok()?.min(len - 1) / CUT_BYTES * CUT_BYTES;
        if bytes < self.device.min_bytes.max(CUT_BYTES) {
            return None;
        }
        self.cpu_ns -= self.cpu.bytes_ns(bytes).min(self.cpu_ns);
        self.device_ns = self.device_ns.saturating_add(self.device.chunk_ns(bytes));
        Some(bytes)
    }
}

/// Splits a part behind its first `len` bytes.
fn split(part: Part, len: u64) -> (Part, Part) {
    let Chunk { dst, src, len: whole } = part.chunk;
    let head = Chunk { dst, src, len };
    let tail = Chunk { dst: dst + len, src: src + len, len: whole - len };
    (Part { chunk: head, ..part }, Part { chunk: tail, ..part })
}

#[cfg(test)]
mod tests {
    use unlade_testkit::Random;

    use super::*;

    fn unit(start_ns: u64, bytes_per_us: u64, min_bytes: u64) -> Unit {
        Unit { name: "unit".into(), start_ns, bytes_per_us, min_bytes }
    }

    fn chunk(at: u64, len: u64) -> Chunk {
        Chunk { dst: at, src: (1 << 40) + at, len }
    }

    /// Returns the completion time of a unit, computed from the definition.
    fn through_ns(unit: &Unit, parts: &[Part]) -> u64 {
        parts.iter().map(|part| unit.chunk_ns(part.chunk.len)).sum()
    }

    #[test]
    fn without_a_device_the_processor_does_it() {
        let chunks = [chunk(0, 100_000)];
        let division = divide(&[&chunks], &unit(0, 10_000, 0), None);
        assert_eq!((division.cpu.len(), division.device.len()), (1, 0));
        let slow = unit(1 << 40, 10_000, 0);
        assert!(divide(&[&chunks], &unit(0, 10_000, 0), Some(&slow)).device.is_empty());
    }

    #[test]
    fn a_large_order_is_divided_at_its_end() {
        let (cpu, device) = (unit(0, 20_000, 0), unit(1_000, 10_000, 4096));
        let chunks = [chunk(0, 200_000)];
        let division = divide(&[&chunks], &cpu, Some(&device));
        let tail = division.device[0].chunk;
        assert_eq!((tail.dst + tail.len, tail.len % CUT_BYTES), (200_000, 0));
        let (cpu_ns, device_ns) =
            (through_ns(&cpu, &division.cpu), through_ns(&device, &division.device));
        // 64 bytes take about 10 ns here.
        assert!(cpu_ns.abs_diff(device_ns) < 20, "{cpu_ns} {device_ns}");
    }

    #[test]
    fn small_orders_give_whole_pieces_of_the_later_ones() {
        let (cpu, device) = (unit(0, 10_000, 0), unit(100, 10_000, 4096));
        let chunks = [[chunk(0, 8192)], [chunk(10_000, 8192)], [chunk(20_000, 8192)]];
        let orders: Vec<&[Chunk]> = chunks.iter().map(|order| &order[..]).collect();
        let division = divide(&orders, &cpu, Some(&device));
        let of: Vec<_> = division.device.iter().map(|part| part.order).collect();
        assert_eq!(of, [2]);
        assert_eq!(division.cpu.len(), 2);
    }

    #[test]
    fn extreme_figures_do_not_overflow() {
        let worst = unit(u64::MAX, 0, 0);
        let fast = unit(0, u64::MAX, u64::MAX);
        let chunks = [chunk(0, u64::MAX >> 1), chunk(0, 0)];
        for (cpu, device) in [(&worst, &fast), (&fast, &worst), (&worst, &worst), (&fast, &fast)] {
            divide(&[&chunks, &[], &chunks], cpu, Some(device));
        }
    }

    fn some_orders(random: &mut Random) -> Vec<Vec<Chunk>> {
        let mut at = 0;
        let order = |random: &mut Random| {
            let longest = if random.once_in(2) { 40_000 } else { 6_000 };
            let chunks = 0..1 + random.below(4);
            let chunk = |_| {
                let len = 1 + random.below(longest);
                at += len;
                chunk(at - len, len)
            };
            chunks.map(chunk).collect()
        };
        let count = 1 + random.below(5);
        let mut make = order;
        (0..count).map(|_| make(random)).collect()
    }

    #[test]
    fn every_byte_once_and_both_through_together() {
        unlade_testkit::cases(1000, |random| {
            let cpu = unit(random.below(50), 1 + random.below(50_000), 0);
            let device = unit(random.below(3000), 1 + random.below(50_000), random.below(9000));
            let kept = some_orders(random);
            let orders: Vec<&[Chunk]> = kept.iter().map(|order| &order[..]).collect();
            let division = divide(&orders, &cpu, Some(&device));

            let mut all: Vec<Part> = division.cpu.iter().chain(&division.device).copied().collect();
            all.sort_by_key(|part| part.chunk.dst);
            let mut at = 0;
            for part in &all {
                assert_eq!((part.chunk.dst, part.chunk.src), (at, (1 << 40) + at));
                let whole = orders[part.order].iter();
                assert!(whole.clone().any(|of| of.dst <= at && at < of.dst + of.len));
                at += part.chunk.len;
            }
            assert_eq!(at, kept.iter().flatten().map(|chunk| chunk.len).sum::<u64>());

            let worth = device.min_bytes.max(1);
            assert!(division.device.iter().all(|part| part.chunk.len >= worth));
            balanced(&division, &cpu, &device, worth);
        });
    }

    /// The device never finishes last, and one more whole chunk would not make both finish
    /// earlier.
    fn balanced(division: &Division, cpu: &Unit, device: &Unit, worth: u64) {
        let cpu_ns = through_ns(cpu, &division.cpu);
        let device_ns = through_ns(device, &division.device);
        assert!(division.device.is_empty() || device_ns <= cpu_ns + 2 + cpu.bytes_ns(CUT_BYTES));
        for part in division.cpu.iter().filter(|part| part.chunk.len >= worth) {
            let with = device_ns + device.chunk_ns(part.chunk.len);
            let without = cpu_ns - cpu.chunk_ns(part.chunk.len).min(cpu_ns);
            assert!(with + 3 > without, "{part:?} belongs to the device");
        }
    }
}
