//! TLS of directly accepted connections, and record offload to a device (`tls = "nic"`) for
//! accepted and adopted connections.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use unlade_metrics::{Event, OffloadRefusal, Stage};
use unlade_runtime::Stream;
use unlade_runtime::handshake;
use unlade_runtime::handshake::Failure;
use unlade_runtime::identity::{self, Identity, IdentityError};
use unlade_tls::device::{Begin, Refused};

use crate::config::HttpsConfig;
use crate::context::Context;
use crate::session::{OnDrain, Session};

/// The only ALPN protocol.
const ALPN: &[u8] = b"http/1.1";
/// Loads the certificate chain and key of the `[https]` table.
///
/// # Errors
/// A file cannot be read, or its contents are invalid.
pub(crate) fn load(config: &HttpsConfig) -> Result<Identity, IdentityError> {
    identity::load(&config.certificate, &config.key, &[ALPN])
}

/// Returns true if the files of `config` contain another chain than `chain`. A different key has a
/// different chain.
///
/// # Errors
/// As for [`load`].
fn is_replaced(config: &HttpsConfig, chain: &[CertificateDer<'_>]) -> Result<bool, IdentityError> {
    Ok(load(config)?.chain != chain)
}

/// Logs a warning if the files of `config` no longer contain the chain in force, which stays until
/// a restart.
pub(crate) fn warn_of_replaced(config: &HttpsConfig, chain: &[CertificateDer<'_>]) {
    match is_replaced(config, chain) {
        Ok(false) => {}
        Ok(true) => tracing::warn!(
            key = "https.certificate",
            file = %config.certificate.display(),
            "changed; the old certificate stays in force until a restart"
        ),
        Err(error) => tracing::warn!(
            key = "https.certificate",
            %error,
            "cannot be loaded; the old certificate stays in force, and a restart would fail"
        ),
    }
}

/// Performs the handshake of an accepted connection and offloads its records to the device, if
/// possible. Returns None for a failed handshake, which is counted.
pub(crate) async fn accept(
    tcp: TcpStream,
    config: Arc<rustls::ServerConfig>,
    session: &mut Session,
) -> Option<Stream> {
    let context = session.context().clone();
    let begin = std::time::Instant::now();
    let limit = context.limits().head_timeout;
    let accepting = handshake::accept(tcp, config);
    let why = match session.within(limit, OnDrain::Finish, accepting).await {
        Ok(Ok(established)) => {
            context.meter.add(Event::BackendHandshake);
            context.meter.record(Stage::TlsHandshake, begin.elapsed());
            let bytes = (established.read_bytes, established.written_bytes);
            let mut stream = established.into_stream();
            offload(&mut stream, &context, Begin::Seen, bytes).await;
            return Some(stream);
        }
        Ok(Err(Failure::PlainHttp(_))) => "plain HTTP".to_owned(),
        Ok(Err(Failure::Handshake(error))) => error.to_string(),
        Ok(Err(Failure::Transport)) => "the connection ended".to_owned(),
        Err(_) => "it took too long".to_owned(),
    };
    context.meter.add(Event::BackendHandshakeFailed);
    tracing::debug!(why, "TLS handshake failed");
    None
}

/// Offloads the records of a connection to the device, if there is one. A connection that the
/// device refuses stays in software.
pub(crate) async fn offload(
    stream: &mut Stream,
    context: &Context,
    begin: Begin,
    bytes: (u64, u64),
) {
    let Some(device) = context.device() else { return };
    match stream.offload(&*device, begin, bytes).await {
        Ok(()) => context.meter.add(Event::RecordsOffloaded),
        Err(refused) => {
            tracing::debug!(peer = %stream.peer(), %refused, "not offloaded");
            context.meter.add(Event::RecordsRefused(reason(refused)));
        }
    }
}

fn reason(refused: Refused) -> OffloadRefusal {
    match refused {
        Refused::Unknown => OffloadRefusal::Unknown,
        Refused::Duplicate => OffloadRefusal::Duplicate,
        Refused::Gone => OffloadRefusal::Gone,
        Refused::Unsupported => OffloadRefusal::Unsupported,
        Refused::Unbound => OffloadRefusal::Unbound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_certificate_in_the_files_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let config = HttpsConfig {
            address: "127.0.0.1:0".parse().unwrap(),
            certificate: directory.path().join("a.crt"),
            key: directory.path().join("a.key"),
        };
        let renew = || {
            let made = rcgen::generate_simple_self_signed(["objects.test".to_owned()]).unwrap();
            std::fs::write(&config.certificate, made.cert.pem()).unwrap();
            std::fs::write(&config.key, made.signing_key.serialize_pem()).unwrap();
        };
        renew();
        let chain = load(&config).unwrap().chain;
        assert!(!is_replaced(&config, &chain).unwrap());
        renew();
        assert!(is_replaced(&config, &chain).unwrap());
        std::fs::remove_file(&config.key).unwrap();
        let error = is_replaced(&config, &chain).unwrap_err().to_string();
        assert!(error.contains("a.key"), "{error}");
    }
}
