//! Chunked bodies.

use proptest::prelude::*;

use super::super::*;

/// Feeds `body` in chunks split at `cuts`; returns the data, and either the consumed bytes with a
/// flag that the body has ended, or the error.
fn scan(body: &[u8], cuts: &[usize]) -> (Vec<u8>, Result<(usize, bool), HeadError>) {
    let mut scanner = ChunkedScanner::new();
    let mut data = Vec::new();
    let mut taken = 0;
    let mut start = 0;
    for end in cuts.iter().copied().chain([body.len()]) {
        let piece = &body[start..end.clamp(start, body.len())];
        match scanner.advance_with(piece, |part| data.extend_from_slice(part)) {
            Ok(progress) => {
                taken += progress.consumed;
                if progress.done {
                    return (data, Ok((taken, true)));
                }
                assert_eq!(progress.consumed, piece.len());
            }
            Err(error) => return (data, Err(error)),
        }
        start = end.clamp(start, body.len());
    }
    (data, Ok((taken, false)))
}

fn whole(body: &[u8]) -> (Vec<u8>, Result<(usize, bool), HeadError>) {
    scan(body, &[])
}

#[test]
fn a_body_is_parsed() {
    let body = b"4\r\nWiki\r\n006;a=\"b;c\"\r\npedia \r\nE\r\nin \r\n\r\nchunks.\r\n0\r\n\r\nGET";
    let (data, result) = whole(body);
    assert_eq!(data, b"Wikipedia in \r\n\r\nchunks.");
    assert_eq!(result, Ok((body.len() - 3, true)));
}

#[test]
fn trailers_are_skipped() {
    let body = b"0;last\r\nX-Sum: 1 2\r\nX-Empty:\r\n\r\n";
    assert_eq!(whole(body), (Vec::new(), Ok((body.len(), true))));
}

#[test]
fn data_can_bypass_the_scanner() {
    let mut scanner = ChunkedScanner::new();
    assert_eq!(scanner.data_bytes_due(), 0);
    scanner.advance(b"100000\r\nxx").unwrap();
    assert_eq!(scanner.data_bytes_due(), 0x10_0000 - 2);
    assert_eq!(scanner.skip(10), 10);
    assert_eq!(scanner.skip(u64::MAX), 0x10_0000 - 12);
    assert_eq!(scanner.skip(1), 0);
    let end = scanner.advance(b"\r\n0\r\n\r\nmore").unwrap();
    assert_eq!(end, ChunkedProgress { consumed: 7, done: true });
    assert!(scanner.is_done());
    assert_eq!(scanner.advance(b"more").unwrap(), ChunkedProgress { consumed: 0, done: true });
}

#[test]
fn the_largest_size_is_64_bits() {
    let mut scanner = ChunkedScanner::new();
    scanner.advance(b"ffffffffffffffff\r\n").unwrap();
    assert_eq!(scanner.data_bytes_due(), u64::MAX);
    assert_eq!(whole(b"10000000000000000\r\n").1, Err(HeadError::BadChunkSize));
    assert_eq!(whole(b"00000000000000005\r\n").1, Err(HeadError::BadChunkSize));
}

/// One test for each `name: "bytes of a body" => the error;`.
macro_rules! refused {
    ($($name:ident: $body:literal => $error:ident;)*) => {$(
        #[test]
        fn $name() {
            assert_eq!(whole($body).1, Err(HeadError::$error));
        }
    )*};
}

