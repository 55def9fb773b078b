//! Reads the table of another process.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::decode::{DecodeError, decode};
use super::layout::{CHANGES_MAX, MEMFD_NAME, SITES_MAX, words};
use super::report::Report;
use super::settle::settled;

/// Maximum number of descriptors of the process that are looked at.
const DESCRIPTORS_MAX: usize = 1 << 20;

/// Reason why a process is not explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// There is no such process.
    #[error("process {0}: there is none with this number")]
    NoProcess(u32),
    /// The process belongs to another user.
    #[error("process {pid} belongs to user {uid}; run this as that user, or as root")]
    OtherUser {
        /// The process.
        pid: u32,
        /// Its user.
        uid: u32,
    },
    /// The kernel permits no look at the process.
    #[error("process {pid}: {}: {source}; run this as the user of the process, or as root", path.display())]
    Denied {
        /// The process.
        pid: u32,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The process has no table.
    #[error(
        "process {0} has no table of call sites: it has no queue of the copy service (unlade-copy or \
         libunlade_copier), has not made its first copy yet, or has closed all its descriptors"
    )]
    NoTable(u32),
    /// The process has only the table of its parent.
    #[error(
        "process {pid} is a child (fork) of process {parent}, and has made no queue of its own: all \
         its copies are made at once; ask for process {parent}"
    )]
    Child {
        /// The process.
        pid: u32,
        /// The process that made the table.
        parent: u32,
    },
    /// The process does not have a table that the library wrote.
    #[error("process {pid}: {source}")]
    Decode {
        /// The process.
        pid: u32,
        /// The defect.
        source: DecodeError,
    },
}

/// Returns a report on another process, or this one. Only root and the user of the process may ask.
///
/// # Errors
/// [`ExplainError`].
pub fn of_process(pid: u32) -> Result<Report, ExplainError> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let Ok(owner) = fs::metadata(&process) else { return Err(ExplainError::NoProcess(pid)) };
    let own_uid = rustix::process::geteuid().as_raw();
    if own_uid != 0 && own_uid != owner.uid() {
        return Err(ExplainError::OtherUser { pid, uid: owner.uid() });
    }
    let failed = |path: &Path, source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ExplainError::NoProcess(pid),
        _ => ExplainError::Denied { pid, path: path.to_owned(), source },
    };
    let status = process.join("status");
    let text = fs::read_to_string(&status).map_err(|error| failed(&status, error))?;
    let own_pid = innermost_pid(&text).unwrap_or(pid);
    let descriptors = process.join("fd");
    let found = tables(&descriptors).map_err(|error| failed(&descriptors, error))?;
    let found = if found.is_empty() { mapped_tables(&process) } else { found };
    let mut other = None;
    for path in found {
        // A descriptor that was closed meanwhile is no table any more.
        let Ok(file) = open(&path) else { continue };
        let bytes = match settled(|| read(&file)) {
            Ok(bytes) => bytes,
            Err(error) => return Err(failed(&path, error)),
        };
        match decode(&bytes) {
            Ok(mut report) if report.pid == own_pid => {
                name_by_module(&process, &mut report);
                return Ok(report);
            }
            Ok(report) => other = other.or(Some(Ok(report.pid))),
            Err(error) => other = other.or(Some(Err(error))),
        }
    }
    Err(match other {
        None => ExplainError::NoTable(pid),
        Some(Ok(parent)) => ExplainError::Child { pid, parent },
        Some(Err(source)) => ExplainError::Decode { pid, source },
    })
}

/// The process's number in its own namespace, from its status.
fn innermost_pid(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().next_back()?.parse().ok()
}

/// The descriptors that lead to a table.
fn tables(descriptors: &Path) -> io::Result<Vec<PathBuf>> {
    let is_table = |path: &PathBuf| {
        let target = fs::read_link(path);
        target.is_ok_and(|target| is_table_name(&target.to_string_lossy()))
    };
    let entries = fs::read_dir(descriptors)?.take(DESCRIPTORS_MAX);
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_table).collect())
}

fn is_table_name(target: &str) -> bool {
    let name = target.strip_prefix("/memfd:").unwrap_or_default();
    name.strip_suffix(" (deleted)").unwrap_or(name) == MEMFD_NAME
}

/// The tables that the process has mapped, though it has closed their descriptors. Only a
/// privileged reader can open them.
fn mapped_tables(process: &Path) -> Vec<PathBuf> {
    let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
    let mapped = maps.lines().filter_map(|line| {
        let name = line.splitn(6, ' ').nth(5)?.trim_start();
        let range = line.split(' ').next()?;
        is_table_name(name).then(|| process.join("map_files").join(range))
    });
    mapped.collect()
}

/// Opens a file that may be anything by now, without waiting for it.
fn open(path: &Path) -> io::Result<File> {
    let flags = (rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Reads a whole file, as far as a table can be long.
fn read(file: &File) -> io::Result<Vec<u8>> {
    let longest = words(SITES_MAX as u64, CHANGES_MAX as u64).map_or(0, |words| 8 * words);
    // One more byte shows that the file is longer.
    let mut bytes = vec![0; longest + 1];
    let mut count = 0;
    while count < bytes.len() {
        match file.read_at(&mut bytes[count..], count as u64) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(count);
    Ok(bytes)
}

/// Names sites whose file is not known by the module that has their address.
fn name_by_module(process: &Path, report: &mut Report) {
    if report.sites.iter().all(|site| site.file.is_some() || site.address == 0) {
        return;
    }
    let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
    let modules: Vec<(u64, u64, u64, &str)> = maps.lines().filter_map(module).collect();
    for site in report.sites.iter_mut().filter(|site| site.file.is_none()) {
        let address = site.address;
        let found = modules.iter().find(|(start, end, ..)| (*start..*end).contains(&address));
        if let Some((start, _, offset, path)) = found {
            let module = path.rsplit('/').next().unwrap_or(path);
            let plain: String = module.chars().filter(|letter| !letter.is_control()).collect();
            let within = (address - start).saturating_add(*offset);
            site.file = Some(format!("{plain}+{within:#x}"));
        }
    }
}

/// A mapped file: first address, end, offset in the file, and path.
fn module(line: &str) -> Option<(u64, u64, u64, &str)> {
    let path = line.splitn(6, ' ').nth(5)?.trim_start();
    let mut parts = line.split(' ');
    let (start, end) = parts.next()?.split_once('-')?;
    let offset = parts.nth(1)?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    path.starts_with('/').then_some((number(start)?, number(end)?, number(offset)?, path))
}
