//! The listening socket. It is bound under a temporary name first, so its final path never has a
//! wrong mode and never exists before it listens.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, UCred, bind, connect, listen,
    socket_with,
};

use crate::daemon::config::Allow;

/// Length of the accept queue.
const BACKLOG: i32 = 128;

/// Error in opening the socket, for the operator to resolve.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another daemon answers at this path.
    #[error("{}: a copy daemon listens there already; end it, or configure another socket", .0.display())]
    Taken(PathBuf),
    /// The path exists and is not a socket.
    #[error("{}: this file is not a socket; remove it, or configure another path", .0.display())]
    NoSocket(PathBuf),
    /// A system call failed.
    #[error("{}: {call}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A listening socket; its file is removed with it.
#[derive(Debug)]
pub(crate) struct Listening {
    pub socket: Arc<OwnedFd>,
    path: PathBuf,
    /// Device and inode of the file, so that another daemon's socket is not removed.
    identity: (u64, u64),
}

/// A SOCK_SEQPACKET socket.
fn seqpacket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

impl Listening {
    /// Listens at `path`; creates a missing directory.
    pub fn bind(path: &Path, mode: u32) -> Result<Listening, BindError> {
        let system = |call| {
            let path = path.to_owned();
            move |source: io::Error| BindError::System { path, call, source }
        };
        check_free(path)?;
        if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(directory).map_err(system("mkdir"))?;
        }
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(format!(".{}", std::process::id()));
        let fresh = PathBuf::from(fresh);
        // A former process with the same PID may have left this file.
        let _ = fs::remove_file(&fresh);
        let made = Listening::make(&fresh, mode).and_then(|(socket, identity)| {
            fs::rename(&fresh, path)?;
            Ok(Listening { socket: Arc::new(socket), path: path.to_owned(), identity })
        });
        made.map_err(|error| {
            let _ = fs::remove_file(&fresh);
            system("bind")(error)
        })
    }

    fn make(path: &Path, mode: u32) -> io::Result<(OwnedFd, (u64, u64))> {
        let socket = seqpacket(SocketFlags::NONBLOCK)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        listen(&socket, BACKLOG)?;
        let file = fs::symlink_metadata(path)?;
        Ok((socket, (file.dev(), file.ino())))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path).map(|file| (file.dev(), file.ino()));
        if found.is_ok_and(|found| found == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Checks that no daemon answers at the path. A socket without a listener is a remnant of a killed
/// daemon.
fn check_free(path: &Path) -> Result<(), BindError> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    use std::os::unix::fs::FileTypeExt;
    if !found.file_type().is_socket() {
        return Err(BindError::NoSocket(path.to_owned()));
    }
    let answers = || -> rustix::io::Result<()> {
        // Nonblocking, because a full backlog is an answer as well.
        connect(&seqpacket(SocketFlags::NONBLOCK)?, &SocketAddrUnix::new(path)?)
    };
    match answers() {
        Err(rustix::io::Errno::CONNREFUSED) => Ok(()),
        _ => Err(BindError::Taken(path.to_owned())),
    }
}

/// Returns true if a peer is permitted: the daemon's own user, root, or a user or group in the
/// configuration.
pub(crate) fn is_allowed(allow: &Allow, peer: &UCred) -> bool {
    let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
    uid == rustix::process::geteuid().as_raw()
        || uid == 0
        || allow.uids.contains(&uid)
        || allow.gids.contains(&gid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getpid, getuid};

    #[test]
    fn one_daemon_listens_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/copyd.sock");
        let first = Listening::bind(&path, 0o600).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(matches!(Listening::bind(&path, 0o600), Err(BindError::Taken(_))));
        drop(first);
        assert!(!path.exists());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
        fs::write(&path, "a file").unwrap();
        assert!(matches!(Listening::bind(&path, 0o600), Err(BindError::NoSocket(_))));
    }

    #[test]
    fn the_socket_of_a_killed_daemon_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copyd.sock");
        let dead = seqpacket(SocketFlags::empty()).unwrap();
        bind(&dead, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(dead);
        let socket = Listening::bind(&path, 0o600).unwrap();
        drop(socket);
    }

    #[test]
    fn permitted_users_are_served() {
        let uid = rustix::process::Uid::from_raw(54_321);
        let gid = rustix::process::Gid::from_raw(54_322);
        let stranger = UCred { pid: getpid(), uid, gid };
        assert!(!is_allowed(&Allow::default(), &stranger));
        assert!(is_allowed(&Allow { uids: vec![54_321], gids: vec![] }, &stranger));
        assert!(is_allowed(&Allow { uids: vec![], gids: vec![54_322] }, &stranger));
        assert!(is_allowed(&Allow::default(), &UCred { uid: getuid(), ..stranger }));
    }
}
