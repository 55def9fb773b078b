//! TLS records of the peer, sealed by another library.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use unlade_testkit::Random;

use crate::tls::{EXPLICIT_NONCE_BYTES, HEADER_BYTES, TAG_BYTES, Tls, Version};

/// A key of a connection with its parameters.
#[derive(Clone)]
pub(crate) struct Secret {
    pub version: Version,
    key: Vec<u8>,
    iv: [u8; 12],
}

impl Secret {
    pub fn random(random: &mut Random, version: Version) -> Secret {
        let key_bytes = if random.once_in(2) { 16 } else { 32 };
        let key = random_bytes(random, key_bytes);
        let mut iv = [0; 12];
        iv.copy_from_slice(&random_bytes(random, 12));
        Secret { version, key, iv }
    }

    pub fn tls(&self) -> Tls {
        Tls::new(self.version, &self.key, self.iv).expect("a key of 16 or 32 bytes")
    }

    pub fn prefix_bytes(&self) -> usize {
        match self.version {
            Version::Tls12 => HEADER_BYTES + EXPLICIT_NONCE_BYTES,
            Version::Tls13 => HEADER_BYTES,
        }
    }

    /// Seals record `number` with `plaintext`, which in TLS 1.3 ends with a type. Returns the form
    /// that software writes, and the form on the wire.
    pub fn record(&self, number: u64, explicit: u64, plaintext: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut written = vec![23, 3, 3];
        let behind = self.prefix_bytes() - HEADER_BYTES + plaintext.len() + TAG_BYTES;
        written.extend((behind as u16).to_be_bytes());
        let mut nonce = self.iv;
        let mut aad = written.clone();
        match self.version {
            Version::Tls12 => {
                written.extend(explicit.to_be_bytes());
                nonce[4..].copy_from_slice(&explicit.to_be_bytes());
                aad.splice(0..0, number.to_be_bytes());
                aad[11..].copy_from_slice(&(plaintext.len() as u16).to_be_bytes());
            }
            Version::Tls13 => {
                let number = u64::from_be_bytes(nonce[4..].try_into().expect("8 bytes")) ^ number;
                nonce[4..].copy_from_slice(&number.to_be_bytes());
            }
        }
        let mut sealed = written.clone();
        written.extend(plaintext);
        let algorithm = if self.key.len() == 16 { &AES_128_GCM } else { &AES_256_GCM };
        let key = UnboundKey::new(algorithm, &self.key).map(LessSafeKey::new).expect("its length");
        let nonce = Nonce::assume_unique_for_key(nonce);
        let mut ciphertext = plaintext.to_vec();
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(&aad), &mut ciphertext);
        sealed.extend(ciphertext);
        sealed.extend(tag.expect("it can be sealed").as_ref());
        written.extend([0; TAG_BYTES]);
        (written, sealed)
    }
}

