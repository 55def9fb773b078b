//! The log of a function: printed bytes as lines, a limit of their rate, and the last lines.
//!
//! Sans-IO: bytes and the time are inputs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Longest line in bytes; a longer one becomes several.
pub const LINE_BYTES_MAX: usize = 16 * 1024;
/// Bytes that an entry is charged beside its text.
pub const ENTRY_BYTES: usize = 128;
/// Most bytes of the entries in a [`Page`], unless it has one entry only.
pub const PAGE_BYTES_MAX: usize = 1 << 20;
/// The period of [`Rate`].
const PERIOD: Duration = Duration::from_secs(1);

/// Splits bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// Adds printed bytes, and passes on each line that ends in them.
    pub fn add(&mut self, bytes: &[u8], line: &mut dyn FnMut(String)) {
        let mut parts = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(mut part) = parts.next() {
            while self.pending.len() + part.len() > LINE_BYTES_MAX {
                let (first, rest) = part.split_at(LINE_BYTES_MAX - self.pending.len());
                self.pending.extend_from_slice(first);
                part = rest;
                self.pass(line);
            }
            self.pending.extend_from_slice(part);
            if parts.peek().is_some() {
                self.pass(line);
            }
        }
    }

    /// Passes on a line that has not ended.
    pub fn end(&mut self, line: &mut dyn FnMut(String)) {
        if !self.pending.is_empty() {
            self.pass(line);
        }
    }

    fn pass(&mut self, line: &mut dyn FnMut(String)) {
        let text = String::from_utf8_lossy(&self.pending).trim_end_matches('\r').to_owned();
        self.pending.clear();
        line(text);
    }
}

/// A limit of lines in a second.
#[derive(Debug)]
pub struct Rate {
    lines_max: u32,
    since: Option<Instant>,
    passed: u32,
    dropped: u64,
}

impl Rate {
    /// A limit of this number of lines.
    pub fn new(lines_max: u32) -> Rate {
        Rate { lines_max, since: None, passed: 0, dropped: 0 }
    }

    /// Counts a line; false if it is to be dropped.
    pub fn admit(&mut self, now: Instant) -> bool {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= PERIOD;
        if self.since.is_none_or(is_over) {
            (self.since, self.passed) = (Some(now), 0);
        }
        let is_admitted = self.passed < self.lines_max;
        if is_admitted {
            self.passed += 1;
        } else {
            self.dropped += 1;
        }
        is_admitted
    }

    /// The number of dropped lines since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number in the log, from 1 on.
    pub number: u64,
    /// The time at which the host has read it, in milliseconds since the UNIX epoch.
    pub at_ms: u64,
    /// The version of the function.
    pub version: String,
    /// The instance; `None` for the template.
    pub instance: Option<u64>,
    /// The invocation that ran; `None` between invocations.
    pub request: Option<String>,
    /// The text, without the line's end.
    pub text: String,
}

impl Entry {
    fn bytes(&self) -> usize {
        let request = self.request.as_ref().map_or(0, String::len);
        ENTRY_BYTES + self.version.len() + request + self.text.len()
    }
}

/// The lines that a reader asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Only lines with a higher number.
    pub after: u64,
    /// Only lines from this time on, in milliseconds since the UNIX epoch.
    pub since_ms: u64,
    /// Only lines of this invocation.
    pub request: Option<String>,
}

/// A part of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// The lines, in their order.
    pub lines: Vec<Entry>,
    /// The number after which the next page begins.
    pub next: u64,
    /// True if the log has more lines now.
    pub more: bool,
    /// The number of lines after [`Wanted::after`] that the log no longer has.
    pub missed: u64,
}

/// The last lines of a log, within a number of bytes.
#[derive(Debug)]
pub struct Ring {
    bytes_max: usize,
    bytes: usize,
    last: u64,
    entries: VecDeque<Entry>,
}

impl Ring {
    /// An empty log of at most this size.
    pub fn new(bytes_max: usize) -> Ring {
        Ring { bytes_max, bytes: 0, last: 0, entries: VecDeque::new() }
    }

