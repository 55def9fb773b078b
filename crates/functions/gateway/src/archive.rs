//! Archives of deployments: tar (`unlade fn deploy`) and Zip (Lambda's API). Their bytes are
//! hostile, and are unpacked outside of the sandbox: regular files and directories only, below the
//! given directory, within limits that count what is really unpacked.

use std::fs;
use std::io::{self, Cursor, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

/// Most unpacked bytes of a deployment, as for Lambda's.
pub const CODE_BYTES_MAX: u64 = 250 << 20;
/// Most entries of a deployment.
pub const FILES_MAX: usize = 20_000;
/// Longest path of an entry, in bytes.
const PATH_BYTES_MAX: usize = 1024;

/// The reason why an archive is not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The archive is invalid. The caller is at fault.
    #[error("the archive: {0}")]
    Content(String),
    /// The system call failed.
    #[error("{path}: {source}")]
    System {
        /// The path.
        path: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
}

fn wrong(why: impl ToString) -> ArchiveError {
    ArchiveError::Content(why.to_string())
}

fn system(path: &Path) -> impl FnOnce(io::Error) -> ArchiveError {
    let path = path.to_owned();
    move |source| ArchiveError::System { path, source }
}

/// The destination of an archive, and the rest of its limits.
struct Place<'a> {
    root: &'a Path,
    files: usize,
    bytes: u64,
}

impl<'a> Place<'a> {
    fn new(root: &'a Path) -> Place<'a> {
        Place { root, files: FILES_MAX, bytes: CODE_BYTES_MAX }
    }

    /// The path of the next entry.
    fn path(&mut self, name: &Path) -> Result<PathBuf, ArchiveError> {
        self.count(1)?;
        let is_plain =
            |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !name.components().all(is_plain) || name.as_os_str().len() > PATH_BYTES_MAX {
            return Err(wrong(format!("{} leads out of it, or is too long", name.display())));
        }
        Ok(self.root.join(name))
    }

    fn count(&mut self, files: usize) -> Result<(), ArchiveError> {
        let too_large = || wrong(format!("more than {FILES_MAX} files and directories"));
        self.files = self.files.checked_sub(files).ok_or_else(too_large)?;
        Ok(())
    }

    fn directory(&mut self, name: &Path) -> Result<(), ArchiveError> {
        let path = self.path(name)?;
        self.make_directory(&path)
    }

    /// Makes a directory and those above it, each of which counts.
    fn make_directory(&mut self, path: &Path) -> Result<(), ArchiveError> {
        let is_missing = |at: &&Path| *at != self.root && !at.exists();
        self.count(path.ancestors().take_while(is_missing).count())?;
        fs::create_dir_all(path).map_err(|error| wrong(format!("{}: {error}", path.display())))
    }

    fn file(
        &mut self,
        name: &Path,
        is_executable: bool,
        content: impl Read,
    ) -> Result<(), ArchiveError> {
        let path = self.path(name)?;
        if let Some(parent) = path.parent() {
            self.make_directory(parent)?;
        }
        let mut file = fs::File::create(&path).map_err(|error| match error.kind() {
            io::ErrorKind::IsADirectory => wrong(format!("{name:?} is a directory, too")),
            _ => system(&path)(error),
        })?;
        let read = io::copy(&mut content.take(self.bytes + 1), &mut file);
        let read = read.map_err(|error| wrong(format!("{}: {error}", name.display())))?;
        let too_large = || wrong(format!("more than {CODE_BYTES_MAX} bytes"));
        self.bytes = self.bytes.checked_sub(read).ok_or_else(too_large)?;
        let mode = fs::Permissions::from_mode(if is_executable { 0o755 } else { 0o644 });
        fs::set_permissions(&path, mode).map_err(system(&path))
    }
}

/// Unpacks a tar archive. Links are refused: they would be followed in another root than the
/// instance's.
///
/// # Errors
/// The archive is invalid or too large, has other entries, or a system call failed.
pub fn unpack_tar(root: &Path, archive: impl Read) -> Result<(), ArchiveError> {
    let (mut place, mut archive) = (Place::new(root), tar::Archive::new(archive));
    for entry in archive.entries().map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let name = entry.path().map_err(wrong)?.into_owned();
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            place.directory(&name)?;
        } else if kind.is_file() {
            let is_executable = entry.header().mode().is_ok_and(|mode| mode & 0o111 != 0);
            place.file(&name, is_executable, entry)?;
        } else if !matches!(kind, tar::EntryType::XGlobalHeader) {
            return Err(wrong(format!("{} is neither a file nor a directory", name.display())));
        }
    }
    Ok(())
}

