//! The parser against a slow and simple one, which gets all bytes at once and copies.

use proptest::prelude::*;
use unlade_kv::parse::{Argument, Limits, Parser, Progress, ProtocolError};

const LIMITS: Limits = Limits { arguments_max: 6, bulk_bytes_max: 40 };

type Request = Vec<Vec<u8>>;

/// Returns all requests in `bytes`, and true if the bytes behind them are invalid.
fn oracle(mut bytes: &[u8]) -> (Vec<Request>, bool) {
    let mut requests = Vec::new();
    loop {
        match one(bytes) {
            Some(Ok((request, used))) => {
                if !request.is_empty() {
                    requests.push(request);
                }
                bytes = &bytes[used..];
            }
            Some(Err(())) => return (requests, true),
            None => return (requests, false),
        }
    }
}

fn text_line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let text = &bytes[..end];
    Some((text.strip_suffix(b"\r").unwrap_or(text), end + 1))
}

fn decimal(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() || digits.len() > 19 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // Only the shortest form is a number.
    if digits[0] == b'0' && text != b"0" {
        return None;
    }
    String::from_utf8(text.to_vec()).ok()?.parse().ok()
}

/// Returns the first request and its length; `None` if it is incomplete.
fn one(bytes: &[u8]) -> Option<Result<(Request, usize), ()>> {
    let (text, mut at) = text_line(bytes)?;
    let Some(count) = text.strip_prefix(b"*") else {
        let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        return Some(Ok((words.map(<[u8]>::to_vec).collect(), at)));
    };
    let Some(count) = decimal(count).filter(|count| *count <= 6) else { return Some(Err(())) };
    let mut request = Vec::new();
    for _ in 0..count.max(0) {
        if bytes.get(at).is_some_and(|byte| *byte != b'$') {
            return Some(Err(()));
        }
        let (text, used) = text_line(&bytes[at..])?;
        let Some(len) = decimal(&text[1..]).filter(|len| (0..=40).contains(len)) else {
            return Some(Err(()));
        };
        at += used;
        let len = len as usize;
        let word = bytes.get(at..at + len + 2)?;
        if !word.ends_with(b"\r\n") {
            return Some(Err(()));
        }
        request.push(word[..len].to_vec());
        at += len + 2;
    }
    Some(Ok((request, at)))
}

/// As above, from chunks. Open arguments are taken out if `take` is true for them.
fn chunked(bytes: &[u8], cuts: &[usize], take: &[bool]) -> (Vec<Request>, bool) {
    let mut parser = Parser::new(LIMITS);
    let mut take = take.iter().copied().cycle();
    let (mut input, mut apart) = (Vec::new(), Vec::new());
    // A taken argument: its bytes so far, and its total length.
    let mut open: Option<(Vec<u8>, usize)> = None;
    let mut requests = Vec::new();
    let mut cuts = cuts.iter().copied().cycle();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (mut chunk, behind) = rest.split_at(cuts.next().unwrap_or(1).clamp(1, rest.len()));
        rest = behind;
        if let Some((mut word, wanted)) = open.take() {
            let (mine, others) = chunk.split_at((wanted - word.len()).min(chunk.len()));
            word.extend_from_slice(mine);
            chunk = others;
            if word.len() < wanted {
                open = Some((word, wanted));
                continue;
            }
            if !word.ends_with(b"\r\n") {
                return (requests, true);
            }
            apart.push(word[..wanted - 2].to_vec());
        }
        input.extend_from_slice(chunk);
        loop {
            match parser.advance(&input) {
                Err(_) => return (requests, true),
                Ok(Progress::Partial) => {
                    input.drain(..parser.skip());
                    break;
                }
                Ok(Progress::Open(found)) => {
                    assert!(input.len() < found.start + found.len + 2);
                    if take.next() == Some(true) {
                        open = Some((input.split_off(found.start), found.len + 2));
                        parser.take_open();
                    }
                    break;
                }
                Ok(Progress::Complete) => {
                    let mut aparts = std::mem::take(&mut apart).into_iter();
                    let words = parser.arguments().iter().map(|argument| match argument {
                        Argument::Here(range) => input[range.clone()].to_vec(),
                        Argument::Quoted(word) => word.clone(),
                        Argument::Apart => aparts.next().unwrap(),
                    });
                    requests.push(words.collect());
                    input.drain(..parser.finish());
                }
            }
        }
    }
    (requests, false)
}