/// `count` random bytes.
pub(crate) fn random_bytes(random: &mut Random, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count + 7);
    while bytes.len() < count {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// Bounds of a record of a stream.
pub(crate) struct RecordSpan {
    /// Start and end, bytes from the start of the stream.
    pub start: usize,
    pub end: usize,
    /// Index of its key.
    pub key: u16,
}

/// The peer's complete stream.
pub(crate) struct Stream {
    pub secrets: Vec<Secret>,
    pub written: Vec<u8>,
    pub wire: Vec<u8>,
    pub records: Vec<RecordSpan>,
    /// The number of the first record, under the first key.
    pub number: u64,
}

/// Parameters of a random stream.
pub(crate) struct Shape {
    pub stream_bytes: usize,
    pub plaintext_bytes_max: usize,
    /// Average distance of false headers in the ciphertext, bytes.
    pub false_headers: Option<u64>,
    /// Number of keys; key changes are in the first half.
    pub keys: usize,
    /// Most records have one length, so that a device presumes numbers, and often wrongly.
    pub regular: bool,
}

/// Successive lengths of plaintext.
struct Lengths {
    usual: usize,
    /// Length of the second half of a split record.
    rest: Option<usize>,
}

impl Lengths {
    /// The next length, at least `least`, for records with `overhead` further bytes.
    fn next(&mut self, random: &mut Random, least: usize, overhead: usize) -> usize {
        if let Some(rest) = self.rest.take() {
            return rest;
        }
        if random.once_in(12) && self.usual > overhead + 2 * least {
            // Two records replace one: a number inferred from lengths is wrong by one.
            let both = self.usual - overhead;
            let first = least + random.below((both - 2 * least) as u64 + 1) as usize;
            self.rest = Some(both - first);
            return first;
        }
        if random.once_in(25) {
            least + random.below(self.usual as u64) as usize
        } else {
            self.usual
        }
    }
}

impl Stream {
    pub fn random(random: &mut Random, version: Version, shape: &Shape) -> Stream {
        let mut number = random.below(3);
        let mut stream = Stream {
            number,
            secrets: vec![Secret::random(random, version)],
            written: Vec::new(),
            wire: Vec::new(),
            records: Vec::new(),
        };
        let mut explicit = random.next();
        // A TLS 1.3 record contains a type; a TLS 1.2 record can be empty.
        let least = usize::from(version == Version::Tls13);
        let usual = shape.plaintext_bytes_max / 2 + least;
        let mut lengths = Lengths { usual, rest: None };
        while stream.wire.len() < shape.stream_bytes {
            let changes = stream.secrets.len();
            if changes <= shape.keys && stream.wire.len() > shape.stream_bytes * changes / 5 {
                stream.secrets.push(Secret::random(random, version));
                number = 0;
            }
            let overhead = stream.secrets[0].prefix_bytes() + TAG_BYTES;
            let length = match shape.regular {
                true => lengths.next(random, least, overhead),
                false => random.below(shape.plaintext_bytes_max as u64 + 1) as usize,
            };
            let mut plaintext = random_bytes(random, length.max(least));
            let secret = &stream.secrets[stream.secrets.len() - 1];
            if let Some(once_in) = shape.false_headers {
                let numbers = (number, explicit);
                plant(random, secret, numbers, &mut plaintext, once_in);
                // The start of a record if all had the usual length.
                let start = stream.wire.len() + secret.prefix_bytes();
                let step = usual + overhead;
                let at = start.next_multiple_of(step) - start;
                if shape.regular && at + HEADER_BYTES <= plaintext.len() {
                    let behind = (step - HEADER_BYTES) as u16;
                    plant_one(secret, numbers, &mut plaintext, at, behind);
                }
            }
            let (written, sealed) = secret.record(number, explicit, &plaintext);
            let start = stream.wire.len();
            stream.written.extend(written);
            stream.wire.extend(sealed);
            let key = stream.secrets.len() as u16 - 1;
            stream.records.push(RecordSpan { start, end: stream.wire.len(), key });
            number += 1;
            explicit = explicit.wrapping_add(1);
        }
        stream
    }
}

/// Changes the plaintext so that its ciphertext contains false headers.
fn plant(
    random: &mut Random,
    secret: &Secret,
    (number, explicit): (u64, u64),
    plaintext: &mut [u8],
    once_in: u64,
) {
    let prefix = secret.prefix_bytes();
    let (_, sealed) = secret.record(number, explicit, plaintext);
    let mut at = random.below(once_in) as usize;
    while at + HEADER_BYTES <= plaintext.len() {
        // Includes invalid lengths.
        let length =
            if random.once_in(3) { random.next() as u16 } else { random.below(17000) as u16 };
        for (index, byte) in header(length).into_iter().enumerate() {
            plaintext[at + index] ^= sealed[prefix + at + index] ^ byte;
        }
        at += HEADER_BYTES + random.below(once_in) as usize;
    }
}

fn header(length: u16) -> [u8; HEADER_BYTES] {
    let [high, low] = length.to_be_bytes();
    [23, 3, 3, high, low]
}

/// Plants one false header at `at`, of a record with `length` bytes after the header.
pub(crate) fn plant_one(
    secret: &Secret,
    (number, explicit): (u64, u64),
    plaintext: &mut [u8],
    at: usize,
    length: u16,
) {
    let (_, sealed) = secret.record(number, explicit, plaintext);
    let sealed = &sealed[secret.prefix_bytes() + at..];
    for (index, byte) in header(length).into_iter().enumerate() {
        plaintext[at + index] ^= sealed[index] ^ byte;
    }
}
