//! A log: records are copied into a batch while the program forms the next one, and each batch is
//! written to a file when its copies are synced. The file is read back at the end and compared.
//!
//! ```sh
//! cargo run --release -p unlade-copy --example log_pipeline
//! ```

use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::process::ExitCode;

use unlade_copy::{Config, Copier, CopyError, Service};

const RECORD_BYTES: usize = 16 << 10;
const BATCH_RECORDS: usize = 16;
const BATCHES: usize = 25;

/// Fills a record: its bytes depend on its number.
fn form(record: &mut [u8], number: usize) {
    for (at, byte) in record.iter_mut().enumerate() {
        *byte = (number.wrapping_mul(31) + at.wrapping_mul(number | 1) + (at >> 8)) as u8;
    }
}

/// Writes a batch whose records are copied from `inputs`, each of them formed while the copies of
/// the others are made.
fn write_batch(
    copier: &Copier,
    inputs: &mut [Vec<u8>],
    batch: &mut [u8],
    first: usize,
    log: &mut File,
) -> Result<(), Box<dyn Error>> {
    copier.scope(|scope| {
        let mut copies = Vec::with_capacity(BATCH_RECORDS);
        let places = batch.chunks_exact_mut(RECORD_BYTES);
        for (at, (input, place)) in inputs.iter_mut().zip(places).enumerate() {
            form(input, first + at);
            copies.push(scope.copy(input, place));
        }
        // A record is borrowed until it is synced: an unsynced one could not be written.
        for copy in &copies {
            log.write_all(copy.sync(0..RECORD_BYTES)?)?;
        }
        Ok(())
    })
}

/// Number of records in the file that differ from what was logged.
fn wrong_records(log: &File) -> Result<usize, Box<dyn Error>> {
    let (mut found, mut expected) = (vec![0; RECORD_BYTES], vec![0; RECORD_BYTES]);
    let mut wrong = 0;
    for number in 0..BATCHES * BATCH_RECORDS {
        log.read_exact_at(&mut found, (number * RECORD_BYTES) as u64)?;
        form(&mut expected, number);
        wrong += usize::from(found != expected);
    }
    Ok(wrong)
}

fn run() -> Result<usize, Box<dyn Error>> {
    let service = Service::start(Config::default())?;
    let copier = Copier::new(service.attach()?);
    let mut inputs = vec![vec![0; RECORD_BYTES]; BATCH_RECORDS];
    let mut batch = vec![0; RECORD_BYTES * BATCH_RECORDS];
    let mut log = tempfile::tempfile()?;
    for number in 0..BATCHES {
        write_batch(&copier, &mut inputs, &mut batch, number * BATCH_RECORDS, &mut log)?;
    }
    copier.sync_all().map_err(|error: CopyError| -> Box<dyn Error> { error.into() })?;
    let wrong = wrong_records(&log)?;
    let stats = copier.stats().read();
    let all = BATCHES * BATCH_RECORDS;
    println!(
        "log_pipeline: {} of {all} records are right; {} copies were queued, {} made at once",
        all - wrong,
        stats.queued,
        stats.at_once
    );
    Ok(wrong)
}

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("log_pipeline: {error}");
            ExitCode::FAILURE
        }
    }
}
