//! Deployments of functions: a directory for each function, with its revisions and its record.
//!
//! A deployment is an archive of the function's files. It is unpacked next to the previous
//! revisions, and becomes current with the function's record, which is replaced as a whole, so that
//! a restarted gateway finds either the old or the new state.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use time::OffsetDateTime;
use time::format_description::FormatItem;
use time::macros::format_description;
use unlade_config::SettingsError;
use unlade_fn_model::isolation::Runtime;
use unlade_fn_model::lifecycle::{Edition, Record, Stamp, Version};
use unlade_fn_model::manifest::is_name;
use unlade_fn_model::{Manifest, ManifestError};

use crate::archive::ArchiveError;
use crate::config::{DEFAULT_ROLE, DEFAULT_TENANT};
use crate::permit;
use crate::record_file;
use crate::role_document;

/// The name of the manifest's file.
pub const MANIFEST: &str = "function.toml";

/// The reason why a deployment failed.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// The manifest cannot be parsed.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The manifest has invalid values.
    #[error("{MANIFEST}: {0}")]
    Manifest(#[from] ManifestError),
    /// The archive is invalid or cannot be unpacked.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
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

impl DeployError {
    /// Returns true if the caller can correct the error.
    pub fn is_callers(&self) -> bool {
        let by_system = |error: &ArchiveError| matches!(error, ArchiveError::System { .. });
        match self {
            DeployError::System { .. } => false,
            DeployError::Archive(error) => !by_system(error),
            DeployError::Settings(_) | DeployError::Manifest(_) => true,
        }
    }
}

fn system(path: &Path) -> impl FnOnce(io::Error) -> DeployError {
    let path = path.to_owned();
    move |source| DeployError::System { path, source }
}

/// One revision of a function: its files and its manifest.
#[derive(Clone, Debug)]
pub struct Revision {
    /// The manifest.
    pub manifest: Manifest,
    /// The directory of its files.
    pub code: PathBuf,
    /// The tenant: that of the deployer, or the one in the manifest for a directory of the
    /// operator.
    pub tenant: String,
    /// The version that it is.
    pub version: Version,
    /// The operator's role that it has; `None` for the rights in its manifest.
    pub role: Option<String>,
}

/// The directory of a revision's files, which several functions may use. It is removed with the
/// last of them if no record names it any more.
#[derive(Debug)]
pub struct Code {
    /// The directory.
    pub path: PathBuf,
    is_doomed: Cell<bool>,
}

impl Code {
    /// A directory that stays.
    pub fn new(path: &Path) -> Code {
        Code { path: path.to_owned(), is_doomed: Cell::new(false) }
    }

    /// Notes that no record names it.
    pub fn doom(&self) {
        self.is_doomed.set(true);
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        if self.is_doomed.get() {
            discard(&self.path);
        }
    }
}

/// Reads a function's directory. Without a known deployer the manifest names the tenant.
///
/// # Errors
/// The manifest is missing or invalid.
pub fn read(code: &Path, tenant: Option<&str>) -> Result<Revision, DeployError> {
    let mut manifest: Manifest = unlade_config::load(&code.join(MANIFEST))?;
    resolve(&mut manifest, code)?;
    manifest.check()?;
    let tenant = tenant.or(manifest.tenant.as_deref()).unwrap_or(DEFAULT_TENANT).to_owned();
    let (code, version) = (code.to_owned(), Version::Latest);
    Ok(Revision { manifest, code, tenant, version, role: None })
}

/// Replaces a role that names a policy document of its directory by the document.
///
/// # Errors
/// The document cannot be read.
pub fn resolve(manifest: &mut Manifest, code: &Path) -> Result<(), ManifestError> {
    let Some(role) = &mut manifest.role else { return Ok(()) };
    role_document::of_author(role, code)
        .map_err(|why| ManifestError { key: "role".to_owned(), why })
}

/// A new revision of a function, which no record names yet.
#[derive(Debug)]
pub struct Unpacked {
    /// Its number.
    pub number: u64,
    /// The directory of its files, which are durable.
    pub code: PathBuf,
}

/// Unpacks an archive as a new revision of a function.
///
/// # Errors
/// The archive is invalid or too large, or a system call failed.
pub fn unpack(
    state: &Path,
    name: &str,
    extract: impl FnOnce(&Path) -> Result<(), ArchiveError>,
) -> Result<Unpacked, DeployError> {
    let home = home(state, name);
    fs::create_dir_all(&home).map_err(system(&home))?;
    let number = revisions(&home).map_err(system(&home))?.last().map_or(1, |last| last + 1);
    let code = home.join(number.to_string());
    fs::create_dir(&code).map_err(system(&code))?;
    let unpacked = extract(&code).map_err(DeployError::from);
    let unpacked = unpacked.and_then(|()| sync(&code).map_err(system(&code)));
    if unpacked.is_err() {
        let _ = fs::remove_dir_all(&code);
    }
    unpacked.map(|()| Unpacked { number, code })
}

/// Writes all files of a file system to the disk: one call for thousands of files.
fn sync(directory: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(fs::File::open(directory)?)?)
}

