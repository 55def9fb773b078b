use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use unlade_testkit::{Random, cases};

use super::*;
use crate::store::Body;
use crate::store::body::hex;
use crate::store::credentials::{Keys, Secret};
use crate::store::sign::{Payload, Signer};

const ID: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const URL: &str = "https://s3.amazonaws.com/examplebucket/chunkObject.txt";

/// Friday, 24 May 2013: the date in AWS's examples.
fn then() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_369_353_600)
}

fn signer() -> Signer {
    let secret_access_key = Secret(SECRET.into());
    let keys = Keys { access_key_id: ID.into(), secret_access_key, session_token: None };
    Signer::new(keys, "us-east-1")
}

fn encoded(mut encoder: Encoder, body: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), body);
    while encoder.next_bytes() > 0 {
        let (data, after) = rest.split_at(encoder.next_bytes());
        encoder.open(&mut out);
        out.extend_from_slice(data);
        encoder.close(&mut out);
        rest = after;
    }
    encoder.finish(&mut out);
    out
}

fn fields(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// "Example: PUT Object" of the page on chunks: 65 KiB of the letter a.
#[test]
fn an_object_is_signed_as_published() {
    let headers = fields(&[
        ("content-encoding", "aws-chunked"),
        ("content-length", "66824"),
        ("x-amz-decoded-content-length", "66560"),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
    ]);
    let payload = Payload::Chunks { has_trailer: false };
    let signed = signer().seal("PUT", URL, &headers, payload, "us-east-1", then()).unwrap();
    let seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9";
    assert_eq!(signed.chunks.previous(), seed);
    let framing = Framing::Chunks { signer: Some(signed.chunks), trailer: None };
    let encoder = Encoder::new(framing, 66_560, 65_536);
    assert_eq!(encoder.encoded_bytes(), 66_824);
    let out = encoded(encoder, &[b'a'; 66_560]);
    assert_eq!(out.len(), 66_824);
    let mut due = b"10000;chunk-signature=\
        ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n"
        .to_vec();
    due.extend_from_slice(&[b'a'; 65_536]);
    due.extend_from_slice(
        b"\r\n400;chunk-signature=\
        0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n",
    );
    due.extend_from_slice(&[b'a'; 1024]);
    due.extend_from_slice(
        b"\r\n0;chunk-signature=\
        b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n",
    );
    assert!(out == due);
}

/// The example of the page on trailing headers: the same object with its CRC-32C.
#[test]
fn a_trailer_is_signed_as_published() {
    let headers = fields(&[
        ("content-encoding", "aws-chunked"),
        ("x-amz-decoded-content-length", "66560"),
        ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ("x-amz-trailer", "x-amz-checksum-crc32c"),
    ]);
    let payload = Payload::Chunks { has_trailer: true };
    let signed = signer().seal("PUT", URL, &headers, payload, "us-east-1", then()).unwrap();
    let seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e";
    assert_eq!(signed.chunks.previous(), seed);
    let trailer = Trailer::new("CRC32C");
    let framing = Framing::Chunks { signer: Some(signed.chunks), trailer };
    let out = encoded(Encoder::new(framing, 66_560, 65_536), &[b'a'; 66_560]);
    let text = String::from_utf8(out).unwrap();
    let signatures: Vec<&str> =
        text.split("chunk-signature=").skip(1).map(|rest| &rest[..64]).collect();
    let due = [
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    ];
    assert_eq!(signatures, due);
    let due = "\r\nx-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:\
        d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n";
    assert!(text.ends_with(due), "{}", &text[text.len() - 200..]);
}

/// HMAC-SHA256 by a second library, independent of the tested one.
fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text).as_ref().to_vec()
}

fn sign(text: &str) -> String {
    let key = ["20130524", "us-east-1", "s3", "aws4_request"]
        .iter()
        .fold(format!("AWS4{SECRET}").into_bytes(), |key, part| mac(&key, part.as_bytes()));
    hex(&mac(&key, text.as_bytes()))
}

/// A parser of the encoding, line by line and byte by byte, that checks every signature.
struct Oracle<'a> {
    rest: &'a [u8],
    previous: Option<String>,
}

