//! PUT: writes an object to a staging file, makes it durable, and publishes it atomically.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::condition::Conditions;
use crate::name::ObjectName;
use crate::store::{self, Missing, ObjectError, Store};

/// Maximum number of names tried for a staging file; another process may use the first ones.
const NAMES_TRIED_MAX: usize = 64;

/// An upload in progress. Dropping it before the commit removes its file.
#[derive(Debug)]
pub struct Upload {
    store: Arc<Store>,
    file: File,
    /// Its name in the staging directory.
    staged: String,
    digest: Sha256,
    bytes: u64,
}

/// A committed upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// True if there was no object of this name before.
    pub created: bool,
    /// Its entity tag, with quotes.
    pub etag: String,
    /// Its size.
    pub bytes: u64,
}

impl Upload {
    /// Begins an upload.
    ///
    /// # Errors
    /// The store is read-only or cannot hold another file.
    pub fn begin(store: &Arc<Store>) -> Result<Upload, ObjectError> {
        let staging = store.staging()?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        for _ in 0..NAMES_TRIED_MAX {
            let number = store.next_upload.fetch_add(1, Ordering::Relaxed);
            let staged = format!("{}-{number}", std::process::id());
            let mode = Mode::from_raw_mode(0o644);
            let file = match rustix::fs::openat(staging, staged.as_str(), flags, mode) {
                Ok(file) => File::from(file),
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(error.into()),
            };
            // The lock marks the file as in use. If it is taken, a sweep between the two calls is
            // removing the file.
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let (store, digest) = (store.clone(), Sha256::new());
            return Ok(Upload { store, file, staged, digest, bytes: 0 });
        }
        Err(ObjectError::Io(io::Error::from(io::ErrorKind::AlreadyExists)))
    }

    /// Appends content.
    ///
    /// # Errors
    /// No space is left, or the write fails.
    pub fn write(&mut self, content: &[u8]) -> Result<(), ObjectError> {
        self.file.write_all(content).map_err(|error| match Errno::from_io_error(&error) {
            Some(errno) => ObjectError::from(errno),
            None => ObjectError::Io(error),
        })?;
        self.digest.update(content);
        self.bytes += content.len() as u64;
        Ok(())
    }

    /// Returns the number of bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes the content durable and then visible under `name`, if `conditions` hold at that
    /// moment. Blocks on the disk, so do not call it on a worker's thread.
    ///
    /// # Errors
    /// A condition does not hold, names conflict, or the store fails; the old object is unchanged.
    pub fn commit(
        self,
        name: &ObjectName,
        conditions: &Conditions,
    ) -> Result<Committed, ObjectError> {
        self.note_digest()?;
        rustix::fs::fsync(&self.file)?;
        let _change = self.store.lock(name);
        let current = match self.store.lookup(name) {
            Ok(object) => Some(object),
            Err(ObjectError::Missing) => None,
            Err(error) => return Err(error),
        };
        store::check(conditions, current.as_ref())?;
        let parent = self.store.parent(name, Missing::Create)?;
        let staging = self.store.staging()?;
        rustix::fs::renameat(staging, self.staged.as_str(), &parent, name.split().1).map_err(
            |error| match error {
                Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR => {
                    ObjectError::Conflict
                }
                other => other.into(),
            },
        )?;
        self.store.changed(name);
        rustix::fs::fsync(&parent)?;
        let duplicate = self.file.try_clone().map_err(ObjectError::Io)?;
        let object = store::describe(duplicate)?;
        Ok(Committed { created: current.is_none(), etag: object.etag, bytes: object.bytes })
    }

