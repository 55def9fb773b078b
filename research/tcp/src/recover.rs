//! Loss detection for sent, unacknowledged bytes: RACK (RFC 8985 §6) over a scoreboard of
//! transmissions. Selective acknowledgements divide its entries.

use std::collections::VecDeque;

use unlade_net::SeqNumber;

use crate::rule::{Rule, holds};
use crate::segment::Range;
use crate::time::Time;

/// Maximum number of entries. At the limit no new bytes are sent, and selective acknowledgements
/// that would divide an entry are ignored; at worst their bytes are retransmitted.
pub const SCOREBOARD_ENTRIES_MAX: usize = 8192;
/// Number of segments that must arrive after a hole before it is considered lost, if no reordering
/// was observed (DupThresh of RFC 6675).
const DUPLICATES: u32 = 3;
/// Maximum reordering window, in quarters of the round-trip time.
const REORDER_STEPS_MAX: u64 = 20;
/// Number of recoveries after which the reordering window is reset.
const REORDER_RECOVERIES: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    OnItsWay,
    Lost,
    Sacked,
}

/// Bytes of one transmission; without SYN, possibly with FIN at the end.
#[derive(Clone, Copy, Debug)]
struct Sent {
    range: Range,
    at: Time,
    fate: Fate,
    again: bool,
}

/// Result of an acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivered {
    /// Number of newly delivered bytes.
    pub(crate) bytes: u32,
    /// Round-trip time of bytes that were sent once, nanoseconds.
    pub(crate) rtt_ns: Option<u64>,
    /// A block reports duplicate bytes (RFC 2883).
    pub(crate) duplicate: bool,
    /// A new selective acknowledgement.
    pub(crate) sacked: bool,
}

/// Path properties (RFC 8985 §6.1).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    pub(crate) now: Time,
    pub(crate) min_rtt_ns: u64,
    pub(crate) smoothed_ns: u64,
    pub(crate) recovering: bool,
}

/// The scoreboard of all bytes in flight.
pub(crate) struct Scoreboard {
    entries: VecDeque<Sent>,
    mss_bytes: u32,
    in_flight: u32,
    lost: u32,
    sacked: u32,
    /// Number of retransmitted entries.
    again: usize,
    /// Properties of the most recently sent delivered bytes (RACK.xmit_ts, RACK.end_seq,
    /// RACK.rtt).
    latest_at: Time,
    latest_end: SeqNumber,
    latest_rtt_ns: u64,
    /// Highest delivered byte (RACK.fack).
    highest: SeqNumber,
    reordered: bool,
    reorder_steps: u64,
    reorder_recoveries: u32,
    /// Blocks that were ignored because of the limit.
    pub(crate) ignored: u64,
}

impl Scoreboard {
    pub(crate) fn new(start: SeqNumber, mss_bytes: u32) -> Scoreboard {
        Scoreboard {
            entries: VecDeque::new(),
            mss_bytes,
            in_flight: 0,
            lost: 0,
            sacked: 0,
            again: 0,
            latest_at: Time::default(),
            latest_end: start,
            latest_rtt_ns: 0,
            highest: start,
            reordered: false,
            reorder_steps: 1,
            reorder_recoveries: 0,
            ignored: 0,
        }
    }

    /// Bytes that are neither acknowledged nor considered lost.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Bytes that are to be retransmitted.
    #[inline]
    pub(crate) fn lost(&self) -> u32 {
        self.lost
    }

    /// Bytes that were delivered after a hole.
    pub(crate) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Returns true if nothing is lost, selectively acknowledged, retransmitted or reordered.
    #[inline]
    pub(crate) fn is_clean(&self) -> bool {
        let overtaken = self.entries.front().is_some_and(|entry| entry.at < self.latest_at);
        self.lost == 0 && self.sacked == 0 && self.again == 0 && !overtaken
    }

