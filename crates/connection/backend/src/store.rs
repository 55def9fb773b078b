//! The object store: a directory whose regular files are the objects.
//!
//! The kernel resolves names below the root (openat2 with RESOLVE_BENEATH and
//! RESOLVE_NO_SYMLINKS), so neither a symbolic link nor a race with a rename leads out of it.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::condition::{Conditions, Validators, Verdict};
use crate::name::ObjectName;

/// Directory below the root for incomplete uploads. Its prefix is reserved in object names.
pub const STAGING: &str = ".unlade-staging";
/// Extended attribute with the SHA-256 of an uploaded object, valid for one size and mtime.
pub(crate) const DIGEST_ATTRIBUTE: &str = "user.unlade.sha256";
/// Maximum length of the digest attribute, in bytes.
const DIGEST_ATTRIBUTE_BYTES_MAX: usize = 128;
/// Number of change counters, which names share by hash. More counters cause fewer unnecessary
/// revalidations.
const STRIPES: usize = 1024;
/// Maximum number of attempts to open a path during concurrent renames (EAGAIN of openat2).
const RESOLVE_TRIES_MAX: usize = 8;

/// The store, shared by all workers.
#[derive(Debug)]
pub struct Store {
    root: OwnedFd,
    /// Directory of incomplete uploads; None if the store is read-only.
    staging: Option<OwnedFd>,
    stripes: Vec<Stripe>,
    hasher: RandomState,
    /// Number of the next staged upload. The first one is random, since processes in other PID
    /// namespaces may share the root.
    pub(crate) next_upload: AtomicU64,
}

#[derive(Debug, Default)]
struct Stripe {
    /// Incremented with every change of a name of this stripe.
    generation: AtomicU64,
    /// Held while a change is checked and applied.
    change: Mutex<()>,
}

/// An open object.
#[derive(Debug)]
pub struct Object {
    /// Its content.
    pub file: File,
    /// Its size.
    pub bytes: u64,
    /// Last-Modified, in seconds since 1970.
    pub modified_s: u64,
    /// Strong entity tag, with its quotes.
    pub etag: String,
}

impl Object {
    /// Returns the validators for conditional requests.
    pub fn validators(&self) -> Validators<'_> {
        Validators { etag: self.etag.as_bytes(), modified_s: self.modified_s }
    }
}

/// Error of opening a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The root directory cannot be used.
    #[error("root {path}: {error}; create the directory or correct `root`")]
    Root {
        /// The configured path.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        error: io::Error,
    },
    /// The staging directory cannot be used.
    #[error("{path}: {error}; make `root` writable, or set `writable = false`")]
    Staging {
        /// The directory.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        error: io::Error,
    },
}

/// Error of an operation on an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The object does not exist (symbolic links, directories and devices are not objects).
    #[error("no such object")]
    Missing,
    /// The file's permissions forbid the operation.
    #[error("permission denied")]
    Denied,
    /// A parent of the name is an object, or the name is a directory.
    #[error("the name conflicts with an object or a directory")]
    Conflict,
    /// A condition of the request does not hold.
    #[error("a condition of the request does not hold")]
    Condition,
    /// A condition of the request is malformed.
    #[error("a condition of the request is malformed")]
    Malformed,
    /// The store was opened for reading only.
    #[error("the store is read-only")]
    ReadOnly,
    /// No space, or no quota, is left.
    #[error("no space left in the store")]
    Full,
    /// The process has no descriptors or memory left.
    #[error("the server is out of descriptors or memory")]
    Exhausted,
    /// Another I/O error.
    #[error("the store failed: {0}")]
    Io(#[source] io::Error),
}

impl ObjectError {
    /// The HTTP status of the refusal.
    pub fn status(&self) -> u16 {
        match self {
            ObjectError::Missing => 404,
            ObjectError::Denied | ObjectError::ReadOnly => 403,
            ObjectError::Conflict => 409,
            ObjectError::Condition => 412,
            ObjectError::Malformed => 400,
            ObjectError::Full => 507,
            ObjectError::Exhausted => 503,
            ObjectError::Io(_) => 500,
        }
    }
}

