//! Bytes read in transit are equal to bytes read in memory, however they arrive.

use std::cell::Cell;
use std::io::{self, BufRead, Read, Write};
use std::ops::Range;

use bytes::Buf;
use flate2::bufread::{DeflateDecoder, DeflateEncoder};
use flate2::{Compression, write};
use proptest::prelude::*;
use prost::Message;
use unlade_copy::{Config, Copier, CopyError, Service, TaskFailure};
use unlade_copy_adapters::{DecodeError, Reader, Source, decode, decode_range};

/// Messages with every kind of field that is decoded differently.
#[derive(Clone, PartialEq, Message)]
struct Order {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(sint32, tag = "2")]
    change: i32,
    #[prost(string, repeated, tag = "3")]
    names: Vec<String>,
    #[prost(bytes = "vec", tag = "4")]
    body: Vec<u8>,
    #[prost(bytes = "bytes", tag = "5")]
    shared: bytes::Bytes,
    #[prost(fixed64, repeated, tag = "6")]
    fixed: Vec<u64>,
    #[prost(int64, repeated, tag = "7")]
    packed: Vec<i64>,
    #[prost(message, repeated, tag = "8")]
    parts: Vec<Order>,
    #[prost(map = "string, double", tag = "9")]
    prices: std::collections::HashMap<String, f64>,
}

/// Bytes that arrive in chunks: a sync makes all bytes up to the end of a chunk available, and no
/// more; and from `fails_at` on none arrive.
struct InPieces {
    bytes: Vec<u8>,
    piece: usize,
    there: Cell<usize>,
    fails_at: usize,
}

const FAILURE: CopyError = CopyError::Failed(TaskFailure::Ended);

impl InPieces {
    fn new(bytes: Vec<u8>, piece: usize) -> InPieces {
        InPieces { bytes, piece, there: Cell::new(0), fails_at: usize::MAX }
    }
}

impl Source for InPieces {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn is_ready(&self, range: Range<usize>) -> bool {
        range.end <= self.there.get()
    }

    fn sync(&self, range: Range<usize>) -> Result<&[u8], CopyError> {
        if range.end > self.fails_at {
            return Err(FAILURE);
        }
        let there = range.end.next_multiple_of(self.piece).min(self.fails_at);
        self.there.set(self.there.get().max(there));
        Ok(&self.bytes[range])
    }
}

fn leaf() -> impl Strategy<Value = Order> {
    let texts = proptest::collection::vec("\\PC{0,40}", 0..4);
    let bytes = || proptest::collection::vec(any::<u8>(), 0..3000);
    let fixed = proptest::collection::vec(any::<u64>(), 0..300);
    let packed = proptest::collection::vec(any::<i64>(), 0..300);
    let prices = proptest::collection::hash_map("\\PC{0,9}", -1e9..1e9f64, 0..4);
    (any::<u64>(), any::<i32>(), texts, bytes(), bytes(), fixed, packed, prices).prop_map(
        |(id, change, names, body, shared, fixed, packed, prices)| Order {
            id,
            change,
            names,
            body,
            shared: shared.into(),
            fixed,
            packed,
            parts: Vec::new(),
            prices,
        },
    )
}

fn order() -> impl Strategy<Value = Order> {
    (leaf(), proptest::collection::vec(leaf(), 0..4))
        .prop_map(|(order, parts)| Order { parts, ..order })
}

fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 59) as u8
    };
    (0..len).map(|_| b'a' + next()).collect()
}

