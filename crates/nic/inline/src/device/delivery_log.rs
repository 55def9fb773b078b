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
use unlade_nic_engine::software::ambiguity::DELIVERIES_MAX;

/// Largest number of ranges that are kept for a flow: what TCP can hold of a stream in which
/// every other packet was delivered in another way. A packet that needs more is dropped.
pub const RANGES_MAX: usize = 8192;

/// The pass in which bytes were decrypted; `None` if they were delivered as they came.
pub type Delivery = Option<Worked>;

/// The different ways in which some bytes were delivered, the first one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryHistory {
    history: [Delivery; DELIVERIES_MAX],
    count: u8,
}

impl DeliveryHistory {
    /// Delivered once.
    pub fn one(delivery: Delivery) -> DeliveryHistory {
        DeliveryHistory { history: [delivery; DELIVERIES_MAX], count: 1 }
    }

    /// All ways.
    pub fn as_slice(&self) -> &[Delivery] {
        &self.history[..usize::from(self.count)]
    }

    /// Adds one more delivery. Returns true if it could not be recorded.
    fn add(&mut self, delivery: Delivery) -> bool {
        let count = usize::from(self.count);
        if self.as_slice().contains(&delivery) {
            return false;
        }
        if count == DELIVERIES_MAX {
            return true;
        }
        self.history[count] = delivery;
        self.count += 1;
        false
    }

    /// The only way in which the bytes were decrypted, if there is one.
    pub fn certain(&self) -> Delivery {
        self.history[0].filter(|_| self.is_certain())
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
    history: DeliveryHistory,
}

impl Range {
    /// The joined history of this range and of bytes from `start` on, which came in these ways;
    /// `None` if they do not belong together.
    fn joined(&self, start: u64, history: &DeliveryHistory) -> Option<DeliveryHistory> {
        if self.end != start || !self.history.is_certain() || !history.is_certain() {
            return None;
        }
        match (self.history.history[0], history.history[0]) {
            (None, None) => Some(self.history),
            (Some(before), Some(behind)) => {
                before.join(behind).map(|both| DeliveryHistory::one(Some(both)))
            }
            _ => None,
        }
    }
}

/// There are too many ranges, or the bytes are not near the stream: the packet is to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFull;

/// The deliveries of a flow, by offset in its stream, from the first byte that software has not
/// read.
#[derive(Debug)]
pub struct DeliveryLog {
    ranges: Vec<Range>,
    /// Number of the first ranges that are no longer needed.
    gone: usize,
    /// Software has read all bytes before.
    read: u64,
    /// The kernel has acknowledged all bytes before.
    acknowledged: u64,
    /// Bytes that came in different ways before they were acknowledged.
    ambiguous_bytes: u64,
    /// Number of deliveries that could not be recorded.
    forgotten: u64,
}

impl DeliveryLog {
    /// Creates the history. Software has read the bytes before `read`. Those up to `until` may
    /// have been delivered, as they came.
    pub fn new(read: u64, until: u64) -> DeliveryLog {
        let before = Range { start: read, end: until, history: DeliveryHistory::one(None) };
        let ranges = if read < until { vec![before] } else { Vec::new() };
        DeliveryLog { ranges, gone: 0, read, acknowledged: read, ambiguous_bytes: 0, forgotten: 0 }
    }

    /// Notes that the kernel has acknowledged the bytes before `offset`.
    pub fn acknowledge(&mut self, offset: u64) {
        self.acknowledged = self.acknowledged.max(offset);
    }

    /// The offset at which software reads next.
    pub fn position(&self) -> u64 {
        self.read
    }

    /// Bytes that came in different ways before they were acknowledged.
    pub fn ambiguous_bytes(&self) -> u64 {
        self.ambiguous_bytes
    }

    /// Number of deliveries that could not be recorded, because the bytes came in too many ways.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Returns true if all bytes that were delivered and not read came as they were.
    pub fn is_plain(&self) -> bool {
        let ahead = self.ranges[self.gone..].iter().filter(|range| range.end > self.read);
        ahead.map(|range| range.history).all(|history| history == DeliveryHistory::one(None))
    }

