//! Disk images: a directory as a file system that a machine mounts read-only.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::stage::Staged;

const PROGRAMS: [&str; 3] = ["/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/bin/mke2fs"];
const BLOCK_BYTES: u64 = 4096;
/// Space for the tables of the file system.
const SPARE_BYTES: u64 = 4 << 20;
/// Space of an inode, in addition to its blocks.
const INODE_BYTES: u64 = 256;

/// The path of e2fsprogs' program.
pub(super) fn mke2fs() -> Result<PathBuf, String> {
    let mut found = PROGRAMS.iter().map(PathBuf::from);
    let missing = "mke2fs is missing: apt-get install e2fsprogs".to_owned();
    found.find(|path| path.exists()).ok_or(missing)
}

/// Creates a disk image of a directory. It has no journal and no checksums, because it is never
/// written.
///
/// # Errors
/// The system call or mke2fs failed.
pub(super) fn make(from: &Path, staged: Staged, to: &Path) -> io::Result<()> {
    let each = BLOCK_BYTES + INODE_BYTES;
    let bytes = staged.bytes + staged.bytes / 64 + staged.entries * each + SPARE_BYTES;
    File::create(to)?.set_len(bytes.next_multiple_of(1 << 20))?;
    let program = mke2fs().map_err(io::Error::other)?;
    let inodes = (staged.entries + 64).to_string();
    let mut command = Command::new(program);
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-N", &inodes]);
    command.args(["-O", "^has_journal,^metadata_csum,^resize_inode", "-E", "root_owner=0:0"]);
    command.arg("-d").arg(from).arg(to);
    let output = command.stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => readable(to),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// Makes a file readable by every user: QEMU runs as a user that owns nothing.
///
/// # Errors
/// The system call failed.
pub(super) fn readable(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_what_its_directory_has() {
        if let Err(why) = mke2fs() {
            println!("skipped: {why}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("from");
        std::fs::create_dir_all(from.join("in")).unwrap();
        std::fs::write(from.join("in/file"), vec![7; 3 << 20]).unwrap();
        let disk = dir.path().join("disk");
        let mut staged = Staged::default();
        staged.tree(&from, &dir.path().join("copy"), &|_| true).unwrap();
        make(&dir.path().join("copy"), staged, &disk).unwrap();
        let debugfs = Command::new("/usr/sbin/debugfs")
            .args(["-R", &format!("dump /in/file {}", dir.path().join("out").display())])
            .arg(&disk)
            .output();
        if debugfs.is_err() {
            println!("skipped: debugfs is missing");
            return;
        }
        assert!(std::fs::read(dir.path().join("out")).unwrap() == vec![7; 3 << 20]);
        let none = make(&dir.path().join("nothing"), Staged::default(), &dir.path().join("b"));
        assert!(none.is_err());
    }
}