    /// Adds a line, which gets the next number; the oldest ones go for it.
    pub fn add(&mut self, entry: Entry) {
        self.last += 1;
        self.bytes += entry.bytes();
        self.entries.push_back(Entry { number: self.last, ..entry });
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.entries.pop_front() else { return };
            self.bytes -= oldest.bytes();
        }
    }

    /// The first lines that a reader asks for.
    pub fn page(&self, wanted: &Wanted) -> Page {
        let oldest = self.entries.front().map_or(self.last + 1, |entry| entry.number);
        let missed = oldest.saturating_sub(wanted.after.saturating_add(1));
        let mut page = Page { missed, next: self.last, ..Page::default() };
        let mut bytes = 0;
        // Numbers are consecutive.
        let from = wanted.after.saturating_add(1).saturating_sub(oldest);
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(self.entries.len());
        for entry in self.entries.range(from..) {
            let is_of_request = wanted.request.is_none() || wanted.request == entry.request;
            if !is_of_request || entry.at_ms < wanted.since_ms {
                continue;
            }
            if !page.lines.is_empty() && bytes + entry.bytes() > PAGE_BYTES_MAX {
                page.next = page.lines.last().map_or(wanted.after, |last| last.number);
                page.more = true;
                break;
            }
            bytes += entry.bytes();
            page.lines.push(entry.clone());
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use unlade_testkit::{Random, cases};

    use super::*;

    fn lines(parts: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        for part in parts {
            lines.add(part, &mut |line| out.push(line));
        }
        lines.end(&mut |line| out.push(line));
        out
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_are_cut() {
        assert_eq!(lines(&[b"a\nb", b"c\r\n\n", b"d"]), ["a", "bc", "", "d"]);
        assert!(lines(&[]).is_empty());
        cases(200, |random| {
            let lengths = [0, 1, 7, LINE_BYTES_MAX - 1, LINE_BYTES_MAX, LINE_BYTES_MAX + 1, 40_000];
            let mut bytes = Vec::new();
            for _ in 0..random.below(6) {
                bytes.extend(vec![b'x'; lengths[random.below(lengths.len() as u64) as usize]]);
                bytes.push(b'\n');
            }
            // The oracle cuts whole lines.
            let text = String::from_utf8(bytes.clone()).unwrap();
            let mut due = Vec::new();
            for line in text.lines() {
                let mut rest = line;
                while rest.len() > LINE_BYTES_MAX {
                    due.push(rest[..LINE_BYTES_MAX].to_owned());
                    rest = &rest[LINE_BYTES_MAX..];
                }
                due.push(rest.to_owned());
            }
            let (mut parts, mut left) = (Vec::new(), bytes.as_slice());
            while !left.is_empty() {
                let at = 1 + random.below(left.len() as u64) as usize;
                parts.push(&left[..at]);
                left = &left[at..];
            }
            assert_eq!(lines(&parts), due);
        });
    }

    #[test]
    fn a_second_has_a_number_of_lines_and_the_rest_is_counted() {
        let (mut rate, begin) = (Rate::new(2), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!([0, 1, 2, 999].map(|ms| rate.admit(at(ms))), [true, true, false, false]);
        assert!(rate.admit(at(1000)));
        assert_eq!((rate.take_dropped(), rate.take_dropped()), (2, 0));
    }

    fn entry(random: &mut Random) -> Entry {
        let request = ["a", "b", ""][random.below(3) as usize];
        Entry {
            number: 0,
            at_ms: random.below(50),
            version: "1".to_owned(),
            instance: None,
            request: (!request.is_empty()).then(|| request.to_owned()),
            text: "x".repeat(random.below(300) as usize),
        }
    }

    #[test]
    fn a_log_has_the_last_lines_and_pages_lose_none() {
        cases(300, |random| {
            let bytes_max = random.below(4000) as usize;
            let (mut ring, mut all) = (Ring::new(bytes_max), Vec::new());
            for number in 1..=random.below(60) {
                let entry = entry(random);
                ring.add(entry.clone());
                all.push(Entry { number, ..entry });
            }
            // The oracle: the longest end of everything that fits.
            let mut kept: Vec<&Entry> = Vec::new();
            let mut bytes = 0;
            for entry in all.iter().rev() {
                bytes += entry.bytes();
                if bytes > bytes_max {
                    break;
                }
                kept.insert(0, entry);
            }
            let wanted = Wanted {
                after: random.below(70),
                since_ms: random.below(60),
                request: [None, Some("a".to_owned())][random.below(2) as usize].clone(),
            };
            let is_due = |entry: &&&Entry| {
                entry.number > wanted.after
                    && entry.at_ms >= wanted.since_ms
                    && (wanted.request.is_none() || wanted.request == entry.request)
            };
            let due: Vec<Entry> =
                kept.iter().filter(is_due).map(|entry| (*entry).clone()).collect();
            let page = ring.page(&wanted);
            assert_eq!(page.lines, due);
            assert!(!page.more && page.next == all.len() as u64);
            let gone = all.iter().take(all.len() - kept.len());
            assert_eq!(
                page.missed,
                gone.filter(|entry| entry.number > wanted.after).count() as u64
            );
        });
    }

    #[test]
    fn a_long_log_comes_in_pages() {
        let mut ring = Ring::new(8 * PAGE_BYTES_MAX);
        let text = "x".repeat(LINE_BYTES_MAX);
        for _ in 0..200 {
            let (version, instance, request) = ("1".to_owned(), Some(1), None);
            ring.add(Entry { number: 0, at_ms: 1, version, instance, request, text: text.clone() });
        }
        let (mut wanted, mut numbers, mut pages) = (Wanted::default(), Vec::new(), 0);
        loop {
            let page = ring.page(&wanted);
            assert!(page.lines.iter().map(Entry::bytes).sum::<usize>() <= PAGE_BYTES_MAX);
            numbers.extend(page.lines.iter().map(|entry| entry.number));
            (wanted.after, pages) = (page.next, pages + 1);
            if !page.more {
                break;
            }
        }
        assert_eq!(numbers, (1..=200).collect::<Vec<_>>());
        assert!(pages > 3, "{pages}");
    }
}
