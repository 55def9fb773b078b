//! The server's handshake: rustls' unbuffered connection, fed one record at a time.
//!
//! One record at a time: rustls then never sees the bytes that the client sends after its
//! Finished. The first request, or a KeyUpdate, stays ciphertext for the record layer, and the
//! extracted sequence numbers and secrets are those of the first generation.

use std::sync::Arc;

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{ConnectionTrafficSecrets, ServerConfig};
use thiserror::Error;
use unlade_net::state::{DirectionSecrets, TlsSnapshot};

use crate::capture::{self, Captured};
use crate::error::{Fault, RecordError};
use crate::keys;
use crate::layer::RecordLayer;
use crate::suite::Suite;

/// Most bytes that a client may send before its Finished. Honest handshakes without client
/// certificates stay far below.
pub const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;
/// Most states that rustls may go through for one record; it needs about a dozen.
const STATES_MAX: usize = 64;

/// The progress of a handshake.
#[derive(Debug)]
pub enum Progress {
    /// More bytes from the client are needed; send the content of `out` first.
    NeedsInput,
    /// Complete; send the content of `out`.
    Complete(Box<Established>),
}

/// A connection with a completed handshake.
#[derive(Debug)]
pub struct Established {
    /// The record layer, with all bytes that followed the handshake.
    pub record: RecordLayer,
    /// The plaintext that the client has already sent.
    pub plaintext: Vec<u8>,
    /// The negotiated application protocol.
    pub alpn: Option<Vec<u8>>,
    /// The name that the client requested.
    pub sni: Option<String>,
    /// An earlier session was resumed.
    pub resumed: bool,
}

/// The reason why a handshake failed. The alert, if any, is already in `out`.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// The client does not use TLS.
    #[error("the client does not speak TLS (first byte {first_byte:#04x}{})",
        if *http { ", looks like plain HTTP" } else { "" })]
    NotTls {
        /// The first byte that it sent.
        first_byte: u8,
        /// It may be an HTTP request in the clear, which can be answered in the clear.
        http: bool,
    },
    /// The client keeps sending without finishing the handshake.
    #[error("the client sent {bytes} bytes without finishing the handshake; close the connection")]
    TooMuchInput {
        /// Bytes of handshake records.
        bytes: usize,
    },
    /// The client closed before the end.
    #[error("the client closed the connection during the handshake")]
    Closed,
    /// The client violated the protocol, shares no parameters with this server, or sent a fatal
    /// alert.
    #[error("handshake failed: {0}")]
    Peer(rustls::Error),
    /// The configuration is unsuitable, for this client or for all.
    #[error("handshake failed by configuration: {0}; use unlade_tls::server_config")]
    Config(String),
    /// This process failed.
    #[error("handshake failed internally: {0}")]
    Internal(String),
    /// The bytes after the handshake are not a record.
    #[error("after the handshake: {0}")]
    Record(#[from] RecordError),
    /// The handshake is already over, successfully or not.
    #[error("the handshake is over; make a new one for a new connection")]
    Over,
}

impl HandshakeError {
    /// The party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Self::NotTls { .. } | Self::TooMuchInput { .. } | Self::Closed | Self::Peer(_) => {
                Fault::Peer
            }
            Self::Config(_) => Fault::Config,
            Self::Internal(_) => Fault::Internal,
            Self::Record(error) => error.fault(),
            Self::Over => Fault::Caller,
        }
    }

    /// A short name for logs and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotTls { http: true, .. } => "plain_http",
            Self::NotTls { .. } => "not_tls",
            Self::TooMuchInput { .. } => "handshake_too_long",
            Self::Closed => "closed",
            Self::Peer(rustls::Error::AlertReceived(_)) => "alert_received",
            Self::Peer(rustls::Error::NoApplicationProtocol) => "no_application_protocol",
            Self::Peer(rustls::Error::PeerIncompatible(_)) => "incompatible",
            Self::Peer(_) => "misbehaved",
            Self::Config(_) => "config",
            Self::Internal(_) => "internal",
            Self::Record(error) => error.reason(),
            Self::Over => "over",
        }
    }

    fn from_rustls(error: rustls::Error) -> HandshakeError {
        use rustls::Error;
        match error {
            // rustls returns this if no certificate fits the client.
            Error::General(what) => Self::Config(what),
            error @ Error::InconsistentKeys(_) => Self::Config(error.to_string()),
            error @ (Error::FailedToGetCurrentTime
            | Error::FailedToGetRandomBytes
            | Error::EncryptError
            | Error::HandshakeNotComplete) => Self::Internal(error.to_string()),
            error => Self::Peer(error),
        }
    }
}