fn word() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        Just(b"SET".to_vec()),
        Just(b"\r\n".to_vec())
    ]
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let array = proptest::collection::vec(word(), 0..7).prop_map(|words| {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(&word);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    });
    prop_oneof![
        6 => array,
        2 => "[a-z ]{0,12}\r?\n".prop_map(String::into_bytes),
        1 => "[*$][0-9-]{0,3}\r\n".prop_map(String::into_bytes),
    ]
}

proptest! {
    #[test]
    fn it_agrees_with_a_slow_one(
        requests in proptest::collection::vec(request(), 0..8),
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..2),
        cuts in proptest::collection::vec(1usize..60, 1..8),
        take in proptest::collection::vec(any::<bool>(), 1..5),
    ) {
        let mut bytes = requests.concat();
        for (place, byte) in flips {
            // Quotes have a separate test, because the simple parser does not support them.
            if !bytes.is_empty() && byte != b'"' && byte != b'\'' {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
        }
        // Words may contain quotes, which would have a meaning in an inline command.
        bytes.iter_mut().filter(|byte| matches!(**byte, b'"' | b'\'')).for_each(|byte| *byte = b'q');
        prop_assert_eq!(chunked(&bytes, &cuts, &take), oracle(&bytes));
    }
}

fn words(text: &[u8]) -> Result<Request, ProtocolError> {
    let mut parser = Parser::new(LIMITS);
    assert_eq!(parser.advance(text)?, Progress::Complete);
    let word = |argument: &Argument| match argument {
        Argument::Here(range) => text[range.clone()].to_vec(),
        Argument::Quoted(word) => word.clone(),
        Argument::Apart => unreachable!(),
    };
    Ok(parser.arguments().iter().map(word).collect())
}

#[test]
fn quotes_of_inline_commands() {
    let read = |text: &[u8]| words(text).unwrap();
    assert_eq!(read(b"set k \"a b\\x41\\n\\\"\"\r\n"), [&b"set"[..], b"k", b"a bA\n\""]);
    assert_eq!(read(b"set k 'a\\'b\\n'\n"), [&b"set"[..], b"k", b"a'b\\n"]);
    assert_eq!(read(b"echo ab\"c d\"\n"), [&b"echo"[..], b"abc d"]);
    assert_eq!(read(b"echo \"\"\n"), [&b"echo"[..], b""]);
    for text in [&b"echo \"a\n"[..], b"echo 'a\n", b"echo \"a\"b\n", b"echo \"a\\\n"] {
        assert_eq!(words(text), Err(ProtocolError::Quotes), "{}", text.escape_ascii());
    }
}

#[test]
fn limits_have_errors_of_their_own() {
    let error = |text: &[u8]| Parser::new(LIMITS).advance(text).unwrap_err();
    assert_eq!(error(b"*7\r\n"), ProtocolError::Arguments);
    assert_eq!(error(b"*+1\r\n"), ProtocolError::Arguments);
    assert_eq!(error(b"*1\r\n$41\r\n"), ProtocolError::Bulk);
    assert_eq!(error(b"*1\r\n$-1\r\n"), ProtocolError::Bulk);
    assert_eq!(error(b"*1\r\n:1\r\n"), ProtocolError::Dollar(b':'));
    assert_eq!(error(b"*1\r\n$1\r\nabc"), ProtocolError::Tail);
    assert_eq!(error(&vec![b'a'; 64 << 10]), ProtocolError::Inline);
    assert_eq!(error(&[&b"*"[..], &vec![b'1'; 64 << 10]].concat()), ProtocolError::Count);
    assert_eq!(error(&[&b"*1\r\n$"[..], &vec![b'1'; 64 << 10]].concat()), ProtocolError::Length);
    assert_eq!(error(b"*01\r\n"), ProtocolError::Arguments);
}
