//! The bytes of sent records until they are acknowledged: one buffer in memory, or the content
//! apart from the bytes around it; the content may be in a file.
//!
//! A file can change while the kernel still has to retransmit some of it. Two contents that are
//! sealed with the same nonce would reveal each other, and the authentication key. Therefore the
//! engine keeps a fingerprint of the content that it has sealed ([`Tx::fingerprint`]), and seals
//! bytes again only if the file still has that content and the packet has the same. The file is
//! read once for that: the check and the replay use the same bytes.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use unlade_net::SeqNumber;
use unlade_nic_engine::Stats;
use unlade_nic_engine::software::sent::{Extent, Kept, Located, Sent};
use unlade_nic_engine::tls::{Progress, TAG_BYTES, Tls};
use unlade_nic_engine::tx::{self, Found, MessageState, Messages, Shadow, Tx, Verdict};

/// Location of a record's bytes, as software has written them.
#[derive(Clone, Debug)]
pub enum TxRecord {
    /// One buffer in memory.
    Memory(Bytes),
    /// Several buffers.
    Split(Box<SplitRecord>),
}

impl Extent for TxRecord {
    fn bytes(&self) -> usize {
        match self {
            TxRecord::Memory(bytes) => bytes.len(),
            TxRecord::Split(record) => record.bytes(),
        }
    }
}

/// Content of a record.
#[derive(Clone, Debug)]
pub enum Content {
    /// In memory, where it does not change.
    Memory(Bytes),
    /// In a file.
    File {
        /// The file.
        file: Arc<File>,
        /// Offset at which the content begins.
        at: u64,
        /// Length of the content.
        bytes: usize,
    },
}

/// A record whose content is apart from the bytes around it.
#[derive(Clone, Debug)]
pub struct SplitRecord {
    head: Bytes,
    tail: Bytes,
    content: Content,
    sealed: Cell<SealedPart>,
}

/// The part of a record that has been sealed, and its fingerprint.
#[derive(Clone, Copy, Debug, Default)]
struct SealedPart {
    bytes: usize,
    /// `None` while the part has no content.
    fingerprint: Option<[u8; TAG_BYTES]>,
}

/// The file no longer has the sealed content, or cannot be read: nothing can be sealed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed;

/// The machine of a key, with its state.
pub struct Machine<'m> {
    /// The key.
    pub tls: &'m Tls,
    /// Position of the machine.
    pub shadow: &'m mut Shadow,
    /// The machine.
    pub tx: &'m mut Tx<Progress>,
}

impl SplitRecord {
    /// Creates a record with `content` between `head` and `tail`.
    pub fn new((head, tail): (Bytes, Bytes), content: Content) -> SplitRecord {
        SplitRecord { head, tail, content, sealed: Cell::default() }
    }

    fn content_bytes(&self) -> usize {
        match &self.content {
            Content::Memory(plaintext) => plaintext.len(),
            Content::File { bytes, .. } => *bytes,
        }
    }

    /// Length of the record.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.content_bytes() + self.tail.len()
    }

    /// The first `bytes` of the record, as they are now.
    fn read(&self, bytes: usize) -> Result<Vec<u8>, Changed> {
        let mut all = vec![0; bytes.min(self.bytes())];
        let (head_bytes, content_bytes) = (self.head.len(), self.content_bytes());
        let (head, rest) = all.split_at_mut(head_bytes.min(bytes));
        head.copy_from_slice(&self.head[..head.len()]);
        let (content, tail) = rest.split_at_mut(content_bytes.min(rest.len()));
        match &self.content {
            Content::Memory(bytes) => content.copy_from_slice(&bytes[..content.len()]),
            Content::File { file, at, .. } => {
                file.read_exact_at(content, *at).map_err(|_| Changed)?;
            }
        }
        tail.copy_from_slice(&self.tail[..tail.len()]);
        Ok(all)
    }

    /// Seals `payload`, which is of this record only; `seq` is its first byte.
    ///
    /// # Errors
    /// [`Changed`]; `payload` must not be sent.
    pub fn send(
        &self,
        Kept { start, number, key, .. }: Kept<'_, TxRecord>,
        Machine { tls, shadow, tx }: Machine<'_>,
        stats: &mut Stats,
        seq: SeqNumber,
        payload: &mut [u8],
    ) -> Result<Verdict, Changed> {
        let offset = seq.since(start) as usize;
        let end = offset + payload.len();
        let sealed = self.sealed.get();
        let bytes = match shadow.is_next(seq) && offset == sealed.bytes {
            true => Vec::new(),
            false => {
                let bytes = self.read(sealed.bytes.max(offset))?;
                let again = bytes.get(offset..sealed.bytes.min(end)).unwrap_or_default();
                let state = MessageState { start, number, key, bytes: &bytes[..sealed.bytes] };
                let may_change = matches!(self.content, Content::File { .. });
                let same = || again == &payload[..again.len()];
                if may_change && !(same() && sealed.is_of(tls, &state, self.head.len())) {
                    return Err(Changed);
                }
                bytes
            }
        };
        let one = SingleRecord(MessageState { start, number, key, bytes: &bytes });
        let verdict = tx::send(tls, (shadow, tx), stats, &one, seq, payload);
        if verdict == Verdict::Send && end > sealed.bytes {
            let fingerprint = if end > self.head.len() { tx.fingerprint(tls) } else { None };
            self.sealed.set(SealedPart { bytes: end, fingerprint });
        }
        Ok(verdict)
    }
}

