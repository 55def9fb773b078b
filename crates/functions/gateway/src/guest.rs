//! The packages that instances import, in Python and for Node.js: embedded in this program, and
//! unpacked for instances.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rust_embed::{EmbeddedFile, RustEmbed};

/// `guest/python`, without its tests.
#[derive(RustEmbed)]
#[folder = "../../../guest/python"]
#[include = "unlade_guest/*.py"]
#[include = "unlade_guest/**/*.py"]
#[include = "unlade_guest.pth"]
struct Python;

/// `guest/node`, without its tests.
#[derive(RustEmbed)]
#[folder = "../../../guest/node"]
#[include = "unlade_node/*"]
#[include = "unlade_node/**/*"]
struct Node;

/// The files of this program: names and contents.
fn files() -> impl Iterator<Item = (String, Cow<'static, [u8]>)> {
    let python = Python::iter().map(|name| (Python::get(&name), name));
    let node = Node::iter().map(|name| (Node::get(&name), name));
    let is_there = |(file, name): (Option<EmbeddedFile>, Cow<'static, str>)| {
        Some((name.into_owned(), file?.data))
    };
    python.chain(node).filter_map(is_there)
}

/// Unpacks the packages into `state`, once for each version; returns the directory for `sys.path`.
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
    for (name, content) in files() {
        let path = fresh.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&path, content)?;
    }
    compile(python, &fresh).await;
    fs::rename(&fresh, &target)?;
    Ok(target)
}

/// Returns true if the files on disk equal those of this program.
fn is_same(target: &Path) -> bool {
    files().all(|(name, due)| fs::read(target.join(name)).is_ok_and(|found| found == *due))
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
