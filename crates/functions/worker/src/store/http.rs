//! The transport over HTTP/1.1, TCP and TLS.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use unlade_http::{BodyFraming, ChunkedScanner, HeadLimits, Method, ResponseHead};
use unlade_s3::encode::percent;
use unlade_s3::policy::facts::Environment;
use unlade_s3::{Head, Request};

use super::body::Body;
use super::connection::{Connection, Stream, broken, put};
use super::pool::Pool;
use super::sign::{Payload, Signer};
use super::transport::{Form, Incoming, Into, Local, Outgoing, Reader, Transport, TransportError};

/// Limits of a response head.
const LIMITS: HeadLimits =
    HeadLimits { head_bytes_max: 48 * 1024, headers_max: 200, target_bytes_max: 8 * 1024 };
/// Most interim responses before the final response.
const INTERIM_MAX: usize = 8;

/// The place of the bucket's name in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// In the path.
    Path,
    /// In the host name, where possible.
    VirtualHost,
}

/// The parameters of a store's endpoint.
#[derive(Debug)]
pub struct Endpoint {
    /// The host name, without a port.
    pub host: String,
    /// True if each region has a host name of its own: `s3.REGION.amazonaws.com`.
    pub by_region: bool,
    /// The port.
    pub port: u16,
    /// The TLS configuration; plain TCP if `None`.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The place of the bucket's name in a request.
    pub addressing: Addressing,
    /// The signer; requests are unsigned if `None`.
    pub signer: Option<Signer>,
    /// True if bodies are part of the signature.
    pub signs_bodies: bool,
    /// Timeout of a connection attempt.
    pub connect_timeout: Duration,
    /// Timeout of a read or write without progress.
    pub read_timeout: Duration,
    /// Most idle connections.
    pub idle_max: usize,
    /// Time after which an idle connection is closed.
    pub idle_timeout: Duration,
}

/// See the [module](self).
#[derive(Debug)]
pub struct HttpStore {
    pub(super) endpoint: Endpoint,
    dial: Dial,
    pub(super) pool: Rc<Pool>,
}

/// The destination of a request.
pub(super) struct Destination {
    /// The host name to connect to.
    pub(super) host: String,
    /// The value of the `Host` field.
    authority: String,
    path: String,
}

impl HttpStore {
    /// Creates a transport to an endpoint.
    pub fn new(endpoint: Endpoint) -> HttpStore {
        let tls = endpoint.tls.clone().map(TlsConnector::from);
        let dial = Dial { tls, timeout: endpoint.connect_timeout };
        let pool = Rc::new(Pool::new(endpoint.idle_max, endpoint.idle_timeout));
        HttpStore { endpoint, dial, pool }
    }

    fn is_tls(&self) -> bool {
        self.dial.tls.is_some()
    }

    fn scheme(&self) -> &'static str {
        if self.is_tls() { "https" } else { "http" }
    }

    /// The region of a request: its own, or that of the configuration.
    pub(super) fn region<'a>(&'a self, request: &'a Request) -> &'a str {
        let own = self.endpoint.signer.as_ref().map_or("", Signer::region);
        request.region.as_deref().unwrap_or(own)
    }

    pub(super) fn place(
        &self,
        bucket: Option<&str>,
        region: Option<&str>,
        path: impl FnOnce(bool) -> String,
    ) -> Destination {
        let endpoint = &self.endpoint;
        let named = region.filter(|_| endpoint.by_region);
        let base = named.map(|region| format!("s3.{region}.amazonaws.com"));
        let base = base.unwrap_or_else(|| endpoint.host.clone());
        // A wildcard certificate covers one label.
        // Names of hosts have no capitals: such a bucket would become another one.
        let fits = |bucket: &&str| {
            let is_lower = !bucket.bytes().any(|byte| byte.is_ascii_uppercase());
            is_lower && (!self.is_tls() || !bucket.contains('.'))
        };
        let virtual_host = endpoint.addressing == Addressing::VirtualHost;
        let (host, path) = match bucket.filter(|bucket| virtual_host && fits(bucket)) {
            Some(bucket) => (format!("{bucket}.{base}"), path(false)),
            None => (base, path(true)),
        };
        let usual = if self.is_tls() { 443 } else { 80 };
        let authority = match endpoint.port == usual {
            true => host.clone(),
            false => format!("{host}:{}", endpoint.port),
        };
        Destination { host, authority, path }
    }

    pub(super) async fn connect(&self, host: &str) -> Result<Connection, TransportError> {
        let connection = self.dial.connect(host, (host, self.endpoint.port), self.is_tls()).await?;
        Ok(connection.patient(self.endpoint.read_timeout))
    }

    /// The head of a request, signed.
    fn head(
        &self,
        request: &Request,
        body: &Body,
        place: &Destination,
    ) -> Result<Vec<u8>, TransportError> {
        let method = method_name(request.operation.method);
        let mut headers = request.headers.clone();
        let digest = request.wanted_digest().and_then(|name| Some((name, body.checksum(name)?)));
        if let Some((algorithm, sum)) = digest {
            let name = "x-amz-sdk-checksum-algorithm";
            headers.retain(|(found, _)| found != name);
            headers.push((name.to_owned(), algorithm.to_owned()));
            let algorithm = algorithm.to_ascii_lowercase();
            headers.push((format!("x-amz-checksum-{algorithm}"), sum));
        }
        if matches!(request.operation.method, Method::Put | Method::Post) {
            headers.push(("content-length".to_owned(), body.bytes().len().to_string()));
        }
        if let Some(signer) = self.signer_of(request) {
            let url = self.url(request, place);
            let payload = match self.endpoint.signs_bodies || body.bytes().is_empty() {
                true => Payload::Sha256(body.sha256()),
                false => Payload::Unsigned,
            };
            let signed = {
                let (region, now) = (self.region(request), SystemTime::now());
                signer.headers(method, &url, &headers, payload, region, now)?
            };
            headers.extend(signed);
        }
        Ok(written(request, place, &headers))
    }

    /// The signer of a request, unless the request is unsigned.
    pub(super) fn signer_of(&self, request: &Request) -> Option<&Signer> {
        self.endpoint.signer.as_ref().filter(|_| !request.unsigned)
    }

    /// The URL of a request, as it is signed.
    pub(super) fn url(&self, request: &Request, place: &Destination) -> String {
        format!("{}://{}{}", self.scheme(), place.authority, target(request, place))
    }
}