impl Oracle<'_> {
    fn line(&mut self) -> String {
        let end = self.rest.windows(2).position(|two| two == b"\r\n").expect("a line's end");
        let line = String::from_utf8(self.rest[..end].to_vec()).unwrap();
        self.rest = &self.rest[end + 2..];
        line
    }

    fn check(&mut self, kind: &str, more: &str, bytes: &[u8], found: &str) {
        let previous = self.previous.take().expect("signed where it should not be");
        let hash = hex(digest(&SHA256, bytes).as_ref());
        let scope = "20130524/us-east-1/s3/aws4_request";
        let text = format!("{kind}\n20130524T000000Z\n{scope}\n{previous}\n{more}{hash}");
        assert_eq!(found, sign(&text));
        self.previous = Some(found.to_owned());
    }

    fn decode(mut self, trailer: Option<&str>) -> (Vec<u8>, Option<String>) {
        let mut body = Vec::new();
        let empty = format!("{}\n", hex(digest(&SHA256, b"").as_ref()));
        loop {
            let line = self.line();
            let (digits, signature) = match line.split_once(";chunk-signature=") {
                Some((digits, signature)) => (digits.to_owned(), Some(signature.to_owned())),
                None => (line, None),
            };
            assert_eq!(signature.is_some(), self.previous.is_some());
            let bytes = usize::from_str_radix(&digits, 16).unwrap();
            let data = self.rest[..bytes].to_vec();
            self.rest = &self.rest[bytes..];
            if let Some(signature) = signature {
                self.check("AWS4-HMAC-SHA256-PAYLOAD", &empty, &data, &signature);
            }
            if bytes == 0 {
                break;
            }
            body.extend(data);
            assert_eq!(self.line(), "");
        }
        let sum = trailer.map(|name| {
            let line = self.line();
            if self.previous.is_some() {
                let signature = self.line();
                let signature = signature.strip_prefix("x-amz-trailer-signature:").unwrap();
                let signed = format!("{line}\n");
                self.check("AWS4-HMAC-SHA256-TRAILER", "", signed.as_bytes(), signature);
            }
            line.strip_prefix(&format!("{name}:")).unwrap().to_owned()
        });
        assert_eq!(self.line(), "");
        assert!(self.rest.is_empty());
        (body, sum)
    }
}

fn framing(random: &mut Random, algorithm: &str) -> (Framing, Option<String>, bool) {
    let has_trailer = random.once_in(2);
    let payload = Payload::Chunks { has_trailer };
    let signed = signer().seal("PUT", URL, &[], payload, "us-east-1", then()).unwrap();
    let previous = signed.chunks.previous().to_owned();
    let is_signed = random.once_in(2);
    let trailer = has_trailer.then(|| Trailer::new(algorithm).unwrap());
    let signer = is_signed.then_some(signed.chunks);
    (Framing::Chunks { signer, trailer }, is_signed.then_some(previous), has_trailer)
}

/// Compares with the oracle: the body, its checksum, every signature, and the predicted length.
#[test]
fn every_body_can_be_read_again() {
    cases(200, |random| {
        let chunk_bytes = 1 + random.below(300) as usize;
        let body: Vec<u8> = (0..random.below(2000)).map(|_| random.next() as u8).collect();
        let algorithm =
            ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"][random.below(5) as usize];
        let (framing, previous, has_trailer) = framing(random, algorithm);
        let encoder = Encoder::new(framing, body.len() as u64, chunk_bytes);
        let foretold = encoder.encoded_bytes();
        let out = encoded(encoder, &body);
        assert_eq!(out.len() as u64, foretold);
        let name = format!("x-amz-checksum-{}", algorithm.to_ascii_lowercase());
        let oracle = Oracle { rest: &out, previous };
        let (found, sum) = oracle.decode(has_trailer.then_some(name.as_str()));
        assert!(found == body);
        let due = Body::from(body).checksum(algorithm).filter(|_| has_trailer);
        assert_eq!(sum, due);
    });
}

#[test]
fn a_plain_body_is_itself_and_long_ones_are_foretold() {
    let encoder = Encoder::new(Framing::Plain, 700, 256);
    assert_eq!(encoder.encoded_bytes(), 700);
    assert_eq!(encoded(encoder, &[7; 700]), [7; 700]);
    // Five gibibytes, the maximum of S3: 20480 chunks, each with the length 40000 in hexadecimal.
    let chunks = Framing::Chunks { signer: None, trailer: None };
    let encoder = Encoder::new(chunks, 5 << 30, CHUNK_BYTES);
    assert_eq!(encoder.encoded_bytes(), (5 << 30) + 20_480 * (5 + 4) + 5);
}