/// The directory of a function.
pub fn home(state: &Path, name: &str) -> PathBuf {
    state.join("functions").join(name)
}

/// The directory of a revision.
pub fn code(state: &Path, name: &str, number: u64) -> PathBuf {
    home(state, name).join(number.to_string())
}

/// Removes the files of a revision that failed, or whose last instance has gone.
pub fn discard(code: &Path) {
    if let Err(error) = fs::remove_dir_all(code) {
        tracing::warn!(%error, path = %code.display(), "is left behind");
    }
}

/// Removes revisions that no record names, left by a previous gateway.
///
/// # Errors
/// The system call failed.
pub fn sweep(state: &Path) -> Result<(), DeployError> {
    let directory = state.join("functions");
    for name in names(&directory)? {
        let home = directory.join(&name);
        let kept = match record_file::read(&home) {
            Ok(Some(record)) => record.codes(),
            Ok(None) => match record_file::read_legacy(&home) {
                Some((number, _)) => BTreeSet::from([number]),
                None => {
                    discard(&home);
                    continue;
                }
            },
            Err(error) => {
                tracing::error!(function = name, %error, "its record cannot be read: left alone");
                continue;
            }
        };
        for number in revisions(&home).map_err(system(&home))? {
            if !kept.contains(&number) {
                discard(&home.join(number.to_string()));
            }
        }
    }
    Ok(())
}

/// The records of all deployed functions, by name. One of an earlier release is made from its
/// current revision.
///
/// # Errors
/// The system call failed. A record that cannot be read is logged and omitted.
pub fn deployed(state: &Path) -> Result<Vec<(String, Record)>, DeployError> {
    let directory = state.join("functions");
    let mut found = Vec::new();
    for name in names(&directory)? {
        let home = directory.join(&name);
        match record_file::read(&home) {
            Ok(Some(record)) => found.push((name, record)),
            Ok(None) => match legacy(&home) {
                Ok(Some(record)) => found.push((name, record)),
                Ok(None) => {}
                Err(error) => tracing::error!(function = name, %error, "is not served"),
            },
            Err(error) => tracing::error!(function = name, %error, "is not served"),
        }
    }
    Ok(found)
}

fn legacy(home: &Path) -> Result<Option<Record>, DeployError> {
    let Some((number, tenant)) = record_file::read_legacy(home) else { return Ok(None) };
    let revision = read(&home.join(number.to_string()), tenant.as_deref())?;
    let edition = edition(revision.manifest, number, &[], &stamp());
    Ok(Some(Record::new(&revision.tenant, edition)))
}

