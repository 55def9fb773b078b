//! AES-GCM of records in pieces: the engine's, aws-lc's incremental one, RustCrypto's.

use super::super::figures::median;
use super::super::record::Sink;
use anyhow::Result;
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::time::Instant;
use unlade_aead::baseline::AwsLc;
use unlade_aead::{Backend, Key};
use unlade_command::output::line;

/// The largest TLS record.
const RECORD_BYTES: usize = 16 << 10;
/// Pieces: a small packet, an ordinary one, a record at once.
const PIECES_BYTES: [usize; 3] = [333, 1448, RECORD_BYTES];
/// Additional data of TLS 1.3.
const AAD: [u8; 5] = [23, 3, 3, 64, 17];
/// Records between two looks at the clock.
const RECORDS: u32 = 40;

/// An implementation that seals or opens one record in pieces and returns a part of the tag.
type Contender = Box<dyn FnMut(&[u8; 12], &mut [u8], usize) -> u8>;

/// Runs the part.
///
/// # Errors
/// Results cannot be written.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    let rounds = if quick { 31 } else { 201 };
    line(format_args!(
        "{:>4} {:<8}{:>12}{:>10}{:>10}{:>12}{:>10}{:>12}",
        "key", "", "piece", "ours", "aws-lc", "rustcrypto", "x aws-lc", "x rustcrypto"
    ))?;
    for key_bytes in [16, 32] {
        for seal in [true, false] {
            for piece_bytes in PIECES_BYTES {
                compare(rounds, key_bytes, seal, piece_bytes, sink)?;
            }
        }
    }
    checksums(rounds, sink)
}

fn ours(key: &[u8], backend: Backend, seal: bool) -> Result<Contender> {
    let key = Key::with_backend(key, backend)?;
    Ok(Box::new(move |nonce, data, piece_bytes| {
        let mut at = key.begin(nonce, &AAD);
        for piece in data.chunks_mut(piece_bytes) {
            match seal {
                true => key.encrypt(&mut at, piece),
                false => key.decrypt(&mut at, piece),
            }
        }
        key.tag(&at).0[0]
    }))
}

fn aws_lc(key: &[u8], seal: bool) -> Result<Contender> {
    let mut key = AwsLc::new(key, seal)?;
    Ok(Box::new(move |nonce, data, piece_bytes| key.record(nonce, &AAD, data, piece_bytes)[0]))
}

fn compare(
    rounds: u32,
    key_bytes: usize,
    seal: bool,
    piece_bytes: usize,
    sink: &mut Sink,
) -> Result<()> {
    let key = vec![7; key_bytes];
    let mut contenders = vec![
        ("offload".to_owned(), ours(&key, Backend::best(), seal)?, Vec::new()),
        ("aws-lc".to_owned(), aws_lc(&key, seal)?, Vec::new()),
        ("rustcrypto".to_owned(), ours(&key, Backend::Portable, seal)?, Vec::new()),
    ];
    let slower = Backend::ALL.into_iter().filter(|backend| {
        backend.is_supported() && ![Backend::best(), Backend::Portable].contains(backend)
    });
    for backend in slower {
        let name = format!("offload-{backend:?}").to_lowercase();
        contenders.push((name, ours(&key, backend, seal)?, Vec::new()));
    }
    let mut data = vec![1_u8; RECORD_BYTES];
    for round in 0..rounds {
        for (_, contender, times_s) in &mut contenders {
            let begun = Instant::now();
            for record in 0..RECORDS {
                let mut nonce = [0; 12];
                nonce[..4].copy_from_slice(&record.to_le_bytes());
                nonce[4..8].copy_from_slice(&round.to_le_bytes());
                black_box(contender(&nonce, black_box(&mut data), piece_bytes));
            }
            times_s.push(begun.elapsed().as_secs_f64());
        }
    }
    let what = if seal { "seal" } else { "open" };
    let case = json!({ "part": "crypto", "what": what, "key_bits": 8 * key_bytes,
        "piece_bytes": piece_bytes, "record_bytes": RECORD_BYTES });
    let case = case.as_object().cloned().unwrap_or_default();
    let bytes = f64::from(RECORDS) * RECORD_BYTES as f64;
    let speeds: Vec<f64> =
        contenders.iter().map(|(_, _, times_s)| bytes / median(times_s)).collect();
    for ((mode, _, _), speed) in contenders.iter().zip(&speeds) {
        sink.write(case.clone(), mode, metric("throughput_bytes_per_s", *speed))?;
    }
    let (ours, aws_lc, portable) = (speeds[0], speeds[1], speeds[2]);
    let mut ratios = metric("gcm_ratio_vs_awslc", ours / aws_lc);
    ratios.extend(metric("gcm_ratio_vs_rustcrypto", ours / portable));
    sink.write(case, "ratio", ratios)?;
    let others = contenders.iter().zip(&speeds).skip(3);
    let others: Vec<String> =
        others.map(|((mode, ..), speed)| format!(", {mode} {:.2}", speed / 1e9)).collect();
    line(format_args!(
        "{:>4} {what:<8}{piece_bytes:>12}{:>10.2}{:>10.2}{:>12.2}{:>10.2}{:>12.2}  GB/s, {:?}{}",
        8 * key_bytes,
        ours / 1e9,
        aws_lc / 1e9,
        portable / 1e9,
        ours / aws_lc,
        ours / portable,
        Backend::best(),
        others.concat()
    ))
}

/// CRC32C of the same records in the same pieces.
fn checksums(rounds: u32, sink: &mut Sink) -> Result<()> {
    let data = vec![1_u8; RECORD_BYTES];
    for piece_bytes in PIECES_BYTES {
        let times_s = (0..rounds).map(|_| {
            let begun = Instant::now();
            for _ in 0..RECORDS {
                let pieces = black_box(&data).chunks(piece_bytes);
                black_box(pieces.fold(0, unlade_aead::crc32c::update));
            }
            begun.elapsed().as_secs_f64()
        });
        let speed = f64::from(RECORDS) * RECORD_BYTES as f64 / median(times_s);
        let case = json!({ "part": "crypto", "what": "crc32c", "piece_bytes": piece_bytes,
            "record_bytes": RECORD_BYTES });
        let case = case.as_object().cloned().unwrap_or_default();
        sink.write(case, "offload", metric("throughput_bytes_per_s", speed))?;
        line(format_args!("     {:<8}{piece_bytes:>12}{:>10.2}  GB/s", "crc32c", speed / 1e9))?;
    }
    Ok(())
}

fn metric(name: &str, value: f64) -> Map<String, Value> {
    Map::from_iter([(name.to_owned(), value.into())])
}
