//! Records of writes that were acknowledged to a caller before they were in the store.
//!
//! A record is a length, a CRC32C and a content, little-endian. The file begins with a magic
//! number. A restarted worker replays the writes that were begun and not ended, in order. The file
//! ends at a torn record: data after it was never acknowledged.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The magic number of a journal.
pub const MAGIC: &[u8; 8] = b"UNLADEJ1";
/// Most bytes of a record's content.
pub const RECORD_BYTES_MAX: usize = 1 << 30;
const HEAD_BYTES: usize = 8;

const BEGUN: u8 = 1;
const ENDED: u8 = 2;

/// A write that must be executed.
#[derive(Clone, Debug, PartialEq)]
pub struct UnfinishedWrite {
    /// Its number; numbers increase.
    pub id: u64,
    /// Its description.
    pub write: Write,
    /// Its body.
    pub body: Vec<u8>,
}

/// The description of a write, without its body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Write {
    /// `PutObject`.
    pub operation: String,
    /// Its parameters.
    pub parameters: Map<String, Value>,
    /// The invocation of the write.
    pub invocation: String,
}

/// Appends the record of a write's start.
pub fn begun(out: &mut Vec<u8>, id: u64, write: &Write, body: &[&[u8]]) {
    let text = serde_json::to_vec(write).unwrap_or_default();
    record(out, |out| {
        out.push(BEGUN);
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&(text.len() as u32).to_le_bytes());
        out.extend_from_slice(&text);
        body.iter().for_each(|piece| out.extend_from_slice(piece));
    });
}

/// Appends the record of a write's end, with success or final failure.
pub fn ended(out: &mut Vec<u8>, id: u64) {
    record(out, |out| {
        out.push(ENDED);
        out.extend_from_slice(&id.to_le_bytes());
    });
}

fn record(out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    content(out);
    let bytes = (out.len() - start - HEAD_BYTES) as u32;
    let sum = crc32c::crc32c(&out[start + HEAD_BYTES..]);
    out[start..start + 4].copy_from_slice(&bytes.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
}

/// The content of a journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replay {
    /// Writes that have begun and not ended, in the order of their start.
    pub unfinished: Vec<UnfinishedWrite>,
    /// Length up to the end of the last complete record.
    pub whole_bytes: usize,
    /// The number for the next write.
    pub next_id: u64,
}

/// Reads a journal up to the first torn or invalid record.
pub fn replay(journal: &[u8]) -> Replay {
    let mut unfinished = BTreeMap::new();
    let mut next_id = 1;
    let Some(mut rest) = journal.strip_prefix(MAGIC.as_slice()) else { return Replay::default() };
    while let Some((content, behind)) = next_record(rest) {
        let Some((id, write)) = understand(content) else { break };
        next_id = next_id.max(id.saturating_add(1));
        match write {
            Some((write, body)) => {
                unfinished.insert(id, UnfinishedWrite { id, write, body: body.to_vec() });
            }
            None => {
                unfinished.remove(&id);
            }
        }
        rest = behind;
    }
    let whole_bytes = journal.len() - rest.len();
    Replay { unfinished: unfinished.into_values().collect(), whole_bytes, next_id }
}

fn next_record(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (bytes, rest) = input.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let bytes = u32::from_le_bytes(*bytes) as usize;
    if bytes > RECORD_BYTES_MAX {
        return None;
    }
    let (content, behind) = rest.split_at_checked(bytes)?;
    (crc32c::crc32c(content) == u32::from_le_bytes(*sum)).then_some((content, behind))
}

type Understood<'a> = (u64, Option<(Write, &'a [u8])>);

fn understand(content: &[u8]) -> Option<Understood<'_>> {
    let (&kind, rest) = content.split_first()?;
    let (id, rest) = rest.split_first_chunk::<8>()?;
    let id = u64::from_le_bytes(*id);
    match kind {
        ENDED => Some((id, None)),
        BEGUN => {
            let (bytes, rest) = rest.split_first_chunk::<4>()?;
            let (text, body) = rest.split_at_checked(u32::from_le_bytes(*bytes) as usize)?;
            Some((id, Some((serde_json::from_slice(text).ok()?, body))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::cases;

    fn write(key: u64) -> Write {
        let parameters = Map::from_iter([("Key".to_owned(), key.into())]);
        Write { operation: "PutObject".into(), parameters, invocation: "i".into() }
    }

    /// Compares with a list of the begun and ended writes: a journal truncated at any position
    /// contains a prefix of the history.
    #[test]
    fn what_is_unfinished_is_replayed_wherever_the_file_was_torn() {
        cases(200, |random| {
            let mut file = MAGIC.to_vec();
            let mut open: Vec<UnfinishedWrite> = Vec::new();
            // After each record: its end, and the open writes.
            let mut history = vec![(file.len(), open.clone())];
            for id in 1..=random.below(12) {
                let body = vec![id as u8; random.below(40) as usize];
                let (front, back) = body.split_at(body.len() / 2);
                begun(&mut file, id, &write(id), &[front, back]);
                open.push(UnfinishedWrite { id, write: write(id), body });
                history.push((file.len(), open.clone()));
                if random.once_in(2) {
                    let gone = open.remove(random.below(open.len() as u64) as usize);
                    ended(&mut file, gone.id);
                    history.push((file.len(), open.clone()));
                }
            }
            assert_eq!(replay(&file).unfinished, open);
            let cut = MAGIC.len() + random.below((file.len() - MAGIC.len() + 1) as u64) as usize;
            let (end, due) = history.iter().rev().find(|(end, _)| *end <= cut).unwrap();
            let torn = replay(&file[..cut]);
            assert_eq!((torn.whole_bytes, &torn.unfinished), (*end, due));
            assert!(torn.unfinished.iter().all(|begun| begun.id < torn.next_id));
            // One byte is changed: records before it stay readable.
            let mut spoilt = file.clone();
            let at = MAGIC.len() + random.below((file.len() - MAGIC.len()).max(1) as u64) as usize;
            if let Some(byte) = spoilt.get_mut(at) {
                *byte ^= 1 << random.below(8);
                let (end, _) = history.iter().rev().find(|(end, _)| *end <= at).unwrap();
                assert_eq!(replay(&spoilt).whole_bytes, *end);
            }
        });
    }

    #[test]
    fn what_is_no_journal_tells_nothing() {
        assert_eq!(replay(b"").unfinished, []);
        assert_eq!(replay(b"UNLADEJ2").whole_bytes, 0);
        assert_eq!(replay(MAGIC).whole_bytes, 8);
    }
}
