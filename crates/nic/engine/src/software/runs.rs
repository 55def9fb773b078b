//! Boundaries of sent messages whose bytes are stored by TCP until they are acknowledged.
//! Consecutive messages of equal length under one key form one run: a stream of full records has
//! one run, independent of the number of records.

use std::collections::VecDeque;

use unlade_net::SeqNumber;

use super::sent::{Full, WINDOW_BYTES_MAX};
use crate::framing::distance;
use crate::rule::{Rule, holds};
use crate::tx::{Found, MessageState, Messages};

/// Consecutive messages of one length.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: SeqNumber,
    /// Number of messages before it under the key.
    number: u64,
    key: u16,
    message_bytes: u32,
    /// At least one; their total length is less than a window.
    messages: u32,
}

impl Run {
    fn bytes(&self) -> u32 {
        self.message_bytes * self.messages
    }
}

/// The sent messages of one flow. As [`Sent`](super::sent::Sent), for bytes that are stored
/// elsewhere; they must not change while their message is kept.
pub struct Runs {
    runs: VecDeque<Run>,
    messages: usize,
    messages_max: usize,
    /// Start of the offload.
    begin: SeqNumber,
    /// No byte before the offload can be requested any more.
    begun: bool,
    /// Start of the next message, and its number.
    next: SeqNumber,
    number: u64,
    key: u16,
    unacknowledged_bytes: usize,
}

impl Runs {
    /// Creates an empty store; the first message starts at `start` and is number `number` under
    /// its key. At most `messages_max` messages are kept.
    pub fn new(start: SeqNumber, number: u64, messages_max: usize) -> Runs {
        Runs {
            runs: VecDeque::new(),
            messages: 0,
            messages_max,
            begin: start,
            begun: false,
            next: start,
            number,
            key: 0,
            unacknowledged_bytes: 0,
        }
    }

    /// Appends a message of `message_bytes`; an empty message is ignored.
    ///
    /// # Errors
    /// [`Full`]; nothing is kept then.
    #[inline]
    pub fn push(&mut self, message_bytes: u32) -> Result<(), Full> {
        if message_bytes == 0 {
            return Ok(());
        }
        let room = WINDOW_BYTES_MAX - self.unacknowledged_bytes;
        if self.messages >= self.messages_max || message_bytes as usize > room {
            return Err(Full);
        }
        match self.runs.back_mut() {
            Some(run) if run.message_bytes == message_bytes && run.key == self.key => {
                run.messages += 1;
            }
            _ => {
                let (start, number, key) = (self.next, self.number, self.key);
                self.runs.push_back(Run { start, number, key, message_bytes, messages: 1 });
            }
        }
        self.next = self.next + message_bytes;
        self.number += 1;
        self.messages += 1;
        self.unacknowledged_bytes += message_bytes as usize;
        Ok(())
    }

    /// Changes the key for the next messages (a KeyUpdate), which are counted from 0. Returns the
    /// index of the key, and the start of its first message.
    pub fn change_key(&mut self) -> (u16, SeqNumber) {
        self.key = self.key.wrapping_add(1);
        self.number = 0;
        (self.key, self.next)
    }

    /// Returns the key that seals the byte `seq`, and the number of bytes from there on, at most
    /// `bytes`, that are sealed with it or precede the offload. `None` if it is unknown: a packet
    /// with that byte is dropped.
    pub fn under_one_key(&self, seq: SeqNumber, bytes: usize) -> Option<(u16, usize)> {
        let first = match self.find(seq) {
            Found::Message(message) => message.key,
            Found::Before { .. } => self.oldest_key()?,
            Found::Unknown => return None,
        };
        let other = self.runs.iter().find(|run| run.key != first && seq.before(run.start));
        let until = other.map_or(bytes, |run| run.start.since(seq) as usize);
        Some((first, bytes.min(until)))
    }

    /// Frees messages that end before `acknowledged`. Returns their number. An old sequence
    /// number, or one beyond the sent bytes, has no effect.
    pub fn acknowledge(&mut self, acknowledged: SeqNumber) -> usize {
        if self.next.before(acknowledged) {
            return 0;
        }
        self.begun |= !acknowledged.before(self.begin);
        let before = self.messages;
        while let Some(run) = self.runs.front_mut() {
            let arrived = acknowledged.since(run.start);
            if arrived <= 0 {
                break;
            }
            let arrived = (arrived as u32).min(run.bytes());
            let gone = match holds(Rule::Acknowledged) {
                true => arrived / run.message_bytes,
                false => arrived.div_ceil(run.message_bytes),
            };
            let bytes = gone * run.message_bytes;
            run.start = run.start + bytes;
            run.number += u64::from(gone);
            run.messages -= gone;
            self.messages -= gone as usize;
            self.unacknowledged_bytes -= bytes as usize;
            if run.messages > 0 {
                break;
            }
            self.runs.pop_front();
        }
        before - self.messages
    }

