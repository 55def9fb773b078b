//! Removal of zero pages from a file in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

const PAGE_BYTES: usize = 4096;
/// Bytes of one read.
const PIECE_BYTES: usize = 1 << 20;

/// Frees the zero pages of a file; returns the number of bytes.
///
/// # Errors
/// The system call failed.
pub(super) fn punch(file: &File) -> io::Result<u64> {
    let mut piece = vec![0; PIECE_BYTES];
    let (mut at, mut freed) = (0, 0);
    while let Some((start, end)) = next_data(file, at)? {
        at = start;
        while at < end {
            let bytes = usize::try_from(end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let found = piece.get_mut(..bytes).unwrap_or_default();
            file.read_exact_at(found, at)?;
            for (from, pages) in zero_runs(found) {
                let bytes = (pages * PAGE_BYTES) as u64;
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(file, flags, at + (from * PAGE_BYTES) as u64, bytes)?;
                freed += bytes;
            }
            at += bytes as u64;
        }
    }
    Ok(freed)
}

/// The next range with data, from an offset on.
fn next_data(file: &File, from: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some((start, seek(file, SeekFrom::Hole(start))?)))
}

/// Runs of adjacent zero pages: the first page, and the number.
fn zero_runs(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (number, page) in bytes.chunks_exact(PAGE_BYTES).enumerate() {
        if page.iter().any(|byte| *byte != 0) {
            continue;
        }
        match runs.last_mut() {
            Some((first, pages)) if *first + *pages == number => *pages += 1,
            _ => runs.push((number, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn zeros_go_and_the_rest_stays() {
        let file = File::from(memfd_create("holes", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(8 << 20).unwrap();
        file.write_all_at(&vec![0; 3 << 20], 1 << 20).unwrap();
        file.write_all_at(b"x", (2 << 20) + 5).unwrap();
        file.write_all_at(b"y", (8 << 20) - 1).unwrap();
        let mut before = vec![0; 8 << 20];
        file.read_exact_at(&mut before, 0).unwrap();
        assert_eq!(punch(&file).unwrap(), (3 << 20) - 4096);
        let held = rustix::fs::fstat(&file).unwrap().st_blocks as u64 * 512;
        assert_eq!(held, 2 * 4096);
        let mut after = vec![0; 8 << 20];
        file.read_exact_at(&mut after, 0).unwrap();
        assert!(before == after);
        assert_eq!(punch(&file).unwrap(), 0);
    }
}