/// The establishment of connections.
pub(crate) struct Dial {
    /// The TLS client, if there are servers with TLS.
    pub(crate) tls: Option<TlsConnector>,
    /// Timeout of an attempt.
    pub(crate) timeout: Duration,
}

impl std::fmt::Debug for Dial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dial").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Dial {
    /// Connects to a host and port. `name` identifies the connection in errors and in a pool.
    pub(crate) async fn connect(
        &self,
        name: &str,
        (host, port): (&str, u16),
        is_tls: bool,
    ) -> Result<Connection, TransportError> {
        let unreachable = |why: String| TransportError::Connect { host: name.to_owned(), why };
        let work = async {
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            let tcp = TcpStream::connect((bare, port)).await?;
            // Heads and small bodies are written at once, so they must not wait for an
            // acknowledgement.
            tcp.set_nodelay(true)?;
            Ok::<_, std::io::Error>(match self.tls.as_ref().filter(|_| is_tls) {
                None if is_tls => return Err(std::io::Error::other("TLS is not configured")),
                None => Stream::Plain(tcp),
                Some(tls) => {
                    let name = ServerName::try_from(bare.to_owned());
                    let name = name.map_err(std::io::Error::other)?;
                    Stream::Tls(Box::new(tls.connect(name, tcp).await?))
                }
            })
        };
        let stream = match tokio::time::timeout(self.timeout, work).await {
            Ok(stream) => stream.map_err(|error| unreachable(error.to_string()))?,
            Err(_) => {
                let (host, after) = (name.to_owned(), self.timeout);
                return Err(TransportError::Timeout { host, after });
            }
        };
        Ok(Connection::new(stream, name.to_owned(), self.timeout))
    }
}

/// Sends a request, and receives the head of its response.
pub(crate) async fn exchange(
    mut connection: Connection,
    head: &[u8],
    body: &[u8],
    method: Method,
    pool: &Rc<Pool>,
) -> Result<Incoming, TransportError> {
    let sent = connection.send(head, body).await;
    // A server may respond and close before it has read the body.
    match (receive_head(&mut connection, method).await, sent) {
        (Ok((head, framing, keep)), sent) => {
            let keep = keep && sent.is_ok();
            let body = HttpReader::new(connection, framing, keep, pool.clone());
            Ok(Incoming { head, body: Box::new(body) })
        }
        (Err(_), Err(unsent)) => Err(unsent),
        (Err(unread), Ok(())) => Err(unread),
    }
}

/// Receives the head of the response, with the framing of its body, and true if the connection can
/// be reused.
pub(super) async fn receive_head(
    connection: &mut Connection,
    method: Method,
) -> Result<(Head, BodyFraming, bool), TransportError> {
    for _ in 0..=INTERIM_MAX {
        if let Some(head) = receive_next(connection, method).await? {
            return Ok(head);
        }
    }
    Err(broken(&connection.host, "it does not come to its answer"))
}