    /// Returns true if there is room for new bytes.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.entries.len() < SCOREBOARD_ENTRIES_MAX
    }

    /// Records the transmission of new bytes, which follow the earlier ones.
    #[inline]
    pub(crate) fn sent(&mut self, at: Time, range: Range) {
        self.in_flight += range.bytes();
        self.entries.push_back(Sent { range, at, fate: Fate::OnItsWay, again: false });
    }

    /// Processes a cumulative acknowledgement up to `ack`, while the scoreboard
    /// [is clean](Scoreboard::is_clean).
    #[inline]
    pub(crate) fn acknowledge_clean(&mut self, now: Time, ack: SeqNumber) -> Delivered {
        let mut delivered = Delivered::default();
        let mut sent_at = None;
        while let Some(entry) = self.entries.front_mut() {
            let bytes = ack.since(entry.range.start).min(entry.range.bytes() as i32);
            if bytes <= 0 {
                break;
            }
            sent_at = Some(entry.at);
            delivered.bytes += bytes as u32;
            if bytes as u32 == entry.range.bytes() {
                self.entries.pop_front();
            } else {
                entry.range.start = ack;
                break;
            }
        }
        self.in_flight -= delivered.bytes;
        self.highest = ack;
        if let Some(at) = sent_at {
            let rtt_ns = now.ns_since(at);
            (self.latest_at, self.latest_end, self.latest_rtt_ns) = (at, ack, rtt_ns);
            delivered.rtt_ns = Some(rtt_ns);
        }
        delivered
    }

    /// Processes an acknowledgement up to `ack` with selective `blocks`. Invalid blocks are
    /// ignored. `echo_is_old` returns true if the peer's echoed timestamp is older than the given
    /// send time.
    pub(crate) fn acknowledge(
        &mut self,
        path: Path,
        ack: SeqNumber,
        blocks: &[Range],
        echo_is_old: impl Fn(Time) -> bool,
    ) -> Delivered {
        let mut delivered = Delivered::default();
        let mut again = false;
        while let Some(&entry) = self.entries.front() {
            let bytes = ack.since(entry.range.start).min(entry.range.bytes() as i32);
            if bytes <= 0 {
                break;
            }
            again |= entry.again;
            let part = Range { start: entry.range.start, end: entry.range.start + bytes as u32 };
            self.leave(&entry, part.bytes());
            self.arrived(path, &Sent { range: part, ..entry }, &echo_is_old, &mut delivered);
            self.pop_front(part.bytes());
        }
        if again {
            // Bytes sent once have waited for a retransmission: this is no round-trip time sample.
            delivered.rtt_ns = None;
        }
        if ack.since(self.highest) > 0 {
            self.highest = ack;
        }
        delivered.duplicate = is_duplicate(ack, blocks);
        for block in &blocks[usize::from(delivered.duplicate)..] {
            self.sack(path, *block, &echo_is_old, &mut delivered);
        }
        delivered
    }

    fn pop_front(&mut self, bytes: u32) {
        if let Some(front) = self.entries.front_mut() {
            front.range.start = front.range.start + bytes;
            if front.range.bytes() == 0 {
                self.again -= usize::from(front.again);
                self.entries.pop_front();
            }
        }
    }

    /// Subtracts `bytes` of this entry from the counters.
    fn leave(&mut self, entry: &Sent, bytes: u32) {
        match entry.fate {
            Fate::OnItsWay => self.in_flight -= bytes,
            Fate::Lost => self.lost -= bytes,
            Fate::Sacked => self.sacked -= bytes,
        }
    }

    /// Processes delivered bytes (RFC 8985 §6.2 steps 1 to 3).
    fn arrived(
        &mut self,
        path: Path,
        entry: &Sent,
        echo_is_old: &impl Fn(Time) -> bool,
        delivered: &mut Delivered,
    ) {
        if entry.fate == Fate::Sacked {
            return;
        }
        delivered.bytes += entry.range.bytes();
        let rtt_ns = path.now.ns_since(entry.at);
        if entry.again {
            // The original transmission of the bytes may have been delivered.
            if holds(Rule::Karn) && (echo_is_old(entry.at) || rtt_ns < path.min_rtt_ns) {
                return;
            }
        } else {
            delivered.rtt_ns = Some(rtt_ns);
            if entry.range.end.before(self.highest) {
                self.reordered = true;
            }
        }
        if self.is_later(entry.at, entry.range.end) {
            (self.latest_at, self.latest_end) = (entry.at, entry.range.end);
            self.latest_rtt_ns = rtt_ns;
        }
    }

    /// Returns true if it was sent after the most recently sent delivered bytes.
    fn is_later(&self, at: Time, end: SeqNumber) -> bool {
        at > self.latest_at || (at == self.latest_at && end.since(self.latest_end) > 0)
    }

    fn sack(
        &mut self,
        path: Path,
        block: Range,
        echo_is_old: &impl Fn(Time) -> bool,
        delivered: &mut Delivered,
    ) {
        let (Some(first), Some(last)) = (self.entries.front(), self.entries.back()) else { return };
        let inside = block.start.since(first.range.start) >= 0
            && block.end.since(last.range.end) <= 0
            && block.end.since(block.start) > 0;
        if !inside {
            return;
        }
        let mut index = self.entries.partition_point(|e| e.range.end.since(block.start) <= 0);
        let first = index;
        while let Some(entry) = self.entries.get(index).copied() {
            if entry.range.start.since(block.end) >= 0 {
                break;
            }
            if entry.fate != Fate::Sacked {
                if !self.split_at_block(&mut index, block) {
                    self.ignored += 1;
                    break;
                }
                let entry = self.entries[index];
                self.leave(&entry, entry.range.bytes());
                self.arrived(path, &entry, echo_is_old, delivered);
                self.entries[index].fate = Fate::Sacked;
                self.sacked += entry.range.bytes();
                delivered.sacked = true;
            }
            index += 1;
        }
        if block.end.since(self.highest) > 0 {
            self.highest = block.end;
        }
        self.join(first.saturating_sub(1), index + 1);
    }

    /// Divides the entry at `index` so that the entry then at `index` lies within `block`. Returns
    /// false if the limit does not allow it.
    fn split_at_block(&mut self, index: &mut usize, block: Range) -> bool {
        let entry = self.entries[*index];
        let starts_before = entry.range.start.before(block.start);
        let ends_behind = block.end.before(entry.range.end);
        let more = usize::from(starts_before) + usize::from(ends_behind);
        if more > 0 && self.entries.len() + more > SCOREBOARD_ENTRIES_MAX {
            return false;
        }
        if ends_behind {
            self.divide(*index, block.end);
        }
        if starts_before {
            self.divide(*index, block.start);
            *index += 1;
        }
        true
    }

    fn divide(&mut self, index: usize, at: SeqNumber) {
        let entry = self.entries[index];
        self.entries[index].range.end = at;
        let range = Range { start: at, end: entry.range.end };
        self.entries.insert(index + 1, Sent { range, ..entry });
        self.again += usize::from(entry.again);
    }

    /// Merges neighbouring delivered entries, from `first` up to `end`.
    fn join(&mut self, first: usize, end: usize) {
        let mut index = end.min(self.entries.len().saturating_sub(1));
        while index > first {
            let (before, behind) = (self.entries[index - 1], self.entries[index]);
            if before.fate == Fate::Sacked && behind.fate == Fate::Sacked {
                self.entries[index - 1].range.end = behind.range.end;
                self.again -= usize::from(behind.again);
                self.entries.remove(index);
            }
            index -= 1;
        }
    }

    /// Increases the reordering window after a spurious retransmission (RFC 8985 §6.2
    /// step 4).
    pub(crate) fn wait_longer(&mut self) {
        self.reorder_steps = (self.reorder_steps + 1).min(REORDER_STEPS_MAX);
        self.reorder_recoveries = REORDER_RECOVERIES;
    }

    /// Records the end of a recovery.
    pub(crate) fn recovered(&mut self) {
        self.reorder_recoveries = self.reorder_recoveries.saturating_sub(1);
        if self.reorder_recoveries == 0 {
            self.reorder_steps = 1;
        }
    }

    fn reorder_ns(&self, path: Path) -> u64 {
        if !holds(Rule::Reordering) {
            return 0;
        }
        let behind = self.sacked.div_ceil(self.mss_bytes);
        if !self.reordered && (path.recovering || behind >= DUPLICATES) {
            return 0;
        }
        let quarter_ns = if path.min_rtt_ns == u64::MAX { 0 } else { path.min_rtt_ns / 4 };
        (self.reorder_steps * quarter_ns).min(path.smoothed_ns)
    }

    /// Marks bytes as lost that were sent before delivered bytes, and long enough ago (RFC 8985
    /// §6.2 step 5). Returns their number, and the time at which more will be lost.
    pub(crate) fn detect(&mut self, path: Path) -> (u32, Time) {
        let patience_ns = self.latest_rtt_ns.saturating_add(self.reorder_ns(path));
        let (mut lost, mut next) = (0, Time::NEVER);
        if self.is_clean() {
            return (lost, next);
        }
        for index in 0..self.entries.len() {
            let entry = self.entries[index];
            let later = self.is_later(entry.at, entry.range.end);
            let latest = (entry.at, entry.range.end) == (self.latest_at, self.latest_end);
            if entry.fate != Fate::OnItsWay || later || latest {
                // Beyond the highest delivered byte, entries sent once were sent even later.
                if later && !entry.again && !self.highest_is_behind(entry.range.start) {
                    break;
                }
                continue;
            }
            let due = entry.at.after_ns(patience_ns);
            if due <= path.now {
                lost += self.lose(index);
            } else {
                next = next.min(due);
            }
        }
        (lost, next)
    }

    fn highest_is_behind(&self, at: SeqNumber) -> bool {
        self.highest.since(at) > 0
    }

    fn lose(&mut self, index: usize) -> u32 {
        let entry = self.entries[index];
        let bytes = entry.range.bytes();
        self.leave(&entry, bytes);
        self.lost += bytes;
        self.entries[index].fate = Fate::Lost;
        bytes
    }

    /// Marks the first `bytes` in flight as lost: for peers without selective acknowledgements.
    pub(crate) fn lose_front(&mut self, bytes: u32) -> u32 {
        let Some(front) = self.entries.front().copied() else { return 0 };
        if front.fate != Fate::OnItsWay {
            return 0;
        }
        if front.range.bytes() > bytes {
            self.divide(0, front.range.start + bytes);
        }
        self.lose(0)
    }

    /// Marks everything as lost after a retransmission timeout, even selectively acknowledged
    /// bytes (RFC 2018 §8).
    pub(crate) fn lose_all(&mut self) {
        for entry in &mut self.entries {
            if entry.fate == Fate::Sacked {
                // Send times of merged entries are unknown.
                self.again += usize::from(!entry.again);
                (entry.at, entry.again) = (Time::default(), true);
            }
            entry.fate = Fate::Lost;
        }
        self.lost += self.in_flight + self.sacked;
        (self.in_flight, self.sacked) = (0, 0);
    }

    /// Retransmits the oldest lost bytes, at most `bytes_max`.
    pub(crate) fn send_again(&mut self, at: Time, bytes_max: u32) -> Option<Range> {
        if self.lost == 0 {
            return None;
        }
        let index = self.entries.iter().position(|entry| entry.fate == Fate::Lost)?;
        if self.entries[index].range.bytes() > bytes_max {
            let cut = self.entries[index].range.start + bytes_max;
            self.divide(index, cut);
        }
        // Adjacent small entries are sent together with it.
        while let Some(next) = self.entries.get(index + 1).copied() {
            let both = self.entries[index].range.bytes() + next.range.bytes();
            if next.fate != Fate::Lost || both > bytes_max {
                break;
            }
            self.entries[index].range.end = next.range.end;
            self.again -= usize::from(next.again);
            self.entries.remove(index + 1);
        }
        Some(self.mark_again(index, at))
    }

    /// Retransmits the last bytes, at most `bytes_max`, as a probe (RFC 8985 §7.3).
    pub(crate) fn send_last(&mut self, at: Time, bytes_max: u32) -> Option<Range> {
        let last = self.entries.len().checked_sub(1)?;
        let range = self.entries[last].range;
        if range.bytes() > bytes_max && self.has_room() {
            self.divide(last, range.end - bytes_max);
        }
        let index = self.entries.len() - 1;
        (self.entries[index].fate != Fate::Sacked).then(|| self.mark_again(index, at))
    }

    fn mark_again(&mut self, index: usize, at: Time) -> Range {
        let entry = self.entries[index];
        self.leave(&entry, entry.range.bytes());
        self.in_flight += entry.range.bytes();
        self.again += usize::from(!entry.again);
        self.entries[index] = Sent { at, again: true, fate: Fate::OnItsWay, ..entry };
        entry.range
    }

    /// Handles a shorter retransmission: only `sent` of `range` was sent; the rest is still lost.
    pub(crate) fn cut_short(&mut self, range: Range, sent: u32) {
        let index = self.entries.partition_point(|e| e.range.end.since(range.start) <= 0);
        if sent >= range.bytes() || index >= self.entries.len() {
            return;
        }
        self.divide(index, range.start + sent);
        self.lose(index + 1);
    }
}

/// Returns true if the first block reports duplicate bytes (RFC 2883 §4): it is already
/// acknowledged, or contained in the second block.
fn is_duplicate(ack: SeqNumber, blocks: &[Range]) -> bool {
    let Some(first) = blocks.first() else { return false };
    let within =
        |second: &Range| first.start.since(second.start) >= 0 && first.end.since(second.end) <= 0;
    first.end.since(ack) <= 0 || blocks.get(1).is_some_and(within)
}

#[cfg(test)]
#[path = "recover_tests.rs"]
pub(crate) mod tests;
