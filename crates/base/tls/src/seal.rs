//! Sealing of one record, and the positions of the plaintext of many records in one buffer.

use aws_lc_rs::aead::{Aad, Nonce};

use crate::error::RecordError;
use crate::keys::Keys;
use crate::record::{APPLICATION_DATA, HEADER_BYTES, PLAINTEXT_BYTES_MAX};
use crate::suite::{EXPLICIT_NONCE_BYTES, Suite, TAG_BYTES};

/// The positions of the plaintext of the next records inside one buffer: a file can be read
/// directly to its place, then headers and tags are added around it, and the whole is encrypted in
/// place.
///
/// The buffer contains records of 16 KiB of plaintext each, the last one shorter; each has its own
/// header before the plaintext and its tag after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    prefix_bytes: usize,
    suffix_bytes: usize,
    plaintext_bytes: usize,
}

impl Layout {
    pub(crate) fn new(suite: &Suite, plaintext_bytes: usize) -> Layout {
        let explicit = if suite.explicit_nonce { EXPLICIT_NONCE_BYTES } else { 0 };
        // TLS 1.3 appends the content type to the content.
        let inner_type = usize::from(suite.is_13());
        Layout {
            prefix_bytes: HEADER_BYTES + explicit,
            suffix_bytes: inner_type + TAG_BYTES,
            plaintext_bytes,
        }
    }

    /// The amount of plaintext of the layout, bytes.
    pub fn plaintext_bytes(&self) -> usize {
        self.plaintext_bytes
    }

    /// The required length of the buffer, bytes.
    pub fn sealed_bytes(&self) -> usize {
        self.sealed_bytes_of(self.plaintext_bytes)
    }

    /// The length of the records that contain `plaintext_bytes`, bytes.
    pub fn sealed_bytes_of(&self, plaintext_bytes: usize) -> usize {
        let records = plaintext_bytes.div_ceil(PLAINTEXT_BYTES_MAX);
        plaintext_bytes + records * self.overhead_bytes()
    }

    /// The slots for plaintext inside `buffer`, in order: 16 KiB each, the last one the remainder.
    /// They suit a vectored read. A buffer that is too short yields fewer or shorter slots.
    pub fn slots<'b>(&self, buffer: &'b mut [u8]) -> impl Iterator<Item = &'b mut [u8]> + use<'b> {
        let used = self.sealed_bytes().min(buffer.len());
        let (prefix, suffix) = (self.prefix_bytes, self.suffix_bytes);
        buffer[..used].chunks_mut(self.stride()).filter_map(move |record| {
            let end = record.len().checked_sub(suffix)?;
            record.get_mut(prefix..end)
        })
    }

    pub(crate) fn overhead_bytes(&self) -> usize {
        self.prefix_bytes + self.suffix_bytes
    }

    pub(crate) fn stride(&self) -> usize {
        PLAINTEXT_BYTES_MAX + self.overhead_bytes()
    }
}

/// A record whose header is written, split into the part to be sealed and the space after it.
struct Frame<'r> {
    head: [u8; HEADER_BYTES],
    nonce: [u8; 12],
    content: &'r mut [u8],
    tail: &'r mut [u8],
}

/// Writes the header of the content that `record` has space for.
fn frame<'r>(
    keys: &Keys,
    content_type: u8,
    record: &'r mut [u8],
) -> Result<Frame<'r>, RecordError> {
    let suite = keys.suite();
    if keys.sequence() >= suite.records_max {
        return Err(RecordError::Exhausted { records: keys.sequence() });
    }
    let given = record.len();
    let layout = Layout::new(suite, 0);
    let too_short = RecordError::BufferLength { given, needed: layout.overhead_bytes() };
    let content_bytes = given.checked_sub(layout.overhead_bytes()).ok_or(too_short)?;
    let nonce = keys.nonce();
    let (room, rest) = record.split_first_chunk_mut::<HEADER_BYTES>().ok_or(too_short)?;
    let outer_type = if suite.is_13() { APPLICATION_DATA } else { content_type };
    let [high, low] = (rest.len() as u16).to_be_bytes();
    let head = [outer_type, 3, 3, high, low];
    *room = head;
    let sealed = if suite.explicit_nonce {
        let (explicit, sealed) =
            rest.split_first_chunk_mut::<EXPLICIT_NONCE_BYTES>().ok_or(too_short)?;
        explicit.copy_from_slice(&nonce[4..]);
        sealed
    } else {
        rest
    };
    let (content, tail) = sealed.split_at_mut_checked(content_bytes).ok_or(too_short)?;
    Ok(Frame { head, nonce, content, tail })
}

/// Seals `frame`: its own content, or `content` of the same length, which saves a copy.
fn seal_frame(
    keys: &mut Keys,
    content_type: u8,
    frame: Frame<'_>,
    content: Option<&[u8]>,
) -> Result<(), RecordError> {
    let nonce = Nonce::assume_unique_for_key(frame.nonce);
    let (aad_12, inner_type) = (keys.aad_12(content_type, frame.content.len()), [content_type]);
    let (aad, inner_type): (&[u8], &[u8]) = match keys.suite().is_13() {
        true => (&frame.head, &inner_type),
        false => (&aad_12, &[]),
    };
    if keys.leaves_sealing() {
        leave(frame, content, inner_type);
        keys.advance();
        return Ok(());
    }
    let aad = Aad::from(aad);
    let (key, target, tail) = (keys.aead(), frame.content, frame.tail);
    let sealed = match content {
        None => key.seal_in_place_scatter(nonce, aad, target, inner_type, tail),
        Some(content) => {
            key.seal_out_of_place_scatter(nonce, aad, content, target, inner_type, tail)
        }
    };
    sealed.map_err(|_| RecordError::Seal)?;
    keys.advance();
    Ok(())
}

