//! The same record layer at the client's end, for tools and tests.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::UnbufferedClientConnection;
use rustls::{ClientConfig, ClientConnection, ConnectionTrafficSecrets, KeyLog};
use rustls::{ExtractedSecrets, ProtocolVersion, SupportedCipherSuite};
use unlade_net::state::TlsSnapshot;

use crate::capture::Captured;
use crate::control::Side;
use crate::error::RecordError;
use crate::handshake::{HandshakeError, direction};
use crate::layer::RecordLayer;
use crate::suite::Suite;

/// A key log that keeps the traffic secrets of one client connection. A configuration with this
/// log must serve one connection only.
#[derive(Default)]
pub struct SecretsLog(Mutex<Captured>);

impl core::fmt::Debug for SecretsLog {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SecretsLog")
    }
}

impl KeyLog for SecretsLog {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keep(label, secret);
    }
}

/// Enables the extraction of secrets in `config`, for one connection.
pub fn capture(config: &mut ClientConfig) -> Arc<SecretsLog> {
    let log = Arc::new(SecretsLog::default());
    config.enable_secret_extraction = true;
    config.key_log = log.clone();
    log
}

/// Makes a record layer from a rustls connection after its handshake; `leftover` is ciphertext
/// that rustls has not received.
///
/// All output of rustls must have been written, all its received data read, and no key updated.
///
/// # Errors
/// [`HandshakeError::Internal`] if rustls is not ready; [`HandshakeError::Config`] if the suite is
/// not supported or `log` belongs to another connection.
pub fn from_rustls(
    connection: ClientConnection,
    log: &SecretsLog,
    leftover: &[u8],
) -> Result<RecordLayer, HandshakeError> {
    let agreed = (connection.protocol_version(), connection.negotiated_cipher_suite());
    #[allow(deprecated, reason = "the buffered connection has no other way")]
    let secrets = connection.dangerous_extract_secrets();
    join(agreed, secrets, log, leftover)
}

/// As [`from_rustls`], for the unbuffered connection.
///
/// # Errors
/// As [`from_rustls`].
pub fn from_unbuffered(
    connection: UnbufferedClientConnection,
    log: &SecretsLog,
    leftover: &[u8],
) -> Result<RecordLayer, HandshakeError> {
    let agreed = (connection.protocol_version(), connection.negotiated_cipher_suite());
    let secrets = connection.dangerous_into_kernel_connection().map(|(secrets, _)| secrets);
    join(agreed, secrets, log, leftover)
}

/// The client's end of the connection that `snapshot` describes; `read` is server to client here.
///
/// # Errors
/// As [`RecordLayer::from_snapshot`].
pub fn from_snapshot(snapshot: &TlsSnapshot) -> Result<RecordLayer, RecordError> {
    RecordLayer::for_side(Side::Client, snapshot)
}

type Agreed = (Option<ProtocolVersion>, Option<SupportedCipherSuite>);

fn join(
    agreed: Agreed,
    secrets: Result<ExtractedSecrets, rustls::Error>,
    log: &SecretsLog,
    leftover: &[u8],
) -> Result<RecordLayer, HandshakeError> {
    let secrets = secrets.map_err(|error| HandshakeError::Internal(error.to_string()))?;
    let (Some(version), Some(suite)) = agreed else {
        return Err(HandshakeError::Internal("no cipher suite was negotiated".into()));
    };
    let suite = Suite::find(version.into(), suite.suite().into())
        .ok_or_else(|| HandshakeError::Config("an unsupported cipher suite".into()))?;
    let captured = core::mem::take(&mut *log.0.lock().unwrap_or_else(PoisonError::into_inner));
    let one = |extracted: (u64, ConnectionTrafficSecrets), secret: Option<&Vec<u8>>| {
        direction(suite, extracted, secret)
    };
    let snapshot = TlsSnapshot {
        version: suite.version,
        suite: suite.number,
        read: one(secrets.rx, captured.server.as_deref())?,
        write: one(secrets.tx, captured.client.as_deref())?,
        ciphertext: leftover.to_vec(),
    };
    Ok(from_snapshot(&snapshot)?)
}
