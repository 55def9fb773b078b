//! Copies of directories for a machine: readable by all users.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// Most files and directories of one copy.
pub(super) const ENTRIES_MAX: u64 = 400_000;
/// Most bytes of one copy.
pub(super) const COPY_BYTES_MAX: u64 = 4 << 30;
/// Deepest directory.
const DEPTH_MAX: u32 = 64;
const FILE: u32 = 0o644;
const PROGRAM: u32 = 0o755;

/// The size of a copy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Staged {
    pub entries: u64,
    pub bytes: u64,
}

impl Staged {
    fn count(&mut self, bytes: u64) -> io::Result<()> {
        self.entries += 1;
        self.bytes += bytes;
        match self.entries > ENTRIES_MAX || self.bytes > COPY_BYTES_MAX {
            true => Err(io::Error::other(format!(
                "more than {ENTRIES_MAX} files or {COPY_BYTES_MAX} bytes"
            ))),
            false => Ok(()),
        }
    }

    /// Copies a directory's content into another one, which is created if it does not exist;
    /// `wanted` selects names. Links are copied as links; special files are omitted.
    ///
    /// # Errors
    /// The system call failed, or a limit is exceeded.
    pub fn tree(
        &mut self,
        from: &Path,
        to: &Path,
        wanted: &dyn Fn(&str) -> bool,
    ) -> io::Result<()> {
        self.level(from, to, wanted, 0)
    }

    fn level(
        &mut self,
        from: &Path,
        to: &Path,
        wanted: &dyn Fn(&str) -> bool,
        depth: u32,
    ) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(io::Error::other(format!("more than {DEPTH_MAX} directories deep")));
        }
        fs::create_dir_all(to)?;
        fs::set_permissions(to, Permissions::from_mode(PROGRAM))?;
        self.count(0)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let name = entry.file_name();
            if !name.to_str().is_some_and(wanted) {
                continue;
            }
            let (kind, path, target) = (entry.file_type()?, entry.path(), to.join(&name));
            if kind.is_dir() {
                self.level(&path, &target, wanted, depth + 1)?;
            } else if kind.is_file() {
                self.file(&path, &target)?;
            } else if kind.is_symlink() {
                self.count(0)?;
                symlink(fs::read_link(&path)?, &target)?;
            }
        }
        Ok(())
    }

    /// Copies a file with its modification time, because compiled Python depends on it.
    ///
    /// # Errors
    /// The system call failed, or a limit is exceeded.
    pub fn file(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let found = fs::metadata(from)?;
        self.count(found.len())?;
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(from, to)?;
        let is_program = found.permissions().mode() & 0o111 != 0;
        fs::set_permissions(to, Permissions::from_mode(if is_program { PROGRAM } else { FILE }))?;
        File::options().write(true).open(to)?.set_modified(found.modified()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_copy_is_readable_and_has_the_times_of_what_was_copied() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("in/__pycache__")).unwrap();
        fs::create_dir_all(from.join("test")).unwrap();
        fs::write(from.join("in/a.py"), "x = 1\n").unwrap();
        fs::set_permissions(from.join("in/a.py"), Permissions::from_mode(0o600)).unwrap();
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        File::options().write(true).open(from.join("in/a.py")).unwrap().set_modified(then).unwrap();
        symlink("in/a.py", from.join("link")).unwrap();
        let mut staged = Staged::default();
        staged.tree(&from, &to, &|name| name != "test").unwrap();
        let found = fs::metadata(to.join("in/a.py")).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o644);
        assert_eq!(found.modified().unwrap(), then);
        assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("in/a.py"));
        assert!(!to.join("test").exists());
        assert_eq!((staged.entries, staged.bytes), (5, 6));
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let mut staged = Staged { entries: ENTRIES_MAX, bytes: 0 };
        let dir = tempfile::tempdir().unwrap();
        assert!(staged.tree(dir.path(), &dir.path().join("to"), &|_| true).is_err());
    }
}