    /// Key of the oldest kept message, if there is one.
    pub fn oldest_key(&self) -> Option<u16> {
        self.runs.front().map(|run| run.key)
    }

    /// Start of the next message.
    pub fn next(&self) -> SeqNumber {
        self.next
    }

    /// Number of kept messages.
    pub fn len(&self) -> usize {
        self.messages
    }

    /// Returns true if everything is acknowledged.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

impl Messages for Runs {
    /// The message of the byte `seq`, without bytes.
    fn find(&self, seq: SeqNumber) -> Found<'_> {
        if !self.begun && seq.before(self.begin) {
            return Found::Before { until: self.begin };
        }
        // Messages are ordered relative to the first, because a window is less than half the
        // numbers.
        let behind = self.runs.partition_point(|run| distance(seq, run.start) >= 0);
        let Some(run) = behind.checked_sub(1).and_then(|index| self.runs.get(index)) else {
            return Found::Unknown;
        };
        let offset = seq.since(run.start) as u32;
        if offset >= run.bytes() {
            return Found::Unknown;
        }
        let before = offset / run.message_bytes;
        Found::Message(MessageState {
            start: run.start + before * run.message_bytes,
            number: run.number + u64::from(before),
            key: run.key,
            bytes: &[],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::software::sent::{Located, Sent};
    use unlade_testkit::cases;

    /// The answers of [`Sent`] and of [`Runs`] for a byte.
    fn told(sent: &Sent<Vec<u8>>, runs: &Runs, seq: SeqNumber) -> [String; 2] {
        let sent = match sent.locate(seq) {
            Located::Message(kept) => format!("{:?}", (kept.start, kept.number, kept.key)),
            Located::Before { until } => format!("before {until:?}"),
            Located::Unknown => "unknown".to_owned(),
        };
        let runs = match runs.find(seq) {
            Found::Message(found) => format!("{:?}", (found.start, found.number, found.key)),
            Found::Before { until } => format!("before {until:?}"),
            Found::Unknown => "unknown".to_owned(),
        };
        [sent, runs]
    }

    #[test]
    fn runs_say_what_messages_that_are_kept_one_by_one_say() {
        cases(200, |random| {
            let start = SeqNumber(u32::MAX - random.below(300) as u32);
            let number = random.below(5);
            let mut sent = Sent::new(start, number, 12);
            let mut runs = Runs::new(start, number, 12);
            let mut acknowledged = start - random.below(4) as u32;
            for _ in 0..60 {
                match random.below(8) {
                    0..4 => {
                        let bytes = [5, 5, 5, 9, 1][random.below(5) as usize];
                        let pushed = sent.push(vec![0; bytes]);
                        assert_eq!(runs.push(bytes as u32), pushed);
                    }
                    4 => assert_eq!(runs.change_key(), sent.change_key()),
                    _ => {
                        let on_its_way = sent.next().since(acknowledged).max(0) as u64;
                        // Includes bytes that were acknowledged before, or never sent.
                        let at = acknowledged + random.below(on_its_way + 3) as u32 - 1;
                        assert_eq!(runs.acknowledge(at), sent.acknowledge(at));
                        if !sent.next().before(at) && acknowledged.before(at) {
                            acknowledged = at;
                        }
                    }
                }
                assert_eq!((runs.len(), runs.is_empty()), (sent.len(), sent.is_empty()));
                assert_eq!(runs.oldest_key(), sent.oldest_key());
                assert_eq!(runs.next(), sent.next());
                for back in 0..90 {
                    let seq = sent.next() + 3 - back;
                    let [sent_says, runs_say] = told(&sent, &runs, seq);
                    assert_eq!(runs_say, sent_says, "{seq:?}");
                    assert_eq!(runs.under_one_key(seq, 20), sent.under_one_key(seq, 20));
                }
            }
        });
    }

    #[test]
    fn full_records_in_a_row_are_one_run() {
        let mut runs = Runs::new(SeqNumber(0), 0, 1 << 14);
        for _ in 0..1000 {
            runs.push(16_406).unwrap();
        }
        assert_eq!((runs.len(), runs.runs.len()), (1000, 1));
        assert_eq!(runs.acknowledge(SeqNumber(16_406 * 999)), 999);
        assert_eq!((runs.len(), runs.runs.len()), (1, 1));
    }

    #[test]
    fn both_limits_refuse() {
        let mut runs = Runs::new(SeqNumber(0), 0, 2);
        runs.push(1 << 30).unwrap();
        assert_eq!(runs.push(1), Err(Full));
        assert_eq!(runs.acknowledge(SeqNumber(1 << 30)), 1);
        runs.push(1).unwrap();
        runs.push(1).unwrap();
        assert_eq!(runs.push(1), Err(Full));
    }
}
