//! The interface of a store: requests with a body, responses with a streamed body, errors.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use unlade_s3::policy::facts::Environment;
use unlade_s3::{Head, Request};
use unlade_shm::Arena;

use super::body::Body;

/// A future that need not be `Send`.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The reason why an exchange failed. The store or the network is at fault unless the variant
/// states otherwise.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TransportError {
    /// No connection was established.
    #[error("{host} cannot be reached: {why}; is the endpoint right, and does it run?")]
    Connect {
        /// The peer.
        host: String,
        /// The error of the system.
        why: String,
    },
    /// The connection broke.
    #[error("the connection to {host} broke: {why}")]
    Broken {
        /// The peer.
        host: String,
        /// The error of the system, or the defect in the received bytes.
        why: String,
        /// True if the connection was reused and gave no response: the next attempt need not wait.
        was_kept: bool,
    },
    /// No byte was received or sent within the timeout.
    #[error("{host} was silent for {after:?}")]
    Timeout {
        /// The peer.
        host: String,
        /// The timeout.
        after: Duration,
    },
    /// The body did not arrive as announced. The function or its guest is at fault.
    #[error("{0}")]
    Withheld(String),
    /// The request cannot be signed. The operator is at fault.
    #[error("the request cannot be signed: {0}")]
    Sign(String),
}

impl TransportError {
    /// The error of a connection that broke.
    pub fn broken(host: &str, why: impl std::fmt::Display) -> TransportError {
        TransportError::Broken { host: host.to_owned(), why: why.to_string(), was_kept: false }
    }
}

/// The parameters of a form upload.
#[derive(Clone, Copy, Debug)]
pub struct Form<'a> {
    /// The bucket.
    pub bucket: &'a str,
    /// The key; the holder replaces `${filename}` at its end.
    pub key: &'a str,
    /// Fields of the caller.
    pub fields: &'a Map<String, Value>,
    /// Conditions of the caller.
    pub conditions: &'a [Value],
    /// The validity.
    pub expires: Duration,
    /// The region of the function's client; the worker's own if `None`.
    pub region: Option<&'a str>,
}

/// The destination of a response's bytes.
#[derive(Debug)]
pub enum Into<'a> {
    /// Into a region, at this offset.
    Region(&'a Rc<Arena>, usize),
    /// To the end of a vector.
    Memory(&'a mut Vec<u8>),
}

/// A reader of a response's body.
pub trait Reader {
    /// Bytes that remain; `None` if the length is unknown.
    fn left_bytes(&self) -> Option<u64>;

    /// Reads at most `bytes_max` bytes; 0 at the end.
    fn read<'a>(
        &'a mut self,
        to: Into<'a>,
        bytes_max: usize,
    ) -> Local<'a, Result<usize, TransportError>>;
}

/// A request body that is streamed.
pub trait Outgoing {
    /// Length of the whole body.
    fn bytes(&self) -> u64;

    /// Waits for more bytes, and appends at least one and at most `bytes_max` of them to `out`.
    fn pull<'a>(
        &'a mut self,
        out: &'a mut Vec<u8>,
        bytes_max: usize,
    ) -> Local<'a, Result<(), TransportError>>;

    /// Waits until the sender has confirmed the end of the body.
    fn end(&mut self) -> Local<'_, Result<(), TransportError>>;
}

/// A response whose body has not been read.
pub struct Incoming {
    /// Status and header fields.
    pub head: Head,
    /// The body.
    pub body: Box<dyn Reader>,
}

/// A transport of requests to a store. The only implementation is HTTP over TCP.
pub trait Transport {
    /// Makes one attempt.
    fn exchange(
        &self,
        request: Rc<Request>,
        body: Rc<Body>,
    ) -> Local<'_, Result<Incoming, TransportError>>;

    /// Makes one attempt with a streamed body. The object appears only when all of the body has
    /// been sent: if `body` fails or this future is dropped, the store receives less than
    /// announced.
    fn upload<'a>(
        &'a self,
        request: &'a Request,
        body: &'a mut dyn Outgoing,
    ) -> Local<'a, Result<Incoming, TransportError>>;

    /// A URL that lets its holder make the request for a limited time.
    ///
    /// # Errors
    /// [`TransportError::Sign`].
    fn presign(&self, request: &Request, expires: Duration) -> Result<String, TransportError>;

    /// A URL and the fields of a form that let its holder upload an object for a limited time.
    ///
    /// # Errors
    /// [`TransportError::Sign`].
    fn presign_post(
        &self,
        form: Form<'_>,
    ) -> Result<(String, Vec<(String, String)>), TransportError>;

    /// The circumstances of a request now, for a client of a region; of the store's own if `None`.
    fn environment(&self, region: Option<&str>) -> Environment {
        let region = region.unwrap_or_default().to_owned();
        Environment { now: SystemTime::now(), region, has_tls: false, is_deferred: false }
    }
}

/// Reads the rest of a body; `None` if it is longer than `bytes_max`.
///
/// # Errors
/// The connection broke.
pub async fn read_all(
    body: &mut dyn Reader,
    bytes_max: usize,
) -> Result<Option<Vec<u8>>, TransportError> {
    let mut all = Vec::new();
    if body.left_bytes().is_some_and(|left| left > bytes_max as u64) {
        return Ok(None);
    }
    loop {
        let room = bytes_max + 1 - all.len();
        if body.read(Into::Memory(&mut all), room).await? == 0 {
            return Ok(Some(all));
        }
        if all.len() > bytes_max {
            return Ok(None);
        }
    }
}
