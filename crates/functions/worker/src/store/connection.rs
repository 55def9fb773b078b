//! One connection to the store, plain or TLS, with a buffer for bytes read too early.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use unlade_shm::Arena;

use super::transport::{Into, TransportError};

/// Bytes of one read whose end is not known, such as a head and the bytes after it.
const READ_BYTES: usize = 16 * 1024;
/// Bytes of one read while a body is sent.
const LISTEN_BYTES: usize = 1024;

/// The stream of a connection.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Appends the bytes that are available to `to`; none at the end of the stream.
    fn poll_read(&mut self, cx: &mut Context<'_>, to: &mut Vec<u8>) -> Poll<io::Result<()>> {
        let mut space = [0; LISTEN_BYTES];
        let mut read = ReadBuf::new(&mut space);
        let polled = match self {
            Stream::Plain(tcp) => Pin::new(tcp).poll_read(cx, &mut read),
            Stream::Tls(tls) => Pin::new(tls).poll_read(cx, &mut read),
        };
        to.extend_from_slice(read.filled());
        polled
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Stream::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }
}

/// The result of one step of sending.
enum Step {
    /// The peer has sent bytes, or has closed.
    Heard,
    Flushed,
    Sent(usize),
}

/// The result of sending a part of a body.
pub(super) enum Sent {
    /// All bytes were sent.
    All,
    /// Number of bytes that were sent before the peer sent something or closed.
    Until(usize),
}

/// A connection that carries one exchange at a time.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) stream: Stream,
    pub(super) host: String,
    /// Bytes that were received and not consumed.
    buffer: Vec<u8>,
    taken: usize,
    timeout: Duration,
}

impl Connection {
    pub(super) fn new(stream: Stream, host: String, timeout: Duration) -> Connection {
        Connection { stream, host, buffer: Vec::new(), taken: 0, timeout }
    }

    /// The same connection with another timeout of a read or write without progress.
    pub(crate) fn patient(mut self, timeout: Duration) -> Connection {
        self.timeout = timeout;
        self
    }

    /// The bytes that were received and not consumed.
    pub(super) fn held(&self) -> &[u8] {
        &self.buffer[self.taken..]
    }

    /// Consumes bytes of [`Connection::held`].
    pub(super) fn take(&mut self, bytes: usize) {
        self.taken = (self.taken + bytes).min(self.buffer.len());
        if self.taken == self.buffer.len() {
            self.buffer.clear();
            self.taken = 0;
        }
    }

