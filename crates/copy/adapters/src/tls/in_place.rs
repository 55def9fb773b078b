//! A crypto provider that leaves decrypted application data in the receive buffer.
//!
//! rustls decrypts a record in the caller's buffer, and copies the plaintext into its own `Vec`
//! before it lends it. The cipher suites here wrap those of another provider: they record where
//! the plaintext of a record lies, and return only its first byte to rustls. They do so only while
//! an [`Opener`](super::Opener) requests it, and after authentication.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use rustls::crypto::CryptoProvider;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, Iv, KeyBlockShape, MessageDecrypter,
    MessageEncrypter, Tls12AeadAlgorithm, Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::{
    CipherSuiteCommon, ConnectionTrafficSecrets, ContentType, Error, SupportedCipherSuite,
    Tls12CipherSuite, Tls13CipherSuite,
};

/// Wraps `provider`, for configurations of connections that an [`Opener`](super::Opener) uses.
/// Other connections may share these configurations; nothing changes for them.
pub fn in_place(mut provider: CryptoProvider) -> CryptoProvider {
    for suite in &mut provider.cipher_suites {
        *suite = wrapped(*suite);
    }
    provider
}

/// The wrapper of `suite`, created once, since rustls requires suites with static lifetime.
fn wrapped(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    static MADE: Mutex<Vec<(usize, SupportedCipherSuite)>> = Mutex::new(Vec::new());
    let address = match suite {
        SupportedCipherSuite::Tls12(suite) => std::ptr::from_ref(suite).addr(),
        SupportedCipherSuite::Tls13(suite) => std::ptr::from_ref(suite).addr(),
    };
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&(_, wrapped)) = made.iter().find(|&&(of, _)| of == address) {
        return wrapped;
    }
    let around = match suite {
        SupportedCipherSuite::Tls12(suite) => around_12(suite),
        SupportedCipherSuite::Tls13(suite) => around_13(suite),
    };
    // A suite that is a wrapper already is not wrapped again.
    let of_around = match around {
        SupportedCipherSuite::Tls12(suite) => std::ptr::from_ref(suite).addr(),
        SupportedCipherSuite::Tls13(suite) => std::ptr::from_ref(suite).addr(),
    };
    made.push((address, around));
    made.push((of_around, around));
    around
}

fn around_12(suite: &'static Tls12CipherSuite) -> SupportedCipherSuite {
    let aead_alg: &'static LocatingAlgorithm<dyn Tls12AeadAlgorithm> =
        Box::leak(Box::new(LocatingAlgorithm(suite.aead_alg)));
    SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
        common: common(&suite.common),
        prf_provider: suite.prf_provider,
        kx: suite.kx,
        sign: suite.sign,
        aead_alg,
    })))
}

fn around_13(suite: &'static Tls13CipherSuite) -> SupportedCipherSuite {
    let aead_alg: &'static LocatingAlgorithm<dyn Tls13AeadAlgorithm> =
        Box::leak(Box::new(LocatingAlgorithm(suite.aead_alg)));
    SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
        common: common(&suite.common),
        hkdf_provider: suite.hkdf_provider,
        aead_alg,
        quic: suite.quic,
    })))
}

fn common(common: &CipherSuiteCommon) -> CipherSuiteCommon {
    CipherSuiteCommon {
        suite: common.suite,
        hash_provider: common.hash_provider,
        confidentiality_limit: common.confidentiality_limit,
    }
}

/// A cipher algorithm whose decrypters record the place of application data.
struct LocatingAlgorithm<A: ?Sized + 'static>(&'static A);

impl Tls13AeadAlgorithm for LocatingAlgorithm<dyn Tls13AeadAlgorithm> {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        self.0.encrypter(key, iv)
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        Box::new(LocatingDecrypter(self.0.decrypter(key, iv)))
    }

    fn key_len(&self) -> usize {
        self.0.key_len()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv)
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}

impl Tls12AeadAlgorithm for LocatingAlgorithm<dyn Tls12AeadAlgorithm> {
    fn encrypter(&self, key: AeadKey, iv: &[u8], extra: &[u8]) -> Box<dyn MessageEncrypter> {
        self.0.encrypter(key, iv, extra)
    }

    fn decrypter(&self, key: AeadKey, iv: &[u8]) -> Box<dyn MessageDecrypter> {
        Box::new(LocatingDecrypter(self.0.decrypter(key, iv)))
    }

    fn key_block_shape(&self) -> KeyBlockShape {
        self.0.key_block_shape()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: &[u8],
        explicit: &[u8],
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv, explicit)
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}

struct LocatingDecrypter(Box<dyn MessageDecrypter>);

impl MessageDecrypter for LocatingDecrypter {
    fn decrypt<'a>(
        &mut self,
        message: InboundOpaqueMessage<'a>,
        sequence: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        let mut plain = self.0.decrypt(message, sequence)?;
        let is_data = plain.typ == ContentType::ApplicationData;
        if is_data
            && !plain.payload.is_empty()
            && matches!(LOCATION_REQUEST.get(), LocationRequest::Pending)
        {
            let (address, len) = (plain.payload.as_ptr().addr(), plain.payload.len());
            LOCATION_REQUEST.set(LocationRequest::Found(PlaintextLocation { address, len }));
            // One byte, not zero: rustls limits the number of empty records from a peer.
            plain.payload = &plain.payload[..1];
        }
        Ok(plain)
    }
}

/// Location of the plaintext of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaintextLocation {
    pub(super) address: usize,
    pub(super) len: usize,
}

#[derive(Clone, Copy)]
enum LocationRequest {
    None,
    Pending,
    Found(PlaintextLocation),
}

thread_local! {
    /// A decrypter has no reference to its connection, but it is called on the thread that
    /// requests the location, and before that call returns.
    static LOCATION_REQUEST: Cell<LocationRequest> = const { Cell::new(LocationRequest::None) };
}

/// Runs `work`. Returns the location of the first application data that were decrypted meanwhile:
/// rustls received one byte of these, and all bytes of later records.
pub(super) fn with_location<T>(work: impl FnOnce() -> T) -> (T, Option<PlaintextLocation>) {
    /// Resets also after a panic of `work`: otherwise other connections of this thread would lose
    /// data.
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            LOCATION_REQUEST.set(LocationRequest::None);
        }
    }
    let _reset = Reset;
    LOCATION_REQUEST.set(LocationRequest::Pending);
    let done = work();
    let place = match LOCATION_REQUEST.get() {
        LocationRequest::Found(place) => Some(place),
        LocationRequest::Pending | LocationRequest::None => None,
    };
    (done, place)
}
