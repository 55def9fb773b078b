//! The delivery history of a stream: in which pass its bytes were decrypted before the kernel got
//! them, or that they were delivered as they came.
//!
//! The kernel's socket returns bytes without their origin. If the device has delivered a byte
//! once, the kernel has that copy. If the device has delivered it twice in different ways before
//! the kernel acknowledged it, the kernel may have kept either copy: both ways are reported, the
//! first one first, and the tag of the record decides. Acknowledged bytes are final: the kernel
//! discards every later copy.
//!
//! Until then the deliveries of different packets are recorded separately, even if they came in
//! the same way: the kernel may drop one of two neighbours, and accept a copy that has bytes of
//! both.

use unlade_nic_engine::resync::Worked;
use unlade_nic_engine::software::doubt::WAYS_MAX;

/// Largest number of ranges that are kept for a flow: what TCP can hold of a stream in which
/// every other packet was delivered in another way. A packet that needs more is dropped.
pub const RANGES_MAX: usize = 8192;

/// The pass in which bytes were decrypted; `None` if they were delivered as they came.
pub type Way = Option<Worked>;

/// The different ways in which some bytes were delivered, the first one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    ways: [Way; WAYS_MAX],
    count: u8,
}

impl Ways {
    /// Delivered once.
    pub fn one(way: Way) -> Ways {
        Ways { ways: [way; WAYS_MAX], count: 1 }
    }

    /// All ways.
    pub fn as_slice(&self) -> &[Way] {
        &self.ways[..usize::from(self.count)]
    }

    /// Adds one more delivery. Returns true if it could not be recorded.
    fn add(&mut self, way: Way) -> bool {
        let count = usize::from(self.count);
        if self.as_slice().contains(&way) {
            return false;
        }
        if count == WAYS_MAX {
            return true;
        }
        self.ways[count] = way;
        self.count += 1;
        false
    }

    /// The only way in which the bytes were decrypted, if there is one.
    pub fn certain(&self) -> Way {
        self.ways[0].filter(|_| self.is_certain())
    }

    /// Returns true if there is one way only.
    pub fn is_certain(&self) -> bool {
        self.count == 1
    }
}

/// Bytes from `start` to `end` of a stream, delivered in the same ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: u64,
    end: u64,
    ways: Ways,
}

impl Range {
    /// The joined history of this range and of bytes from `start` on, which came in these ways;
    /// `None` if they do not belong together.
    fn joined(&self, start: u64, ways: &Ways) -> Option<Ways> {
        if self.end != start || !self.ways.is_certain() || !ways.is_certain() {
            return None;
        }
        match (self.ways.ways[0], ways.ways[0]) {
            (None, None) => Some(self.ways),
            (Some(before), Some(behind)) => before.join(behind).map(|both| Ways::one(Some(both))),
            _ => None,
        }
    }
}

/// There are too many ranges, or the bytes are not near the stream: the packet is to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The deliveries of a flow, by offset in its stream, from the first byte that software has not
/// read.
#[derive(Debug)]
pub struct Delivered {
    ranges: Vec<Range>,
    /// Number of the first ranges that are no longer needed.
    gone: usize,
    /// Software has read all bytes before.
    read: u64,
    /// The kernel has acknowledged all bytes before.
    settled: u64,
    /// Bytes that came in different ways before they were acknowledged.
    doubtful_bytes: u64,
    /// Number of deliveries that could not be recorded.
    forgotten: u64,
}

impl Delivered {
    /// Creates the history. Software has read the bytes before `read`. Those up to `until` may
    /// have been delivered, as they came.
    pub fn new(read: u64, until: u64) -> Delivered {
        let before = Range { start: read, end: until, ways: Ways::one(None) };
        let ranges = if read < until { vec![before] } else { Vec::new() };
        Delivered { ranges, gone: 0, read, settled: read, doubtful_bytes: 0, forgotten: 0 }
    }

    /// Notes that the kernel has acknowledged the bytes before `offset`.
    pub fn settle(&mut self, offset: u64) {
        self.settled = self.settled.max(offset);
    }

    /// The offset at which software reads next.
    pub fn position(&self) -> u64 {
        self.read
    }

    /// Bytes that came in different ways before they were acknowledged.
    pub fn doubtful_bytes(&self) -> u64 {
        self.doubtful_bytes
    }

    /// Number of deliveries that could not be recorded, because the bytes came in too many ways.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Returns true if all bytes that were delivered and not read came as they were.
    pub fn is_plain(&self) -> bool {
        let ahead = self.ranges[self.gone..].iter().filter(|range| range.end > self.read);
        ahead.map(|range| range.ways).all(|ways| ways == Ways::one(None))
    }