impl From<Errno> for ObjectError {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOENT
            | Errno::NOTDIR
            | Errno::LOOP
            | Errno::NAMETOOLONG
            | Errno::XDEV
            | Errno::NXIO
            | Errno::ISDIR => ObjectError::Missing,
            Errno::ACCESS | Errno::PERM => ObjectError::Denied,
            Errno::ROFS => ObjectError::ReadOnly,
            Errno::NOSPC | Errno::DQUOT => ObjectError::Full,
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => ObjectError::Exhausted,
            other => ObjectError::Io(other.into()),
        }
    }
}

impl Store {
    /// Opens the directory `root`. A writable store also removes the files of dead processes from
    /// its staging directory.
    ///
    /// # Errors
    /// The root or its staging directory cannot be used.
    pub fn open(root: &Path, writable: bool) -> Result<Store, StoreError> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fail = |error: Errno| StoreError::Root { path: root.to_owned(), error: error.into() };
        let directory = rustix::fs::open(root, flags, Mode::empty()).map_err(fail)?;
        // Detects a missing openat2 now rather than at the first request.
        open_below(directory.as_fd(), ".", flags).map_err(fail)?;
        let staging = match writable {
            false => None,
            true => Some(open_staging(directory.as_fd()).map_err(|error| StoreError::Staging {
                path: root.join(STAGING),
                error: error.into(),
            })?),
        };
        Ok(Store {
            root: directory,
            staging,
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            hasher: RandomState::new(),
            next_upload: AtomicU64::new(RandomState::new().hash_one(0)),
        })
    }

    /// Opens an object for reading.
    ///
    /// # Errors
    /// The object does not exist or cannot be read.
    pub fn lookup(&self, name: &ObjectName) -> Result<Object, ObjectError> {
        // NONBLOCK: opening a FIFO in the directory must not wait for its writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = File::from(open_below(self.root.as_fd(), name.as_str(), flags)?);
        describe(file)
    }

    /// Removes an object durably if `conditions` hold.
    ///
    /// # Errors
    /// The object does not exist, a condition does not hold, or the store fails.
    pub fn delete(&self, name: &ObjectName, conditions: &Conditions) -> Result<(), ObjectError> {
        if self.staging.is_none() {
            return Err(ObjectError::ReadOnly);
        }
        let _change = self.lock(name);
        let object = self.lookup(name)?;
        check(conditions, Some(&object))?;
        let parent = self.parent(name, Missing::Refuse)?;
        rustix::fs::unlinkat(&parent, name.split().1, AtFlags::empty())?;
        self.changed(name);
        rustix::fs::fsync(&parent)?;
        Ok(())
    }

    /// Returns the directory of incomplete uploads.
    ///
    /// # Errors
    /// The store is read-only.
    pub(crate) fn staging(&self) -> Result<BorrowedFd<'_>, ObjectError> {
        self.staging.as_ref().map(AsFd::as_fd).ok_or(ObjectError::ReadOnly)
    }

    /// Opens the parent directory of an object.
    pub(crate) fn parent(
        &self,
        name: &ObjectName,
        missing: Missing,
    ) -> Result<OwnedFd, ObjectError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut directory = open_below(self.root.as_fd(), ".", flags)?;
        for segment in name.split().0 {
            directory = match open_below(directory.as_fd(), segment, flags) {
                Ok(next) => next,
                Err(Errno::NOENT) if missing == Missing::Create => {
                    match rustix::fs::mkdirat(&directory, segment, Mode::from_raw_mode(0o755)) {
                        Ok(()) => rustix::fs::fsync(&directory)?,
                        Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    open_below(directory.as_fd(), segment, flags)?
                }
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(ObjectError::Conflict),
                Err(error) => return Err(error.into()),
            };
        }
        Ok(directory)
    }

    /// Excludes other changes of the same name.
    pub(crate) fn lock(&self, name: &ObjectName) -> MutexGuard<'_, ()> {
        let stripe = &self.stripes[self.stripe_of(name)];
        stripe.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Invalidates the cache entries of `name` in all workers.
    pub(crate) fn changed(&self, name: &ObjectName) {
        self.stripes[self.stripe_of(name)].generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the index of the change counter of `name`.
    pub(crate) fn stripe_of(&self, name: &ObjectName) -> usize {
        (self.hasher.hash_one(name) % STRIPES as u64) as usize
    }

    /// Returns a change counter. An object that was opened at an older value may have been
    /// replaced.
    pub(crate) fn generation(&self, stripe: usize) -> u64 {
        self.stripes[stripe % STRIPES].generation.load(Ordering::Acquire)
    }
}

