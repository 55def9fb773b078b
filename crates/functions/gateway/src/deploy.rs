//! Deployments of functions: a directory for each function, with one current revision.
//!
//! A deployment is a tar archive of the function's directory, with `function.toml` in it. It is
//! unpacked next to the previous revisions, and becomes current by renaming one file, so that a
//! restarted gateway finds either the old or the new revision.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use unlade_config::SettingsError;
use unlade_fn_model::manifest::is_name;
use unlade_fn_model::{Manifest, ManifestError};

use crate::config::DEFAULT_TENANT;

/// The name of the manifest's file.
pub const MANIFEST: &str = "function.toml";
/// Largest deployment, as for Lambda's unpacked ones.
pub const CODE_BYTES_MAX: u64 = 250 << 20;
/// Most files of a deployment.
pub const FILES_MAX: usize = 20_000;
/// The file that names the current revision.
const CURRENT: &str = "current";

/// The reason why a deployment failed.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// The manifest cannot be parsed.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The manifest has invalid values.
    #[error("{MANIFEST}: {0}")]
    Manifest(#[from] ManifestError),
    /// The archive is invalid. The caller is at fault.
    #[error("the archive: {0}")]
    Archive(String),
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
        !matches!(self, DeployError::System { .. })
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
}

/// Reads a function's directory. Without a known deployer the manifest names the tenant.
///
/// # Errors
/// The manifest is missing or invalid.
pub fn read(code: &Path, tenant: Option<&str>) -> Result<Revision, DeployError> {
    let manifest: Manifest = unlade_config::load(&code.join(MANIFEST))?;
    manifest.check()?;
    let tenant = tenant.or(manifest.tenant.as_deref()).unwrap_or(DEFAULT_TENANT).to_owned();
    Ok(Revision { manifest, code: code.to_owned(), tenant })
}

/// Unpacks an archive as a new revision of a function, which is not current yet.
///
/// # Errors
/// The archive is invalid, too large, or contains files that instances must not see.
pub fn unpack(
    state: &Path,
    name: &str,
    archive: impl Read,
    tenant: Option<&str>,
) -> Result<Revision, DeployError> {
    let home = state.join("functions").join(name);
    fs::create_dir_all(&home).map_err(system(&home))?;
    let number = revisions(&home).map_err(system(&home))?.last().map_or(1, |last| last + 1);
    let code = home.join(number.to_string());
    fs::create_dir(&code).map_err(system(&code))?;
    let unpacked = extract(&code, archive).and_then(|()| read(&code, tenant));
    if unpacked.is_err() {
        let _ = fs::remove_dir_all(&code);
    }
    unpacked
}

/// Makes a revision current.
///
/// # Errors
/// The system call failed.
pub fn commit(revision: &Revision) -> Result<(), DeployError> {
    let (home, number) = (revision.code.parent(), revision.code.file_name());
    let (Some(home), Some(number)) = (home, number) else { return Ok(()) };
    let fresh = home.join("current.new");
    let text = format!("{} {}", number.display(), revision.tenant);
    fs::write(&fresh, text).map_err(system(&fresh))?;
    fs::rename(&fresh, home.join(CURRENT)).map_err(system(home))
}

/// The current revision of a function, and its tenant, which earlier releases did not record.
fn current(home: &Path) -> Option<(String, Option<String>)> {
    let text = fs::read_to_string(home.join(CURRENT)).ok()?;
    let mut words = text.split_whitespace().map(str::to_owned);
    Some((words.next()?, words.next()))
}

/// Removes the files of a revision that failed, or whose last instance has gone.
pub fn discard(code: &Path) {
    if let Err(error) = fs::remove_dir_all(code) {
        tracing::warn!(%error, path = %code.display(), "is left behind");
    }
}

/// Removes the current revision of a function. Its instances may still run.
///
/// # Errors
/// The system call failed.
pub fn forget(state: &Path, name: &str) -> Result<(), DeployError> {
    let current = state.join("functions").join(name).join(CURRENT);
    match fs::remove_file(&current) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(system(&current)(error)),
        _ => Ok(()),
    }
}

/// Removes revisions that are not current and were left by a previous gateway.
///
/// # Errors
/// The system call failed.
pub fn sweep(state: &Path) -> Result<(), DeployError> {
    let directory = state.join("functions");
    for name in names(&directory)? {
        let home = directory.join(&name);
        let Some((current, _)) = current(&home) else {
            discard(&home);
            continue;
        };
        for number in revisions(&home).map_err(system(&home))? {
            if current != number.to_string() {
                discard(&home.join(number.to_string()));
            }
        }
    }
    Ok(())
}