impl From<HandshakeError> for std::io::Error {
    fn from(error: HandshakeError) -> Self {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

/// The server's side of one handshake.
pub struct Handshake {
    /// None after the handshake.
    connection: Option<UnbufferedServerConnection>,
    /// Bytes from the client that rustls has not consumed.
    incoming: Vec<u8>,
    /// Number of bytes of `incoming` that rustls may see: whole records.
    fed_bytes: usize,
    /// Number of bytes that rustls has seen in total.
    seen_bytes: usize,
    captured: Captured,
}

impl core::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Handshake")
            .field("over", &self.connection.is_none())
            .field("seen_bytes", &self.seen_bytes)
            .finish_non_exhaustive()
    }
}

/// The next step after one state of rustls.
enum Step {
    Again,
    More,
    Done,
}

impl Handshake {
    /// A handshake under `config`, which [`crate::server_config`] makes.
    ///
    /// # Errors
    /// [`HandshakeError::Config`] if the configuration does not permit the extraction of secrets.
    pub fn new(config: Arc<ServerConfig>) -> Result<Handshake, HandshakeError> {
        if !config.enable_secret_extraction {
            return Err(HandshakeError::Config("extraction of secrets is off".into()));
        }
        let connection =
            UnbufferedServerConnection::new(config).map_err(HandshakeError::from_rustls)?;
        Ok(Handshake {
            connection: Some(connection),
            incoming: Vec::new(),
            fed_bytes: 0,
            seen_bytes: 0,
            captured: Captured::default(),
        })
    }

    /// Processes bytes from the client and appends the answer to `out`.
    ///
    /// # Errors
    /// Any [`HandshakeError`]; send `out`, which may contain an alert, and close.
    pub fn advance(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        let mut connection = self.connection.take().ok_or(HandshakeError::Over)?;
        self.incoming.extend_from_slice(input);
        if self.seen_bytes == 0 {
            check_first_byte(&self.incoming)?;
        }
        let mut states = 0;
        loop {
            match self.step(&mut connection, out)? {
                Step::Again => {
                    states += 1;
                    if states > STATES_MAX {
                        return Err(HandshakeError::Internal("rustls makes no progress".into()));
                    }
                }
                Step::More => {
                    states = 0;
                    if !self.feed_record()? {
                        self.connection = Some(connection);
                        return Ok(Progress::NeedsInput);
                    }
                }
                Step::Done => return self.establish(connection, out),
            }
        }
    }

    /// Lets rustls see one more record; returns false if there is no complete one.
    fn feed_record(&mut self) -> Result<bool, HandshakeError> {
        let unseen = &self.incoming[self.fed_bytes..];
        let Some(record_bytes) = record_bytes(unseen) else { return Ok(false) };
        self.fed_bytes += record_bytes;
        self.seen_bytes += record_bytes;
        if self.seen_bytes > HANDSHAKE_BYTES_MAX {
            return Err(HandshakeError::TooMuchInput { bytes: self.seen_bytes });
        }
        Ok(true)
    }

    /// Processes one state of rustls.
    fn step(
        &mut self,
        connection: &mut UnbufferedServerConnection,
        out: &mut Vec<u8>,
    ) -> Result<Step, HandshakeError> {
        let visible = &mut self.incoming[..self.fed_bytes];
        let UnbufferedStatus { discard, state } =
            capture::during(&mut self.captured, || connection.process_tls_records(visible));
        let step = match state {
            Ok(ConnectionState::EncodeTlsData(message)) => {
                encode(message, out).map(|_| Step::Again)
            }
            Ok(ConnectionState::TransmitTlsData(sent)) => {
                sent.done();
                Ok(Step::Again)
            }
            Ok(ConnectionState::BlockedHandshake) => Ok(Step::More),
            Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::Done),
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                Err(HandshakeError::Closed)
            }
            Ok(other) => Err(HandshakeError::Internal(format!("unforeseen state {other:?}"))),
            Err(error) => Err(HandshakeError::from_rustls(error)),
        };
        let discard = discard.min(self.fed_bytes);
        self.incoming.drain(..discard);
        self.fed_bytes -= discard;
        match step {
            Err(error) => {
                take_alert(connection, out);
                Err(error)
            }
            // The server may write before the client's Finished arrives; the handshake is not over
            // then.
            Ok(Step::Done) if connection.is_handshaking() => Ok(Step::More),
            step => step,
        }
    }

    /// Extracts the secrets and makes the record layer.
    fn establish(
        &mut self,
        connection: UnbufferedServerConnection,
        out: &mut Vec<u8>,
    ) -> Result<Progress, HandshakeError> {
        let alpn = connection.alpn_protocol().map(<[u8]>::to_vec);
        let resumed = connection.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        let (Some(version), Some(suite)) =
            (connection.protocol_version(), connection.negotiated_cipher_suite())
        else {
            return Err(HandshakeError::Internal("no cipher suite was negotiated".into()));
        };
        let suite = Suite::find(version.into(), suite.suite().into())
            .ok_or_else(|| HandshakeError::Config("an unsupported cipher suite".into()))?;
        let (secrets, _) = connection
            .dangerous_into_kernel_connection()
            .map_err(|error| HandshakeError::Internal(error.to_string()))?;
        let captured = core::mem::take(&mut self.captured);
        let read = direction(suite, secrets.rx, captured.client.as_deref())?;
        let write = direction(suite, secrets.tx, captured.server.as_deref())?;
        self.incoming.drain(..self.fed_bytes);
        let ciphertext = core::mem::take(&mut self.incoming);
        let (version, number) = (suite.version, suite.number);
        let snapshot = TlsSnapshot { version, suite: number, read, write, ciphertext };
        let mut record = RecordLayer::from_snapshot(&snapshot)?;
        let mut plaintext = Vec::new();
        let processed = record.process(&mut plaintext);
        record.take_output(out);
        processed?;
        let sni = captured.server_name;
        Ok(Progress::Complete(Box::new(Established { record, plaintext, alpn, sni, resumed })))
    }
}