    /// Returns true if the peer has neither sent a byte nor closed since the last exchange.
    pub(super) fn is_quiet(&self) -> bool {
        let tcp = match &self.stream {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => tls.get_ref().0,
        };
        let mut byte = [0];
        // A readable socket means the end or an unexpected response. The reactor is not asked,
        // because it may not have received the event yet.
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let looked = rustix::net::recv(tcp, &mut byte, flags).map_err(io::Error::from);
        self.held().is_empty() && matches!(looked, Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends a head and a body.
    pub(super) async fn send(&mut self, head: &[u8], body: &[u8]) -> Result<(), TransportError> {
        let (mut head, mut body) = (head, body);
        while !head.is_empty() || !body.is_empty() {
            let parts = [IoSlice::new(head), IoSlice::new(body)];
            let work = async {
                match &mut self.stream {
                    Stream::Plain(tcp) => tcp.write_vectored(&parts).await,
                    Stream::Tls(tls) => tls.write_vectored(&parts).await,
                }
            };
            let sent = within(self.timeout, &self.host, work).await?;
            if sent == 0 {
                return Err(broken(&self.host, "it takes no more"));
            }
            let of_head = sent.min(head.len());
            head = &head[of_head..];
            body = &body[sent - of_head..];
        }
        if let Stream::Tls(tls) = &mut self.stream {
            let work = tls.flush();
            within(self.timeout, &self.host, work).await?;
        }
        Ok(())
    }

    /// Sends bytes of a body until the peer sends something, because it may refuse the body.
    /// Returns the number of bytes sent.
    pub(super) async fn send_until_heard(&mut self, body: &[u8]) -> Result<Sent, TransportError> {
        let mut bytes = 0;
        let mut heard = !self.held().is_empty();
        while !heard {
            let rest = body.get(bytes..).unwrap_or_default();
            if rest.is_empty() && matches!(self.stream, Stream::Plain(_)) {
                return Ok(Sent::All);
            }
            let Connection { stream, buffer, host, timeout, .. } = self;
            let step = poll_fn(|cx| {
                if let Poll::Ready(read) = stream.poll_read(cx, buffer) {
                    return Poll::Ready(read.map(|()| Step::Heard));
                }
                match rest.is_empty() {
                    true => stream.poll_flush(cx).map_ok(|()| Step::Flushed),
                    false => stream.poll_write(cx, rest).map_ok(Step::Sent),
                }
            });
            match within(*timeout, host, step).await? {
                Step::Heard => heard = true,
                Step::Flushed => return Ok(Sent::All),
                Step::Sent(0) => return Err(broken(host, "it takes no more")),
                Step::Sent(more) => bytes += more,
            }
        }
        Ok(Sent::Until(bytes))
    }

    /// Reads more bytes into the buffer; returns their number, 0 at the end.
    pub(super) async fn fill(&mut self) -> Result<usize, TransportError> {
        let (timeout, host) = (self.timeout, self.host.clone());
        within(timeout, &host, self.listen()).await
    }

    /// The same without a timeout. Cancel safe.
    pub(super) async fn listen(&mut self) -> io::Result<usize> {
        self.buffer.reserve(READ_BYTES);
        match &mut self.stream {
            Stream::Plain(tcp) => tcp.read_buf(&mut self.buffer).await,
            Stream::Tls(tls) => tls.read_buf(&mut self.buffer).await,
        }
    }

    /// Reads bytes of a body into their destination, without the buffer where possible: at most
    /// `bytes_max`, 0 at the end.
    pub(super) async fn read(
        &mut self,
        to: Into<'_>,
        bytes_max: usize,
    ) -> Result<usize, TransportError> {
        if bytes_max == 0 {
            return Ok(0);
        }
        match to {
            Into::Memory(out) if self.held().is_empty() => {
                // A vector grows by 64 bytes by default: one system call for each step.
                out.reserve(bytes_max.min(READ_BYTES));
                let work = async {
                    let limit = bytes_max as u64;
                    match &mut self.stream {
                        Stream::Plain(tcp) => tcp.take(limit).read_buf(out).await,
                        Stream::Tls(tls) => tls.take(limit).read_buf(out).await,
                    }
                };
                within(self.timeout, &self.host, work).await
            }
            Into::Region(region, at) if self.held().is_empty() => {
                self.read_to_region(region, at, bytes_max).await
            }
            to => self.deliver(to, bytes_max),
        }
    }

    async fn read_to_region(
        &mut self,
        region: &Rc<Arena>,
        at: usize,
        bytes_max: usize,
    ) -> Result<usize, TransportError> {
        if let Stream::Plain(tcp) = &self.stream {
            let work = tcp.async_io(Interest::READABLE, || region.receive(tcp, at, bytes_max));
            return within(self.timeout, &self.host, work).await;
        }
        // TLS records are decrypted in this process's memory.
        if self.fill().await? == 0 {
            return Ok(0);
        }
        self.deliver(Into::Region(region, at), bytes_max)
    }

    /// Moves buffered bytes to their destination.
    fn deliver(&mut self, to: Into<'_>, bytes_max: usize) -> Result<usize, TransportError> {
        let bytes = self.held().len().min(bytes_max);
        put(to, &self.held()[..bytes]).map_err(|why| broken(&self.host, why))?;
        self.take(bytes);
        Ok(bytes)
    }
}

/// Copies bytes to their destination.
pub(super) fn put(to: Into<'_>, bytes: &[u8]) -> Result<(), unlade_shm::shared::OutOfRegion> {
    match to {
        Into::Region(region, at) => region.copy_in(at, bytes),
        Into::Memory(out) => {
            out.extend_from_slice(bytes);
            Ok(())
        }
    }
}

pub(super) fn broken(host: &str, why: impl std::fmt::Display) -> TransportError {
    TransportError::broken(host, why)
}

/// Awaits work with a timeout.
pub(super) async fn within<T>(
    limit: Duration,
    host: &str,
    work: impl Future<Output = io::Result<T>>,
) -> Result<T, TransportError> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.map_err(|error| broken(host, error)),
        Err(_) => Err(TransportError::Timeout { host: host.to_owned(), after: limit }),
    }
}
