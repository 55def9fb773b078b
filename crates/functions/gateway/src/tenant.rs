//! A tenant: its roles, and the connection to its I/O worker.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::net::UnixStream;
use tokio::sync::{Notify, Semaphore};
use unlade_guest_protocol::control::ControlHead;

use crate::link::Link;
use crate::worker::{Kind, Worker};

/// Timeout of a worker's start. It may have a journal to read.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(60);
/// Most calls on behalf of its functions at a time, requests for messages of queues excluded: those are
/// bounded by the number of its mappings.
const CALLS_MAX: usize = 64;
/// Interval of the connection attempts.
const LISTEN_PAUSE: Duration = Duration::from_millis(5);

/// See the [module](self).
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// The worker that serves it, and perhaps other tenants.
    pub worker: Rc<Worker>,
    /// Permits of calls on behalf of its functions.
    pub calls: Semaphore,
    control: PathBuf,
    roles: RefCell<BTreeMap<u64, Value>>,
    own_role: Cell<Option<u64>>,
    link: RefCell<Option<Rc<Link>>>,
    changed: Notify,
}

/// Writes a file that is readable only by its owner.
///
/// # Errors
/// The system call failed.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let _ = fs::remove_file(&fresh);
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&fresh, path)
}

/// The path of a tenant's configuration file.
pub fn config_file(dir: &Path) -> PathBuf {
    dir.join("worker.toml")
}

/// The path of a tenant's relay socket. Its directory contains nothing else, because sandboxes see
/// that directory, and a restarted worker creates a new file in it.
pub fn relay(dir: &Path) -> PathBuf {
    dir.join("tcp").join("relay")
}

/// Writes a worker's configuration: the table, the sockets, and the paths.
///
/// # Errors
/// The directory cannot be created, or the file cannot be written.
pub fn configure(dir: &Path, mut table: toml::Table) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let path = |name: &str| toml::Value::from(dir.join(name).display().to_string());
    table.insert("control".to_owned(), path("control"));
    let limits = table.entry("tenant").or_insert_with(|| toml::Table::new().into());
    if let Some(limits) = limits.as_table_mut() {
        limits.entry("journal").or_insert_with(|| path("journal"));
    }
    let relay = relay(dir);
    if let Some(seen) = relay.parent() {
        fs::create_dir_all(seen)?;
        fs::set_permissions(seen, fs::Permissions::from_mode(0o755))?;
    }
    let path = toml::Value::from(relay.display().to_string());
    let relay = toml::Table::from_iter([("path".to_owned(), path)]);
    table.insert("relay".to_owned(), relay.into());
    write_private(&config_file(dir), &table.to_string())
}

impl Tenant {
    /// Creates a tenant of a worker that listens in the tenant's directory.
    pub fn new(name: &str, dir: &Path, worker: Rc<Worker>) -> Rc<Tenant> {
        Rc::new(Tenant {
            name: name.to_owned(),
            worker,
            calls: Semaphore::new(CALLS_MAX),
            control: dir.join("control"),
            roles: RefCell::default(),
            own_role: Cell::default(),
            link: RefCell::default(),
            changed: Notify::new(),
        })
    }

    /// Sets the rights of a role.
    pub fn role(&self, role: u64, policy: Value) {
        self.roles.borrow_mut().insert(role, policy.clone());
        if let Some(link) = &*self.link.borrow() {
            link.say(ControlHead::Role { role, policy });
        }
    }

    /// The number of the role with the tenant's own rights; `next` gives it once.
    pub fn own_role(&self, next: impl FnOnce() -> u64) -> u64 {
        let role = self.own_role.get().unwrap_or_else(next);
        self.own_role.set(Some(role));
        role
    }

    /// Returns true if the worker knows a role.
    pub fn has_role(&self, role: u64) -> bool {
        self.roles.borrow().contains_key(&role)
    }

    /// Forgets a role that no function has any more.
    pub fn forget_role(&self, role: u64) {
        let there_was = self.roles.borrow_mut().remove(&role).is_some();
        if let (true, Some(link)) = (there_was, &*self.link.borrow()) {
            link.say(ControlHead::Forget { role });
        }
    }

    /// The number of the worker's process.
    pub fn pid(&self) -> Option<u32> {
        *self.worker.pid().borrow()
    }

    /// The connection to the worker, if it is established.
    pub fn try_link(&self) -> Option<Rc<Link>> {
        self.link.borrow().clone()
    }

    /// Waits for the connection to the worker.
    ///
    /// # Errors
    /// No connection within the timeout.
    pub async fn link(&self, patience: Duration) -> Result<Rc<Link>, String> {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if let Some(link) = self.try_link() {
                    return link;
                }
                changed.await;
            }
        };
        let late = |_| format!("the I/O worker of tenant {} is not there; see the log", self.name);
        tokio::time::timeout(patience, wait).await.map_err(late)
    }

    /// Maintains a connection to the worker across its restarts.
    pub async fn stay(self: Rc<Tenant>) {
        let mut pids = self.worker.pid();
        loop {
            let pid = *pids.borrow_and_update();
            let talk = async {
                match pid {
                    Some(pid) => self.talk(pid).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = talk => {}
                // The worker lives at least as long as this tenant.
                _ = pids.changed() => {}
            }
            self.link.borrow_mut().take();
        }
    }

    /// Serves one connection until it is closed: the process ends, or the tenant restarts in it.
    async fn talk(&self, pid: u32) {
        let Some(link) = self.connect(pid).await else {
            tracing::error!(tenant = %self.name, pid, "the I/O worker does not listen in time");
            if self.worker.kind == Kind::Own {
                self.worker.replace(pid);
            }
            return;
        };
        for (role, policy) in &*self.roles.borrow() {
            link.say(ControlHead::Role { role: *role, policy: policy.clone() });
        }
        *self.link.borrow_mut() = Some(link.clone());
        self.changed.notify_waiters();
        link.closed().await;
        self.link.borrow_mut().take();
        tokio::time::sleep(LISTEN_PAUSE).await;
    }

    async fn connect(&self, pid: u32) -> Option<Rc<Link>> {
        let begin = Instant::now();
        while begin.elapsed() < LISTEN_TIMEOUT {
            // A process of a previous gateway may still listen: it must not be used.
            if let Ok(stream) = UnixStream::connect(&self.control).await {
                let peer = stream.peer_cred().ok().and_then(|peer| peer.pid());
                if peer.and_then(|peer| u32::try_from(peer).ok()) == Some(pid) {
                    return Some(Link::new(stream));
                }
            }
            tokio::time::sleep(LISTEN_PAUSE).await;
        }
        None
    }
}
