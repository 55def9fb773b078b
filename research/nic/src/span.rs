//! Bytes of the sent stream in TCP's buffer: the caller's bytes, and the record bytes around
//! them. The caller's bytes are referenced; the record bytes are short, and are stored in the
//! span.

use bytes::Bytes;
use unlade_nic_engine::tls::{EXPLICIT_NONCE_BYTES, HEADER_BYTES, TAG_BYTES};

/// Largest number of bytes before a record's content.
pub const PREFIX_BYTES_MAX: usize = HEADER_BYTES + EXPLICIT_NONCE_BYTES;

/// Content types (RFC 8446 §5.1).
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

/// The bytes behind a record's content: a type with TLS 1.3, and room for a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suffix {
    /// None: it is not a record, or it is sealed already.
    None,
    /// Room for a tag.
    Tag,
    /// The type application_data, and room for a tag.
    Data,
    /// The type handshake, and room for a tag.
    Handshake,
    /// The type alert, and room for a tag.
    Alert,
}

impl Suffix {
    /// Its bytes.
    pub fn bytes(self) -> &'static [u8] {
        SUFFIXES[self as usize]
    }
}

/// In the order of [`Suffix`].
static SUFFIXES: [&[u8]; 5] =
    [&[], &[0; TAG_BYTES], &typed(APPLICATION_DATA), &typed(HANDSHAKE), &typed(ALERT)];

const fn typed(content_type: u8) -> [u8; 1 + TAG_BYTES] {
    let mut suffix = [0; 1 + TAG_BYTES];
    suffix[0] = content_type;
    suffix
}

/// The bytes of a record around its content: up to [`PREFIX_BYTES_MAX`] bytes before it, their
/// number, the suffix, and the total length. It is built in registers and written at once:
/// single-byte writes followed by a wide read would stall the processor (store forwarding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope([u8; 16]);

impl Envelope {
    /// An empty envelope.
    pub const NONE: Envelope = Envelope([0; 16]);

    /// Creates an envelope from the low `prefix_bytes` bytes of `prefix`, the lowest first, and a
    /// suffix.
    #[inline]
    pub fn new(prefix: u128, prefix_bytes: usize, suffix: Suffix) -> Envelope {
        const PREFIX_BITS: u32 = 8 * PREFIX_BYTES_MAX as u32;
        let prefix = prefix & ((1 << PREFIX_BITS) - 1);
        let prefix_bytes = prefix_bytes.min(PREFIX_BYTES_MAX) as u128;
        let raw = prefix_bytes + suffix.bytes().len() as u128;
        let behind = prefix_bytes | (suffix as u128) << 8 | raw << 16;
        Envelope((prefix | behind << PREFIX_BITS).to_le_bytes())
    }

    fn prefix(&self) -> &[u8] {
        &self.0[..usize::from(self.0[PREFIX_BYTES_MAX])]
    }

    fn suffix(&self) -> &'static [u8] {
        SUFFIXES[usize::from(self.0[PREFIX_BYTES_MAX + 1]) % SUFFIXES.len()]
    }

    /// The total length.
    #[inline]
    pub fn bytes(&self) -> usize {
        usize::from(self.0[PREFIX_BYTES_MAX + 2])
    }
}

/// A range of the caller's bytes, or of a record around them. A clone refers to the same bytes.
#[derive(Clone, Debug)]
pub struct Span {
    content: Bytes,
    /// Start of the range, counted from the start of the record.
    start: u32,
    end: u32,
    envelope: Envelope,
}

// With its position in the stream it fits a cache line.
const _: () = assert!(size_of::<Span>() <= 56);

impl From<Bytes> for Span {
    #[inline]
    fn from(content: Bytes) -> Span {
        Span::record(Envelope::NONE, content)
    }
}

