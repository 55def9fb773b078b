//! Captures the traffic secrets of the handshake that is running on this thread.
//!
//! rustls exposes keys, but passes the TLS 1.3 traffic secrets, which are needed to follow a
//! KeyUpdate, only to a key log, which belongs to the configuration that all connections share.
//! rustls calls the log synchronously while it processes a handshake's records. A thread-local
//! slot, filled for that call and moved back into the handshake after it, therefore keeps
//! connections apart without a map or a lock. A log entry outside such a call is dropped.

use std::cell::RefCell;
use std::sync::Arc;

use rustls::KeyLog;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use zeroize::Zeroizing;

const CLIENT_LABEL: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER_LABEL: &str = "SERVER_TRAFFIC_SECRET_0";

thread_local! {
    static SLOT: RefCell<Option<Captured>> = const { RefCell::new(None) };
}

/// The values that one handshake has exposed so far.
#[derive(Default)]
pub(crate) struct Captured {
    /// Secret of the client's first generation of application keys.
    pub client: Option<Zeroizing<Vec<u8>>>,
    /// Secret of the server's first generation of application keys.
    pub server: Option<Zeroizing<Vec<u8>>>,
    /// The name that the client requested.
    pub server_name: Option<String>,
}

impl Captured {
    /// Keeps the secret if the label is one of the two.
    pub(crate) fn keep(&mut self, label: &str, secret: &[u8]) {
        let place = match label {
            CLIENT_LABEL => &mut self.client,
            SERVER_LABEL => &mut self.server,
            _ => return,
        };
        *place = Some(Zeroizing::new(secret.to_vec()));
    }
}

/// Runs `process` with `captured` in this thread's slot.
pub(crate) fn during<R>(captured: &mut Captured, process: impl FnOnce() -> R) -> R {
    /// Empties the slot at the end, also after a panic: no secret stays in it after the call.
    struct Restore<'c>(&'c mut Captured);
    impl Drop for Restore<'_> {
        fn drop(&mut self) {
            if let Some(captured) = SLOT.take() {
                *self.0 = captured;
            }
        }
    }
    SLOT.set(Some(core::mem::take(captured)));
    let _restore = Restore(captured);
    process()
}

fn with_slot(act: impl FnOnce(&mut Captured)) {
    SLOT.with_borrow_mut(|slot| slot.as_mut().map(act));
}

/// The key log of a configuration whose handshakes are captured.
#[derive(Debug)]
pub(crate) struct CaptureSecrets;

impl KeyLog for CaptureSecrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        with_slot(|captured| captured.keep(label, secret));
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENT_LABEL | SERVER_LABEL)
    }
}

/// A certificate resolver that records the requested name.
#[derive(Debug)]
pub(crate) struct CaptureName(pub Arc<dyn ResolvesServerCert>);

impl ResolvesServerCert for CaptureName {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        with_slot(|captured| {
            captured.server_name = client_hello.server_name().map(str::to_owned);
        });
        self.0.resolve(client_hello)
    }

    fn only_raw_public_keys(&self) -> bool {
        self.0.only_raw_public_keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_go_to_the_handshake_that_is_running_and_nowhere_else() {
        let (mut one, mut other) = (Captured::default(), Captured::default());
        CaptureSecrets.log(CLIENT_LABEL, &[0; 32], &[9; 32]);
        during(&mut one, || CaptureSecrets.log(CLIENT_LABEL, &[0; 32], &[1; 32]));
        during(&mut other, || CaptureSecrets.log(CLIENT_LABEL, &[0; 32], &[2; 32]));
        during(&mut one, || CaptureSecrets.log(SERVER_LABEL, &[0; 32], &[3; 32]));
        during(&mut one, || CaptureSecrets.log("EXPORTER_SECRET", &[0; 32], &[4; 32]));
        assert_eq!(one.client.as_deref(), Some(&vec![1; 32]));
        assert_eq!(one.server.as_deref(), Some(&vec![3; 32]));
        assert_eq!(other.client.as_deref(), Some(&vec![2; 32]));
        assert!(other.server.is_none());
        assert!(SLOT.with_borrow(|slot| slot.is_none()));
    }

    #[test]
    fn a_panic_leaves_nothing_in_the_slot() {
        let mut captured = Captured::default();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            during(&mut captured, || {
                CaptureSecrets.log(CLIENT_LABEL, &[0; 32], &[1; 32]);
                std::panic::resume_unwind(Box::new(()));
            });
        }));
        assert!(caught.is_err());
        assert!(captured.client.is_some());
        assert!(SLOT.with_borrow(|slot| slot.is_none()));
    }
}
