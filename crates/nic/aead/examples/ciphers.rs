//! Speed of sealing and opening records in chunks, compared with aws-lc's incremental interface
//! and the portable backend (RustCrypto), interleaved in one process.
//!
//! `cargo run --release -p unlade-aead --features baseline --example ciphers`

use std::cell::RefCell;
use std::hint::black_box;
use std::time::Instant;

use unlade_aead::baseline::AwsLc;
use unlade_aead::{Backend, Key};

/// Length of the largest TLS record.
const RECORD_BYTES: usize = 16 * 1024;
/// Chunk sizes: a small packet, an ordinary packet, a complete record.
const PIECES_BYTES: [usize; 3] = [333, 1448, RECORD_BYTES];
/// Additional data of TLS 1.3.
const AAD: [u8; 5] = [23, 3, 3, 64, 17];
/// Number of records per time measurement.
const RECORDS: usize = 40;
/// Number of rounds, of which the median counts.
const ROUNDS: usize = 101;

/// Seals or opens one record in chunks; returns a value that depends on the tag.
trait Contender {
    fn record(&self, nonce: &[u8; 12], data: &mut [u8], piece_bytes: usize) -> u8;
}

struct Ours {
    key: Key,
    seal: bool,
}

impl Contender for Ours {
    fn record(&self, nonce: &[u8; 12], data: &mut [u8], piece_bytes: usize) -> u8 {
        let mut at = self.key.begin(nonce, &AAD);
        for piece in data.chunks_mut(piece_bytes) {
            match self.seal {
                true => self.key.encrypt(&mut at, piece),
                false => self.key.decrypt(&mut at, piece),
            }
        }
        self.key.tag(&at).0[0]
    }
}

struct Theirs(RefCell<AwsLc>);

impl Contender for Theirs {
    fn record(&self, nonce: &[u8; 12], data: &mut [u8], piece_bytes: usize) -> u8 {
        self.0.borrow_mut().record(nonce, &AAD, data, piece_bytes)[0]
    }
}

fn main() {
    println!("key  what     piece   backend  gb_per_s  aws_lc  portable  ratios to them");
    for key_bytes in [16, 32] {
        for seal in [true, false] {
            for piece_bytes in PIECES_BYTES {
                compare(&vec![7; key_bytes], seal, piece_bytes);
            }
        }
    }
    checksums();
}

/// Prints one line for each accelerated backend of this machine.
fn compare(key: &[u8], seal: bool, piece_bytes: usize) {
    let ours = |backend| Ours { key: Key::with_backend(key, backend).expect("supported"), seal };
    let backends: Vec<Backend> =
        Backend::ALL.into_iter().filter(|backend| backend.is_supported()).collect();
    let awslc = AwsLc::new(key, seal).expect("a length that there is");
    let mut contenders: Vec<Box<dyn Contender>> = vec![Box::new(Theirs(RefCell::new(awslc)))];
    for backend in &backends {
        contenders.push(Box::new(ours(*backend)));
    }
    let mut data = vec![1_u8; RECORD_BYTES];
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..ROUNDS as u32 {
        for (contender, times) in contenders.iter().zip(&mut times) {
            let begun = Instant::now();
            for record in 0..RECORDS as u32 {
                let mut nonce = [0; 12];
                nonce[..4].copy_from_slice(&record.to_le_bytes());
                nonce[4..8].copy_from_slice(&round.to_le_bytes());
                black_box(contender.record(&nonce, black_box(&mut data), piece_bytes));
            }
            times.push(begun.elapsed().as_secs_f64());
        }
    }
    let speeds: Vec<f64> = times
        .iter_mut()
        .map(|times| (RECORDS * RECORD_BYTES) as f64 / median(times) / 1e9)
        .collect();
    let (aws_lc, portable) = (speeds[0], speeds[speeds.len() - 1]);
    for (backend, speed) in backends.iter().zip(&speeds[1..]) {
        let what = if seal { "encrypt" } else { "decrypt" };
        println!(
            "{:3}  {what}  {piece_bytes:5}  {:>8}  {speed:8.2}  {aws_lc:6.2}  {portable:8.2}  {:.2} {:.2}",
            8 * key.len(),
            format!("{backend:?}"),
            speed / aws_lc,
            speed / portable,
        );
    }
}

/// Measures the checksum.
fn checksums() {
    let data = vec![1_u8; RECORD_BYTES];
    for piece_bytes in PIECES_BYTES {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            for _ in 0..RECORDS {
                let pieces = black_box(&data).chunks(piece_bytes);
                black_box(pieces.fold(0, unlade_aead::crc32c::update));
            }
            times.push(begun.elapsed().as_secs_f64());
        }
        let speed = (RECORDS * RECORD_BYTES) as f64 / median(&mut times) / 1e9;
        println!("crc32c            {piece_bytes:5}            {speed:8.2}");
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}