/// Prepares `frame` for sealing by a device: content and inner type in the clear, and space for
/// the tag.
fn leave(frame: Frame<'_>, content: Option<&[u8]>, inner_type: &[u8]) {
    if let Some(content) = content {
        frame.content.copy_from_slice(content);
    }
    let (inner, tag) = frame.tail.split_at_mut(inner_type.len());
    inner.copy_from_slice(inner_type);
    tag.fill(0);
}

/// Seals the plaintext inside `record`, which has space for header and tag around it.
pub(crate) fn seal_record(
    keys: &mut Keys,
    content_type: u8,
    record: &mut [u8],
) -> Result<(), RecordError> {
    let frame = frame(keys, content_type, record)?;
    seal_frame(keys, content_type, frame, None)
}

/// Makes the next record of application data for a device to seal, without its content, which is
/// elsewhere: returns the bytes before it, and those after it.
pub(crate) fn frame_elsewhere(
    keys: &mut Keys,
    content_bytes: usize,
) -> Result<(Vec<u8>, Vec<u8>), RecordError> {
    if !keys.leaves_sealing() {
        return Err(RecordError::Seal);
    }
    if content_bytes == 0 || content_bytes > PLAINTEXT_BYTES_MAX {
        let (given, needed) = (content_bytes, PLAINTEXT_BYTES_MAX);
        return Err(RecordError::BufferLength { given, needed });
    }
    let layout = Layout::new(keys.suite(), 0);
    let mut head = vec![0; layout.overhead_bytes()];
    seal_record(keys, APPLICATION_DATA, &mut head)?;
    let length = (head.len() - HEADER_BYTES + content_bytes) as u16;
    head[HEADER_BYTES - 2..HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
    let tail = head.split_off(layout.prefix_bytes);
    Ok((head, tail))
}

/// Appends `content` (at most 16 KiB) to `out` as one record.
pub(crate) fn append_record(
    keys: &mut Keys,
    content_type: u8,
    content: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), RecordError> {
    let start = out.len();
    out.resize(start + content.len() + Layout::new(keys.suite(), 0).overhead_bytes(), 0);
    let sealed = frame(keys, content_type, &mut out[start..])
        .and_then(|frame| seal_frame(keys, content_type, frame, Some(content)));
    if sealed.is_err() {
        // Only whole records may stay in the output.
        out.truncate(start);
    }
    sealed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_exactly_the_plaintext() {
        for (version, number, overhead) in
            [(0x0304, 0x1301, 22), (0x0303, 0xc02b, 29), (0x0303, 0xcca9, 21)]
        {
            let suite = Suite::find(version, number).unwrap();
            for bytes in [0, 1, 100, 16383, 16384, 16385, 40000, 65536] {
                let layout = Layout::new(suite, bytes);
                let records = bytes.div_ceil(16384);
                assert_eq!(layout.sealed_bytes(), bytes + records * overhead);
                let mut buffer = vec![0; layout.sealed_bytes() + 7];
                let slots: Vec<usize> = layout.slots(&mut buffer).map(|slot| slot.len()).collect();
                assert_eq!(slots.len(), records);
                assert_eq!(slots.iter().sum::<usize>(), bytes);
                assert!(slots.iter().rev().skip(1).all(|&slot| slot == 16384));
            }
        }
    }

    #[test]
    fn a_record_around_content_elsewhere_is_as_the_record_in_one_place() {
        for (version, number) in [(0x0304, 0x1301), (0x0303, 0xc02b)] {
            let suite = Suite::find(version, number).unwrap();
            let keys = || {
                let (key, iv) = (vec![7; 16], [9; 12]);
                let secret = vec![1; suite.secret_bytes];
                let secrets = unlade_net::state::DirectionSecrets {
                    key,
                    iv,
                    sequence: 5,
                    traffic_secret: secret,
                };
                Keys::new(suite, secrets).unwrap()
            };
            let (mut whole, mut apart) = (keys(), keys());
            assert_eq!(frame_elsewhere(&mut apart, 5), Err(RecordError::Seal));
            whole.leave_sealing();
            apart.leave_sealing();
            for content_bytes in [1, 100, PLAINTEXT_BYTES_MAX] {
                let content = vec![3; content_bytes];
                let mut record = Vec::new();
                append_record(&mut whole, APPLICATION_DATA, &content, &mut record).unwrap();
                let (head, tail) = frame_elsewhere(&mut apart, content_bytes).unwrap();
                assert!([head, content, tail].concat() == record);
            }
            for wrong in [0, PLAINTEXT_BYTES_MAX + 1] {
                let refused = frame_elsewhere(&mut apart, wrong);
                assert!(matches!(refused, Err(RecordError::BufferLength { .. })));
            }
        }
    }
}
