//! The built-in store: a process of its own, with generated keys.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::Child;
use tokio::sync::mpsc;

use crate::child;
use crate::config::{KeyPair, REGION};
use crate::credentials::random;
use crate::tenant::write_private;

/// The access key of the built-in store.
const ACCESS_KEY_ID: &str = "unlade";
/// The flag of the store's command for a socket to the gateway as its standard input.
pub const GATEWAY_SOCKET: &str = "--gateway-socket";
/// Timeout of a store's start.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Wait before a store is restarted.
const PAUSE: Duration = Duration::from_millis(200);
/// Timeout of its end.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The address and keys of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// `http://127.0.0.1:9000`.
    pub endpoint: String,
    /// The region in signatures.
    pub region: String,
    /// The access key.
    pub access_key_id: String,
    /// The secret.
    pub secret_access_key: String,
}

impl Access {
    /// `[store]` of a worker's configuration.
    pub fn table(&self) -> toml::Table {
        let text = |text: &str| toml::Value::from(text.to_owned());
        let mut credentials = toml::Table::new();
        credentials.insert("from".to_owned(), text("keys"));
        credentials.insert("access_key_id".to_owned(), text(&self.access_key_id));
        credentials.insert("secret_access_key".to_owned(), text(&self.secret_access_key));
        let mut table = toml::Table::new();
        table.insert("endpoint".to_owned(), text(&self.endpoint));
        table.insert("region".to_owned(), text(&self.region));
        table.insert("credentials".to_owned(), credentials.into());
        table
    }
}

/// The built-in store.
pub struct Store {
    /// Its address and keys.
    pub access: Access,
    executable: PathBuf,
    directory: PathBuf,
    keys_file: PathBuf,
    pid: Cell<Option<u32>>,
    is_draining: Cell<bool>,
    /// The connection to each process, by which its events come.
    connections: mpsc::UnboundedSender<UnixStream>,
}

/// A built-in store that has been started.
pub struct Started {
    /// The store.
    pub store: Store,
    /// Its process, for [`Store::supervise`].
    pub child: Child,
    /// The connections to its processes, one after the other, for [`crate::notifications::run`].
    pub connections: mpsc::UnboundedReceiver<UnixStream>,
}

impl Store {
    /// Starts the store; the process must be passed to [`Store::supervise`]. Workers and baselines
    /// have a key of their own, which the gateway does not accept; `also` is another accepted key.
    ///
    /// # Errors
    /// The system call failed, or the store does not listen and has printed the reason to standard
    /// error.
    pub async fn start(
        executable: &Path,
        state: &Path,
        listen: SocketAddr,
        also: Option<&KeyPair>,
    ) -> io::Result<Started> {
        let secret_file = state.join("store.key");
        let secret = match fs::read_to_string(&secret_file) {
            Ok(text) => text.trim_end().to_owned(),
            Err(_) => {
                let secret = random(20)?;
                write_private(&secret_file, &secret)?;
                secret
            }
        };
        let keys_file = state.join("store.keys");
        let also = also.map(|pair| format!("{} {}\n", pair.access_key_id, pair.secret_access_key));
        let text = format!("{ACCESS_KEY_ID} {secret}\n{}", also.unwrap_or_default());
        write_private(&keys_file, &text)?;
        let (sender, connections) = mpsc::unbounded_channel();
        let mut store = Store {
            access: Access {
                endpoint: String::new(),
                region: REGION.to_owned(),
                access_key_id: ACCESS_KEY_ID.to_owned(),
                secret_access_key: secret,
            },
            executable: executable.to_owned(),
            directory: state.join("objects"),
            keys_file,
            pid: Cell::new(None),
            is_draining: Cell::new(false),
            connections: sender,
        };
        let (child, endpoint) = store.spawn(&listen.to_string()).await?;
        store.access.endpoint = endpoint;
        Ok(Started { store, child, connections })
    }

    async fn spawn(&self, listen: &str) -> io::Result<(Child, String)> {
        let arguments: [&OsStr; 9] = [
            "fn".as_ref(),
            "store".as_ref(),
            "--dir".as_ref(),
            self.directory.as_ref(),
            "--listen".as_ref(),
            listen.as_ref(),
            "--keys-file".as_ref(),
            self.keys_file.as_ref(),
            GATEWAY_SOCKET.as_ref(),
        ];
        let (own, other) = StdStream::pair()?;
        own.set_nonblocking(true)?;
        let streams = (Stdio::from(OwnedFd::from(other)), Stdio::piped());
        let mut child = child::start_with(&self.executable, &arguments, streams)?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        let mut line = String::new();
        let mut reader = BufReader::new(stdout);
        let read = tokio::time::timeout(LISTEN_TIMEOUT, reader.read_line(&mut line)).await;
        let endpoint = line.trim_end().to_owned();
        match read {
            Ok(Ok(_)) if endpoint.starts_with("http") => {}
            _ => return Err(io::Error::other("the built-in store does not listen; see above")),
        }
        // Nobody takes events from a gateway that is ending.
        let _ = self.connections.send(UnixStream::from_std(own)?);
        self.pid.set(child.id());
        Ok((child, endpoint))
    }

    /// The number of its process.
    pub fn pid(&self) -> Option<u32> {
        self.pid.get()
    }

    /// Restarts the process when it ends, at the same address, until [`Store::drain`].
    pub async fn supervise(&self, mut child: Child) {
        let listen = self.access.endpoint.trim_start_matches("http://").to_owned();
        loop {
            let status = child.wait().await;
            self.pid.set(None);
            if self.is_draining.get() {
                return;
            }
            tracing::error!(?status, "the built-in store has ended and is started again");
            child = loop {
                tokio::time::sleep(PAUSE).await;
                match self.spawn(&listen).await {
                    Ok((child, _)) => break child,
                    Err(error) => tracing::error!(%error, "the built-in store"),
                }
            };
        }
    }

    /// Ends the process.
    pub fn drain(&self) {
        self.is_draining.set(true);
        let pid = self.pid.get().and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }

    /// Timeout of its end.
    pub const END_TIMEOUT: Duration = END_TIMEOUT;
}