    /// Notes that the bytes from `start` to `end` are about to be delivered.
    ///
    /// # Errors
    /// [`Full`]; the bytes must not be delivered.
    pub fn deliver(&mut self, start: u64, end: u64, way: Way) -> Result<(), Full> {
        let start = start.max(self.settled).max(self.read);
        if start >= end {
            return Ok(());
        }
        if self.ranges.len() - self.gone >= RANGES_MAX {
            self.join();
        }
        let full = self.ranges.len() - self.gone >= RANGES_MAX;
        let settled = self.settled;
        let last = self.ranges[self.gone..].last_mut();
        let joined = last.as_ref().and_then(|last| last.joined(start, &Ways::one(way)));
        match (last, joined) {
            (Some(last), _) if start < last.end => {
                if full {
                    return Err(Full);
                }
                self.overlap(start, end, way);
            }
            (Some(last), Some(joined)) if start <= settled => {
                (last.end, last.ways) = (end, joined);
            }
            _ if full => return Err(Full),
            _ => self.ranges.push(Range { start, end, ways: Ways::one(way) }),
        }
        Ok(())
    }

    /// Notes the delivery of bytes that overlap or precede earlier deliveries.
    fn overlap(&mut self, start: u64, end: u64, way: Way) {
        let live = &self.ranges[self.gone..];
        let first = self.gone + live.partition_point(|range| range.end <= start);
        let behind = self.gone + live.partition_point(|range| range.start < end);
        let mut pieces = Vec::new();
        let mut at = start;
        for range in &self.ranges[first..behind] {
            if at < range.start {
                pieces.push(Range { start: at, end: range.start, ways: Ways::one(way) });
                at = range.start;
            } else if range.start < at {
                pieces.push(Range { end: at, ..*range });
            }
            let both = Range { start: at, end: range.end.min(end), ..*range };
            let mut twice = both;
            self.forgotten += u64::from(twice.ways.add(way));
            if twice.ways != both.ways {
                self.doubtful_bytes += twice.end - twice.start;
            }
            pieces.push(twice);
            if end < range.end {
                pieces.push(Range { start: end, ..*range });
            }
            at = twice.end;
        }
        if at < end {
            pieces.push(Range { start: at, end, ways: Ways::one(way) });
        }
        self.ranges.splice(first..behind, pieces);
    }

    /// Joins acknowledged neighbours that came in the same way.
    fn join(&mut self) {
        let mut kept = self.gone;
        for index in kept + 1..self.ranges.len() {
            let range = self.ranges[index];
            let last = &mut self.ranges[kept];
            match last.joined(range.start, &range.ways) {
                Some(joined) if range.start <= self.settled => {
                    (last.end, last.ways) = (range.end, joined);
                }
                _ => {
                    kept += 1;
                    self.ranges[kept] = range;
                }
            }
        }
        self.ranges.truncate(kept + 1);
    }

    /// Notes that software has read bytes up to `end`. Returns how the next of them came: up to
    /// which offset, and in which ways. Bytes that were never delivered here came as they were.
    pub fn take(&mut self, end: u64) -> (u64, Ways) {
        while self.ranges.get(self.gone).is_some_and(|range| range.end <= self.read) {
            self.gone += 1;
        }
        let (until, ways) = match self.ranges.get(self.gone) {
            Some(range) if range.start <= self.read => (range.end, range.ways),
            Some(range) => (range.start, Ways::one(None)),
            None => (end, Ways::one(None)),
        };
        let until = until.min(end);
        self.read = until;
        if self.gone >= 64 && self.gone * 2 >= self.ranges.len() {
            self.ranges.drain(..self.gone);
            self.gone = 0;
        }
        (until, ways)
    }
}

#[cfg(test)]
mod tests {
    use super::{Delivered, Full, RANGES_MAX, WAYS_MAX, Way};
    use unlade_net::SeqNumber;
    use unlade_nic_engine::resync::{Extent, Pass, Worked};

    fn pass(generation: u32) -> Way {
        let message = Extent { start: SeqNumber(0), bytes: 0, number: 0 };
        Some(Worked { pass: Pass { key: 0, generation }, message })
    }

    /// The same, byte by byte.
    struct Oracle {
        ways: Vec<Vec<Way>>,
        settled: usize,
        read: usize,
    }

    impl Oracle {
        fn deliver(&mut self, start: usize, end: usize, way: Way) {
            for byte in start.max(self.settled).max(self.read)..end {
                let ways = &mut self.ways[byte];
                if !ways.contains(&way) && ways.len() < WAYS_MAX {
                    ways.push(way);
                }
            }
        }
    }

