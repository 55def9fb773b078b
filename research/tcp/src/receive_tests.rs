//! The receive queue against a slow oracle, and hand-written cases.

use bytes::Bytes;
use unlade_testkit::{Random, cases};

use super::*;
use crate::payload::Marked;

type Buffer = Marked<Bytes, u64>;

const START: SeqNumber = SeqNumber(u32::MAX - 20);

fn buffer(bytes: &[u8], mark: u64) -> Buffer {
    Marked { buffer: Bytes::copy_from_slice(bytes), mark }
}

fn receive(window: u32) -> Receive<Buffer> {
    Receive::new(START, window)
}

fn insert(receive: &mut Receive<Buffer>, at: u32, bytes: &[u8], mark: u64) -> Arrived {
    let edge = START + 1000;
    receive.insert(START + at, edge, &mut vec![buffer(bytes, mark)], false)
}

fn read_all(receive: &mut Receive<Buffer>) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    while let Some((_, part)) = receive.read() {
        all.push((String::from_utf8(part.buffer.to_vec()).unwrap(), part.mark));
    }
    all
}

fn parts(due: &[(&str, u64)]) -> Vec<(String, u64)> {
    due.iter().map(|(text, mark)| ((*text).to_owned(), *mark)).collect()
}

fn blocks(receive: &mut Receive<Buffer>) -> Vec<(i32, i32)> {
    let blocks = receive.sack_blocks();
    blocks.as_slice().iter().map(|b| (b.start.since(START), b.end.since(START))).collect()
}

#[test]
fn the_first_bytes_that_come_are_kept_with_their_mark() {
    let mut receive = receive(100);
    insert(&mut receive, 4, b"EFGH", 1);
    // Overlaps out-of-order bytes on both sides.
    insert(&mut receive, 2, b"cdefghij", 2);
    assert!(receive.read().is_none());
    let arrived = insert(&mut receive, 0, b"ABCD", 3);
    assert_eq!((arrived.in_order, arrived.urgent), (10, true));
    let due = [("AB", 3), ("cd", 2), ("EFGH", 1), ("ij", 2)];
    assert_eq!(read_all(&mut receive), parts(&due));
}

#[test]
fn an_old_duplicate_changes_nothing_and_is_told() {
    let mut receive = receive(100);
    insert(&mut receive, 0, b"abcdef", 1);
    let arrived = insert(&mut receive, 1, b"XYZ", 2);
    assert_eq!((arrived.in_order, arrived.urgent), (0, true));
    assert_eq!(blocks(&mut receive), [(1, 4)]);
    assert_eq!(blocks(&mut receive), [], "once");
    assert_eq!(read_all(&mut receive), parts(&[("abcdef", 1)]));
}

#[test]
fn what_is_partly_old_brings_its_new_bytes() {
    let mut receive = receive(100);
    insert(&mut receive, 0, b"abc", 1);
    let arrived = insert(&mut receive, 1, b"BCdef", 2);
    assert_eq!(arrived.in_order, 3);
    assert_eq!(read_all(&mut receive), parts(&[("abc", 1), ("def", 2)]));
}

#[test]
fn bytes_beyond_the_window_are_cut_off() {
    let mut receive = receive(100);
    let arrived = receive.insert(START, START + 4, &mut vec![buffer(b"abcdefgh", 1)], false);
    assert_eq!((arrived.in_order, receive.next()), (4, START + 4));
    let arrived = receive.insert(START + 4, START + 4, &mut vec![buffer(b"e", 1)], false);
    assert_eq!(arrived, Arrived::default());
}

#[test]
fn blocks_are_told_in_the_order_of_rfc_2018() {
    let mut receive = receive(1000);
    for at in [10, 30, 50, 70] {
        insert(&mut receive, at, b"xxxxx", 0);
    }
    assert_eq!(blocks(&mut receive), [(70, 75), (50, 55), (30, 35), (10, 15)]);
    // A block that joins two comes first; merged blocks are reported once.
    insert(&mut receive, 35, &[b'x'; 15], 0);
    assert_eq!(blocks(&mut receive), [(30, 55), (70, 75), (10, 15)]);
    // A duplicate of out-of-order bytes is followed by the block that contains it (RFC 2883).
    insert(&mut receive, 72, b"x", 0);
    assert_eq!(blocks(&mut receive)[..2], [(72, 73), (70, 75)]);
    insert(&mut receive, 0, &[b'x'; 10], 0);
    assert_eq!(blocks(&mut receive), [(30, 55), (70, 75)]);
}

#[test]
fn the_end_counts_once_all_before_it_is_there() {
    let mut receive = receive(100);
    let edge = START + 100;
    receive.insert(START + 3, edge, &mut vec![buffer(b"de", 1)], true);
    assert!(!receive.finished());
    // Bytes after the end, and another end, are ignored.
    receive.insert(START + 4, edge, &mut vec![buffer(b"efgh", 2)], true);
    receive.insert(START, edge, &mut vec![buffer(b"abc", 3)], false);
    assert!(receive.finished());
    assert_eq!(receive.next(), START + 6);
    assert_eq!(read_all(&mut receive), parts(&[("abc", 3), ("de", 1)]));
}

