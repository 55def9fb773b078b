//! The storage of a namespace, and its operations.
//!
//! Operations in memory never block. An operation on a file may: data in the page cache is read
//! at once (RWF_NOWAIT), and everything else runs on a thread that may block.

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use unlade_nvme_wire::Status;
use unlade_nvme_wire::identify::IdentifyNamespace;
use uuid::Uuid;

use crate::target::config::{NamespaceConfig, Source};
use crate::target::ram::{ChunkSlice, Ram};

/// Bytes of zeroes per write, if a file system cannot zero a range.
const ZEROES_BYTES: usize = 64 << 10;

/// The reason that a namespace cannot be served, for the operator to correct.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be opened.
    #[error("namespace {path}: {error}; correct the path, or create it: truncate -s 1G {path}")]
    File {
        /// Its path.
        path: String,
        /// Error of the kernel.
        #[source]
        error: io::Error,
    },
    /// It is shorter than one block.
    #[error("namespace {path}: {bytes} bytes are less than a block of {block_bytes}")]
    Empty {
        /// Its path.
        path: String,
        /// Its length.
        bytes: u64,
        /// Bytes of a block.
        block_bytes: u32,
    },
}

/// A validated operation: ranges are within the namespace. Offsets and lengths in bytes.
#[derive(Debug)]
pub(crate) enum Work {
    /// Read.
    Read { offset: u64, bytes: usize },
    /// Write; durably if `durable`.
    Write { offset: u64, data: Vec<u8>, durable: bool },
    /// Compare.
    Compare { offset: u64, data: Vec<u8> },
    /// Make all earlier writes durable.
    Flush,
    /// Zero a range; durably if `durable`.
    Zero { offset: u64, bytes: u64, durable: bool },
    /// Deallocate ranges: (offset, bytes).
    Discard(Vec<(u64, u64)>),
}

#[derive(Debug)]
enum Backing {
    Ram(Ram),
    File(File),
}

/// A namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    /// NSID, from 1.
    pub number: u32,
    /// The base 2 logarithm of the block size in bytes.
    pub block_power: u8,
    /// Number of blocks.
    pub blocks: u64,
    /// True if writes are refused.
    pub is_read_only: bool,
    /// NGUID and UUID: its identity.
    pub uuid: Uuid,
    backing: Backing,
}

impl Namespace {
    /// Opens the namespace of `config`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(config: &NamespaceConfig, uuid: Uuid, number: u32) -> Result<Namespace, OpenError> {
        let (backing, bytes, path) = match &config.source {
            Source::Ram(size) => (Backing::Ram(Ram::new(size.0)), size.0, format!("ram:{size}")),
            Source::File(path) => {
                let (file, bytes) = open_file(path, config.read_only)?;
                (Backing::File(file), bytes, path.display().to_string())
            }
        };
        let block_bytes = config.block_bytes;
        let block_power = block_bytes.trailing_zeros() as u8;
        let blocks = bytes >> block_power;
        if blocks == 0 {
            return Err(OpenError::Empty { path, bytes, block_bytes });
        }
        let is_read_only = config.read_only;
        Ok(Namespace { number, block_power, blocks, is_read_only, uuid, backing })
    }

    /// Its Identify data. `is_shared` is true if several controllers may use it concurrently.
    pub fn identify(&self, is_shared: bool) -> IdentifyNamespace {
        IdentifyNamespace {
            blocks: self.blocks,
            block_power: self.block_power,
            deallocated_reads: 1,
            is_shared,
            is_read_only: self.is_read_only,
            guid: self.uuid.into_bytes(),
        }
    }

    /// Executes the work if it cannot block; otherwise returns it.
    pub fn run_now(&self, work: Work) -> Result<Result<Vec<ChunkSlice>, Status>, Work> {
        match (&self.backing, work) {
            (Backing::Ram(ram), work) => Ok(run_in_memory(ram, work)),
            (Backing::File(file), Work::Read { offset, bytes }) => {
                match read_cached(file, offset, bytes) {
                    Some(data) => Ok(Ok(vec![ChunkSlice::new(data)])),
                    None => Err(Work::Read { offset, bytes }),
                }
            }
            (Backing::File(_), work) => Err(work),
        }
    }

    /// Executes the work; it may block.
    pub fn run(&self, work: Work) -> Result<Vec<ChunkSlice>, Status> {
        match &self.backing {
            Backing::Ram(ram) => run_in_memory(ram, work),
            Backing::File(file) => run_on_file(file, work),
        }
    }
}