/// An edition of a manifest, with the role and the runtime of a deployment that names none.
pub fn edition(manifest: Manifest, code: u64, archive: &[u8], stamp: &Stamp) -> Edition {
    let runtime = match manifest.runtime {
        Runtime::Python => "python3",
        Runtime::Provided => "provided.al2023",
        Runtime::Node => "nodejs",
    };
    Edition {
        code,
        code_sha256: base64_sha256(archive),
        code_bytes: archive.len() as u64,
        manifest,
        runtime: runtime.to_owned(),
        role: permit::role_arn(DEFAULT_ROLE),
        description: String::new(),
        modified: stamp.time.clone(),
        revision: stamp.revision.clone(),
        dead_letter: None,
    }
}

/// SHA-256 in base64, as Lambda gives it.
pub fn base64_sha256(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    base64::engine::general_purpose::STANDARD.encode(digest)
}

/// The current time, and a random identifier.
pub fn stamp() -> Stamp {
    let revision = uuid::Uuid::new_v4().to_string();
    Stamp { time: time_text(OffsetDateTime::now_utc()), revision }
}

/// A time in UTC, as in [`Stamp`].
pub fn time_text(time: OffsetDateTime) -> String {
    time_utc(time) + "+0000"
}

/// A time in UTC with milliseconds, without a zone.
pub fn time_utc(time: OffsetDateTime) -> String {
    const FORMAT: &[FormatItem<'static>] =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]");
    time.format(FORMAT).unwrap_or_default()
}

/// A time in milliseconds since the UNIX epoch; 0 for one before it.
pub fn time_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time of the last change of a function's manifest in the operator's directory.
pub fn modified(code: &Path) -> OffsetDateTime {
    let changed = fs::metadata(code.join(MANIFEST)).and_then(|about| about.modified());
    changed.map_or(OffsetDateTime::UNIX_EPOCH, OffsetDateTime::from)
}

/// All functions of a directory, by name. An invalid one is logged and omitted.
///
/// # Errors
/// The system call failed.
pub fn of_directory(directory: &Path) -> Result<Vec<(String, Revision)>, DeployError> {
    let directory = &fs::canonicalize(directory).map_err(system(directory))?;
    let mut found = Vec::new();
    for name in names(directory)? {
        let code = directory.join(&name);
        if !is_name(&name) || !code.join(MANIFEST).exists() {
            continue;
        }
        match read(&code, None) {
            Ok(revision) => found.push((name, revision)),
            Err(error) => tracing::error!(function = name, %error, "is not served"),
        }
    }
    Ok(found)
}

fn names(directory: &Path) -> Result<Vec<String>, DeployError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(system(directory))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(system(directory))?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn revisions(home: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(home)? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Creates an archive of a directory for [`crate::archive::unpack_tar`], with the given manifest in place of an
/// existing one. Build artefacts (`__pycache__`, `.git`) are omitted.
///
/// # Errors
/// The system call failed.
pub fn pack(directory: &Path, manifest: &Manifest) -> io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.follow_symlinks(true);
    // Executables have holes; an archive has whole files only.
    builder.sparse(false);
    add(&mut builder, directory, Path::new(""))?;
    let text = toml::to_string(manifest).map_err(io::Error::other)?;
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    builder.append_data(&mut header, MANIFEST, text.as_bytes())?;
    builder.into_inner()
}

fn add(builder: &mut tar::Builder<Vec<u8>>, directory: &Path, name: &Path) -> io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(directory)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, name) = (entry.path(), name.join(entry.file_name()));
        let left_out = ["__pycache__", ".git", ".venv"];
        if left_out.iter().any(|part| entry.file_name() == *part) || name == Path::new(MANIFEST) {
            continue;
        }
        if fs::metadata(&path)?.is_dir() {
            add(builder, &path, &name)?;
        } else {
            builder.append_path_with_name(&path, &name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::unpack_tar;

    fn unpacked(state: &Path, archive: &[u8]) -> Unpacked {
        unpack(state, "f", |root| unpack_tar(root, archive)).unwrap()
    }

    #[test]
    fn a_deployment_becomes_current_and_is_found_again() {
        let (source, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(source.path().join("lib")).unwrap();
        fs::create_dir(source.path().join("__pycache__")).unwrap();
        fs::write(source.path().join("__pycache__/app.pyc"), "x").unwrap();
        fs::write(source.path().join("lib/tool.py"), "X = 1\n").unwrap();
        fs::write(source.path().join("app.py"), "def handler(e, c): return 1\n").unwrap();
        let manifest = Manifest::of_handler("app.handler");
        let archive = pack(source.path(), &manifest).unwrap();
        let first = unpacked(state.path(), &archive);
        let revision = read(&first.code, Some("t")).unwrap();
        assert_eq!((&revision.manifest, revision.tenant.as_str()), (&manifest, "t"));
        assert!(deployed(state.path()).unwrap().is_empty(), "it is not current");
        let mut record = Record::new("t", edition(manifest, first.number, &archive, &stamp()));
        let home = home(state.path(), "f");
        record_file::write(&home, &record).unwrap();
        assert_eq!(deployed(state.path()).unwrap(), [("f".to_owned(), record.clone())]);
        assert!(first.code.join("lib/tool.py").exists());
        assert!(!first.code.join("__pycache__").exists());
        record.publish(Default::default(), stamp()).unwrap();
        let second = unpacked(state.path(), &archive);
        record.latest.code = second.number;
        record_file::write(&home, &record).unwrap();
        sweep(state.path()).unwrap();
        assert!(first.code.exists() && second.code.exists(), "a version has the first");
        record.versions.clear();
        record_file::write(&home, &record).unwrap();
        sweep(state.path()).unwrap();
        assert!(!first.code.exists() && second.code.exists());
        record_file::remove(&home).unwrap();
        assert!(deployed(state.path()).unwrap().is_empty() && second.code.exists());
        sweep(state.path()).unwrap();
        assert!(!second.code.exists());
    }

    #[test]
    fn a_file_with_holes_is_deployed_whole() {
        let (source, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = fs::File::create(source.path().join("bootstrap")).unwrap();
        file.set_len(1 << 20).unwrap();
        let archive = pack(source.path(), &Manifest::of_handler("app.handler")).unwrap();
        let code = unpacked(state.path(), &archive).code;
        assert_eq!(fs::read(code.join("bootstrap")).unwrap(), vec![0; 1 << 20]);
    }

    #[test]
    fn a_deployment_of_an_earlier_release_is_found() {
        let (source, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(source.path().join("app.py"), "def handler(e, c): return 1\n").unwrap();
        let archive = pack(source.path(), &Manifest::of_handler("app.handler")).unwrap();
        let first = unpacked(state.path(), &archive);
        let home = home(state.path(), "f");
        fs::write(home.join("current"), format!("{} t", first.number)).unwrap();
        sweep(state.path()).unwrap();
        let (name, record) = deployed(state.path()).unwrap().remove(0);
        assert_eq!((name.as_str(), record.tenant.as_str(), record.latest.code), ("f", "t", 1));
        record_file::write(&home, &record).unwrap();
        assert!(!home.join("current").exists());
        assert_eq!(deployed(state.path()).unwrap(), [(name, record)]);
    }

    #[test]
    fn a_record_that_cannot_be_read_is_left_alone() {
        let state = tempfile::tempdir().unwrap();
        let code = code(state.path(), "f", 1);
        fs::create_dir_all(&code).unwrap();
        fs::write(home(state.path(), "f").join("record.json"), "{").unwrap();
        sweep(state.path()).unwrap();
        assert!(code.exists());
        assert!(deployed(state.path()).unwrap().is_empty());
    }

    #[test]
    fn files_are_removed_with_their_last_user() {
        let state = tempfile::tempdir().unwrap();
        let path = state.path().join("1");
        fs::create_dir(&path).unwrap();
        drop(Code::new(&path));
        assert!(path.exists());
        let code = std::rc::Rc::new(Code::new(&path));
        let user = code.clone();
        code.doom();
        drop(code);
        assert!(path.exists(), "it is still used");
        drop(user);
        assert!(!path.exists());
    }
}
