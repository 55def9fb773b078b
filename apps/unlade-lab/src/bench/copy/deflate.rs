//! Text that is copied into a buffer of its own and compressed there, and back.

use super::uses::{Paper, SIZES, Way, case, compare, heading, service, timed};
use crate::bench::record::Sink;
use anyhow::Result;
use flate2::Compression;
use flate2::bufread::{DeflateDecoder, DeflateEncoder};
use std::hint::black_box;
use std::io::{BufRead, Read};
use unlade_copy::Copier;
use unlade_copy_adapters::Reader;
use unlade_testkit::Random;

const PAPER: Paper = Paper { least_percent: 0.0, most_percent: 18.8 };
const DIRECTIONS: [&str; 2] = ["deflate", "inflate"];

/// Words of a small vocabulary, as logs and pages have them.
fn text(bytes: usize, random: &mut Random) -> Vec<u8> {
    let words: Vec<String> = (0..400).map(|_| format!("{:x}", random.below(1 << 24))).collect();
    let mut text = Vec::with_capacity(bytes + 16);
    while text.len() < bytes {
        text.extend_from_slice(words[random.below(400) as usize].as_bytes());
        text.push(b' ');
    }
    text.truncate(bytes);
    text
}

/// All that comes out of `input`, compressed or expanded; how many bytes.
fn work(direction: &str, input: impl BufRead, output: &mut Vec<u8>) -> Result<usize> {
    output.clear();
    let count = match direction {
        "deflate" => DeflateEncoder::new(input, Compression::fast()).read_to_end(output),
        _ => DeflateDecoder::new(input).read_to_end(output),
    };
    Ok(count?)
}

/// Measures copying with compressing and expanding.
///
/// # Errors
/// The service's, or the sink's.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    heading("deflate, copied from memory that is in no cache", PAPER)?;
    for direction in DIRECTIONS {
        for bytes in SIZES {
            measure(direction, bytes, if quick { 11 } else { 21 }, sink)?;
        }
    }
    Ok(())
}

fn measure(direction: &'static str, bytes: usize, rounds: usize, sink: &mut Sink) -> Result<()> {
    let plain = text(bytes, &mut Random::new(1));
    let mut source = Vec::new();
    match direction {
        "deflate" => source = plain,
        _ => {
            work("deflate", &plain[..], &mut source)?;
        }
    }
    let service = service()?;
    let copier = Copier::new(service.attach()?);
    let room = 2 * bytes + (64 << 10);
    let (mut buffer, mut output) = (vec![0u8; source.len()], Vec::with_capacity(room));
    let without = || {
        unlade_copy_kernels::evict(&source);
        let (took, count) = timed(|| {
            unlade_copy_kernels::kernel::best().copy_slice(&mut buffer, &source);
            work(direction, &buffer[..], &mut output)
        })?;
        black_box(count);
        Ok(took)
    };
    let (mut buffer, mut output) = (vec![0u8; source.len()], Vec::with_capacity(room));
    let with = || {
        unlade_copy_kernels::evict(&source);
        let (took, count) = timed(|| {
            copier.scope(|scope| {
                let pending = scope.copy(&source, &mut buffer);
                work(direction, Reader::new(&pending), &mut output)
            })
        })?;
        black_box(count);
        Ok(took)
    };
    let ways = vec![Way::new("sync", without), Way::new("offload", with).served(&service)];
    let label = format!("{direction} {}", unlade_config::ByteSize(bytes as u64));
    compare(&case("deflate", direction, bytes), &label, rounds, PAPER, ways, sink)
}
