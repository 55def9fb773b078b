//! A test client with features that ordinary clients lack: small windows, pauses, several requests
//! in one write, half-closed and aborted connections. All waits are bounded.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time limit of connecting.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Maximum length of a response's head, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Maximum length of one read, in bytes.
const READ_BYTES: usize = 64 * 1024;

/// TLS versions that a client offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersions {
    /// 1.3 and 1.2.
    Both,
    /// 1.2 only.
    Tls12,
}

/// Returns the configuration of a TLS client that trusts the CA in `ca`.
///
/// # Panics
/// The file has no certificate.
pub fn tls_config(ca: &Path, versions: TlsVersions) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).expect("the authority can be read") {
        roots.add(certificate.expect("a certificate")).expect("an authority");
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let both = [&rustls::version::TLS13, &rustls::version::TLS12];
    let offered = if versions == TlsVersions::Both { &both[..] } else { &both[1..] };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(offered)
        .expect("the provider knows both versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Parameters of a connection.
#[derive(Clone)]
pub struct Target {
    /// Address and port.
    pub address: SocketAddr,
    /// TLS configuration and server name; None for plaintext.
    pub tls: Option<(Arc<ClientConfig>, String)>,
    /// Size of the receive buffer; None for the system's default.
    pub receive_buffer_bytes: Option<usize>,
    /// Time limit of one read or write.
    pub patience: Duration,
}

/// State of a client's connection after its last operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The client has received everything; the connection is open.
    Open,
    /// The client has used up its budget of bytes.
    Enough,
    /// Orderly end: FIN, after close_notify with TLS.
    Closed,
    /// FIN without close_notify.
    Truncated,
    /// Reset.
    Reset,
    /// Nothing arrived in time.
    TimedOut,
    /// The input is not a valid response.
    Garbage(String),
    /// Another error.
    Failed(String),
}

impl End {
    /// Converts an error of a socket.
    pub fn of(error: &io::Error) -> End {
        match error.kind() {
            ErrorKind::UnexpectedEof => End::Truncated,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
                End::Reset
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut => End::TimedOut,
            _ => End::Failed(error.to_string()),
        }
    }
}

/// A received response.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    /// The first line.
    pub status_line: String,
    /// Names in lower case and values, in order.
    pub headers: Vec<(String, String)>,
    /// The received part of the body.
    pub body: Vec<u8>,
    /// True if the body is complete.
    pub whole: bool,
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = String::from_utf8_lossy(&self.body[..self.body.len().min(40)]).into_owned();
        write!(f, "{:?} {:?} body of {} bytes", self.status_line, self.headers, self.body.len())?;
        write!(f, " {start:?}{}", if self.whole { "" } else { ", broken off" })
    }
}

impl Response {
    /// Returns the status code; 0 if there is none.
    pub fn status(&self) -> u16 {
        self.status_line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns true if the response announces the end of the connection.
    pub fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// A missing or incomplete response.
#[derive(Debug)]
pub struct Broken {
    /// The received part, if its head is complete.
    pub partial: Option<Response>,
    /// The cause.
    pub why: End,
}

/// Read rate of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Number of bytes of one read.
    pub chunk_bytes: usize,
    /// Pause after each read.
    pub pause: Duration,
    /// Number of pauses, after which the client reads without them.
    pub pauses_max: u32,
}

impl Pace {
    /// Reads without pauses.
    pub const FAST: Pace = Pace { chunk_bytes: READ_BYTES, pause: Duration::ZERO, pauses_max: 0 };
}

enum Transport {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// One client connection.
pub struct Client {
    transport: Transport,
    input: Vec<u8>,
    pace: Pace,
    /// Number of plaintext bytes that may still be read; then the result is [`End::Enough`].
    pub budget_bytes: Option<usize>,
}

impl Client {
    /// Connects and performs the TLS handshake, if configured.
    ///
    /// # Errors
    /// Connecting fails or takes too long.
    pub fn connect(target: &Target) -> io::Result<Client> {
        let socket =
            Socket::new(Domain::for_address(target.address), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(bytes) = target.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        socket.connect_timeout(&target.address.into(), CONNECT_WAIT.min(target.patience))?;
        let tcp = TcpStream::from(socket);
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(target.patience))?;
        tcp.set_write_timeout(Some(target.patience))?;
        let transport = match &target.tls {
            None => Transport::Plain(tcp),
            Some((config, name)) => {
                let name = ServerName::try_from(name.clone()).map_err(io::Error::other)?;
                let connection =
                    ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
                let mut stream = StreamOwned::new(connection, tcp);
                while stream.conn.is_handshaking() {
                    stream.conn.complete_io(&mut stream.sock)?;
                }
                Transport::Tls(Box::new(stream))
            }
        };
        Ok(Client { transport, input: Vec::new(), pace: Pace::FAST, budget_bytes: None })
    }

    /// Sets the read rate.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    fn tcp(&self) -> &TcpStream {
        match &self.transport {
            Transport::Plain(tcp) => tcp,
            Transport::Tls(stream) => &stream.sock,
        }
    }