/// Combines the secrets that rustls extracts with the matching traffic secret.
pub(crate) fn direction(
    suite: &'static Suite,
    (sequence, extracted): (u64, ConnectionTrafficSecrets),
    traffic_secret: Option<&Vec<u8>>,
) -> Result<DirectionSecrets, HandshakeError> {
    let (key, iv) = match extracted {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv),
        _ => return Err(HandshakeError::Config("an unsupported AEAD".into())),
    };
    if !suite.is_13() {
        let iv = iv
            .as_ref()
            .try_into()
            .map_err(|_| HandshakeError::Internal("IV of the wrong length".into()))?;
        let key = key.as_ref().to_vec();
        return Ok(DirectionSecrets { key, iv, sequence, traffic_secret: Vec::new() });
    }
    let traffic_secret = traffic_secret
        .ok_or_else(|| HandshakeError::Config("traffic secrets are not captured".into()))?;
    let mut secrets = keys::from_traffic_secret(suite, traffic_secret)?;
    if secrets.key != key.as_ref() || secrets.iv != iv.as_ref() {
        return Err(HandshakeError::Internal("traffic secret and key do not fit".into()));
    }
    secrets.sequence = sequence;
    Ok(secrets)
}

/// Appends one message of rustls to `out`.
fn encode<Data>(
    mut message: EncodeTlsData<'_, Data>,
    out: &mut Vec<u8>,
) -> Result<(), HandshakeError> {
    let needed = match message.encode(&mut []) {
        Ok(_) => return Ok(()),
        Err(EncodeError::InsufficientSize(size)) => size.required_size,
        Err(error) => return Err(HandshakeError::Internal(error.to_string())),
    };
    let start = out.len();
    out.resize(start + needed, 0);
    let written = message
        .encode(&mut out[start..])
        .map_err(|error| HandshakeError::Internal(error.to_string()))?;
    out.truncate(start + written);
    Ok(())
}

/// Appends the alert that rustls has queued, if any. No other call is made on a failed connection:
/// rustls would parse the invalid bytes again.
fn take_alert(connection: &mut UnbufferedServerConnection, out: &mut Vec<u8>) {
    for _ in 0..STATES_MAX {
        if !connection.wants_write() {
            return;
        }
        let UnbufferedStatus { state, .. } = connection.process_tls_records(&mut []);
        let Ok(ConnectionState::EncodeTlsData(message)) = state else { return };
        if encode(message, out).is_err() {
            return;
        }
    }
}

/// Length of the record at the start of `input`, if it is complete. A header that rustls will
/// refuse counts as complete.
fn record_bytes(input: &[u8]) -> Option<usize> {
    let &[content_type, _, _, high, low] = input.first_chunk::<5>()?;
    let bytes = 5 + usize::from(u16::from_be_bytes([high, low]));
    let refused = !(20..=23).contains(&content_type) || bytes > 5 + (1 << 14) + 2048;
    if refused {
        return Some(input.len());
    }
    (input.len() >= bytes).then_some(bytes)
}

/// A TLS connection starts with a handshake record; an alert means that the client has aborted.
fn check_first_byte(input: &[u8]) -> Result<(), HandshakeError> {
    match input.first() {
        None | Some(21 | 22) => Ok(()),
        Some(&first_byte) => {
            // Methods consist of capital letters (RFC 9110 §9.1).
            let http = input.iter().take(3).all(u8::is_ascii_uppercase);
            Err(HandshakeError::NotTls { first_byte, http })
        }
    }
}
