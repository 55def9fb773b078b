//! The users that run QEMU: if the gateway is root, a separate user without files for each
//! machine.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Number of users: more than the machines that can run at a time.
pub(super) const USERS: u32 = 65_536;
const OTHERS_READ: u32 = 0o004;
const OTHERS_SEARCH: u32 = 0o001;
const GROUP_USES: u32 = 0o060;
const OTHERS_USE: u32 = 0o006;

/// The allocator of users.
#[derive(Debug)]
pub(super) struct Users {
    first: u32,
    taken: Cell<u32>,
}

impl Users {
    /// Creates an allocator from a first user.
    pub fn new(first: u32) -> Users {
        Users { first, taken: Cell::new(0) }
    }

    /// Sets the user of a command's process to the next one; it stays root if a required file is
    /// not accessible to others. `device`: a device whose group the process must be in.
    pub fn assign(&self, command: &mut Command, files: &[&Path], device: Option<&Path>) {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        if let Some(hidden) = files.iter().find(|path| !is_reachable(path)) {
            let path = hidden.display();
            tracing::warn!(%path, "qemu: other users cannot read it: the machine runs as root");
            return;
        }
        let number = self.taken.get();
        self.taken.set(number.wrapping_add(1) % USERS);
        let user = self.first.saturating_add(number);
        let group = device.and_then(|device| fs::metadata(device).ok()).map(|found| found.gid());
        command.uid(user).gid(group.unwrap_or(user));
    }
}

/// Returns true if a machine's user can open a device for reading and writing: root's process is
/// only in the device's group, as [`Users::assign`] sets it.
pub(super) fn may_open(device: &Path) -> bool {
    let opens = fs::File::options().read(true).write(true).open(device).is_ok();
    let is_ours = !rustix::process::geteuid().is_root();
    let mode = fs::metadata(device).map(|found| found.permissions().mode()).unwrap_or_default();
    let allows = |rights: u32| mode & rights == rights;
    opens && (is_ours || allows(GROUP_USES) || allows(OTHERS_USE))
}

/// Returns true if a user that owns nothing can read a file, or list a directory.
fn is_reachable(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    let allows = |path: &Path, right: u32| {
        fs::metadata(path).is_ok_and(|found| found.permissions().mode() & right == right)
    };
    allows(&path, OTHERS_READ)
        && path.ancestors().skip(1).all(|directory| allows(directory, OTHERS_SEARCH))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::process::Stdio;

    #[test]
    fn files_of_hidden_directories_are_not_reached() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
        assert!(is_reachable(&file));
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        assert!(!is_reachable(&file));
        assert!(!is_reachable(Path::new("/nowhere")));
    }

    #[test]
    fn a_device_of_root_alone_is_not_opened_by_others() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("device");
        fs::write(&device, "").unwrap();
        let of = |mode| {
            fs::set_permissions(&device, Permissions::from_mode(mode)).unwrap();
            may_open(&device)
        };
        assert_eq!(of(0o600), !rustix::process::geteuid().is_root());
        assert!(of(0o660) && of(0o666));
        assert!(!may_open(&dir.path().join("none")));
    }

    #[test]
    fn each_command_has_a_user_of_its_own_who_is_in_no_other_group() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can become others");
            return;
        }
        let users = Users::new(1_900_000_000);
        for number in 0..2 {
            let mut command = Command::new("/usr/bin/id");
            users.assign(&mut command, &[Path::new("/usr/bin/id")], None);
            let output = command.stderr(Stdio::inherit()).output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            let id = 1_900_000_000 + number;
            assert_eq!(said.trim(), format!("uid={id} gid={id} groups={id}"));
        }
    }
}