impl SealedPart {
    /// Returns true if this is of the record with these bytes; its content begins at
    /// `content_at`.
    fn is_of(&self, tls: &Tls, state: &MessageState<'_>, content_at: usize) -> bool {
        if self.bytes <= content_at {
            return true;
        }
        let mut machine = Tx::new(state.start, state.number, state.key);
        let end = state.start + self.bytes as u32;
        machine.recover(tls, &mut Stats::default(), state, end)
            && self.fingerprint.is_some()
            && machine.fingerprint(tls) == self.fingerprint
    }
}

/// One record, whose bytes were read.
struct SingleRecord<'m>(MessageState<'m>);

impl Messages for SingleRecord<'_> {
    fn find(&self, _seq: SeqNumber) -> Found<'_> {
        Found::Message(self.0)
    }
}

/// The records in memory, without those in files.
pub struct MemoryRecords<'s>(pub &'s Sent<TxRecord>);

impl Messages for MemoryRecords<'_> {
    fn find(&self, seq: SeqNumber) -> Found<'_> {
        match self.0.locate(seq) {
            Located::Message(Kept { start, number, key, held: TxRecord::Memory(bytes) }) => {
                Found::Message(MessageState { start, number, key, bytes })
            }
            Located::Before { until } => Found::Before { until },
            Located::Message(_) | Located::Unknown => Found::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::flow::TxSide;
    use super::*;
    use unlade_nic_engine::tls::Version;
    use unlade_testkit::Random;

    fn tls() -> Tls {
        Tls::new(Version::Tls13, &[7; 16], [9; 12]).unwrap()
    }

    /// Records, some of them in a file, and their bytes on the wire.
    struct Stream {
        held: Vec<TxRecord>,
        starts: Vec<usize>,
        clear: Vec<u8>,
        sealed: Vec<u8>,
        file: Arc<File>,
    }

    impl Stream {
        /// Offset of a record's content in the file, and its length.
        fn place(&self, which: usize) -> Option<(u64, usize)> {
            match &self.held[which] {
                TxRecord::Split(record) => match &record.content {
                    Content::File { at, bytes, .. } => Some((*at, *bytes)),
                    Content::Memory(_) => None,
                },
                TxRecord::Memory(_) => None,
            }
        }
    }

    fn stream(random: &mut Random, count: usize) -> Stream {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let (mut held, mut starts, mut clear) = (Vec::new(), Vec::new(), Vec::new());
        let mut in_memory = TxSide::new(SeqNumber(0), 0, 0, tls());
        let mut at = 0;
        for _ in 0..count {
            let content: Vec<u8> =
                (0..1 + random.below(1500)).map(|_| random.next() as u8).collect();
            let mut head = vec![23, 3, 3];
            head.extend((content.len() as u16 + 17).to_be_bytes());
            let mut tail = vec![0; 17];
            tail[0] = 23;
            let record = [&head[..], &content, &tail].concat();
            starts.push(clear.len());
            clear.extend(&record);
            in_memory.push(Bytes::from(record.clone())).unwrap();
            held.push(match random.below(4) {
                0 => TxRecord::Memory(record.into()),
                1 => {
                    let around = (head.into(), tail.into());
                    let content = Content::Memory(content.into());
                    TxRecord::Split(Box::new(SplitRecord::new(around, content)))
                }
                _ => {
                    file.write_all_at(&content, at).unwrap();
                    let (around, bytes) = ((head.into(), tail.into()), content.len());
                    let content = Content::File { file: file.clone(), at, bytes };
                    at += bytes as u64;
                    TxRecord::Split(Box::new(SplitRecord::new(around, content)))
                }
            });
        }
        let mut sealed = clear.clone();
        let verdict = in_memory.send(&mut Stats::default(), SeqNumber(0), &mut sealed);
        assert_eq!(verdict, Verdict::Send);
        Stream { held, starts, clear, sealed, file }
    }

    fn side(stream: &Stream, origin: SeqNumber) -> TxSide {
        let mut side = TxSide::new(origin, 0, 0, tls());
        for held in &stream.held {
            match held.clone() {
                TxRecord::Memory(bytes) => side.push(bytes).unwrap(),
                TxRecord::Split(record) => side.push_split(*record).unwrap(),
            }
        }
        side
    }

    /// The bytes on the wire of the stream's `range`.
    fn send(
        side: &mut TxSide,
        stream: &Stream,
        origin: SeqNumber,
        range: std::ops::Range<usize>,
    ) -> Option<Vec<u8>> {
        let mut payload = stream.clear[range.clone()].to_vec();
        let seq = origin + range.start as u32;
        let verdict = side.send(&mut Stats::default(), seq, &mut payload);
        (verdict == Verdict::Send).then_some(payload)
    }

    #[test]
    fn records_of_a_file_are_sealed_as_those_in_memory_whatever_is_sent_again() {
        unlade_testkit::cases(80, |random| {
            let stream = stream(random, 25);
            let origin = SeqNumber(random.next() as u32);
            let mut side = side(&stream, origin);
            let (total, mut sent, mut acknowledged) = (stream.clear.len(), 0, 0);
            while acknowledged < total {
                let again = sent == total || random.below(3) == 0;
                let start = match again {
                    true => acknowledged + random.below((sent - acknowledged + 1) as u64) as usize,
                    false => sent,
                };
                let end = (start + 1 + random.below(4000) as usize).min(total);
                // Some segments never reach the device: the segments behind them have a gap
                // before them.
                if start < end && random.below(6) != 0 {
                    let wire = send(&mut side, &stream, origin, start..end);
                    assert!(wire.as_deref() == Some(&stream.sealed[start..end]));
                }
                sent = sent.max(end);
                if random.below(4) == 0 || sent == total {
                    acknowledged += random.below((sent - acknowledged + 1) as u64) as usize;
                    side.acknowledge(acknowledged as u64);
                }
            }
            assert!(side.is_empty() && !side.is_broken());
        });
    }

    #[test]
    fn no_byte_is_sealed_again_with_another_content() {
        unlade_testkit::cases(80, |random| {
            let stream = stream(random, 6);
            let origin = SeqNumber(random.next() as u32);
            let mut side = side(&stream, origin);
            let in_files = (0..6).filter(|which| stream.place(*which).is_some());
            let in_files: Vec<usize> = in_files.collect();
            let Some(&which) = in_files.get(random.below(6) as usize % in_files.len().max(1))
            else {
                return;
            };
            let TxRecord::Split(record) = &stream.held[which] else { return };
            let Some((at, content_bytes)) = stream.place(which) else { return };
            // The first `sealed` bytes of the content are sent, and one of them changes then.
            let sealed = 1 + random.below(content_bytes as u64) as usize;
            let first = stream.starts[which] + record.head.len();
            assert!(send(&mut side, &stream, origin, 0..first + sealed).is_some());
            let changed = random.below(sealed as u64) as usize;
            let (flip, truncated) = (1 << random.below(8), random.below(4) == 0);
            match truncated {
                true => stream.file.set_len(at + changed as u64).unwrap(),
                false => {
                    let byte = stream.clear[first + changed] ^ flip;
                    stream.file.write_all_at(&[byte], at + changed as u64).unwrap();
                }
            }
            // The kernel's packet may have the old bytes, or the new ones.
            let start =
                stream.starts[which] + random.below((record.head.len() + sealed) as u64) as usize;
            let mut payload = stream.clear[start..first + sealed].to_vec();
            if !truncated && random.below(2) == 0 && start <= first + changed {
                payload[first + changed - start] ^= flip;
            }
            let seq = origin + start as u32;
            let verdict = side.send(&mut Stats::default(), seq, &mut payload);
            assert_eq!((verdict, side.is_broken()), (Verdict::Drop, true));
            // Nothing is sent any more.
            assert!(send(&mut side, &stream, origin, 0..3).is_none());
            let end = stream.clear.len();
            assert!(send(&mut side, &stream, origin, end - 1..end).is_none());
        });
    }

    #[test]
    fn a_file_that_the_packet_does_not_agree_with_is_as_good_as_changed() {
        unlade_testkit::cases(20, |random| {
            let stream = stream(random, 4);
            let origin = SeqNumber(3);
            let mut side = side(&stream, origin);
            let total = stream.clear.len();
            assert!(send(&mut side, &stream, origin, 0..total).is_some());
            let Some(which) = (0..4).find(|which| stream.place(*which).is_some()) else { return };
            let at = stream.starts[which] + 5;
            let mut payload = vec![stream.clear[at] ^ 1];
            let verdict = side.send(&mut Stats::default(), origin + at as u32, &mut payload);
            assert_eq!((verdict, side.is_broken()), (Verdict::Drop, true));
        });
    }
}
