//! An S3 server over a directory: for demonstrations, tests, and functions on a single machine.
//!
//! Use it as the store of a test or of one host; an acknowledged change is durable. Requests are
//! parsed by `s3s`, so SDKs work unchanged. Use MinIO or Ceph for more than one host.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::TcpStream;
//!
//! use unlade_s3_store::Store;
//!
//! let root = tempfile::tempdir()?;
//! std::fs::create_dir(root.path().join("box"))?; // a bucket is a directory
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! let store = runtime.block_on(Store::listen("127.0.0.1:0".parse()?, root.path(), []))?;
//! let address = store.address()?;
//! std::thread::spawn(move || runtime.block_on(store.serve()));
//!
//! let exchange = |request: &str| {
//!     let mut stream = TcpStream::connect(address)?;
//!     stream.write_all(request.as_bytes())?;
//!     let mut answer = String::new();
//!     stream.read_to_string(&mut answer)?;
//!     Ok::<String, std::io::Error>(answer)
//! };
//! let end = "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
//! let put = exchange(&format!("PUT /box/a.txt {end}Content-Length: 5\r\n\r\nhello"))?;
//! assert!(put.starts_with("HTTP/1.1 200"), "{put}");
//! assert!(exchange(&format!("GET /box/a.txt {end}\r\n"))?.ends_with("hello"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A bucket is a directory, an object is a file in it, and the metadata of an object is a file in
//! the store's own directory. Modules, in the order in which a request meets them:
//! - `objects`, `buckets`, `forms`, `multipart`, `listing`, `attributes`, `tags`: the operations of S3; `offered`:
//!   refused fields; `conditions` of requests; `body`: bodies and their digests; `checksums`;
//! - `list`: pages of lists; `walk`: the keys of a tree of files in order;
//! - [`notifications`] of changed objects: their configuration; `event`; `record`, `intents`, `outbox`: their
//!   files and their index; `relay`: their way to the gateway;
//! - `vault`: objects as files; `versions`; `uploads`: multipart uploads; `about`: metadata;
//! - `names`: the mapping of keys to files; `legacy`: the import of earlier releases' data;
//! - `disk`: the file system, as a trait; `hold`: the lock of the directory; `fault`: errors.
//!
//! # Limits
//! One process for a directory, which it locks; at most [`CONNECTIONS_MAX`] connections. No ACLs, policies
//! or encryption; signatures are checked if [`Keys`] are given. It is not intended for untrusted
//! networks. Runs on the caller's tokio runtime. No `unsafe`.
#![forbid(unsafe_code)]

mod about;
mod attributes;
mod body;
mod buckets;
mod checksums;
mod conditions;
#[cfg(test)]
mod crash;
mod disk;
mod endings;
mod event;
mod fault;
mod forms;
mod hold;
mod intents;
mod labels;
mod legacy;
mod list;
mod listing;
mod multipart;
mod names;
pub mod notifications;
mod objects;
mod offered;
mod outbox;
mod record;
mod relay;
mod tags;
mod uploads;
mod vault;
mod versions;
mod walk;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use unlade_runtime::listen::ListenError;

use disk::Local;
use hold::Held;
use objects::{Objects, Sender};
use vault::Vault;

/// Most connections at a time; more wait in the kernel's backlog.
pub const CONNECTIONS_MAX: usize = 1024;
/// Pause after a failed accept: descriptors may be exhausted, perhaps by other processes.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The reason why there is no server. The operator or the machine is at fault.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be used.
    #[error("{path}: {why}; it has to be a directory that can be written, of this layout")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        why: String,
    },
    /// Another process serves the directory.
    #[error("{path}: another process serves it; end that process, or use another directory")]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The address cannot be used.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// A pair of keys for signatures.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The access key.
    pub access_key_id: String,
    /// The secret.
    pub secret_access_key: String,
}

/// A listening server.
pub struct Store {
    listener: TcpListener,
    service: S3Service,
    vault: Arc<Vault<Local>>,
    /// The connection to the gateway, and the questions for it.
    gateway: Option<(UnixStream, mpsc::Receiver<outbox::Question>)>,
}

impl Store {
    /// Listens on an address; with port 0 the kernel chooses one. If keys are given, requests must
    /// be signed with one of them.
    ///
    /// # Errors
    /// The directory or the address cannot be used.
    pub async fn listen(
        address: SocketAddr,
        root: &Path,
        keys: impl IntoIterator<Item = Keys>,
    ) -> Result<Store, StoreError> {
        // A port in use is found before the directory is touched.
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|error| ListenError::new(address, error))?;
        let opened = open(root).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => StoreError::Busy { path: root.to_owned() },
            _ => StoreError::Directory { path: root.to_owned(), why: error.to_string() },
        })?;
        let objects = Objects::new(opened);
        let vault = objects.vault.clone();
        let mut builder = S3ServiceBuilder::new(objects);
        let (mut auth, mut has_keys) = (SimpleAuth::new(), false);
        for pair in keys {
            auth.register(pair.access_key_id, pair.secret_access_key.into());
            has_keys = true;
        }
        if has_keys {
            builder.set_auth(auth);
        }
        Ok(Store { listener, service: builder.build(), vault, gateway: None })
    }

    /// Sends the events of changed objects over a connection to a gateway, which invokes functions. A
    /// store without one refuses configurations of notifications, and makes no events.
    #[must_use]
    pub fn with_gateway(mut self, stream: UnixStream) -> Store {
        let (questions, asked) = mpsc::channel(relay::QUESTIONS_MAX);
        self.vault.outbox.connect(questions);
        self.gateway = Some((stream, asked));
        self
    }

    /// The address of the listener.
    ///
    /// # Errors
    /// The system call failed.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is dropped, or the gateway ends its connection. Retries a failed accept after a
    /// short pause.
    ///
    /// # Errors
    /// The connection to the gateway failed.
    pub async fn serve(self) -> io::Result<()> {
        let Store { listener, service, vault, gateway } = self;
        let relay = async move {
            match gateway {
                Some((stream, questions)) => relay::run(&vault, stream, questions).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = relay => ended,
            () = accept(listener, service) => Ok(()),
        }
    }
}

async fn accept(listener: TcpListener, service: S3Service) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Dropping the set closes every connection.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "store: no connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let service = service.clone();
        connections.spawn(async move {
            let _place = place;
            if let Err(error) = answer(stream, service, Sender(peer.ip())).await {
                tracing::debug!(%error, "store: a connection");
            }
        });
    }
}

/// Creates the directory if it does not exist, durably, as far as its parents can be read.
fn open(root: &Path) -> io::Result<Vault<Local>> {
    std::fs::create_dir_all(root)?;
    let root = std::fs::canonicalize(root)?;
    for above in root.ancestors().skip(1) {
        if let Err(error) = disk::Disk::sync_dir(&Local, above) {
            tracing::debug!(%error, path = %above.display(), "store: not synced");
        }
    }
    let held = Held::take(&root)?;
    let mut vault = Vault::open(Local, &root)?;
    vault.held = Some(held);
    legacy::import(&vault, &root)?;
    Ok(vault)
}

async fn answer(
    stream: TcpStream,
    service: S3Service,
    sender: Sender,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Head and body are written separately; the body must not wait for the acknowledgement of the
    // head.
    stream.set_nodelay(true)?;
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(sender);
        Service::call(&service, request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new());
    Ok(builder.serve_connection(TokioIo::new(stream), service).await?)
}