/// Receives the next head; `None` for an interim response, after which another follows. Cancel
/// safe.
pub(super) async fn receive_next(
    connection: &mut Connection,
    method: Method,
) -> Result<Option<(Head, BodyFraming, bool)>, TransportError> {
    loop {
        let held = connection.held();
        let parsed = ResponseHead::parse(held, &LIMITS, method);
        let parsed = parsed.map_err(|error| broken(&connection.host, error))?;
        let Some(parsed) = parsed else {
            if connection.fill().await? == 0 {
                return Err(broken(&connection.host, "it ended before an answer"));
            }
            continue;
        };
        let text = |value: &[u8]| String::from_utf8_lossy(padded(held, value)).into_owned();
        let fields = parsed.headers(held).map(|(name, value)| (name.to_owned(), text(value)));
        let head = Head { status: parsed.status(), headers: fields.collect() };
        connection.take(parsed.head_bytes());
        let answer = (head, parsed.framing(), parsed.keep_alive());
        return Ok(if parsed.is_interim() { None } else { Some(answer) });
    }
}

impl Transport for HttpStore {
    fn environment(&self, region: Option<&str>) -> Environment {
        let own = self.endpoint.signer.as_ref().map_or("", Signer::region);
        let (region, has_tls) = (region.unwrap_or(own).to_owned(), self.is_tls());
        Environment { now: SystemTime::now(), region, has_tls, is_deferred: false }
    }

    fn exchange(
        &self,
        request: Rc<Request>,
        body: Rc<Body>,
    ) -> Local<'_, Result<Incoming, TransportError>> {
        Box::pin(async move {
            let region = request.region.as_deref();
            let bucket = request.bucket.as_deref();
            let place = self.place(bucket, region, |bucket| request.path(bucket));
            let (head, method) = (self.head(&request, &body, &place)?, request.operation.method);
            if let Some(kept) = self.pool.take(&place.host) {
                let answered = exchange(kept, &head, body.bytes(), method, &self.pool).await;
                // An idle connection may be closed by the peer at the moment of its reuse.
                return answered.map_err(|error| match error {
                    TransportError::Broken { host, why, .. } => {
                        TransportError::Broken { host, why, was_kept: true }
                    }
                    other => other,
                });
            }
            let connection = self.connect(&place.host).await?;
            exchange(connection, &head, body.bytes(), method, &self.pool).await
        })
    }

    fn upload<'a>(
        &'a self,
        request: &'a Request,
        body: &'a mut dyn Outgoing,
    ) -> Local<'a, Result<Incoming, TransportError>> {
        Box::pin(self.send_as_it_comes(request, body))
    }

    fn presign(&self, request: &Request, expires: Duration) -> Result<String, TransportError> {
        let (bucket, region) = (request.bucket.as_deref(), request.region.as_deref());
        let place = self.place(bucket, region, |bucket| request.path(bucket));
        let query = request.query_text();
        let mark = if query.is_empty() { "" } else { "?" };
        let mut url = format!("{}://{}{}{mark}{query}", self.scheme(), place.authority, place.path);
        let Some(signer) = &self.endpoint.signer else { return Ok(url) };
        let method = method_name(request.operation.method);
        // The holder of the URL may send any headers, so only those that must be equal are signed.
        let headers = request.headers.iter().filter(|(name, _)| name != "x-amz-checksum-mode");
        let headers: Vec<_> = headers.cloned().collect();
        let (now, region) = (SystemTime::now(), self.region(request));
        for (key, value) in signer.query(method, &url, &headers, expires, region, now)? {
            url.push(if url.contains('?') { '&' } else { '?' });
            url.push_str(&format!("{key}={}", percent(&value, b"")));
        }
        Ok(url)
    }

    fn presign_post(
        &self,
        form: Form<'_>,
    ) -> Result<(String, Vec<(String, String)>), TransportError> {
        let place = self.place(Some(form.bucket), form.region, |bucket| match bucket {
            true => format!("/{}", form.bucket),
            false => "/".to_owned(),
        });
        let url = format!("{}://{}{}", self.scheme(), place.authority, place.path);
        let missing = || TransportError::Sign("there are no credentials".to_owned());
        let signer = self.endpoint.signer.as_ref().ok_or_else(missing)?;
        Ok((url, signer.form(form, SystemTime::now())))
    }
}

/// The value of a field with its trailing blanks, which SDKs pass on to the function.
fn padded<'a>(held: &'a [u8], value: &'a [u8]) -> &'a [u8] {
    let start = value.as_ptr().addr().wrapping_sub(held.as_ptr().addr());
    let Some(rest) = held.get(start..) else { return value };
    let behind = rest.get(value.len()..).unwrap_or_default();
    let blanks = behind.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    &rest[..value.len() + blanks]
}