    #[test]
    fn each_byte_has_the_ways_in_which_it_was_delivered() {
        unlade_testkit::cases(400, |random| {
            let bytes = 200;
            let mut ways = vec![Vec::new(); bytes];
            let before = random.below(20) as usize;
            ways[..before].fill(vec![None]);
            let mut oracle = Oracle { ways, settled: 0, read: 0 };
            let mut delivered = Delivered::new(0, before as u64);
            for _ in 0..150 {
                let start = random.below(bytes as u64) as usize;
                match random.below(8) {
                    0 => {
                        let offset = oracle.settled + random.below(10) as usize;
                        oracle.settled = offset;
                        delivered.settle(offset as u64);
                    }
                    1 | 2 => {
                        let end = (oracle.read + random.below(20) as usize).min(bytes);
                        while oracle.read < end {
                            let from = oracle.read;
                            let (until, ways) = delivered.take(end as u64);
                            assert!(from < until as usize && until as usize <= end);
                            for byte in from..until as usize {
                                let expected = match oracle.ways[byte].as_slice() {
                                    [] => &[None],
                                    ways => ways,
                                };
                                assert_eq!(ways.as_slice(), expected, "byte {byte}");
                            }
                            oracle.read = until as usize;
                            assert_eq!(delivered.position(), until);
                        }
                    }
                    kind => {
                        let end = (start + random.below(30) as usize).min(bytes);
                        let way = if kind < 5 { None } else { pass(random.below(3) as u32) };
                        oracle.deliver(start, end, way);
                        delivered.deliver(start as u64, end as u64, way).unwrap();
                    }
                }
            }
        });
    }

    #[test]
    fn a_stream_in_order_is_one_range() {
        let mut delivered = Delivered::new(0, 0);
        for packet in 0..100_000 {
            delivered.settle(packet * 1448);
            delivered.deliver(packet * 1448, (packet + 1) * 1448, pass(1)).unwrap();
        }
        assert_eq!(delivered.ranges.len(), 1);
    }

    #[test]
    fn packets_are_told_apart_until_they_are_settled() {
        let mut delivered = Delivered::new(0, 0);
        let packets = RANGES_MAX as u64 - 2;
        for packet in 0..packets {
            delivered.deliver(packet * 100, packet * 100 + 100, pass(1)).unwrap();
        }
        delivered.deliver(50, 150, None).unwrap();
        let ends: Vec<u64> = (0..4).map(|_| delivered.take(1000).0).collect();
        assert_eq!(ends, [50, 100, 150, 200]);
        let end = packets * 100;
        delivered.settle(end);
        for packet in 0..10 {
            delivered.deliver(end + packet * 200, end + packet * 200 + 100, pass(1)).unwrap();
        }
        assert!(delivered.ranges.len() - delivered.gone < 20);
    }

    #[test]
    fn a_second_delivery_is_in_doubt_until_the_bytes_are_settled() {
        let mut delivered = Delivered::new(0, 0);
        delivered.deliver(0, 100, pass(1)).unwrap();
        delivered.settle(50);
        delivered.deliver(0, 100, None).unwrap();
        assert_eq!(delivered.doubtful_bytes(), 50);
        let (until, ways) = delivered.take(100);
        assert_eq!((until, ways.as_slice()), (50, &[pass(1)][..]));
        let (until, ways) = delivered.take(100);
        assert_eq!((until, ways.as_slice()), (100, &[pass(1), None][..]));
    }

    #[test]
    fn what_may_have_come_before_is_in_doubt_when_it_comes_decrypted() {
        let mut delivered = Delivered::new(10, 60);
        delivered.deliver(20, 40, pass(7)).unwrap();
        assert_eq!(delivered.take(100).0, 20);
        assert_eq!(delivered.take(100).1.as_slice(), &[None, pass(7)]);
        assert_eq!(delivered.take(100).1.as_slice(), &[None]);
    }

    #[test]
    fn more_ranges_than_the_limit_are_refused_until_some_are_read() {
        let mut delivered = Delivered::new(0, 0);
        for range in 0..RANGES_MAX as u64 {
            delivered.deliver(range * 2, range * 2 + 1, pass(1)).unwrap();
        }
        let end = RANGES_MAX as u64 * 2;
        assert_eq!(delivered.deliver(end, end + 1, pass(1)), Err(Full));
        assert_eq!(delivered.deliver(1, 2, pass(1)), Err(Full));
        while delivered.position() < end / 2 {
            delivered.take(end / 2);
        }
        assert_eq!(delivered.deliver(end, end + 1, pass(1)), Ok(()));
    }
}