fn with_copier<T>(f: impl FnOnce(&Copier) -> T) -> T {
    let service = Service::start(Config::default()).unwrap();
    f(&Copier::new(service.attach().unwrap()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_message_is_the_same_whatever_the_pieces(order in order(), piece in 1usize..5000) {
        let bytes = order.encode_to_vec();
        let source = InPieces::new(bytes, piece);
        prop_assert_eq!(decode::<Order>(&source).unwrap(), order);
    }

    #[test]
    fn a_malformed_message_gives_the_same_error(bytes in proptest::collection::vec(any::<u8>(), 0..300),
                                            piece in 1usize..64) {
        let expected = Order::decode(&bytes[..]);
        let found = decode::<Order>(&InPieces::new(bytes, piece));
        prop_assert_eq!(found.is_ok(), expected.is_ok());
        prop_assert!(!matches!(found, Err(DecodeError::Copy(_))));
    }

    #[test]
    fn bytes_that_do_not_come_are_never_a_message(order in order(), piece in 1usize..5000,
                                                  at in any::<prop::sample::Index>()) {
        let mut source = InPieces::new(order.encode_to_vec(), piece);
        prop_assume!(!source.is_empty());
        source.fails_at = at.index(source.len());
        prop_assert_eq!(decode::<Order>(&source), Err(DecodeError::Copy(FAILURE)));
    }

    #[test]
    fn a_buf_is_as_the_slice_whatever_is_done_with_it(
        bytes in proptest::collection::vec(any::<u8>(), 0..9000),
        piece in 1usize..3000,
        step in 1usize..3000,
        acts in proptest::collection::vec((0u8..5, 0usize..2000), 0..40),
    ) {
        let source = InPieces::new(bytes.clone(), piece);
        let mut reader = Reader::new(&source).with_step(step);
        let mut expected = &bytes[..];
        for (act, count) in acts {
            let count = count.min(expected.len());
            match act {
                0 => prop_assert_eq!(reader.copy_to_bytes(count), expected.copy_to_bytes(count)),
                1 => {
                    let (mut found, mut wanted) = (vec![0; count], vec![0; count]);
                    reader.copy_to_slice(&mut found);
                    expected.copy_to_slice(&mut wanted);
                    prop_assert_eq!(found, wanted);
                }
                2 => {
                    reader.advance(count);
                    expected.advance(count);
                }
                3 => {
                    let mut found = vec![0; count];
                    let got = reader.read(&mut found).unwrap();
                    prop_assert_eq!(&found[..got], &expected[..got]);
                    prop_assert_eq!(got == 0, count == 0);
                    expected.advance(got);
                }
                _ => {
                    let got = reader.fill_buf().unwrap();
                    prop_assert_eq!(got, &expected[..got.len()]);
                    prop_assert_eq!(got.is_empty(), expected.is_empty());
                    let used = got.len().min(count);
                    reader.consume(used);
                    expected.advance(used);
                }
            }
            prop_assert_eq!(reader.remaining(), expected.len());
            prop_assert!(expected.is_empty() || !reader.chunk().is_empty());
        }
        prop_assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn deflate_is_the_same_both_ways(len in 0usize..70_000, seed in any::<u64>(),
                                     piece in 1usize..9000) {
        let plain = text(len, seed);
        let mut usual = Vec::new();
        DeflateEncoder::new(&plain[..], Compression::fast()).read_to_end(&mut usual).unwrap();
        let mut packed = Vec::new();
        let source = InPieces::new(plain.clone(), piece);
        DeflateEncoder::new(Reader::new(&source), Compression::fast())
            .read_to_end(&mut packed)
            .unwrap();
        // Chunk boundaries may change block boundaries, but not the decompressed bytes.
        let mut back = Vec::new();
        let source = InPieces::new(packed, piece);
        DeflateDecoder::new(Reader::new(&source)).read_to_end(&mut back).unwrap();
        prop_assert_eq!(&back, &plain);
        let mut back = Vec::new();
        DeflateDecoder::new(&usual[..]).read_to_end(&mut back).unwrap();
        prop_assert_eq!(&back, &plain);
    }
}

#[test]
fn messages_and_streams_are_read_while_they_are_copied() {
    with_copier(|copier| {
        for round in 0..200u64 {
            let order = Order {
                id: round,
                names: (0..60).map(|n| format!("{n}-{round}").repeat(100)).collect(),
                body: text(100_000, round),
                ..Order::default()
            };
            let encoded = order.encode_to_vec();
            let mut destination = vec![0u8; encoded.len()];
            let found = copier.scope(|scope| {
                let pending = scope.queue(&encoded, &mut destination);
                decode::<Order>(&pending)
            });
            assert_eq!(found.unwrap(), order, "round {round}");
            let plain = order.body;
            let mut destination = vec![0u8; plain.len()];
            let packed = copier.scope(|scope| {
                let pending = scope.queue(&plain, &mut destination);
                let mut packed = write::ZlibEncoder::new(Vec::new(), Compression::fast());
                io::copy(&mut Reader::new(&pending), &mut packed).unwrap();
                packed.finish().unwrap()
            });
            let mut destination = vec![0u8; packed.len()];
            let mut back = Vec::new();
            copier.scope(|scope| {
                let pending = scope.queue(&packed, &mut destination);
                let mut inflating = flate2::bufread::ZlibDecoder::new(Reader::new(&pending));
                inflating.read_to_end(&mut back).unwrap();
            });
            assert_eq!(back, plain, "round {round}");
        }
        assert!(copier.stats().read().queued >= 600);
    });
}

#[test]
fn a_range_of_a_source_is_decoded() {
    let order = Order { id: 7, names: vec!["seven".to_owned()], ..Order::default() };
    let mut bytes = vec![0xff; 10];
    bytes.extend(order.encode_to_vec());
    let end = bytes.len();
    bytes.extend([0xff; 10]);
    assert_eq!(decode_range::<Order>(&InPieces::new(bytes, 3), 10..end), Ok(order));
}

#[test]
fn a_copy_that_fails_is_an_error_with_its_cause() {
    let mut source = InPieces::new(text(10_000, 1), 1000);
    source.fails_at = 5_000;
    let mut read = Vec::new();
    let error = Reader::new(&source).read_to_end(&mut read).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<CopyError>());
    assert_eq!(cause, Some(&FAILURE));
    assert_eq!(read, source.bytes[..read.len()]);
    assert!(read.len() >= 4_096, "what came before is read: {}", read.len());
    // No read hangs, and every error is returned.
    let mut reader = Reader::new(&source);
    assert_eq!(reader.copy_to_bytes(10_000).len(), 10_000);
    assert_eq!(reader.finish(), Err(FAILURE));
    let order = Order { body: text(10_000, 1), ..Order::default() };
    let message = InPieces { fails_at: 5_000, ..InPieces::new(order.encode_to_vec(), 1000) };
    let error = io::Error::from(decode::<Order>(&message).unwrap_err());
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    let mut packer = write::DeflateEncoder::new(Vec::new(), Compression::fast());
    let error = io::copy(&mut Reader::new(&source), &mut packer).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    packer.flush().unwrap();
}
