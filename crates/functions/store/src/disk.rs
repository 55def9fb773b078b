//! The file system operations of the store, as a trait. Tests use one in memory with power
//! failures.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file, or a symbolic link that may lead to one.
    File,
    /// A directory.
    Directory,
    /// Anything else.
    Other,
}

/// The attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The type; links are followed.
    pub kind: Kind,
    /// Its length.
    pub bytes: u64,
    /// The modification time, in nanoseconds since 1970.
    pub modified_ns: i64,
}

/// The state of a directory: it differs after each change of its names that is more than a tick of the
/// file system's clock later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The number of the directory, which differs if another one has got its path.
    pub inode: u64,
    /// The time of its last change, in nanoseconds since 1970. Only the system sets it.
    pub changed_ns: i64,
}

/// An open file.
pub trait DiskFile: Send + Sync + 'static {
    /// Appends bytes.
    ///
    /// # Errors
    /// The system call failed.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Reads at a position; 0 at the end.
    ///
    /// # Errors
    /// The system call failed.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;

    /// The attributes of the file.
    ///
    /// # Errors
    /// The system call failed.
    fn stat(&self) -> io::Result<Stat>;

    /// Sets the modification time.
    ///
    /// # Errors
    /// The system call failed.
    fn set_modified(&self, modified_ns: i64) -> io::Result<()>;

    /// Makes its content and times durable.
    ///
    /// # Errors
    /// The system call failed: the data may not be durable.
    fn sync(&self) -> io::Result<()>;
}

/// A file system. A change of names is durable when [`Disk::sync_dir`] has returned.
pub trait Disk: Send + Sync + 'static {
    /// The type of its files.
    type File: DiskFile;

    /// Creates a file that does not exist.
    ///
    /// # Errors
    /// The system call failed.
    fn create(&self, path: &Path) -> io::Result<Self::File>;

    /// Opens a file to read it.
    ///
    /// # Errors
    /// The system call failed, or the path is not a regular file.
    fn open(&self, path: &Path) -> io::Result<Self::File>;

    /// The attributes of a path.
    ///
    /// # Errors
    /// The system call failed.
    fn stat(&self, path: &Path) -> io::Result<Stat>;

    /// The state of a directory.
    ///
    /// # Errors
    /// The system call failed.
    fn stamp(&self, path: &Path) -> io::Result<Stamp>;

    /// The names in a directory.
    ///
    /// # Errors
    /// The system call failed.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<(OsString, Kind)>>;

    /// Creates a directory that does not exist.
    ///
    /// # Errors
    /// The system call failed.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The system call failed.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The system call failed.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Renames a path, and replaces an existing one.
    ///
    /// # Errors
    /// The system call failed.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// The system call failed: the names may not be durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes files and the names in directories durable, in unspecified order.
    ///
    /// # Errors
    /// The system call failed: one of them may not be durable.
    fn sync_together(&self, files: &[&Self::File], dirs: &[&Path]) -> io::Result<()> {
        files.iter().try_for_each(|file| file.sync())?;
        dirs.iter().try_for_each(|dir| self.sync_dir(dir))
    }
}

/// Maps the error for a missing path to `None`.
///
/// # Errors
/// Any other error.
pub fn there<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    match done {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), NotFound | NotADirectory | InvalidFilename) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Converts a time to the format of [`Stat`].
pub fn nanoseconds(time: SystemTime) -> i64 {
    let whole = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => whole(since),
        Err(before) => -whole(before.duration()),
    }
}

/// Converts a time from the format of [`Stat`].
pub fn system_time(modified_ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(modified_ns.unsigned_abs());
    let found = match modified_ns < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(distance),
        false => SystemTime::UNIX_EPOCH.checked_add(distance),
    };
    found.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The file system of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Local;

fn stat_of(found: &fs::Metadata) -> io::Result<Stat> {
    let kind = match found.file_type() {
        kind if kind.is_file() => Kind::File,
        kind if kind.is_dir() => Kind::Directory,
        _ => Kind::Other,
    };
    Ok(Stat { kind, bytes: found.len(), modified_ns: nanoseconds(found.modified()?) })
}

impl DiskFile for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, at)
    }

    fn stat(&self) -> io::Result<Stat> {
        stat_of(&self.metadata()?)
    }

    fn set_modified(&self, modified_ns: i64) -> io::Result<()> {
        File::set_modified(self, system_time(modified_ns))
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Disk for Local {
    type File = File;

    fn create(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).open(path)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        // Opening a FIFO would block until it has a writer.
        match self.stat(path)?.kind {
            Kind::File => File::open(path),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        stat_of(&fs::metadata(path)?)
    }

    fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        let found = fs::metadata(path)?;
        let changed_ns =
            found.ctime().saturating_mul(1_000_000_000).saturating_add(found.ctime_nsec());
        Ok(Stamp { inode: found.ino(), changed_ns })
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<(OsString, Kind)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let kind = match entry.file_type()? {
                kind if kind.is_dir() => Kind::Directory,
                kind if kind.is_file() || kind.is_symlink() => Kind::File,
                _ => Kind::Other,
            };
            found.push((entry.file_name(), kind));
        }
        Ok(found)
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    /// Syncs in parallel: a journaling file system commits once for all of them.
    fn sync_together(&self, files: &[&File], dirs: &[&Path]) -> io::Result<()> {
        std::thread::scope(|scope| {
            let mut syncs: Vec<_> =
                files.iter().map(|file| scope.spawn(move || file.sync_all())).collect();
            let (last, others) = dirs.split_last().ok_or(io::ErrorKind::InvalidInput)?;
            syncs.extend(others.iter().map(|dir| scope.spawn(move || self.sync_dir(dir))));
            let of_last = self.sync_dir(last);
            let panicked = |_| Err(io::Error::other("a sync has panicked"));
            let of_others = syncs.into_iter().map(|sync| sync.join().unwrap_or_else(panicked));
            of_others.collect::<io::Result<()>>().and(of_last)
        })
    }
}

/// Reads a complete file.
///
/// # Errors
/// The system call failed, or the file is longer than `bytes_max`.
pub fn read<D: Disk>(disk: &D, path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = disk.open(path)?;
    let bytes = file.stat()?.bytes;
    if bytes > bytes_max {
        return Err(io::Error::other(format!("{} is too long", path.display())));
    }
    read_exact(&file, 0, bytes as usize)
}

/// Reads exactly `bytes` bytes at a position.
///
/// # Errors
/// The system call failed, or the file is shorter.
pub fn read_exact<F: DiskFile>(file: &F, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let (mut buffer, mut filled) = (vec![0; bytes], 0);
    while filled < bytes {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_as_they_were() {
        for modified_ns in [0, 1, 1_700_000_000_123_456_789, -1, -1_500_000_000] {
            assert_eq!(nanoseconds(system_time(modified_ns)), modified_ns);
        }
    }
}