/// All deployed functions, by name.
///
/// # Errors
/// The system call failed. A function that cannot be read is logged and omitted.
pub fn deployed(state: &Path) -> Result<Vec<(String, Revision)>, DeployError> {
    let directory = state.join("functions");
    let mut found = Vec::new();
    for name in names(&directory)? {
        let home = directory.join(&name);
        let Some((number, tenant)) = current(&home) else { continue };
        match read(&home.join(number), tenant.as_deref()) {
            Ok(revision) => found.push((name, revision)),
            Err(error) => tracing::error!(function = name, %error, "is not served"),
        }
    }
    Ok(found)
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

/// Accepts files and directories only: a link would be followed in another root than the
/// instance's.
fn extract(code: &Path, archive: impl Read) -> Result<(), DeployError> {
    let wrong = |why: String| DeployError::Archive(why);
    let mut archive = tar::Archive::new(archive);
    let (mut files, mut bytes) = (0, 0);
    for entry in archive.entries().map_err(|error| wrong(error.to_string()))? {
        let mut entry = entry.map_err(|error| wrong(error.to_string()))?;
        let name = entry.path().map_err(|error| wrong(error.to_string()))?.into_owned();
        let is_plain =
            |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !name.components().all(is_plain) {
            return Err(wrong(format!("{} leads out of it", name.display())));
        }
        files += 1;
        bytes += entry.size();
        if files > FILES_MAX || bytes > CODE_BYTES_MAX {
            return Err(wrong(format!("more than {FILES_MAX} files or {CODE_BYTES_MAX} bytes")));
        }
        let path = code.join(&name);
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            fs::create_dir_all(&path).map_err(system(&path))?;
        } else if kind.is_file() {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(system(parent))?;
            }
            let mut file = fs::File::create(&path).map_err(system(&path))?;
            io::copy(&mut entry, &mut file).map_err(|error| wrong(error.to_string()))?;
            let runs = entry.header().mode().is_ok_and(|mode| mode & 0o111 != 0);
            let mode = if runs { 0o755 } else { 0o644 };
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(&path, mode).map_err(system(&path))?;
        } else if !matches!(kind, tar::EntryType::XGlobalHeader) {
            return Err(wrong(format!("{} is neither a file nor a directory", name.display())));
        }
    }
    Ok(())
}

/// Creates an archive of a directory for [`unpack`], with the given manifest in place of an
/// existing one. Build artefacts (`__pycache__`, `.git`) are omitted.
///
/// # Errors
/// The system call failed.
pub fn pack(directory: &Path, manifest: &Manifest) -> io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.follow_symlinks(true);
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

    fn packed(name: &str, kind: tar::EntryType) -> Vec<u8> {
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
        let revision = unpack(state.path(), "f", archive.as_slice(), Some("t")).unwrap();
        assert_eq!((&revision.manifest, revision.tenant.as_str()), (&manifest, "t"));
        assert!(deployed(state.path()).unwrap().is_empty(), "it is not current");
        commit(&revision).unwrap();
        let again = unpack(state.path(), "f", archive.as_slice(), None).unwrap();
        assert_eq!(again.tenant, DEFAULT_TENANT);
        let found = deployed(state.path()).unwrap();
        assert_eq!((found[0].0.as_str(), &found[0].1.code), ("f", &revision.code));
        assert_eq!(found[0].1.tenant, "t", "it is still whose it was");
        assert!(found[0].1.code.join("lib/tool.py").exists());
        assert!(!found[0].1.code.join("__pycache__").exists());
        commit(&again).unwrap();
        sweep(state.path()).unwrap();
        assert!(!revision.code.exists() && again.code.exists());
        forget(state.path(), "f").unwrap();
        assert!(deployed(state.path()).unwrap().is_empty() && again.code.exists());
        sweep(state.path()).unwrap();
        assert!(!again.code.exists());
    }

    #[test]
    fn an_archive_stays_where_it_is_unpacked() {
        let state = tempfile::tempdir().unwrap();
        for (name, kind) in [
            ("../out", tar::EntryType::Regular),
            ("/etc/out", tar::EntryType::Regular),
            ("link", tar::EntryType::Symlink),
            ("link", tar::EntryType::Link),
            ("device", tar::EntryType::Char),
        ] {
            let archive = packed(name, kind);
            let error = unpack(state.path(), "f", archive.as_slice(), None).unwrap_err();
            assert!(matches!(error, DeployError::Archive(_)), "{name}: {error}");
        }
        let cut = &packed("a", tar::EntryType::Regular)[..100];
        assert!(unpack(state.path(), "f", cut, None).is_err());
        let empty = unpack(state.path(), "f", io::empty(), None);
        assert!(empty.unwrap_err().is_callers(), "no manifest");
        assert!(revisions(&state.path().join("functions/f")).unwrap().is_empty());
    }
}