/// The request target: path and query.
fn target(request: &Request, place: &Destination) -> String {
    let query = request.query_text();
    let mark = if query.is_empty() { "" } else { "?" };
    format!("{}{mark}{query}", place.path)
}

/// Formats a request head.
pub(super) fn written(
    request: &Request,
    place: &Destination,
    headers: &[(String, String)],
) -> Vec<u8> {
    let (method, target) = (method_name(request.operation.method), target(request, place));
    let mut head = format!("{method} {target} HTTP/1.1\r\nhost: {}\r\n", place.authority);
    for (name, value) in headers {
        head.push_str(name);
        head.push_str(": ");
        head.push_str(value);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    head.into_bytes()
}

pub(super) fn method_name(method: Method) -> &'static str {
    match method {
        Method::Head => "HEAD",
        Method::Put => "PUT",
        Method::Post => "POST",
        Method::Delete => "DELETE",
        _ => "GET",
    }
}

enum Framing {
    Length(u64),
    Chunked(Box<ChunkedScanner>),
    UntilClose,
}

/// The body of a response; the connection returns to the pool when the body has ended.
pub(super) struct HttpReader {
    connection: Option<Connection>,
    framing: Framing,
    /// Decoded data of chunks that was not read yet.
    decoded: Vec<u8>,
    decoded_taken: usize,
    keep: bool,
    pool: Rc<Pool>,
}

impl HttpReader {
    pub(super) fn new(
        connection: Connection,
        framing: BodyFraming,
        keep: bool,
        pool: Rc<Pool>,
    ) -> HttpReader {
        let framing = match framing {
            BodyFraming::None => Framing::Length(0),
            BodyFraming::Length(bytes) => Framing::Length(bytes),
            BodyFraming::Chunked => Framing::Chunked(Box::default()),
            BodyFraming::UntilClose => Framing::UntilClose,
        };
        let connection = Some(connection);
        let (decoded, decoded_taken) = (Vec::new(), 0);
        let mut reader = HttpReader { connection, framing, decoded, decoded_taken, keep, pool };
        if matches!(reader.framing, Framing::Length(0)) {
            reader.finish();
        }
        reader
    }

    fn finish(&mut self) {
        if let Some(connection) = self.connection.take().filter(|_| self.keep) {
            self.pool.keep(connection);
        }
    }

    async fn step(&mut self, to: Into<'_>, bytes_max: usize) -> Result<usize, TransportError> {
        let Some(connection) = &mut self.connection else { return Ok(0) };
        match &mut self.framing {
            Framing::Length(left) => {
                let due = bytes_max.min(usize::try_from(*left).unwrap_or(usize::MAX));
                let read = connection.read(to, due).await?;
                if read == 0 && due > 0 {
                    return Err(broken(&connection.host, "it ended within a body"));
                }
                *left -= read as u64;
                if *left == 0 {
                    self.finish();
                }
                Ok(read)
            }
            Framing::UntilClose => connection.read(to, bytes_max).await,
            Framing::Chunked(_) => self.step_chunked(to, bytes_max).await,
        }
    }

    async fn step_chunked(
        &mut self,
        to: Into<'_>,
        bytes_max: usize,
    ) -> Result<usize, TransportError> {
        let Some(connection) = &mut self.connection else { return Ok(0) };
        let Framing::Chunked(scanner) = &mut self.framing else { return Ok(0) };
        while self.decoded_taken == self.decoded.len() && !scanner.is_done() {
            if connection.held().is_empty() && connection.fill().await? == 0 {
                return Err(broken(&connection.host, "it ended within a body"));
            }
            self.decoded.clear();
            self.decoded_taken = 0;
            let decoded = &mut self.decoded;
            let held = connection.held();
            let progress = scanner.advance_with(held, |data| decoded.extend_from_slice(data));
            let progress = progress.map_err(|error| broken(&connection.host, error))?;
            connection.take(progress.consumed);
        }
        let ready = &self.decoded[self.decoded_taken..];
        let bytes = ready.len().min(bytes_max);
        put(to, &ready[..bytes]).map_err(|why| broken(&connection.host, why))?;
        self.decoded_taken += bytes;
        if scanner.is_done() && self.decoded_taken == self.decoded.len() {
            self.finish();
        }
        Ok(bytes)
    }
}

impl Reader for HttpReader {
    fn left_bytes(&self) -> Option<u64> {
        match &self.framing {
            Framing::Length(left) => Some(*left),
            _ if self.connection.is_none() => Some(0),
            _ => None,
        }
    }

    fn read<'a>(
        &'a mut self,
        to: Into<'a>,
        bytes_max: usize,
    ) -> Local<'a, Result<usize, TransportError>> {
        Box::pin(self.step(to, bytes_max))
    }
}