    /// Stores the content's digest in an extended attribute. On a file system without them the
    /// entity tag is derived from size, time and inode.
    fn note_digest(&self) -> Result<(), ObjectError> {
        let stat = rustix::fs::fstat(&self.file)?;
        let digest: String =
            self.digest.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let modified_ns =
            i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
        let value = store::digest_attribute(&digest, self.bytes, modified_ns);
        let noted = rustix::fs::fsetxattr(
            &self.file,
            store::DIGEST_ATTRIBUTE,
            value.as_bytes(),
            XattrFlags::empty(),
        );
        match noted {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // After a commit the name no longer exists; names are never reused.
        if let Ok(staging) = self.store.staging() {
            let _ = rustix::fs::unlinkat(staging, self.staged.as_str(), AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    struct TestStore {
        directory: tempfile::TempDir,
        store: Arc<Store>,
    }

    impl TestStore {
        fn new() -> TestStore {
            let directory = tempfile::tempdir().unwrap();
            let store = Arc::new(Store::open(directory.path(), true).unwrap());
            TestStore { directory, store }
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.directory.path().join(name)
        }

        fn put(&self, path: &str, content: &[u8]) -> Result<Committed, ObjectError> {
            self.put_if(path, content, &[])
        }

        fn put_if(
            &self,
            path: &str,
            content: &[u8],
            fields: &[(&str, &str)],
        ) -> Result<Committed, ObjectError> {
            let mut upload = Upload::begin(&self.store)?;
            for part in content.chunks(3) {
                upload.write(part)?;
            }
            upload.commit(&name(path), &conditions(fields))
        }

        fn staged(&self) -> usize {
            std::fs::read_dir(self.path(store::STAGING)).unwrap().count()
        }
    }

    fn name(path: &str) -> ObjectName {
        ObjectName::from_path(path).unwrap()
    }

    fn conditions(fields: &[(&str, &str)]) -> Conditions {
        Conditions::read(fields.iter().map(|(name, value)| (*name, value.as_bytes())))
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn an_upload_appears_whole_and_replaces_whole() {
        let home = TestStore::new();
        let first = home.put("/a/b/c.txt", b"first content").unwrap();
        assert!(first.created);
        assert_eq!(read(&home.path("a/b/c.txt")), "first content");
        let mut second = Upload::begin(&home.store).unwrap();
        second.write(b"second").unwrap();
        assert_eq!(read(&home.path("a/b/c.txt")), "first content", "not before the commit");
        let second = second.commit(&name("/a/b/c.txt"), &conditions(&[])).unwrap();
        assert!(!second.created && second.etag != first.etag && second.bytes == 6);
        assert_eq!(read(&home.path("a/b/c.txt")), "second");
        assert_eq!(home.staged(), 0);
    }

    #[test]
    fn an_upload_given_up_leaves_nothing() {
        let home = TestStore::new();
        let mut upload = Upload::begin(&home.store).unwrap();
        upload.write(b"half").unwrap();
        assert_eq!(home.staged(), 1);
        drop(upload);
        assert_eq!(home.staged(), 0);
        assert!(matches!(home.store.lookup(&name("/half")), Err(ObjectError::Missing)));
    }

    #[test]
    fn what_a_killed_process_left_is_swept_and_what_lives_is_not() {
        let home = TestStore::new();
        std::fs::write(home.path(store::STAGING).join("1-0"), b"left behind").unwrap();
        let mut living = Upload::begin(&home.store).unwrap();
        living.write(b"alive").unwrap();
        let again = Store::open(home.directory.path(), true).unwrap();
        assert_eq!(home.staged(), 1);
        assert!(living.commit(&name("/x"), &conditions(&[])).unwrap().created);
        assert_eq!(again.lookup(&name("/x")).unwrap().bytes, 5);
    }

    #[test]
    fn conditions_are_checked_at_the_commit() {
        let home = TestStore::new();
        let create_only = [("If-None-Match", "*")];
        let first = home.put_if("/x", b"1", &create_only).unwrap();
        let again = home.put_if("/x", b"2", &create_only);
        assert!(matches!(again, Err(ObjectError::Condition)));
        let stale = home.put_if("/x", b"2", &[("If-Match", "\"stale\"")]);
        assert!(matches!(stale, Err(ObjectError::Condition)));
        assert_eq!(read(&home.path("x")), "1");
        home.put_if("/x", b"2", &[("If-Match", &first.etag)]).unwrap();
        assert_eq!(read(&home.path("x")), "2");
        let unreadable = home.put_if("/x", b"3", &[("If-Match", "nonsense")]);
        assert!(matches!(unreadable, Err(ObjectError::Malformed)));
    }

    #[test]
    fn of_many_creators_one_wins() {
        let home = TestStore::new();
        let winners: usize = std::thread::scope(|scope| {
            let attempts: Vec<_> = (0..8)
                .map(|at| {
                    let home = &home;
                    scope.spawn(move || {
                        let content = format!("{at}");
                        let fields = [("If-None-Match", "*")];
                        usize::from(home.put_if("/one", content.as_bytes(), &fields).is_ok())
                    })
                })
                .collect();
            attempts.into_iter().map(|attempt| attempt.join().unwrap()).sum()
        });
        assert_eq!(winners, 1);
    }

    #[test]
    fn names_that_are_directories_or_below_objects_conflict() {
        let home = TestStore::new();
        home.put("/a/b", b"x").unwrap();
        assert!(matches!(home.put("/a", b"x"), Err(ObjectError::Conflict)));
        assert!(matches!(home.put("/a/b/c", b"x"), Err(ObjectError::Conflict)));
        assert!(matches!(home.store.lookup(&name("/a")), Err(ObjectError::Missing)));
        assert!(matches!(home.store.lookup(&name("/a/b/c")), Err(ObjectError::Missing)));
        assert_eq!(home.staged(), 0);
    }

    #[test]
    fn symbolic_links_lead_nowhere() {
        let home = TestStore::new();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), b"secret").unwrap();
        symlink(outside.path(), home.path("dir")).unwrap();
        symlink(outside.path().join("secret"), home.path("leaf")).unwrap();
        for path in ["/leaf", "/dir/secret"] {
            let found = home.store.lookup(&name(path));
            assert!(matches!(found, Err(ObjectError::Missing)), "{path}");
            assert!(home.store.delete(&name(path), &conditions(&[])).is_err(), "{path}");
        }
        assert!(matches!(home.put("/dir/new", b"x"), Err(ObjectError::Conflict)));
        home.put("/leaf", b"mine").unwrap();
        assert_eq!(read(&outside.path().join("secret")), "secret");
        assert_eq!(read(&home.path("leaf")), "mine");
    }

    #[test]
    fn special_files_are_no_objects() {
        let home = TestStore::new();
        let fifo = home.path("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(matches!(home.store.lookup(&name("/fifo")), Err(ObjectError::Missing)));
    }

    #[test]
    fn a_deleted_object_is_gone_and_only_where_conditions_hold() {
        let home = TestStore::new();
        let put = home.put("/d/x", b"x").unwrap();
        let stale = conditions(&[("If-Match", "\"stale\"")]);
        let refused = home.store.delete(&name("/d/x"), &stale);
        assert!(matches!(refused, Err(ObjectError::Condition)));
        home.store.delete(&name("/d/x"), &conditions(&[("If-Match", &put.etag)])).unwrap();
        let gone = home.store.delete(&name("/d/x"), &conditions(&[]));
        assert!(matches!(gone, Err(ObjectError::Missing)));
        assert!(matches!(
            home.store.delete(&name("/d"), &conditions(&[])),
            Err(ObjectError::Missing)
        ));
    }

    #[test]
    fn tags_follow_the_content() {
        let home = TestStore::new();
        let put = home.put("/x", b"hello").unwrap();
        let digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        let noted = put.etag == format!("\"{digest}\"");
        let supported =
            rustix::fs::setxattr(home.path("x"), "user.probe", b"1", XattrFlags::empty());
        assert_eq!(noted, supported.is_ok(), "{}", put.etag);
        assert_eq!(home.store.lookup(&name("/x")).unwrap().etag, put.etag);
        // Another process changed the file: the stored digest is no longer valid.
        std::fs::write(home.path("x"), b"other").unwrap();
        assert_ne!(home.store.lookup(&name("/x")).unwrap().etag, put.etag);
    }

    #[test]
    fn a_read_only_store_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("x"), b"x").unwrap();
        let store = Arc::new(Store::open(directory.path(), false).unwrap());
        assert!(matches!(Upload::begin(&store), Err(ObjectError::ReadOnly)));
        let deleted = store.delete(&name("/x"), &conditions(&[]));
        assert!(matches!(deleted, Err(ObjectError::ReadOnly)));
        assert_eq!(store.lookup(&name("/x")).unwrap().bytes, 1);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_root_is_named() {
        let error = Store::open(Path::new("/nonexistent/unlade"), true).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("/nonexistent/unlade") && message.contains("`root`"), "{message}");
    }
}
