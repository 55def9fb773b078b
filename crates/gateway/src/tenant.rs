//! A tenant's I/O worker: a process of its own, started again where it ends.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::Notify;
use wire::guest::control::Said;

use crate::child;
use crate::link::Link;

/// How long a worker may take to listen. It may have a journal to read.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(60);
/// How often its socket is tried.
const LISTEN_PAUSE: Duration = Duration::from_millis(5);
/// Before a worker is started again, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// One that lived so long is started again at once.
const LONG_LIFE: Duration = Duration::from_secs(10);

/// See the [module](self).
pub struct Tenant {
    /// Its name.
    pub name: String,
    executable: PathBuf,
    config: PathBuf,
    control: PathBuf,
    roles: RefCell<BTreeMap<u64, Value>>,
    link: RefCell<Option<Rc<Link>>>,
    pid: Cell<Option<u32>>,
    is_draining: Cell<bool>,
    changed: Notify,
}

/// Writes a file that only its owner can read.
///
/// # Errors
/// The system's.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let _ = fs::remove_file(&fresh);
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&fresh, path)
}

impl Tenant {
    /// A tenant whose worker is started in a moment. `table` is the worker's configuration; where
    /// it listens and what it keeps is added.
    ///
    /// # Errors
    /// The system's: its directory cannot be made.
    pub fn start(
        name: &str,
        dir: &Path,
        executable: &Path,
        mut table: toml::Table,
    ) -> io::Result<Rc<Tenant>> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let control = dir.join("control");
        let path = |path: &Path| toml::Value::from(path.display().to_string());
        table.insert("control".to_owned(), path(&control));
        let limits = table.entry("tenant").or_insert_with(|| toml::Table::new().into());
        if let Some(limits) = limits.as_table_mut() {
            limits.entry("journal").or_insert_with(|| path(&dir.join("journal")));
        }
        let mut relay = toml::Table::new();
        relay.insert("path".to_owned(), path(&dir.join("relay")));
        table.insert("relay".to_owned(), relay.into());
        let config = dir.join("worker.toml");
        write_private(&config, &table.to_string())?;
        let tenant = Rc::new(Tenant {
            name: name.to_owned(),
            executable: executable.to_owned(),
            config,
            control,
            roles: RefCell::default(),
            link: RefCell::default(),
            pid: Cell::new(None),
            is_draining: Cell::new(false),
            changed: Notify::new(),
        });
        Ok(tenant)
    }

    /// What a role may do, from now on.
    pub fn role(&self, role: u64, policy: Value) {
        self.roles.borrow_mut().insert(role, policy.clone());
        if let Some(link) = &*self.link.borrow() {
            link.say(Said::Role { role, policy });
        }
    }

    /// The worker's process.
    pub fn pid(&self) -> Option<u32> {
        self.pid.get()
    }

    /// The connection to the worker, if there is one.
    pub fn try_link(&self) -> Option<Rc<Link>> {
        self.link.borrow().clone()
    }

    /// The connection to the worker, waiting for one.
    ///
    /// # Errors
    /// There is none in time.
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

    /// Runs workers, one after the other, until [`Tenant::drain`].
    pub async fn supervise(self: Rc<Tenant>) {
        let mut pause = PAUSE_MIN;
        while !self.is_draining.get() {
            let begin = Instant::now();
            match self.work().await {
                Ok(_) if self.is_draining.get() => return self.pid.set(None),
                Ok(why) => tracing::warn!(tenant = %self.name, why, "the I/O worker has ended"),
                Err(error) => {
                    tracing::error!(tenant = %self.name, %error, "the I/O worker does not run");
                }
            }
            self.pid.set(None);
            if begin.elapsed() >= LONG_LIFE {
                pause = PAUSE_MIN;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// One worker's life; why it ended.
    async fn work(&self) -> io::Result<String> {
        let arguments: [&OsStr; 4] =
            ["fn".as_ref(), "worker".as_ref(), "--config".as_ref(), self.config.as_ref()];
        let mut worker = child::start(&self.executable, &arguments, Stdio::inherit())?;
        self.pid.set(worker.id());
        let link = self.connect(&mut worker).await?;
        for (role, policy) in &*self.roles.borrow() {
            link.say(Said::Role { role: *role, policy: policy.clone() });
        }
        *self.link.borrow_mut() = Some(link.clone());
        self.changed.notify_waiters();
        let why = tokio::select! {
            status = worker.wait() => format!("{}", status?),
            () = link.closed() => "it has closed its connection".to_owned(),
        };
        self.link.borrow_mut().take();
        child::end(&mut worker, LISTEN_TIMEOUT).await;
        Ok(why)
    }

    async fn connect(&self, worker: &mut Child) -> io::Result<Rc<Link>> {
        let begin = Instant::now();
        loop {
            // Another one, of a gateway before, may still be there: it is not ours.
            if let Ok(stream) = UnixStream::connect(&self.control).await {
                let is_ours = stream.peer_cred()?.pid().map(|pid| pid as u32) == worker.id();
                if is_ours {
                    return Ok(Link::new(stream));
                }
            }
            if let Some(status) = worker.try_wait()? {
                return Err(io::Error::other(format!("it has ended: {status}")));
            }
            if begin.elapsed() > LISTEN_TIMEOUT {
                return Err(io::Error::other("it does not listen in time"));
            }
            tokio::time::sleep(LISTEN_PAUSE).await;
        }
    }

    /// No other worker is started; the one that runs makes durable what is pending.
    pub fn drain(&self) {
        self.is_draining.set(true);
        let pid = self.pid.get().and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}
