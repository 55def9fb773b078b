//! The way to the store: a request and a body in, an answer whose body is read as it comes.
//!
//! - [`body`]: bytes that are sent, and their digests, each computed once;
//! - `digest`: checksums of what comes in pieces;
//! - [`checked`]: a body that is compared with its checksum;
//! - [`credentials`]: keys, which never leave the worker;
//! - [`sign`]: Signature Version 4;
//! - [`chunked`]: a body in signed chunks;
//! - [`connection`]: one connection, plain or TLS;
//! - [`pool`]: connections that are kept;
//! - [`http`]: the transport over HTTP/1.1;
//! - [`upload`]: a body that is sent while it comes.

pub mod body;
pub mod checked;
pub mod chunked;
pub mod connection;
pub mod credentials;
mod digest;
pub mod http;
pub mod pool;
pub mod sign;
pub mod upload;
pub mod v2;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use unlade_s3::{Head, Request};
use unlade_shm::Arena;

pub use body::Body;
pub use http::HttpStore;

/// A future that stays on its thread.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Why an exchange failed. The store or the way to it is at fault, unless the variant says another.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TransportError {
    /// No connection.
    #[error("{host} cannot be reached: {why}; is the endpoint right, and does it run?")]
    Connect {
        /// Where to.
        host: String,
        /// What the system said.
        why: String,
    },
    /// The connection broke.
    #[error("the connection to {host} broke: {why}")]
    Broken {
        /// Where to.
        host: String,
        /// What the system said, or what was wrong with what came.
        why: String,
        /// It had been kept since an exchange before, and gave no answer: there is no reason to
        /// wait before the next attempt.
        was_kept: bool,
    },
    /// No byte came, or could be sent, for too long.
    #[error("{host} was silent for {after:?}")]
    Timeout {
        /// Where to.
        host: String,
        /// How long was waited.
        after: Duration,
    },
    /// The function's, or its guest's: the body did not come as it was announced.
    #[error("{0}")]
    Withheld(String),
    /// The operator's: the request cannot be signed.
    #[error("the request cannot be signed: {0}")]
    Sign(String),
}

impl TransportError {
    /// A connection that broke.
    pub fn broken(host: &str, why: impl std::fmt::Display) -> TransportError {
        TransportError::Broken { host: host.to_owned(), why: why.to_string(), was_kept: false }
    }
}

/// Which rules an address or form is signed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HMAC-SHA1 over the request's line (S3 API reference, "Authenticating requests (AWS Signature
    /// Version 2)"): what SDKs still use for addresses in old regions.
    Two,
    /// Signature Version 4.
    Four,
}

/// Where bytes of an answer go.
#[derive(Debug)]
pub enum Into<'a> {
    /// Into a region, at this offset.
    Region(&'a Rc<Arena>, usize),
    /// To the end of a vector.
    Memory(&'a mut Vec<u8>),
}

/// The body of an answer.
pub trait Reader {
    /// Bytes that are still to come; nothing where that is not known.
    fn left_bytes(&self) -> Option<u64>;

    /// Reads some, at most `bytes_max`; 0 at the end.
    fn read<'a>(
        &'a mut self,
        to: Into<'a>,
        bytes_max: usize,
    ) -> Local<'a, Result<usize, TransportError>>;
}

/// A body that is sent while it comes.
pub trait Outgoing {
    /// Bytes of all of it.
    fn bytes(&self) -> u64;

    /// Waits for more bytes, and puts some of them behind those of `out`: at most `bytes_max`, at
    /// least one.
    fn pull<'a>(
        &'a mut self,
        out: &'a mut Vec<u8>,
        bytes_max: usize,
    ) -> Local<'a, Result<(), TransportError>>;

    /// Waits until whoever sends it has said that this was all.
    fn end(&mut self) -> Local<'_, Result<(), TransportError>>;
}

/// An answer whose body is on its way.
pub struct Incoming {
    /// Status and header fields.
    pub head: Head,
    /// The body.
    pub body: Box<dyn Reader>,
}

/// Carries requests to a store. HTTP over TCP is the first one.
pub trait Transport {
    /// One attempt.
    fn exchange(
        &self,
        request: Rc<Request>,
        body: Rc<Body>,
    ) -> Local<'_, Result<Incoming, TransportError>>;

    /// One attempt, whose body comes meanwhile. The object appears only when all of it has been
    /// sent: where `body` fails, or this is dropped, the store gets less than was announced.
    fn upload<'a>(
        &'a self,
        request: &'a Request,
        body: &'a mut dyn Outgoing,
    ) -> Local<'a, Result<Incoming, TransportError>>;

    /// An address that lets its holder make the request, for a while. Where no version is named it
    /// is the one that SDKs take in that region.
    ///
    /// # Errors
    /// [`TransportError::Sign`].
    fn presign(
        &self,
        request: &Request,
        expires: Duration,
        version: Option<Version>,
    ) -> Result<String, TransportError>;

    /// An address and the fields of a form that let its holder upload an object, for a while.
    ///
    /// # Errors
    /// [`TransportError::Sign`].
    fn presign_post(
        &self,
        form: sign::Form<'_>,
    ) -> Result<(String, Vec<(String, String)>), TransportError>;
}

/// Reads what is left of a body; nothing where it is longer than `bytes_max`.
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