pub(crate) fn open_file(path: &Path, read_only: bool) -> Result<(File, u64), OpenError> {
    let fail = |error| OpenError::File { path: path.display().to_string(), error };
    let mut file = File::options().read(true).write(!read_only).open(path).map_err(fail)?;
    // The metadata of a block device have no length.
    let bytes = file.seek(SeekFrom::End(0)).map_err(fail)?;
    // A directory can be opened for reading, and has a length.
    if file.metadata().map_err(fail)?.is_dir() {
        return Err(fail(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    Ok((file, bytes))
}

fn run_in_memory(ram: &Ram, work: Work) -> Result<Vec<ChunkSlice>, Status> {
    match work {
        Work::Read { offset, bytes } => return Ok(ram.read(offset, bytes)),
        Work::Write { offset, data, .. } => ram.write(offset, &data),
        Work::Compare { offset, data } => {
            let there = ram.read(offset, data.len());
            let there = there.iter().flat_map(|piece| piece.bytes());
            return if there.eq(&data) { Ok(Vec::new()) } else { Err(Status::COMPARE_FAILURE) };
        }
        Work::Flush => {}
        Work::Zero { offset, bytes, .. } => ram.zero(offset, bytes),
        Work::Discard(ranges) => {
            ranges.iter().for_each(|(offset, bytes)| ram.zero(*offset, *bytes));
        }
    }
    Ok(Vec::new())
}

/// Reads from the page cache, if all of the range is there.
fn read_cached(file: &File, offset: u64, bytes: usize) -> Option<Vec<u8>> {
    let mut data = vec![0; bytes];
    let mut into = [IoSliceMut::new(&mut data)];
    let read = preadv2(file.as_fd(), &mut into, offset, ReadWriteFlags::NOWAIT);
    (read == Ok(bytes)).then_some(data)
}

fn run_on_file(file: &File, work: Work) -> Result<Vec<ChunkSlice>, Status> {
    match work {
        Work::Read { offset, bytes } => {
            let data = read_all(file, offset, bytes).map_err(reading)?;
            return Ok(vec![ChunkSlice::new(data)]);
        }
        Work::Write { offset, data, durable } => {
            file.write_all_at(&data, offset).map_err(writing)?;
            flush_if(file, durable)?;
        }
        Work::Compare { offset, data } => {
            let there = read_all(file, offset, data.len()).map_err(reading)?;
            return if there == data { Ok(Vec::new()) } else { Err(Status::COMPARE_FAILURE) };
        }
        Work::Flush => flush_if(file, true)?,
        Work::Zero { offset, bytes, durable } => {
            zero(file, offset, bytes).map_err(writing)?;
            flush_if(file, durable)?;
        }
        Work::Discard(ranges) => {
            for (offset, bytes) in ranges {
                // A hint: if the file system does not support it, the blocks stay as they are.
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = fallocate(file, flags, offset, bytes);
            }
        }
    }
    Ok(Vec::new())
}

fn read_all(file: &File, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut data = vec![0; bytes];
    file.read_exact_at(&mut data, offset)?;
    Ok(data)
}

fn flush_if(file: &File, durable: bool) -> Result<(), Status> {
    if durable { file.sync_data().map_err(writing) } else { Ok(()) }
}

fn zero(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, flags, offset, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NODEV | Errno::NOSYS | Errno::INVAL) => {
            write_zeroes(file, offset, bytes)
        }
        Err(error) => Err(error.into()),
    }
}

fn write_zeroes(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let mut zeroes = Vec::new();
    io::repeat(0).take(bytes.min(ZEROES_BYTES as u64)).read_to_end(&mut zeroes)?;
    let end = offset + bytes;
    let mut at = offset;
    while at < end {
        let count = (end - at).min(ZEROES_BYTES as u64) as usize;
        file.write_all_at(&zeroes[..count], at)?;
        at += count as u64;
    }
    Ok(())
}

fn reading(error: io::Error) -> Status {
    tracing::error!(%error, "a namespace cannot be read");
    Status::READ_ERROR
}

fn writing(error: io::Error) -> Status {
    tracing::error!(%error, "a namespace cannot be written");
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Status::CAPACITY,
        _ => Status::WRITE_FAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(blocks: usize) -> Vec<(Namespace, Option<tempfile::NamedTempFile>)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(blocks as u64 * 512 + 100).unwrap();
        let source = Source::File(file.path().to_owned());
        let config = NamespaceConfig { source, block_bytes: 512, read_only: false, uuid: None };
        let on_file = Namespace::open(&config, Uuid::nil(), 1).unwrap();
        let size = unlade_config::ByteSize(blocks as u64 * 512);
        let config = NamespaceConfig { source: Source::Ram(size), ..config };
        let in_memory = Namespace::open(&config, Uuid::nil(), 2).unwrap();
        vec![(on_file, Some(file)), (in_memory, None)]
    }

    fn read(space: &Namespace, offset: u64, bytes: usize) -> Vec<u8> {
        let pieces = space.run(Work::Read { offset, bytes }).unwrap();
        let there: Vec<u8> = pieces.iter().flat_map(|p| p.bytes().to_vec()).collect();
        // A non-blocking read gives the same, or nothing.
        if let Ok(now) = space.run_now(Work::Read { offset, bytes }) {
            let now: Vec<u8> = now.unwrap().iter().flat_map(|p| p.bytes().to_vec()).collect();
            assert_eq!(now, there);
        }
        there
    }

    #[test]
    fn files_and_memory_do_the_same() {
        for (space, _file) in both(400) {
            assert_eq!(space.blocks, 400);
            let data: Vec<u8> = (0..200 * 512).map(|i| (i % 251) as u8).collect();
            let write = Work::Write { offset: 1024, data: data.clone(), durable: true };
            space.run(write).unwrap();
            assert_eq!(read(&space, 1024, data.len()), data);
            space.run(Work::Flush).unwrap();
            let same = Work::Compare { offset: 1024, data: data[..512].to_vec() };
            assert!(space.run(same).is_ok());
            let other = Work::Compare { offset: 1024, data: vec![255; 512] };
            assert_eq!(space.run(other).unwrap_err(), Status::COMPARE_FAILURE);
            space.run(Work::Zero { offset: 2048, bytes: 90 * 512, durable: false }).unwrap();
            assert!(read(&space, 2048, 90 * 512).iter().all(|b| *b == 0));
            assert_eq!(read(&space, 1024, 1024), data[..1024]);
            let discard = Work::Discard(vec![(0, 512), (1024, 0)]);
            assert!(space.run(discard).unwrap().is_empty());
            assert_eq!(read(&space, 1024, 1024), data[..1024]);
        }
    }

    #[test]
    fn zeroes_can_be_written() {
        let (space, file) = both(400).remove(0);
        let all = Work::Write { offset: 0, data: vec![9; 400 * 512], durable: false };
        space.run(all).unwrap();
        write_zeroes(file.as_ref().unwrap().as_file(), 512, 300 * 512).unwrap();
        assert!(read(&space, 512, 300 * 512).iter().all(|b| *b == 0));
        assert_eq!(read(&space, 301 * 512, 1), [9]);
    }

    #[test]
    fn what_cannot_be_served_says_why() {
        let config = |path: &str| NamespaceConfig {
            source: Source::File(path.into()),
            block_bytes: 4096,
            read_only: true,
            uuid: None,
        };
        let missing = Namespace::open(&config("/nowhere/disk.img"), Uuid::nil(), 1).unwrap_err();
        assert!(missing.to_string().contains("truncate -s 1G /nowhere/disk.img"));
        assert!(Namespace::open(&config("/"), Uuid::nil(), 1).is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display().to_string();
        let empty = Namespace::open(&config(&path), Uuid::nil(), 1).unwrap_err();
        assert!(matches!(empty, OpenError::Empty { bytes: 0, .. }));
    }
}