refused! {
    size_with_a_prefix: b"0x5\r\n" => BadChunkSize;
    size_with_a_sign: b"+5\r\n" => BadChunkSize;
    size_with_a_leading_space: b" 5\r\n" => BadChunkSize;
    size_with_a_trailing_space: b"5 \r\n" => BadChunkSize;
    size_with_an_underscore: b"1_0\r\n" => BadChunkSize;
    empty_size: b"\r\n" => BadChunkSize;
    extension_without_a_size: b";a\r\n" => BadChunkSize;
    bare_lf_behind_the_size: b"5\nhello\r\n" => BadChunkSize;
    bare_lf_in_an_extension: b"5;a\nhello\r\n" => BadChunkExtension;
    bare_cr_in_an_extension: b"5;a\rb\r\n" => BadChunkDelimiter;
    nul_in_an_extension: b"5;\x00\r\n" => BadChunkExtension;
    bare_cr_behind_the_size: b"5\rhello" => BadChunkDelimiter;
    data_longer_than_stated: b"5\r\nhellooo\r\n" => BadChunkDelimiter;
    data_behind_by_a_bare_lf: b"5\r\nhello\n" => BadChunkDelimiter;
    data_behind_by_a_bare_cr: b"5\r\nhello\r0" => BadChunkDelimiter;
    last_chunk_by_bare_lf: b"0\r\n\n" => BadTrailer;
    last_chunk_by_bare_cr: b"0\r\n\r0" => BadTrailer;
    trailer_by_bare_lf: b"0\r\nX: y\n\r\n" => BadTrailer;
    trailer_folded: b"0\r\nX: y\r\n z\r\n\r\n" => BadTrailer;
    trailer_without_a_colon: b"0\r\nGET / HTTP/1.1\r\n\r\n" => BadTrailer;
    trailer_with_a_space_before_the_colon: b"0\r\nX : y\r\n\r\n" => BadTrailer;
    trailer_that_frames: b"0\r\nContent-Length: 5\r\n\r\n" => BadTrailer;
    trailer_that_encodes: b"0\r\ntransfer-encoding: chunked\r\n\r\n" => BadTrailer;
    trailer_that_routes: b"0\r\nHost: b\r\n\r\n" => BadTrailer;
    trailer_with_a_control_byte: b"0\r\nX: \x01\r\n\r\n" => BadTrailer;
}

#[test]
fn framing_is_bounded() {
    let long = format!("5;{}", "x".repeat(CHUNK_LINE_BYTES_MAX));
    assert_eq!(whole(long.as_bytes()).1, Err(HeadError::ChunkLineTooLong));
    let many = format!("1;{}\r\nx\r\n", "y".repeat(200)).repeat(EXTENSION_BYTES_MAX / 200 + 1);
    assert_eq!(whole(many.as_bytes()).1, Err(HeadError::ChunkLineTooLong));
    let trailer = format!("0\r\n{}", "X: y\r\n".repeat(TRAILER_BYTES_MAX / 6 + 1));
    assert_eq!(whole(trailer.as_bytes()).1, Err(HeadError::TrailerTooLarge));
    let name = format!("0\r\n{}: y\r\n\r\n", "X".repeat(400));
    assert_eq!(whole(name.as_bytes()).1, Ok((name.len(), true)));
}

proptest! {
    #[test]
    fn pieces_do_not_matter(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..6),
        trailer in prop::option::of("X-[a-z]{1,5}: [ -~]{0,9}"),
        edit in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        mut cuts in prop::collection::vec(0usize..300, 0..8),
        rest in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        let mut body = Vec::new();
        for chunk in &chunks {
            body.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            body.extend_from_slice(chunk);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"0\r\n");
        body.extend(trailer.iter().flat_map(|line| line.bytes().chain(*b"\r\n")));
        body.extend_from_slice(b"\r\n");
        let end = body.len();
        body.extend_from_slice(&rest);
        let untouched = edit.is_none();
        if let Some((at, byte)) = edit {
            let at = at.index(body.len());
            body[at] = byte;
        }
        cuts.sort_unstable();
        let once = whole(&body);
        prop_assert_eq!(scan(&body, &cuts), once.clone());
        let bytewise: Vec<usize> = (1..body.len()).collect();
        prop_assert_eq!(scan(&body, &bytewise), once.clone());
        if untouched {
            prop_assert_eq!(once, (chunks.concat(), Ok((end, true))));
        }
    }

    #[test]
    fn random_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = whole(&body);
    }
}
