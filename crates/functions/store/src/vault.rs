//! Objects as files: their paths, and their atomic replacement.
//!
//! Layout, below the root:
//! - `BUCKET/KEY`: an object whose key is a valid path ([`names::plain`]);
//! - `.unlade/keys/BUCKET/…`: any other object, at its encoded key ([`names::ordered_path`]);
//! - `.unlade/about/BUCKET/…`: the metadata of an object ([`crate::about`]);
//! - `.unlade/versioning/`, `.unlade/versions/`: see [`crate::versions`];
//! - `.unlade/notifications/BUCKET`: see [`crate::notifications`]; `.unlade/outbox/`, `.unlade/sequence`: see
//!   [`crate::intents`];
//! - `.unlade/uploads/ID/`: a multipart upload; `.unlade/tmp/`: files that are being written;
//! - `.unlade/format`: the number of this layout.
//!
//! A change is durable when it is acknowledged: the bytes and the metadata are synced before their
//! file is renamed to its name, and then the directory is synced. One rename or removal is the
//! commit point: after a power failure an object is either old or new.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::SystemTime;

use crate::about::{About, Version, Versioning, suffix};
use crate::disk::{self, Disk, DiskFile as _, Kind, Stat, there};
use crate::endings::Endings;
use crate::event::{Change, Creation, Origin};
use crate::fault::Fault;
use crate::hold::Held;
use crate::names::{self, KEY_BYTES_MAX, OWN};
use crate::outbox::Outbox;
use crate::record::{Intent, Witness};
use crate::walk::Kept;

/// The layout version of this program.
const FORMAT: &str = "2";
/// The layout that [`crate::legacy`] brings to the one of this program.
const FORMAT_BEFORE: &str = "1";
/// Largest file that is read as a whole.
pub const SMALL_BYTES_MAX: u64 = 1 << 20;
/// Number of locks. Two keys may share one.
const LOCKS: usize = 256;
/// Attempts to use a directory that another thread may remove meanwhile.
const ATTEMPTS_MAX: usize = 16;
/// Most directories that are remembered as durable.
const KNOWN_MAX: usize = 65_536;
/// A larger object is synced before its lock is taken.
const LARGE_BYTES: u64 = 1 << 20;

/// The objects below a directory.
pub struct Vault<D> {
    /// The file system.
    pub disk: Arc<D>,
    root: PathBuf,
    /// Read lock: changes of objects; write lock: changes of buckets.
    buckets: RwLock<()>,
    keys: Vec<Mutex<()>>,
    /// Directories whose names, and the names of all their parents, are durable.
    known: Mutex<HashSet<PathBuf>>,
    next: AtomicU64,
    /// The names of large directories, for lists.
    pub kept: Kept,
    /// The uploads that end now.
    pub endings: Endings,
    /// The events that the gateway has not taken.
    pub outbox: Outbox,
    /// The lock of the directory, released with the last user of this value.
    pub held: Option<Held>,
}

/// A temporary file for an object or a part; removed unless it is renamed.
pub struct Draft<D: Disk> {
    disk: Arc<D>,
    path: PathBuf,
    /// The file.
    pub file: D::File,
    is_kept: bool,
}

impl<D: Disk> Drop for Draft<D> {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.disk.remove_file(&self.path);
        }
    }
}

/// An open object.
pub struct OpenObject<F> {
    /// Its file.
    pub file: F,
    /// The attributes of the file.
    pub stat: Stat,
    /// The metadata.
    pub about: Option<About>,
    /// The id of the version, in a bucket with versions.
    pub id: Option<String>,
}

/// The object of a key without a version, and its path.
#[derive(Clone, Debug)]
pub struct Current {
    /// Its file.
    pub path: PathBuf,
    is_plain: bool,
    stat: Stat,
}

impl Current {
    /// The time of its file, in nanoseconds since 1970.
    pub fn modified_ns(&self) -> i64 {
        self.stat.modified_ns
    }
}

/// The creation of an object, for its event.
#[derive(Clone, Debug, Default)]
pub struct Cause {
    /// The operation.
    pub by: Creation,
    /// The request.
    pub origin: Origin,
}

impl Cause {
    /// The change of an object with a length and metadata.
    pub fn change<'a>(&self, bytes: u64, about: &'a About) -> Change<'a> {
        Change::Created { by: self.by, bytes, e_tag: &about.e_tag }
    }
}

