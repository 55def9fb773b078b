//! The Python package that instances import: embedded in this program, and unpacked for instances.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rust_embed::RustEmbed;

/// `guest/python`, without its tests.
#[derive(RustEmbed)]
#[folder = "../../../guest/python"]
#[include = "unlade_guest/*.py"]
#[include = "unlade_guest/**/*.py"]
#[include = "unlade_guest.pth"]
struct Package;

/// Unpacks the package into `state`, once for each version; returns the directory for `sys.path`.
///
/// # Errors
/// The system call failed.
pub async fn unpack(state: &Path, python: &Path) -> io::Result<PathBuf> {
    let target = state.join("guest");
    if is_same(&target) {
        return Ok(target);
    }
    let fresh = state.join("guest.new");
    for old in [&fresh, &target] {
        match fs::remove_dir_all(old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    for name in Package::iter() {
        let Some(file) = Package::get(&name) else { continue };
        let path = fresh.join(&*name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, &file.data)?;
    }
    compile(python, &fresh).await;
    fs::rename(&fresh, &target)?;
    Ok(target)
}

/// Returns true if the files on disk equal those of this program.
fn is_same(target: &Path) -> bool {
    Package::iter().all(|name| {
        let due = Package::get(&name);
        due.is_some_and(|due| fs::read(target.join(&*name)).is_ok_and(|found| found == *due.data))
    })
}

/// Compiles the modules: the directory is read-only for instances, so each would compile them
/// again.
async fn compile(python: &Path, folder: &Path) {
    let mut command = tokio::process::Command::new(python);
    command.args(["-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]);
    let done = command.arg(folder).stdin(Stdio::null()).stdout(Stdio::null()).status().await;
    match done {
        Ok(status) if status.success() => {}
        other => tracing::warn!(?other, "guest: its modules are not compiled; starts are slower"),
    }
}
