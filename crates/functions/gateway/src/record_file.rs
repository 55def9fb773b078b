//! The file of a function's record: replaced as a whole and durable before a change is answered.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use unlade_fn_model::lifecycle::Record;

/// The name of the file, in the function's directory.
const RECORD: &str = "record.json";
/// The file in which earlier releases named the current revision.
const CURRENT: &str = "current";

/// Replaces the record of a function, whose directory exists. It is durable when this returns.
///
/// # Errors
/// The system call failed. The record is then the old or the new one.
pub fn write(home: &Path, record: &Record) -> io::Result<()> {
    let fresh = home.join("record.new");
    let text = serde_json::to_vec_pretty(record).map_err(io::Error::other)?;
    // Environment variables may be secrets.
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&fresh)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&fresh, home.join(RECORD))?;
    File::open(home)?.sync_all()?;
    match fs::remove_file(home.join(CURRENT)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => sync_parent(home),
    }
}

/// Removes the record of a function. That is durable when this returns.
///
/// # Errors
/// The system call failed.
pub fn remove(home: &Path) -> io::Result<()> {
    for name in [RECORD, CURRENT] {
        match fs::remove_file(home.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    match File::open(home) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => opened?.sync_all(),
    }
}

/// Makes a new directory of a function durable.
fn sync_parent(home: &Path) -> io::Result<()> {
    home.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// The record of a function; `None` if it has none.
///
/// # Errors
/// The file cannot be read, or is no record.
pub fn read(home: &Path) -> io::Result<Option<Record>> {
    match fs::read(home.join(RECORD)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => serde_json::from_slice(&text?).map(Some).map_err(io::Error::other),
    }
}

/// The current revision according to an earlier release: its number, and its tenant if recorded.
pub fn read_legacy(home: &Path) -> Option<(u64, Option<String>)> {
    let text = fs::read_to_string(home.join(CURRENT)).ok()?;
    let mut words = text.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next().map(str::to_owned)))
}