impl Span {
    /// Creates a span for a record.
    ///
    /// # Panics
    /// If the record is 4 GiB long.
    #[inline]
    pub fn record(envelope: Envelope, content: Bytes) -> Span {
        let end = u32::try_from(envelope.bytes() + content.len());
        Span { start: 0, end: end.expect("a window has fewer bytes"), content, envelope }
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The bytes, in contiguous parts, without empty ones.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let whole = [self.envelope.prefix(), &self.content[..], self.envelope.suffix()];
        let (mut front, mut left) = (self.start as usize, self.len());
        whole.into_iter().filter_map(move |part| {
            let before = front.min(part.len());
            let part = &part[before..];
            let part = &part[..left.min(part.len())];
            front -= before;
            left -= part.len();
            (!part.is_empty()).then_some(part)
        })
    }

    /// Appends the bytes to `out`.
    pub fn copy(&self, out: &mut Vec<u8>) {
        self.parts().for_each(|part| out.extend_from_slice(part));
    }

    /// Splits off the bytes behind the first `raw` bytes, if there are any.
    #[must_use]
    pub fn split_off(&mut self, raw: usize) -> Span {
        let mut behind = self.clone();
        unlade_research_tcp::Payload::skip(&mut behind, raw);
        unlade_research_tcp::Payload::truncate(self, raw);
        behind
    }
}

impl unlade_research_tcp::Payload for Span {
    #[inline]
    fn bytes(&self) -> usize {
        self.len()
    }

    #[inline]
    fn skip(&mut self, raw: usize) {
        self.start = self.end.min(self.start.saturating_add(raw as u32));
    }

    #[inline]
    fn truncate(&mut self, raw: usize) {
        self.end = self.end.min(self.start.saturating_add(raw as u32));
    }

    fn split_front(&mut self, raw: usize) -> Span {
        let behind = self.split_off(raw);
        std::mem::replace(self, behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_research_tcp::Payload;

    /// Spans, and their bytes.
    fn spans() -> Vec<(Span, Vec<u8>)> {
        let content = Bytes::from_static(b"content");
        let record = |front: &[u8], content: &Bytes, suffix: Suffix| {
            let mut prefix = [0xEE; 16];
            prefix[..front.len()].copy_from_slice(front);
            let envelope = Envelope::new(u128::from_le_bytes(prefix), front.len(), suffix);
            let raw = [front, content, suffix.bytes()].concat();
            (Span::record(envelope, content.clone()), raw)
        };
        vec![
            (Span::from(content.clone()), b"content".to_vec()),
            (Span::from(Bytes::new()), Vec::new()),
            record(b"headr", &content, Suffix::Data),
            record(b"header, nonce", &content, Suffix::Tag),
            record(b"h", &Bytes::new(), Suffix::Alert),
            record(b"headr", &content, Suffix::Handshake),
        ]
    }

    #[test]
    fn behind_content_is_its_type_and_room_for_a_tag() {
        for (suffix, first) in [(Suffix::Data, 23), (Suffix::Handshake, 22), (Suffix::Alert, 21)] {
            assert_eq!(suffix.bytes(), [&[first][..], &[0; TAG_BYTES]].concat());
        }
        assert_eq!(Suffix::Tag.bytes(), [0; TAG_BYTES]);
        assert!(Suffix::None.bytes().is_empty());
    }

    fn bytes(span: &Span) -> Vec<u8> {
        let mut raw = Vec::new();
        span.copy(&mut raw);
        assert_eq!((raw.len(), raw.is_empty()), (span.len(), span.is_empty()));
        assert!(span.parts().all(|part| !part.is_empty()));
        raw
    }

    #[test]
    fn every_range_of_a_span_has_the_bytes_of_that_range() {
        for (span, due) in spans() {
            for from in 0..=due.len() {
                for to in from..=due.len() {
                    let mut part = span.clone();
                    part.truncate(to);
                    part.skip(from);
                    assert_eq!(bytes(&part), due[from..to], "{from}..{to}");
                    for middle in 0..=part.len() {
                        let mut behind = part.clone();
                        let front = behind.split_front(middle);
                        assert_eq!(bytes(&front), due[from..from + middle]);
                        assert_eq!(bytes(&behind), due[from + middle..to]);
                    }
                }
            }
        }
    }
}
