//! The files of stacks: replaced as a whole, and durable before what follows from them. They have the
//! values of secret parameters, so only their owner reads them.
//!
//! `stacks/TENANT/UUID/stack.json` is a stack, `intent.json` beside it what a creation found before it
//! began; `stacks/TENANT/identities.json` has the tenant's roles and policies.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use unlade_fn_stacks::Stack;

/// The name of a stack's file.
const STACK: &str = "stack.json";
/// The name of the file with what a creation found.
pub const INTENT: &str = "intent.json";
/// The name of the file with roles and policies.
pub const IDENTITIES: &str = "identities.json";

/// The levels from the state to the directory of a stack, both included.
const LEVELS: usize = 4;

/// The directory of all stacks.
pub fn home(state: &Path) -> PathBuf {
    state.join("stacks")
}

/// The directory of a tenant's stacks.
pub fn of_tenant(state: &Path, tenant: &str) -> PathBuf {
    home(state).join(tenant)
}

/// The directory of a stack, by its ARN, which ends with a UUID.
pub fn of_stack(of_tenant: &Path, id: &str) -> PathBuf {
    let unique: String = id.rsplit('/').next().unwrap_or_default().to_owned();
    of_tenant.join(unique)
}

/// Makes a directory that only its owner reads, with those above it.
fn make(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    // The directory, and the names in those above, as far as they may be new.
    let mut levels = directory.ancestors().take(LEVELS).filter(|at| !at.as_os_str().is_empty());
    levels.try_for_each(|at| File::open(at)?.sync_all())
}

/// Replaces a file. It is durable when this returns. Returns its length in bytes.
///
/// # Errors
/// The system call failed. The file is then the old or the new one.
pub fn write(directory: &Path, name: &str, content: &impl Serialize) -> io::Result<usize> {
    if !directory.exists() {
        make(directory)?;
    }
    let fresh = directory.join(format!("{name}.new"));
    let text = serde_json::to_vec(content).map_err(io::Error::other)?;
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&fresh)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&fresh, directory.join(name))?;
    File::open(directory)?.sync_all()?;
    Ok(text.len())
}

/// The content of a file; `None` if there is none.
///
/// # Errors
/// It cannot be read, or is something else.
pub fn read<T: DeserializeOwned>(directory: &Path, name: &str) -> io::Result<Option<T>> {
    match fs::read(directory.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => serde_json::from_slice(&text?).map(Some).map_err(io::Error::other),
    }
}

/// Replaces the file of a stack. Returns its length in bytes.
///
/// # Errors
/// As [`write()`].
pub fn write_stack(of_tenant: &Path, stack: &Stack) -> io::Result<usize> {
    write(&of_stack(of_tenant, &stack.id), STACK, stack)
}

/// The stack of an ARN, as the disk has it.
///
/// # Errors
/// As [`read`].
pub fn read_stack(of_tenant: &Path, id: &str) -> io::Result<Option<Stack>> {
    read(&of_stack(of_tenant, id), STACK)
}

/// All stacks of a tenant. One that cannot be read is logged, left alone and omitted.
///
/// # Errors
/// The system call failed.
pub fn all(of_tenant: &Path) -> io::Result<Vec<Stack>> {
    let mut found = Vec::new();
    for directory in directories(of_tenant)? {
        match read(&of_tenant.join(&directory), STACK) {
            Ok(Some(stack)) => found.push(stack),
            // A gateway ended before the first file was there.
            Ok(None) => {}
            Err(error) => tracing::error!(stack = directory, %error, "cannot be read: left alone"),
        }
    }
    Ok(found)
}

/// The names of directories in a directory; none if it does not exist.
///
/// # Errors
/// The system call failed.
pub fn directories(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Removes what the last creation of a stack has found: its operation has ended.
///
/// # Errors
/// The system call failed.
pub fn remove_intent(of_tenant: &Path, id: &str) -> io::Result<()> {
    match fs::remove_file(of_stack(of_tenant, id).join(INTENT)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes the files of a stack.
///
/// # Errors
/// The system call failed.
pub fn remove(of_tenant: &Path, id: &str) -> io::Result<()> {
    match fs::remove_dir_all(of_stack(of_tenant, id)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use unlade_fn_stacks::{Place, Status};

    use super::*;

    fn stack(unique: &str) -> Stack {
        let id = format!("arn:aws:cloudformation:us-east-1:000000000000:stack/app/{unique}");
        Stack::new(id, "app".to_owned(), Place::default(), Status::CreateInProgress, 7)
    }

    #[test]
    fn a_stack_is_read_as_it_was_written_and_by_its_owner_only() {
        let state = tempfile::tempdir().unwrap();
        let own = of_tenant(state.path(), "t");
        assert_eq!(all(&own).unwrap(), []);
        let (one, other) = (stack("1"), stack("2"));
        write_stack(&own, &one).unwrap();
        write_stack(&own, &other).unwrap();
        write(&own, IDENTITIES, &1).unwrap();
        assert_eq!(all(&own).unwrap(), [one.clone(), other.clone()]);
        let file = of_stack(&own, &one.id).join(STACK);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&own)), (0o600, 0o700));
        fs::write(&file, "{").unwrap();
        assert_eq!(all(&own).unwrap(), std::slice::from_ref(&other));
        assert!(read_stack(&own, &one.id).is_err());
        remove(&own, &one.id).unwrap();
        remove(&own, &one.id).unwrap();
        assert_eq!(read_stack(&own, &one.id).unwrap(), None);
        assert_eq!(read_stack(&own, &other.id).unwrap(), Some(other));
        assert_eq!(directories(&home(state.path())).unwrap(), ["t"]);
    }
}
