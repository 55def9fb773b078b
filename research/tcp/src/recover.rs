//! What was sent and is not acknowledged, and which of it is lost: RACK (RFC 8985 §6) over a
//! scoreboard of what was sent at once. Parts of it that are acknowledged selectively divide it.

use std::collections::VecDeque;

use unlade_net::SeqNumber;

use crate::rule::{Rule, holds};
use crate::segment::Range;
use crate::time::Time;

/// Most entries: what is beyond is not sent, and selective acknowledgements that would divide more are
/// ignored, so that their bytes are sent again at worst.
pub const SCOREBOARD_ENTRIES_MAX: usize = 8192;
/// Segments that have arrived behind a hole before it is taken for lost where nothing was reordered
/// so far (DupThresh of RFC 6675).
const DUPLICATES: u32 = 3;
/// Largest multiple of a quarter round-trip time that reordering is waited for.
const REORDER_STEPS_MAX: u64 = 20;
/// Recoveries after which the multiple is 1 again.
const REORDER_RECOVERIES: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    OnItsWay,
    Lost,
    Sacked,
}

/// Bytes that were sent at once; SYN is none of them, FIN may be the last.
#[derive(Clone, Copy, Debug)]
struct Sent {
    range: Range,
    at: Time,
    fate: Fate,
    again: bool,
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivered {
    /// Bytes that are known to have arrived since.
    pub(crate) bytes: u32,
    /// Round-trip time of bytes that were sent once, nanoseconds.
    pub(crate) rtt_ns: Option<u64>,
    /// A block says that bytes came twice (RFC 2883).
    pub(crate) duplicate: bool,
    /// A selective acknowledgement that was not known.
    pub(crate) sacked: bool,
}

/// What is known of the path (RFC 8985 §6.1).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Path {
    pub(crate) now: Time,
    pub(crate) min_rtt_ns: u64,
    pub(crate) smoothed_ns: u64,
    pub(crate) recovering: bool,
}

/// Everything that is on its way.
pub(crate) struct Scoreboard {
    entries: VecDeque<Sent>,
    mss_bytes: u32,
    in_flight: u32,
    lost: u32,
    sacked: u32,
    /// Entries that were sent again.
    again: usize,
    /// Sent last of what has arrived (RACK.xmit_ts, RACK.end_seq, RACK.rtt).
    latest_at: Time,
    latest_end: SeqNumber,
    latest_rtt_ns: u64,
    /// Highest byte that has arrived (RACK.fack).
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

    /// Bytes that are neither acknowledged nor taken for lost.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Bytes that are to be sent again.
    #[inline]
    pub(crate) fn lost(&self) -> u32 {
        self.lost
    }

    /// Bytes that have arrived behind a hole.
    pub(crate) fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Nothing is lost, has arrived behind a hole, or was sent again or before what has arrived.
    #[inline]
    pub(crate) fn is_clean(&self) -> bool {
        let overtaken = self.entries.front().is_some_and(|entry| entry.at < self.latest_at);
        self.lost == 0 && self.sacked == 0 && self.again == 0 && !overtaken
    }

    /// Whether something new can be sent.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.entries.len() < SCOREBOARD_ENTRIES_MAX
    }

    /// New bytes are sent; they follow those before.
    #[inline]
    pub(crate) fn sent(&mut self, at: Time, range: Range) {
        self.in_flight += range.bytes();
        self.entries.push_back(Sent { range, at, fate: Fate::OnItsWay, again: false });
    }

    /// Bytes up to `ack` have arrived, with no selective acknowledgement, and the scoreboard
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

    /// Bytes up to `ack` and those of `blocks` have arrived. Blocks that cannot be are ignored.
    /// `echo_is_old` says of a time of sending whether what the peer echoes is from before it.
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
            // What was sent once has waited for what was sent again: that is no round-trip time.
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

    /// The counters without `bytes` of this entry.
    fn leave(&mut self, entry: &Sent, bytes: u32) {
        match entry.fate {
            Fate::OnItsWay => self.in_flight -= bytes,
            Fate::Lost => self.lost -= bytes,
            Fate::Sacked => self.sacked -= bytes,
        }
    }

    /// RFC 8985 §6.2 steps 1 to 3, for bytes that have arrived.
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
            // It may be the bytes as they were sent first that have arrived.
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

    /// Sent after what arrived of the last sent.
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
                if !self.carve(&mut index, block) {
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

    /// Divides the entry at `index` so that the one then at `index` lies within `block`. False where
    /// there would be too many.
    fn carve(&mut self, index: &mut usize, block: Range) -> bool {
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

    /// Makes one entry of neighbours, from `first` up to `end`, that have arrived.
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

    /// Bytes came twice: reordering was taken for loss, so more of it is waited for (RFC 8985
    /// §6.2 step 4).
    pub(crate) fn wait_longer(&mut self) {
        self.reorder_steps = (self.reorder_steps + 1).min(REORDER_STEPS_MAX);
        self.reorder_recoveries = REORDER_RECOVERIES;
    }

    /// A recovery has ended.
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

    /// What was sent before something that has arrived, and long enough ago, is lost (RFC 8985 §6.2
    /// step 5). Returns how many bytes that is, and when more will be.
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
                // Behind bytes that nobody has acknowledged, what was sent once was sent later.
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

    /// The first `bytes` of what is on its way, or lost already, are lost: for peers without
    /// selective acknowledgements.
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

    /// The retransmission timer has expired: nothing has arrived, not even what the peer said it had
    /// (RFC 2018 §8).
    pub(crate) fn lose_all(&mut self) {
        for entry in &mut self.entries {
            if entry.fate == Fate::Sacked {
                // Of what was joined the times of sending are not known.
                self.again += usize::from(!entry.again);
                (entry.at, entry.again) = (Time::default(), true);
            }
            entry.fate = Fate::Lost;
        }
        self.lost += self.in_flight + self.sacked;
        (self.in_flight, self.sacked) = (0, 0);
    }

    /// The oldest bytes that are lost, at most `bytes_max` of them, are sent again.
    pub(crate) fn send_again(&mut self, at: Time, bytes_max: u32) -> Option<Range> {
        if self.lost == 0 {
            return None;
        }
        let index = self.entries.iter().position(|entry| entry.fate == Fate::Lost)?;
        if self.entries[index].range.bytes() > bytes_max {
            let cut = self.entries[index].range.start + bytes_max;
            self.divide(index, cut);
        }
        // Small ones that follow leave together with it.
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

    /// The last bytes, at most `bytes_max` of them, are sent again as a probe (RFC 8985 §7.3).
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

    /// Sent again less than was asked for: `sent` is what left of `range`; the rest is lost still.
    pub(crate) fn cut_short(&mut self, range: Range, sent: u32) {
        let index = self.entries.partition_point(|e| e.range.end.since(range.start) <= 0);
        if sent >= range.bytes() || index >= self.entries.len() {
            return;
        }
        self.divide(index, range.start + sent);
        self.lose(index + 1);
    }
}

/// Whether the first block reports bytes that came twice (RFC 2883 §4): it is acknowledged already,
/// or in the second one.
fn is_duplicate(ack: SeqNumber, blocks: &[Range]) -> bool {
    let Some(first) = blocks.first() else { return false };
    let within =
        |second: &Range| first.start.since(second.start) >= 0 && first.end.since(second.end) <= 0;
    first.end.since(ack) <= 0 || blocks.get(1).is_some_and(within)
}

#[cfg(test)]
#[path = "recover_tests.rs"]
pub(crate) mod tests;