/// Handling of missing parent directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Create them durably.
    Create,
    /// Report the object as missing.
    Refuse,
}

/// Evaluates a request's conditions against the current object.
pub(crate) fn check(conditions: &Conditions, object: Option<&Object>) -> Result<(), ObjectError> {
    match conditions.evaluate(object.map(Object::validators), false) {
        Verdict::Proceed => Ok(()),
        Verdict::Malformed => Err(ObjectError::Malformed),
        Verdict::Failed | Verdict::NotModified => Err(ObjectError::Condition),
    }
}

/// Opens `path` strictly below `directory`, following no symbolic link.
fn open_below(directory: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mut tries = 0;
    loop {
        tries += 1;
        match rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) if tries < RESOLVE_TRIES_MAX => {}
            other => return other,
        }
    }
}

/// Reads size, modification time and entity tag of an open file.
pub(crate) fn describe(file: File) -> Result<Object, ObjectError> {
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(ObjectError::Missing);
    }
    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
    let seconds = i128::from(stat.st_mtime);
    let modified_ns = seconds * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
    let etag = match stored_digest(&file, bytes, modified_ns) {
        Some(digest) => format!("\"{digest}\""),
        None => format!("\"{bytes:x}-{modified_ns:x}-{:x}\"", stat.st_ino),
    };
    let modified_s = u64::try_from(stat.st_mtime).unwrap_or(0);
    Ok(Object { file, bytes, modified_s, etag })
}

/// Returns the SHA-256 stored at upload, if it was stored for this size and modification time.
fn stored_digest(file: &File, bytes: u64, modified_ns: i128) -> Option<String> {
    let mut value = [0; DIGEST_ATTRIBUTE_BYTES_MAX];
    let length = rustix::fs::fgetxattr(file, DIGEST_ATTRIBUTE, &mut value[..]).ok()?;
    let text = std::str::from_utf8(value.get(..length)?).ok()?;
    let mut parts = text.split(' ');
    let (digest, for_bytes, for_time) = (parts.next()?, parts.next()?, parts.next()?);
    let plain = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    let current = for_bytes.parse() == Ok(bytes) && for_time.parse() == Ok(modified_ns);
    (plain && current).then(|| digest.to_owned())
}

/// Formats the attribute that [`stored_digest`] reads.
pub(crate) fn digest_attribute(digest: &str, bytes: u64, modified_ns: i128) -> String {
    format!("{digest} {bytes} {modified_ns}")
}

fn open_staging(root: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(root, STAGING, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let staging = open_below(root, STAGING, flags)?;
    rustix::fs::accessat(
        &staging,
        ".",
        rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
        AtFlags::empty(),
    )?;
    sweep(&staging)?;
    Ok(staging)
}

/// Removes staged uploads that no process has locked: their process is gone.
fn sweep(staging: &OwnedFd) -> Result<(), Errno> {
    for entry in rustix::fs::Dir::read_from(staging)? {
        let entry = entry?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let Ok(file) = rustix::fs::openat(staging, entry.file_name(), flags, Mode::empty()) else {
            continue;
        };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // unlinkat fails for the directories `.` and `..`.
            let _ = rustix::fs::unlinkat(staging, entry.file_name(), AtFlags::empty());
        }
    }
    Ok(())
}
