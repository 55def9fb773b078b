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
    use tokio::io::AsyncReadExt;
    use unlade_metrics::{Meter, OpenMetrics};
    use unlade_net::state::{DirectionSecrets, TlsSnapshot};
    use unlade_tls::RecordLayer;
    use unlade_tls::device::{Device, Halves, Offer, Pending};

    use super::*;
    use crate::config::BackendConfig;
    use crate::store::Store;

    /// A device at `interface` that refuses every connection for one reason.
    #[derive(Debug)]
    struct Refusing {
        interface: &'static str,
        reason: Refused,
    }

    impl Device for Refusing {
        fn interface(&self) -> &str {
            self.interface
        }

        fn create(&self, _: Offer) -> Pending<Result<Halves, Refused>> {
            let reason = self.reason;
            Box::pin(async move { Err(reason) })
        }

        fn add_metrics(&self, _: &mut OpenMetrics) {}
    }

    /// Returns both ends of a connection whose records stay in software after an offer to `device`.
    async fn offer(device: Refusing, meter: &Arc<Meter>) -> (Stream, TcpStream) {
        let secrets = || DirectionSecrets {
            key: vec![1; 16],
            iv: [2; 12],
            sequence: 0,
            traffic_secret: vec![3; 32],
        };
        let (version, suite, ciphertext) = (0x0304, 0x1301, Vec::new());
        let keys = TlsSnapshot { version, suite, read: secrets(), write: secrets(), ciphertext };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (tcp, _) = listener.accept().await.unwrap();
        let mut stream = Stream::tls(tcp, RecordLayer::from_snapshot(&keys).unwrap());
        let root = tempfile::tempdir().unwrap();
        let config = BackendConfig::new("127.0.0.1:0".parse().unwrap(), root.path().to_owned());
        let store = Arc::new(Store::open(root.path(), false).unwrap());
        let context =
            Context::with_device(&config, store, Arc::clone(meter), Some(Arc::new(device)));
        offload(&mut stream, &context, Begin::Seen, (0, 0)).await;
        (stream, client)
    }

    #[tokio::test]
    async fn a_connection_that_the_device_refuses_stays_in_software_and_is_counted() {
        let meter = Arc::new(Meter::new());
        let missing = Refusing { interface: "no-such-device", reason: Refused::Gone };
        let devices = [
            (Refusing { interface: "lo", reason: Refused::Unknown }, OffloadRefusal::Unknown),
            (Refusing { interface: "lo", reason: Refused::Duplicate }, OffloadRefusal::Duplicate),
            (Refusing { interface: "lo", reason: Refused::Gone }, OffloadRefusal::Gone),
            (
                Refusing { interface: "lo", reason: Refused::Unsupported },
                OffloadRefusal::Unsupported,
            ),
            (missing, OffloadRefusal::Unbound),
        ];
        for (device, counted) in devices {
            let (mut stream, mut client) = offer(device, &meter).await;
            assert!(!stream.is_offloaded(), "{counted:?}");
            assert_eq!(meter.value(Event::RecordsRefused(counted)), 1, "{counted:?}");
            stream.write_all(b"sealed", false).await.unwrap();
            let mut record = [0; 5];
            client.read_exact(&mut record).await.unwrap();
            assert_eq!(record[0], 23, "{counted:?}: an application data record");
        }
        assert_eq!(meter.value(Event::RecordsOffloaded), 0);
    }

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