    /// Returns the local port.
    pub fn port(&self) -> u16 {
        self.tcp().local_addr().map_or(0, |address| address.port())
    }

    /// Sends all of `bytes`, in one write if possible.
    ///
    /// # Errors
    /// The connection broke or stalled.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.transport {
            Transport::Plain(tcp) => tcp.write_all(bytes),
            Transport::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    /// Closes the sending direction: close_notify and FIN.
    ///
    /// # Errors
    /// The connection broke before.
    pub fn finish_sending(&mut self) -> io::Result<()> {
        if let Transport::Tls(stream) = &mut self.transport {
            stream.conn.send_close_notify();
            stream.flush()?;
        }
        self.tcp().shutdown(Shutdown::Write)
    }

    /// Resets the connection.
    pub fn abort(self) {
        // Dropping the client closes the socket in any case.
        let _ = SockRef::from(self.tcp()).set_linger(Some(Duration::ZERO));
    }

    /// Reads available bytes; 0 means the end.
    fn take(&mut self) -> Result<usize, End> {
        let budget = self.budget_bytes.unwrap_or(usize::MAX);
        if budget == 0 {
            return Err(End::Enough);
        }
        let start = self.input.len();
        self.input.resize(start + self.pace.chunk_bytes.min(READ_BYTES).min(budget).max(1), 0);
        let room = &mut self.input[start..];
        let read = match &mut self.transport {
            Transport::Plain(tcp) => tcp.read(room),
            Transport::Tls(stream) => stream.read(room),
        };
        self.input.truncate(start + read.as_ref().copied().unwrap_or(0));
        if let (Some(budget), Ok(bytes)) = (&mut self.budget_bytes, &read) {
            *budget -= bytes;
        }
        if self.pace.pauses_max > 0 {
            self.pace.pauses_max -= 1;
            std::thread::sleep(self.pace.pause);
        }
        read.map_err(|error| End::of(&error))
    }

    fn more(&mut self) -> Result<(), End> {
        match self.take()? {
            0 => Err(End::Closed),
            _ => Ok(()),
        }
    }

    /// Waits for the next final response; discards interim ones. `head_only` is true for HEAD.
    ///
    /// # Errors
    /// The response is missing or incomplete.
    pub fn response(&mut self, head_only: bool) -> Result<Response, Broken> {
        loop {
            let mut response = self.head().map_err(|why| Broken { partial: None, why })?;
            let status = response.status();
            if (100..200).contains(&status) {
                continue;
            }
            if !head_only
                && status != 204
                && status != 304
                && let Err(why) = self.body(&mut response)
            {
                return Err(Broken { partial: Some(response), why });
            }
            response.whole = true;
            return Ok(response);
        }
    }

    fn head(&mut self) -> Result<Response, End> {
        let end = loop {
            if let Some(at) = self.input.windows(4).position(|window| window == b"\r\n\r\n") {
                break at;
            }
            if self.input.len() > HEAD_BYTES_MAX {
                return Err(End::Garbage("a head without an end".to_owned()));
            }
            self.more().map_err(|end| match end {
                // An end within a head is not orderly.
                End::Closed if !self.input.is_empty() => {
                    End::Garbage(format!("ended within {:?}", self.start_of_input()))
                }
                other => other,
            })?;
        };
        let text = String::from_utf8_lossy(&self.input[..end]).into_owned();
        self.input.drain(..end + 4);
        let mut lines = text.split("\r\n");
        let status_line = lines.next().unwrap_or_default().to_owned();
        if !status_line.starts_with("HTTP/1.1 ") {
            return Err(End::Garbage(status_line.chars().take(80).collect()));
        }
        let mut headers = Vec::new();
        for line in lines {
            let (name, value) =
                line.split_once(':').ok_or_else(|| End::Garbage(line.to_owned()))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok(Response { status_line, headers, body: Vec::new(), whole: false })
    }

    fn start_of_input(&self) -> String {
        String::from_utf8_lossy(&self.input[..self.input.len().min(60)]).into_owned()
    }

    /// Reads a body with Content-Length, which all servers here send.
    fn body(&mut self, response: &mut Response) -> Result<(), End> {
        let length = response.header("content-length").and_then(|length| length.parse().ok());
        let bytes: usize = match length {
            Some(bytes) => bytes,
            None => return Err(End::Garbage("a response without Content-Length".to_owned())),
        };
        loop {
            let due = bytes - response.body.len();
            response.body.extend(self.input.drain(..due.min(self.input.len())));
            if response.body.len() == bytes {
                return Ok(());
            }
            self.more()?;
        }
    }

    /// Waits for the end of the connection; input before the end is an error.
    pub fn wait_end(&mut self) -> End {
        loop {
            if !self.input.is_empty() {
                return End::Garbage(format!("too much: {:?}", self.start_of_input()));
            }
            match self.take() {
                Ok(0) => return End::Closed,
                Ok(_) => {}
                Err(end) => return end,
            }
        }
    }
}