/// The condition of a change.
pub type Condition<'a> = &'a (dyn Fn(Option<&Version>) -> Result<(), Fault> + Sync);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<D: Disk> Vault<D> {
    /// Opens the objects below `root`, which must exist. Removes incomplete files of a previous
    /// process.
    ///
    /// # Errors
    /// The system call failed, or the layout belongs to another program.
    pub fn open(disk: D, root: &Path) -> io::Result<Vault<D>> {
        let vault = Vault {
            disk: Arc::new(disk),
            root: root.to_owned(),
            buckets: RwLock::default(),
            keys: (0..LOCKS).map(|_| Mutex::default()).collect(),
            known: Mutex::default(),
            next: AtomicU64::new(0),
            kept: Kept::default(),
            endings: Endings::default(),
            outbox: Outbox::default(),
            held: None,
        };
        let format = vault.own("format");
        let found = there(disk::read(&*vault.disk, &format, SMALL_BYTES_MAX))?;
        let is = |text: &Vec<u8>, layout: &str| text.trim_ascii() == layout.as_bytes();
        let is_before = found.as_ref().is_some_and(|text| is(text, FORMAT_BEFORE));
        if let Some(text) = found.as_ref().filter(|text| !is(text, FORMAT) && !is_before) {
            return Err(io::Error::other(format!(
                "{} says {:?}, and this program knows layout {FORMAT}; use the one that wrote it",
                format.display(),
                String::from_utf8_lossy(text)
            )));
        }
        vault.remove_tree(&vault.own("tmp"))?;
        if is_before {
            vault.encode_again()?;
        }
        if found.is_none() || is_before {
            vault.write(&format, FORMAT.as_bytes())?;
        }
        vault.load_outbox()?;
        Ok(vault)
    }

    /// A path in the store's own directory.
    pub fn own(&self, name: &str) -> PathBuf {
        self.root.join(OWN).join(name)
    }

    fn bucket_path(&self, bucket: &str) -> PathBuf {
        self.root.join(bucket)
    }

    /// The root of the tree of encoded keys.
    pub fn odd_root(&self, bucket: &str) -> PathBuf {
        self.own("keys").join(bucket)
    }

    /// The file of an encoded key.
    pub fn odd_path(&self, bucket: &str, key: &str) -> PathBuf {
        self.odd_root(bucket).join(names::ordered_path(key))
    }

    /// The metadata file of a key's file.
    pub fn about_path(&self, bucket: &str, key: &str, stat: &Stat) -> PathBuf {
        self.own("about").join(bucket).join(names::encoded(key, &suffix(stat)))
    }

    /// Checks that a bucket exists.
    ///
    /// # Errors
    /// The bucket does not exist, or the system call failed.
    pub fn check_bucket(&self, bucket: &str) -> Result<(), Fault> {
        let is_name = s3s::path::check_bucket_name(bucket);
        let found = if is_name { there(self.disk.stat(&self.bucket_path(bucket)))? } else { None };
        match found {
            Some(stat) if stat.kind == Kind::Directory => Ok(()),
            _ => Err(Fault::NoBucket),
        }
    }

    /// Checks that a bucket exists and that a key is valid.
    ///
    /// # Errors
    /// See above, or the system call failed.
    pub fn check(&self, bucket: &str, key: &str) -> Result<(), Fault> {
        self.check_bucket(bucket)?;
        match key {
            _ if key.len() > KEY_BYTES_MAX => Err(Fault::KeyTooLong),
            _ if key.contains('\0') => Err(Fault::KeyHasZero),
            _ => Ok(()),
        }
    }

    /// The lock of a change of objects.
    pub fn shared(&self) -> RwLockReadGuard<'_, ()> {
        self.buckets.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock of a change of buckets.
    pub fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.buckets.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock of a key.
    pub fn lock(&self, bucket: &str, key: &str) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        (bucket, key).hash(&mut hasher);
        locked(&self.keys[(hasher.finish() % LOCKS as u64) as usize])
    }

    /// A new name for a temporary file.
    pub fn fresh(&self) -> PathBuf {
        self.own("tmp").join(self.next.fetch_add(1, Ordering::Relaxed).to_string())
    }

    /// Creates a temporary file.
    ///
    /// # Errors
    /// The system call failed.
    pub fn draft(&self) -> io::Result<Draft<D>> {
        let path = self.fresh();
        let file = self.within(&self.own("tmp"), || self.disk.create(&path))?;
        Ok(Draft { disk: self.disk.clone(), path, file, is_kept: false })
    }

    /// Runs a closure in a directory, which is created if it does not exist.
    pub fn within<T>(&self, dir: &Path, act: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let mut attempts = 0;
        loop {
            match self.ensure(dir).and_then(|()| act()) {
                // Another thread has removed the last object of the directory, or the operator has
                // removed it.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound && attempts < ATTEMPTS_MAX =>
                {
                    locked(&self.known).clear();
                    attempts += 1;
                }
                done => return done,
            }
        }
    }

    /// Creates a directory and its parents, durably.
    fn ensure(&self, dir: &Path) -> io::Result<()> {
        let mut known = locked(&self.known);
        if known.len() > KNOWN_MAX {
            known.clear();
        }
        self.ensure_known(&mut known, dir)
    }

    fn ensure_known(&self, known: &mut HashSet<PathBuf>, dir: &Path) -> io::Result<()> {
        let Some(parent) = dir.parent().filter(|_| dir != self.root && !known.contains(dir)) else {
            return Ok(());
        };
        self.ensure_known(known, parent)?;
        let is_bucket = parent == self.root && !dir.ends_with(OWN);
        let is_there = match if is_bucket { Ok(()) } else { self.disk.make_dir(dir) } {
            Ok(()) => is_bucket,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => true,
            Err(error) => return Err(error),
        };
        if is_there && self.disk.stat(dir)?.kind != Kind::Directory {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        self.disk.sync_dir(parent)?;
        known.insert(dir.to_owned());
        Ok(())
    }

    /// Renames a synced file to its final name, durably.
    pub fn place(&self, from: &Path, to: &Path) -> io::Result<()> {
        let dir = to.parent().ok_or(io::ErrorKind::InvalidFilename)?;
        self.within(dir, || self.disk.rename(from, to))?;
        self.disk.sync_dir(dir)
    }

    /// Renames a draft to its final name, durably.
    ///
    /// # Errors
    /// The system call failed.
    pub fn keep(&self, mut draft: Draft<D>, to: &Path) -> io::Result<()> {
        draft.file.sync()?;
        self.settle(&mut draft, to)
    }

    /// Renames a synced draft to its final name, durably.
    ///
    /// # Errors
    /// The system call failed.
    pub fn settle(&self, draft: &mut Draft<D>, to: &Path) -> io::Result<()> {
        self.place(&draft.path, to)?;
        draft.is_kept = true;
        Ok(())
    }

    /// Writes a small file, durably.
    ///
    /// # Errors
    /// The system call failed.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut draft = self.draft()?;
        draft.file.append(bytes)?;
        self.keep(draft, path)
    }

    /// Removes empty directories above `path`, up to `base`, which stays.
    pub fn prune(&self, path: &Path, base: &Path) {
        let mut known = locked(&self.known);
        let mut dir = path.parent();
        while let Some(empty) = dir.filter(|dir| *dir != base && dir.starts_with(base)) {
            if self.disk.remove_dir(empty).is_err() {
                break;
            }
            known.remove(empty);
            dir = empty.parent();
        }
    }

    /// Removes a directory and its content; a missing one is not an error.
    ///
    /// # Errors
    /// The system call failed.
    pub fn remove_tree(&self, dir: &Path) -> io::Result<()> {
        let Some(entries) = there(self.disk.read_dir(dir))? else { return Ok(()) };
        for (name, kind) in entries {
            let path = dir.join(name);
            match kind {
                Kind::Directory => self.remove_tree(&path)?,
                Kind::File | Kind::Other => self.disk.remove_file(&path)?,
            }
        }
        locked(&self.known).remove(dir);
        there(self.disk.remove_dir(dir)).map(drop)
    }

    /// Renames a directory away, durably, and then removes its content.
    ///
    /// # Errors
    /// The system call failed.
    pub fn retire(&self, dir: &Path) -> io::Result<()> {
        let fresh = self.fresh();
        self.within(&self.own("tmp"), || self.disk.rename(dir, &fresh))?;
        locked(&self.known).retain(|known| !known.starts_with(dir));
        if let Some(parent) = dir.parent() {
            self.disk.sync_dir(parent)?;
        }
        // The next start of the store removes the rest.
        self.remove_tree(&fresh).or_else(|error| {
            tracing::warn!(%error, path = %fresh.display(), "store: is left behind");
            Ok(())
        })
    }

    /// The object of a key without a version.
    ///
    /// # Errors
    /// The system call failed.
    pub fn current(&self, bucket: &str, key: &str) -> io::Result<Option<Current>> {
        let plain = names::plain(key).map(|path| (self.bucket_path(bucket).join(path), true));
        for (path, is_plain) in plain.into_iter().chain([(self.odd_path(bucket, key), false)]) {
            match there(self.disk.stat(&path))? {
                Some(stat) if stat.kind == Kind::File => {
                    return Ok(Some(Current { path, is_plain, stat }));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// The metadata of a key's file, if there is any.
    ///
    /// # Errors
    /// The system call failed.
    pub fn about(&self, bucket: &str, key: &str, stat: &Stat) -> io::Result<Option<About>> {
        self.read_about(&self.about_path(bucket, key, stat))
    }

    /// Reads a file with metadata, if it exists.
    ///
    /// # Errors
    /// The system call failed.
    pub fn read_about(&self, path: &Path) -> io::Result<Option<About>> {
        let Some(text) = there(disk::read(&*self.disk, path, SMALL_BYTES_MAX))? else {
            return Ok(None);
        };
        let wrong = |error: &serde_json::Error| {
            tracing::error!(%error, path = %path.display(), "store: what is said of an object");
        };
        Ok(serde_json::from_slice(&text).inspect_err(wrong).ok())
    }

    /// Opens an object with its metadata: a version by its id, or the newest one.
    ///
    /// # Errors
    /// The object does not exist, it is a delete marker, or the system call failed.
    pub fn open_object(
        &self,
        bucket: &str,
        key: &str,
        asked: Option<&str>,
    ) -> Result<OpenObject<D::File>, Fault> {
        self.check(bucket, key)?;
        let state = self.versioning(bucket)?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let slot = Self::choose(self.slots(bucket, key, state)?, asked)?;
            let path = self.file_of(&slot);
            let Some(file) = there(self.disk.open(path))? else {
                if attempts < ATTEMPTS_MAX { continue } else { return Err(Fault::NoKey) }
            };
            let stat = file.stat()?;
            let about = self.about_slot(bucket, key, &slot, &stat)?;
            // A file that was replaced twice between the two calls has no metadata.
            let is_same = || there(self.disk.stat(path)).map(|now| now == Some(stat));
            if about.is_some() || attempts == ATTEMPTS_MAX || is_same()? {
                let id = (state != Versioning::Off).then_some(slot.id);
                return Ok(OpenObject { file, stat, about, id });
            }
        }
    }

    /// The attributes and metadata of an object, for a list; `None` if it no longer exists.
    ///
    /// # Errors
    /// The system call failed.
    pub fn listed(
        &self,
        bucket: &str,
        key: &str,
        state: Versioning,
    ) -> io::Result<Option<(Stat, Option<About>)>> {
        let slots = self.slots(bucket, key, state)?;
        let Some(slot) = slots.first().filter(|slot| !slot.is_marker) else { return Ok(None) };
        let Some(stat) = there(self.disk.stat(self.file_of(slot)))? else { return Ok(None) };
        Ok(Some((stat, self.about_slot(bucket, key, slot, &stat)?)))
    }

    /// Makes a draft the object of a key, durably, and replaces the previous one.
    ///
    /// # Errors
    /// The bucket does not exist, the condition is not fulfilled, or the system call failed: then
    /// the object is either the previous or the new one.
    pub fn commit(
        &self,
        bucket: &str,
        key: &str,
        draft: Draft<D>,
        about: About,
        condition: Condition<'_>,
        cause: &Cause,
    ) -> Result<Version, Fault> {
        let mut draft = draft;
        if draft.file.stat()?.bytes > LARGE_BYTES {
            draft.file.sync()?;
        }
        let _shared = self.shared();
        self.check(bucket, key)?;
        let _own = self.lock(bucket, key);
        let state = self.versioning(bucket)?;
        if state != Versioning::Off {
            return self.add_version((bucket, key, state), &mut draft, about, condition, cause);
        }
        let current = self.current(bucket, key)?;
        let before = match current.as_ref().map(|current| current.stat) {
            Some(stat) => {
                let about = self.about(bucket, key, &stat)?.unwrap_or_default();
                Some(Version { stat, about, id: None })
            }
            None => None,
        };
        condition(before.as_ref())?;
        // A clock may be set back, and two changes may have the same time.
        let now_ns = disk::nanoseconds(SystemTime::now());
        let after = before.as_ref().map_or(i64::MIN, |version| version.stat.modified_ns + 1);
        draft.file.set_modified(now_ns.max(after))?;
        let version = Version { stat: draft.file.stat()?, about, id: None };
        let change = cause.change(version.stat.bytes, &version.about);
        let witness = Witness::Object(version.stat.modified_ns);
        let intent = self.intend(&change, (bucket, key, None), &cause.origin, witness)?;
        let described = self.describe(bucket, key, &version, (Some(&draft.file), intent.as_ref()));
        let published = described
            .map_err(Fault::from)
            .and_then(|()| self.publish(&draft.path, bucket, key, current.as_ref()));
        draft.is_kept = published.is_ok();
        self.conclude(intent, published)?;
        if let Some(before) = before {
            self.forget(bucket, key, &before.stat)?;
        }
        Ok(version)
    }

    /// Writes the metadata of a key's file, durably, with the intent of its event; also syncs the file
    /// itself if requested.
    ///
    /// # Errors
    /// The system call failed.
    pub fn describe(
        &self,
        bucket: &str,
        key: &str,
        version: &Version,
        (file, intent): (Option<&D::File>, Option<&Intent>),
    ) -> io::Result<()> {
        let text = serde_json::to_vec(&version.about).map_err(io::Error::other)?;
        let path = self.about_path(bucket, key, &version.stat);
        let own: (&Path, &[u8]) = (&path, &text);
        let files: Vec<_> = [own].into_iter().chain(intent.map(Intent::file)).collect();
        self.write_beside(&files, file)
    }

    /// Writes files that no reader uses yet, durably, and syncs another one at the same time.
    ///
    /// # Errors
    /// The system call failed.
    pub fn write_beside(&self, texts: &[(&Path, &[u8])], file: Option<&D::File>) -> io::Result<()> {
        let (mut made, mut dirs) = (Vec::with_capacity(texts.len()), Vec::new());
        for (path, text) in texts {
            let dir = path.parent().ok_or(io::ErrorKind::InvalidFilename)?;
            let mut own = self.within(dir, || match self.disk.create(path) {
                // The file belongs to a change that failed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.disk.remove_file(path)?;
                    self.disk.create(path)
                }
                created => created,
            })?;
            own.append(text)?;
            made.push(own);
            dirs.push(dir);
        }
        let files: Vec<&D::File> = file.into_iter().chain(&made).collect();
        self.disk.sync_together(&files, &dirs)
    }

    /// Removes the metadata of a file that no longer exists. After a power failure such metadata
    /// may remain: it matches no file.
    fn forget(&self, bucket: &str, key: &str, stat: &Stat) -> io::Result<()> {
        let path = self.about_path(bucket, key, stat);
        if there(self.disk.remove_file(&path))?.is_some() {
            self.prune(&path, &self.own("about").join(bucket));
        }
        Ok(())
    }

    /// Renames a draft to the object's path. An existing object keeps its path; a new one gets its
    /// plain path if possible.
    fn publish(
        &self,
        from: &Path,
        bucket: &str,
        key: &str,
        current: Option<&Current>,
    ) -> Result<(), Fault> {
        let is_odd = current.is_some_and(|current| !current.is_plain);
        let plain = names::plain(key).filter(|_| !is_odd);
        let placed = match plain {
            Some(path) => self.place(from, &self.bucket_path(bucket).join(path)),
            None => self.place(from, &self.odd_path(bucket, key)),
        };
        match placed {
            Err(error) if plain.is_some() && is_taken(&error) => {
                Ok(self.place(from, &self.odd_path(bucket, key))?)
            }
            placed => Ok(placed?),
        }
    }

    /// Removes the object of a key without a version, durably; a missing one is not an error. The
    /// caller has locked the key.
    pub fn remove_unversioned(&self, bucket: &str, key: &str) -> Result<(), Fault> {
        let plain = names::plain(key).map(|path| self.bucket_path(bucket).join(path));
        let odd = self.odd_path(bucket, key);
        // Readers use the plain path first: it is removed last.
        for path in [Some(&odd), plain.as_ref()].into_iter().flatten() {
            let is_file = |stat: &Stat| stat.kind != Kind::Directory;
            let found = there(self.disk.stat(path))?.filter(is_file);
            if found.is_some() {
                there(self.disk.remove_file(path))?;
            }
            if let Some(dir) = path.parent() {
                // A previous removal that failed may not be durable.
                there(self.disk.sync_dir(dir))?;
            }
            if let Some(stat) = found {
                self.forget(bucket, key, &stat)?;
            }
        }
        self.prune(&odd, &self.odd_root(bucket));
        if let Some(path) = plain {
            self.prune(&path, &self.bucket_path(bucket));
        }
        Ok(())
    }

    /// Creates a bucket of a region (`None`: the first one), durably. An existing one of the first
    /// region stays as it is.
    ///
    /// # Errors
    /// A bucket of another region or something else has the name, the name is invalid, or the system
    /// call failed.
    pub fn create_bucket(&self, bucket: &str, region: Option<&str>) -> Result<(), Fault> {
        let _alone = self.alone();
        let is_name = s3s::path::check_bucket_name(bucket);
        if !is_name || bucket.contains("-.") || bucket.contains(".-") {
            return Err(Fault::BucketName(bucket.to_owned()));
        }
        let is_new = there(self.disk.stat(&self.bucket_path(bucket)))?.is_none();
        // An earlier bucket of this name may have left it. A bucket with versions whose directory is
        // missing lost that only: another program removed it, or did not restore it.
        if is_new && !self.has_versions(bucket)? {
            self.remove_versioning(bucket)?;
            self.remove_bucket_tags(bucket)?;
            self.set_location(bucket, region)?;
        }
        match self.disk.make_dir(&self.bucket_path(bucket)) {
            // As in `us-east-1`: the owner may create a bucket again.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.check_bucket(bucket).map_err(|_| Fault::BucketExists)?;
                let is_elsewhere = region.is_some() || self.location(bucket)?.is_some();
                if is_elsewhere { Err(Fault::BucketOwned) } else { Ok(()) }
            }
            made => Ok(made.and_then(|()| self.disk.sync_dir(&self.root))?),
        }
    }

    /// Removes an empty bucket, durably.
    ///
    /// # Errors
    /// The bucket does not exist, it is not empty, or the system call failed.
    pub fn delete_bucket(&self, bucket: &str) -> Result<(), Fault> {
        let _alone = self.alone();
        self.check_bucket(bucket)?;
        let (plain, odd) = (self.bucket_path(bucket), self.odd_root(bucket));
        if self.has_file(&plain)? || self.has_file(&odd)? || self.has_versions(bucket)? {
            return Err(Fault::BucketNotEmpty);
        }
        self.retire(&plain)?;
        for dir in [odd, self.own("about").join(bucket)] {
            self.remove_tree(&dir)?;
        }
        self.end_uploads(bucket)?;
        self.remove_bucket_tags(bucket)?;
        self.remove_notifications(bucket)?;
        self.set_location(bucket, None)?;
        Ok(self.remove_versioning(bucket)?)
    }

    fn has_file(&self, dir: &Path) -> io::Result<bool> {
        self.has(dir, &mut |_| true)
    }

    /// Returns true if a file below a directory has a property. It looks at no file after that one.
    ///
    /// # Errors
    /// The system call failed.
    pub fn has(&self, dir: &Path, property: &mut dyn FnMut(&Path) -> bool) -> io::Result<bool> {
        let mut see = |path: &Path| {
            if property(path) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        Ok(self.walk(dir, &mut see)?.is_break())
    }

    /// The names of all buckets, and the times of their creation or last change.
    ///
    /// # Errors
    /// The system call failed.
    pub fn all_buckets(&self) -> io::Result<Vec<(String, Stat)>> {
        let mut found = Vec::new();
        for (name, kind) in self.disk.read_dir(&self.root)? {
            let Some(name) = name.to_str().filter(|name| s3s::path::check_bucket_name(name)) else {
                continue;
            };
            if kind == Kind::Directory
                && let Some(stat) = there(self.disk.stat(&self.root.join(name)))?
            {
                found.push((name.to_owned(), stat));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// The directory of a bucket.
    pub fn plain_root(&self, bucket: &str) -> PathBuf {
        self.bucket_path(bucket)
    }

    /// Visits everything below a directory except directories, until the visitor breaks off.
    ///
    /// # Errors
    /// The system call failed.
    pub fn walk(
        &self,
        dir: &Path,
        see: &mut dyn FnMut(&Path) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<()>> {
        let mut left = vec![dir.to_owned()];
        while let Some(dir) = left.pop() {
            // It may go at any time.
            for (name, kind) in there(self.disk.read_dir(&dir))?.unwrap_or_default() {
                let path = dir.join(name);
                match kind {
                    Kind::Directory => left.push(path),
                    Kind::File | Kind::Other if see(&path).is_break() => {
                        return Ok(ControlFlow::Break(()));
                    }
                    Kind::File | Kind::Other => {}
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Returns true if the error means that another object's path conflicts with this path.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory)
}