#[test]
fn an_end_in_front_of_what_has_come_does_not_count() {
    let mut receive = receive(100);
    let edge = START + 100;
    insert(&mut receive, 0, b"abcd", 1);
    receive.insert(START + 2, edge, &mut Vec::new(), true);
    assert!(!receive.finished());
    insert(&mut receive, 8, b"i", 1);
    receive.insert(START + 6, edge, &mut Vec::new(), true);
    insert(&mut receive, 4, b"efgh", 1);
    assert!(!receive.finished());
    assert_eq!(receive.next(), START + 9);
}

#[test]
fn held_pieces_are_limited_and_what_is_next_always_fits() {
    let mut receive = Receive::new(START, 1 << 20);
    let edge = START + (1 << 20);
    let mut refused = 0;
    for number in 0..OUT_OF_ORDER_CHUNKS_MAX as u32 + 10 {
        let one = &mut vec![buffer(b"x", 1)];
        refused += receive.insert(START + 1 + 2 * number, edge, one, false).refused;
    }
    assert_eq!((receive.held.len(), refused), (OUT_OF_ORDER_CHUNKS_MAX, 10));
    let arrived = receive.insert(START, edge, &mut vec![buffer(b"y", 2)], false);
    assert_eq!((arrived.in_order, arrived.refused), (2, 0));
    assert_eq!(receive.held.len(), OUT_OF_ORDER_CHUNKS_MAX - 1);
}

#[test]
fn unread_pieces_are_limited() {
    let mut receive = Receive::new(START, 1 << 20);
    let mut many = vec![buffer(b"x", 1); RECEIVE_CHUNKS_MAX];
    assert!(receive.append(RECEIVE_CHUNKS_MAX as u32, &mut many));
    assert!(many.is_empty());
    let mut more = vec![buffer(b"x", 1)];
    assert!(!receive.append(1, &mut more));
    let at = START + RECEIVE_CHUNKS_MAX as u32;
    assert_eq!(receive.insert(at, at + 10, &mut more, false).refused, 1);
    receive.read();
    assert!(receive.append(1, &mut vec![buffer(b"x", 1)]));
}

/// A byte and the packet that brought it first.
type Known = Option<(u8, u64)>;

/// The expected result after all packets, byte by byte.
struct Oracle {
    bytes: Vec<Known>,
    next: usize,
}

impl Oracle {
    fn insert(&mut self, at: i64, bytes: &[u8], edge: usize, mark: u64) {
        for (index, &byte) in bytes.iter().enumerate() {
            let Ok(position) = usize::try_from(at + index as i64) else { continue };
            if position >= self.next && position < edge && self.bytes[position].is_none() {
                self.bytes[position] = Some((byte, mark));
            }
        }
        while self.bytes.get(self.next).is_some_and(Option::is_some) {
            self.next += 1;
        }
    }

    fn ranges(&self) -> Vec<(i32, i32)> {
        let mut ranges: Vec<(i32, i32)> = Vec::new();
        for position in self.next..self.bytes.len() {
            let at = position as i32;
            match (self.bytes[position], ranges.last_mut()) {
                (None, _) => {}
                (_, Some(last)) if last.1 == at => last.1 += 1,
                _ => ranges.push((at, at + 1)),
            }
        }
        ranges
    }
}

pub(crate) fn compare(random: &mut Random) {
    let total = 1 + random.below(400) as usize;
    let mut receive = receive(1000);
    let mut oracle = Oracle { bytes: vec![None; total + 500], next: 0 };
    let mut read = Vec::new();
    for mark in 0..random.below(80) {
        let at = random.below(total as u64 + 20) as i64 - 20;
        let count = 1 + random.below(60) as usize;
        let edge = oracle.next + random.below(300) as usize;
        let bytes: Vec<u8> = (0..count).map(|_| random.next() as u8).collect();
        let cut = random.below(count as u64) as usize;
        let mut pieces = vec![buffer(&bytes[..cut], mark), buffer(&bytes[cut..], mark)];
        let seq = SeqNumber(START.0.wrapping_add(at as u32));
        let before = oracle.next;
        oracle.insert(at, &bytes, edge, mark);
        let arrived = receive.insert(seq, START + edge as u32, &mut pieces, false);
        assert_eq!(arrived.in_order as usize, oracle.next - before);
        assert_eq!(receive.next(), START + oracle.next as u32);
        let held: Vec<_> = receive
            .ranges
            .iter()
            .map(|range| (range.start.since(START), range.end.since(START)))
            .collect();
        assert_eq!(held, oracle.ranges());
        receive.duplicate = None;
        for block in blocks(&mut receive) {
            assert!(held.contains(&block));
        }
        if random.once_in(2) {
            read_into(&mut receive, &mut read);
        }
    }
    read_into(&mut receive, &mut read);
    let due: Vec<_> = oracle.bytes[..oracle.next].iter().map(|known| known.unwrap()).collect();
    assert_eq!(read, due);
}

fn read_into(receive: &mut Receive<Buffer>, read: &mut Vec<(u8, u64)>) {
    while let Some((at, part)) = receive.read() {
        assert_eq!(at, START + read.len() as u32);
        read.extend(part.buffer.iter().map(|&byte| (byte, part.mark)));
    }
}

#[test]
fn random_segments_end_as_the_oracle_says() {
    cases(20_000, compare);
}