    /// Notes that the bytes from `start` to `end` are about to be delivered.
    ///
    /// # Errors
    /// [`LogFull`]; the bytes must not be delivered.
    pub fn deliver(&mut self, start: u64, end: u64, delivery: Delivery) -> Result<(), LogFull> {
        let start = start.max(self.acknowledged).max(self.read);
        if start >= end {
            return Ok(());
        }
        if self.ranges.len() - self.gone >= RANGES_MAX {
            self.join();
        }
        let full = self.ranges.len() - self.gone >= RANGES_MAX;
        let acknowledged = self.acknowledged;
        let last = self.ranges[self.gone..].last_mut();
        let joined =
            last.as_ref().and_then(|last| last.joined(start, &DeliveryHistory::one(delivery)));
        match (last, joined) {
            (Some(last), _) if start < last.end => {
                if full {
                    return Err(LogFull);
                }
                self.overlap(start, end, delivery);
            }
            (Some(last), Some(joined)) if start <= acknowledged => {
                (last.end, last.history) = (end, joined);
            }
            _ if full => return Err(LogFull),
            _ => self.ranges.push(Range { start, end, history: DeliveryHistory::one(delivery) }),
        }
        Ok(())
    }

    /// Notes the delivery of bytes that overlap or precede earlier deliveries.
    fn overlap(&mut self, start: u64, end: u64, delivery: Delivery) {
        let live = &self.ranges[self.gone..];
        let first = self.gone + live.partition_point(|range| range.end <= start);
        let behind = self.gone + live.partition_point(|range| range.start < end);
        let mut pieces = Vec::new();
        let mut at = start;
        for range in &self.ranges[first..behind] {
            if at < range.start {
                pieces.push(Range {
                    start: at,
                    end: range.start,
                    history: DeliveryHistory::one(delivery),
                });
                at = range.start;
            } else if range.start < at {
                pieces.push(Range { end: at, ..*range });
            }
            let both = Range { start: at, end: range.end.min(end), ..*range };
            let mut twice = both;
            self.forgotten += u64::from(twice.history.add(delivery));
            if twice.history != both.history {
                self.ambiguous_bytes += twice.end - twice.start;
            }
            pieces.push(twice);
            if end < range.end {
                pieces.push(Range { start: end, ..*range });
            }
            at = twice.end;
        }
        if at < end {
            pieces.push(Range { start: at, end, history: DeliveryHistory::one(delivery) });
        }
        self.ranges.splice(first..behind, pieces);
    }