/// Unpacks a Zip archive (stored and deflated entries).
///
/// # Errors
/// The archive is invalid or too large, has other entries, or a system call failed.
pub fn unpack_zip(root: &Path, archive: &[u8]) -> Result<(), ArchiveError> {
    let mut place = Place::new(root);
    let mut archive = zip::ZipArchive::new(Cursor::new(archive)).map_err(wrong)?;
    if archive.len() > FILES_MAX {
        return Err(wrong(format!("more than {FILES_MAX} files")));
    }
    for index in 0..archive.len() {
        let entry = archive.by_index(index).map_err(wrong)?;
        let name = PathBuf::from(entry.name().map_err(wrong)?.as_ref());
        if entry.is_dir() {
            place.directory(&name)?;
            continue;
        }
        let mode = entry.unix_mode().unwrap_or_default();
        // Archives of other systems have no type.
        if entry.is_symlink() || !matches!(mode & 0o170_000, 0 | 0o100_000) {
            let why = "is neither a file nor a directory: archive the file itself";
            return Err(wrong(format!("{} {why}", name.display())));
        }
        place.file(&name, mode & 0o111 != 0, entry)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use zip::write::SimpleFileOptions;

    use super::*;

    fn tar_of(name: &str, kind: tar::EntryType) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        // The library refuses to write names that a hostile caller would use.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_cksum();
        builder.append(&header, io::empty()).unwrap();
        builder.into_inner().unwrap()
    }

    fn zip_of(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in entries {
            let mode = if name.ends_with(".sh") { 0o755 } else { 0o644 };
            writer.start_file(*name, SimpleFileOptions::default().unix_permissions(mode)).unwrap();
            writer.write_all(content).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    #[test]
    fn a_tar_archive_stays_where_it_is_unpacked() {
        let root = tempfile::tempdir().unwrap();
        for (name, kind) in [
            ("../out", tar::EntryType::Regular),
            ("/etc/out", tar::EntryType::Regular),
            ("link", tar::EntryType::Symlink),
            ("link", tar::EntryType::Link),
            ("device", tar::EntryType::Char),
        ] {
            let error = unpack_tar(root.path(), tar_of(name, kind).as_slice()).unwrap_err();
            assert!(matches!(error, ArchiveError::Content(_)), "{name}: {error}");
        }
        let cut = &tar_of("a", tar::EntryType::Regular)[..100];
        assert!(unpack_tar(root.path(), cut).is_err());
    }

    #[test]
    fn a_zip_archive_is_unpacked() {
        let root = tempfile::tempdir().unwrap();
        let long = vec![b'x'; 100_000];
        let archive = zip_of(&[("app.py", &long), ("bin/run.sh", b"#!/bin/sh\n")]);
        assert!(archive.len() < 2000, "it is deflated");
        unpack_zip(root.path(), &archive).unwrap();
        assert_eq!(fs::read(root.path().join("app.py")).unwrap(), long);
        let mode = |name: &str| fs::metadata(root.path().join(name)).unwrap().permissions().mode();
        assert_eq!((mode("app.py") & 0o777, mode("bin/run.sh") & 0o777), (0o644, 0o755));
    }

    #[test]
    fn a_zip_archive_stays_where_it_is_unpacked() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let mut link = zip::ZipWriter::new(Cursor::new(Vec::new()));
        link.add_symlink("link", "/etc/passwd", SimpleFileOptions::default()).unwrap();
        let link = link.finish().unwrap().into_inner();
        let long = "x".repeat(PATH_BYTES_MAX + 1);
        for archive in [
            zip_of(&[("../out", b"x")]),
            zip_of(&[("a/../../out", b"x")]),
            zip_of(&[("/etc/out", b"x")]),
            zip_of(&[(&long, b"x")]),
            zip_of(&[("a", b"x"), ("a/b", b"x")]),
            link,
            b"no archive".to_vec(),
            Vec::new(),
        ] {
            let error = unpack_zip(&inner, &archive).unwrap_err();
            assert!(matches!(error, ArchiveError::Content(_)), "{error}");
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_archive_is_an_error() {
        let whole = zip_of(&[("app.py", b"def handler(e, c): pass"), ("lib/tool.py", b"X = 1")]);
        unlade_testkit::cases(400, |random| {
            let root = tempfile::tempdir().unwrap();
            let inner = root.path().join("inner");
            fs::create_dir(&inner).unwrap();
            let mut damaged = whole.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(damaged.len() as u64) as usize;
                damaged[at] = random.below(256) as u8;
            }
            damaged.truncate(damaged.len() - random.below(8) as usize);
            if let Err(error) = unpack_zip(&inner, &damaged) {
                assert!(matches!(error, ArchiveError::Content(_)), "{error}");
            }
            assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing beside it");
        });
    }

    #[test]
    fn a_bomb_is_refused_by_its_real_size() {
        let root = tempfile::tempdir().unwrap();
        let piece = vec![0; CODE_BYTES_MAX as usize / 8 + 1];
        let names: Vec<String> = (0..8).map(|number| format!("zeros-{number}")).collect();
        let entries: Vec<(&str, &[u8])> =
            names.iter().map(|name| (name.as_str(), piece.as_slice())).collect();
        let archive = zip_of(&entries);
        assert!(archive.len() < 2 << 20);
        let error = unpack_zip(root.path(), &archive).unwrap_err().to_string();
        assert!(error.contains("more than"), "{error}");
    }
}
