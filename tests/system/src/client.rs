//! A client of our own for what no ordinary one can be told to do: small windows, pauses, several
//! requests in one write, half-closed and aborted connections. Everything waits for a bounded time.

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

/// How long a connection may take.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Most bytes of a response's head.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Most bytes taken at once.
const READ_BYTES: usize = 64 * 1024;

/// What versions of TLS a client offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersions {
    /// 1.3 and 1.2.
    Both,
    /// 1.2 only.
    Tls12,
}

/// The configuration of a TLS client that trusts the authority in `ca`.
///
/// # Panics
/// The file holds no certificate.
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

/// Where and how to connect.
#[derive(Clone)]
pub struct Target {
    /// Address and port.
    pub address: SocketAddr,
    /// Speak TLS, to the server of this name.
    pub tls: Option<(Arc<ClientConfig>, String)>,
    /// Size of the receive buffer, where it is not the system's.
    pub receive_buffer_bytes: Option<usize>,
    /// How long one read or write may wait.
    pub patience: Duration,
}

/// How a client's connection ended, or why the client stopped listening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The client has all it waited for; the connection is open.
    Open,
    /// The client has seen as much as it wanted to see.
    Enough,
    /// Orderly: FIN, and where there is TLS, close_notify before it.
    Closed,
    /// FIN without close_notify.
    Truncated,
    /// Reset.
    Reset,
    /// Nothing came in time.
    TimedOut,
    /// Something that is no response.
    Garbage(String),
    /// Anything else.
    Failed(String),
}

impl End {
    /// What an error of a socket means.
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

/// A response as the client saw it.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    /// The first line.
    pub status_line: String,
    /// Names in lower case and values, as they came.
    pub headers: Vec<(String, String)>,
    /// The body, as far as it came.
    pub body: Vec<u8>,
    /// All of it came.
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
    /// The number in the first line; 0 where there is none.
    pub fn status(&self) -> u16 {
        self.status_line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The server says that it closes.
    pub fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// A response that did not come, or not to its end.
#[derive(Debug)]
pub struct Broken {
    /// What came of it, from a whole head on.
    pub partial: Option<Response>,
    /// Why there is no more.
    pub why: End,
}

/// How fast a client reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Bytes taken at once.
    pub chunk_bytes: usize,
    /// Pause after each.
    pub pause: Duration,
    /// Pauses that are made before the client hurries.
    pub pauses_max: u32,
}

impl Pace {
    /// As fast as it goes.
    pub const FAST: Pace = Pace { chunk_bytes: READ_BYTES, pause: Duration::ZERO, pauses_max: 0 };
}

enum Transport {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// One connection.
pub struct Client {
    transport: Transport,
    input: Vec<u8>,
    pace: Pace,
    /// Bytes of plaintext that may still be taken; then the client has seen [`End::Enough`].
    pub budget_bytes: Option<usize>,
}

impl Client {
    /// Connects, and where the target speaks TLS, shakes hands.
    ///
    /// # Errors
    /// It does not work, or not in time.
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

    /// From now on reads at this pace.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    fn tcp(&self) -> &TcpStream {
        match &self.transport {
            Transport::Plain(tcp) => tcp,
            Transport::Tls(stream) => &stream.sock,
        }
    }

    /// Our port.
    pub fn port(&self) -> u16 {
        self.tcp().local_addr().map_or(0, |address| address.port())
    }

    /// Sends all of `bytes`, in one write where it fits.
    ///
    /// # Errors
    /// The connection broke or does not move.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.transport {
            Transport::Plain(tcp) => tcp.write_all(bytes),
            Transport::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    /// Ends our direction: close_notify and FIN.
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
        // A socket that cannot linger is closed all the same.
        let _ = SockRef::from(self.tcp()).set_linger(Some(Duration::ZERO));
    }

    /// Takes what there is; nothing means the end.
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

    /// Waits for the next final response; interim ones are dropped. `head_only`: it answers HEAD.
    ///
    /// # Errors
    /// It does not come, or not to its end.
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
                // A connection that ends within a head is not orderly.
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

    /// Our servers state every length.
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

    /// Waits for the end of the connection; what comes before it is too much.
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
