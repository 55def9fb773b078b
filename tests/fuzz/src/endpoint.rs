//! Requests of an SDK to the endpoint inside a function's instance. The first byte selects the part.

use unlade_fn_init::endpoint::chunked::Decoder;
use unlade_fn_init::endpoint::scope;
use unlade_s3::Request;
use unlade_s3::served::request::{find, method};

/// See the [module](self).
pub fn endpoint(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 3 {
        0 => chunks(data),
        1 => scopes(data),
        _ => served(data),
    }
}

/// A body is the same however it arrives.
fn chunks(data: &[u8]) {
    let read = |piece: usize| {
        let (mut decoder, mut out) = (Decoder::default(), Vec::new());
        for part in data.chunks(piece.max(1)) {
            decoder.push(part);
            loop {
                match decoder.take() {
                    Ok(Some(bytes)) => out.extend_from_slice(&bytes),
                    Ok(None) => break,
                    Err(_) => return (out, None),
                }
            }
        }
        let is_done = decoder.is_done();
        (out, Some(is_done))
    };
    let whole = read(data.len());
    for piece in [1, 3, 16] {
        let found = read(piece);
        assert_eq!(found.1.is_some(), whole.1.is_some());
        if whole.1.is_some() {
            assert_eq!(found, whole);
        }
    }
}

/// A scope has words only.
fn scopes(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for found in [scope::of(Some(text), ""), scope::of(None, text)] {
        if let scope::Scope::Signed { key: _, service, region } = found {
            let is_word = |word: &str| !word.is_empty() && !word.contains(['/', '\r', '\n', ' ']);
            assert!(is_word(&service) && is_word(&region));
        }
    }
}

/// A request that is found can be made, and is then the same operation, or is refused.
fn served(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.lines();
    let (name, target) = lines.next().and_then(|line| line.split_once(' ')).unwrap_or_default();
    let fields = lines.by_ref().take_while(|line| !line.is_empty());
    let fields = fields.filter_map(|line| line.split_once(": "));
    let headers: Vec<_> =
        fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    let body = lines.collect::<Vec<_>>().join("\n");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let Ok(mut found) = find(method(name), path, query, &headers) else { return };
    if found.take_body(body.as_bytes()).is_err() {
        return;
    }
    let Ok(made) = Request::new(found.operation, &found.parameters) else { return };
    let again = find(found.operation.method, &made.path(true), &made.query_text(), &made.headers);
    assert_eq!(again.map(|again| again.operation.name), Ok(found.operation.name));
}

/// Seeds of this target.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let texts = [
        ("chunks", "\u{0}4;chunk-signature=ab\r\nWiki\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n"),
        (
            "scope",
            "\u{1}AWS4-HMAC-SHA256 Credential=AK/20260102/eu-west-1/dynamodb/aws4_request, Signature=0",
        ),
        ("get", "\u{2}GET /b/a%20b?x-id=GetObject&versionId=1\nRange: bytes=0-1\n"),
        ("part", "\u{2}PUT /b/k?partNumber=1&uploadId=u\nx-amz-copy-source: b/o\n"),
        (
            "delete",
            "\u{2}POST /b?delete\nContent-MD5: a\n\n<Delete><Object><Key>k</Key></Object></Delete>",
        ),
    ];
    texts.into_iter().map(|(name, text)| ("endpoint", name, text.as_bytes().to_vec())).collect()
}