    /// Joins acknowledged neighbours that came in the same way.
    fn join(&mut self) {
        let mut kept = self.gone;
        for index in kept + 1..self.ranges.len() {
            let range = self.ranges[index];
            let last = &mut self.ranges[kept];
            match last.joined(range.start, &range.history) {
                Some(joined) if range.start <= self.acknowledged => {
                    (last.end, last.history) = (range.end, joined);
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
    pub fn take(&mut self, end: u64) -> (u64, DeliveryHistory) {
        while self.ranges.get(self.gone).is_some_and(|range| range.end <= self.read) {
            self.gone += 1;
        }
        let (until, history) = match self.ranges.get(self.gone) {
            Some(range) if range.start <= self.read => (range.end, range.history),
            Some(range) => (range.start, DeliveryHistory::one(None)),
            None => (end, DeliveryHistory::one(None)),
        };
        let until = until.min(end);
        self.read = until;
        if self.gone >= 64 && self.gone * 2 >= self.ranges.len() {
            self.ranges.drain(..self.gone);
            self.gone = 0;
        }
        (until, history)
    }
}

#[cfg(test)]
mod tests {
    use super::{DELIVERIES_MAX, Delivery, DeliveryLog, LogFull, RANGES_MAX};
    use unlade_net::SeqNumber;
    use unlade_nic_engine::resync::{Extent, Pass, Worked};

    fn pass(generation: u32) -> Delivery {
        let message = Extent { start: SeqNumber(0), bytes: 0, number: 0 };
        Some(Worked { pass: Pass { key: 0, generation }, message })
    }

    /// The same, byte by byte.
    struct Oracle {
        history: Vec<Vec<Delivery>>,
        acknowledged: usize,
        read: usize,
    }

    impl Oracle {
        fn deliver(&mut self, start: usize, end: usize, delivery: Delivery) {
            for byte in start.max(self.acknowledged).max(self.read)..end {
                let history = &mut self.history[byte];
                if !history.contains(&delivery) && history.len() < DELIVERIES_MAX {
                    history.push(delivery);
                }
            }
        }
    }

    #[test]
    fn each_byte_has_the_ways_in_which_it_was_delivered() {
        unlade_testkit::cases(400, |random| {
            let bytes = 200;
            let mut history = vec![Vec::new(); bytes];
            let before = random.below(20) as usize;
            history[..before].fill(vec![None]);
            let mut oracle = Oracle { history, acknowledged: 0, read: 0 };
            let mut log = DeliveryLog::new(0, before as u64);
            for _ in 0..150 {
                let start = random.below(bytes as u64) as usize;
                match random.below(8) {
                    0 => {
                        let offset = oracle.acknowledged + random.below(10) as usize;
                        oracle.acknowledged = offset;
                        log.acknowledge(offset as u64);
                    }
                    1 | 2 => {
                        let end = (oracle.read + random.below(20) as usize).min(bytes);
                        while oracle.read < end {
                            let from = oracle.read;
                            let (until, history) = log.take(end as u64);
                            assert!(from < until as usize && until as usize <= end);
                            for byte in from..until as usize {
                                let expected = match oracle.history[byte].as_slice() {
                                    [] => &[None],
                                    history => history,
                                };
                                assert_eq!(history.as_slice(), expected, "byte {byte}");
                            }
                            oracle.read = until as usize;
                            assert_eq!(log.position(), until);
                        }
                    }
                    kind => {
                        let end = (start + random.below(30) as usize).min(bytes);
                        let delivery = if kind < 5 { None } else { pass(random.below(3) as u32) };
                        oracle.deliver(start, end, delivery);
                        log.deliver(start as u64, end as u64, delivery).unwrap();
                    }
                }
            }
        });
    }

    #[test]
    fn a_stream_in_order_is_one_range() {
        let mut log = DeliveryLog::new(0, 0);
        for packet in 0..100_000 {
            log.acknowledge(packet * 1448);
            log.deliver(packet * 1448, (packet + 1) * 1448, pass(1)).unwrap();
        }
        assert_eq!(log.ranges.len(), 1);
    }

    #[test]
    fn packets_are_told_apart_until_they_are_settled() {
        let mut log = DeliveryLog::new(0, 0);
        let packets = RANGES_MAX as u64 - 2;
        for packet in 0..packets {
            log.deliver(packet * 100, packet * 100 + 100, pass(1)).unwrap();
        }
        log.deliver(50, 150, None).unwrap();
        let ends: Vec<u64> = (0..4).map(|_| log.take(1000).0).collect();
        assert_eq!(ends, [50, 100, 150, 200]);
        let end = packets * 100;
        log.acknowledge(end);
        for packet in 0..10 {
            log.deliver(end + packet * 200, end + packet * 200 + 100, pass(1)).unwrap();
        }
        assert!(log.ranges.len() - log.gone < 20);
    }

    #[test]
    fn a_second_delivery_is_in_doubt_until_the_bytes_are_settled() {
        let mut log = DeliveryLog::new(0, 0);
        log.deliver(0, 100, pass(1)).unwrap();
        log.acknowledge(50);
        log.deliver(0, 100, None).unwrap();
        assert_eq!(log.ambiguous_bytes(), 50);
        let (until, history) = log.take(100);
        assert_eq!((until, history.as_slice()), (50, &[pass(1)][..]));
        let (until, history) = log.take(100);
        assert_eq!((until, history.as_slice()), (100, &[pass(1), None][..]));
    }

    #[test]
    fn what_may_have_come_before_is_in_doubt_when_it_comes_decrypted() {
        let mut log = DeliveryLog::new(10, 60);
        log.deliver(20, 40, pass(7)).unwrap();
        assert_eq!(log.take(100).0, 20);
        assert_eq!(log.take(100).1.as_slice(), &[None, pass(7)]);
        assert_eq!(log.take(100).1.as_slice(), &[None]);
    }

    #[test]
    fn more_ranges_than_the_limit_are_refused_until_some_are_read() {
        let mut log = DeliveryLog::new(0, 0);
        for range in 0..RANGES_MAX as u64 {
            log.deliver(range * 2, range * 2 + 1, pass(1)).unwrap();
        }
        let end = RANGES_MAX as u64 * 2;
        assert_eq!(log.deliver(end, end + 1, pass(1)), Err(LogFull));
        assert_eq!(log.deliver(1, 2, pass(1)), Err(LogFull));
        while log.position() < end / 2 {
            log.take(end / 2);
        }
        assert_eq!(log.deliver(end, end + 1, pass(1)), Ok(()));
    }
}
