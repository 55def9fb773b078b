//! The key schedule (RFC 8446 §7.1) and the running hash of the handshake (§4.4.1).

use aws_lc_rs::{digest, hmac};
use subtle::ConstantTimeEq;
use unlade_net::state::DirectionSecrets;
use zeroize::Zeroizing;

use crate::error::RecordError;
use crate::keys::{self, Keys};
use crate::suite::Suite;

type Secret = Zeroizing<Vec<u8>>;

/// Handshake type of the synthetic message that replaces the first ClientHello (RFC 8446 §4.4.1).
const MESSAGE_HASH: u8 = 254;

fn mac(suite: &Suite, key: &[u8], message: &[u8]) -> Secret {
    let tag = hmac::sign(&hmac::Key::new(suite.hash.hmac(), key), message);
    Zeroizing::new(tag.as_ref().to_vec())
}

/// The hash of all messages so far.
#[derive(Clone)]
pub(super) struct Transcript(digest::Context);

impl Transcript {
    pub(super) fn new(suite: &Suite) -> Transcript {
        Transcript(digest::Context::new(suite.hash.digest()))
    }

    pub(super) fn add(&mut self, message: &[u8]) {
        self.0.update(message);
    }

    pub(super) fn hash(&self) -> Vec<u8> {
        self.0.clone().finish().as_ref().to_vec()
    }

    /// Replaces the first ClientHello with its hash, after a HelloRetryRequest.
    pub(super) fn restart(&mut self, suite: &Suite) {
        let hash = self.hash();
        *self = Transcript::new(suite);
        self.add(&[MESSAGE_HASH, 0, 0, hash.len() as u8]);
        self.add(&hash);
    }
}

/// Secrets of the two directions.
pub(super) struct TrafficSecrets {
    pub(super) client: Secret,
    pub(super) server: Secret,
}

/// The secrets derived from the key alone.
pub(super) struct EarlySecret {
    suite: &'static Suite,
    secret: Secret,
}

impl EarlySecret {
    pub(super) fn new(suite: &'static Suite, key: &[u8]) -> EarlySecret {
        let zeros = vec![0; suite.secret_bytes];
        EarlySecret { suite, secret: mac(suite, &zeros, key) }
    }

    /// The binder: a Finished over `hash`, that of the truncated ClientHello (§4.2.11.2).
    pub(super) fn binder(&self, hash: &[u8]) -> Result<Secret, RecordError> {
        let base = derive(self.suite, &self.secret, b"ext binder", &empty_hash(self.suite))?;
        finished(self.suite, &base, hash)
    }

    /// Adds the Diffie-Hellman secret.
    pub(super) fn handshake(&self, shared: &[u8]) -> Result<HandshakeSecret, RecordError> {
        let salt = derive(self.suite, &self.secret, b"derived", &empty_hash(self.suite))?;
        Ok(HandshakeSecret { suite: self.suite, secret: mac(self.suite, &salt, shared) })
    }
}

/// The secrets derived from key and Diffie-Hellman.
pub(super) struct HandshakeSecret {
    suite: &'static Suite,
    secret: Secret,
}

impl HandshakeSecret {
    /// `hash`: of ClientHello to ServerHello.
    pub(super) fn traffic(&self, hash: &[u8]) -> Result<TrafficSecrets, RecordError> {
        Ok(TrafficSecrets {
            client: derive(self.suite, &self.secret, b"c hs traffic", hash)?,
            server: derive(self.suite, &self.secret, b"s hs traffic", hash)?,
        })
    }

    /// `hash`: of ClientHello to the server's Finished.
    pub(super) fn application(&self, hash: &[u8]) -> Result<TrafficSecrets, RecordError> {
        let salt = derive(self.suite, &self.secret, b"derived", &empty_hash(self.suite))?;
        let main = mac(self.suite, &salt, &vec![0; self.suite.secret_bytes]);
        Ok(TrafficSecrets {
            client: derive(self.suite, &main, b"c ap traffic", hash)?,
            server: derive(self.suite, &main, b"s ap traffic", hash)?,
        })
    }
}

fn empty_hash(suite: &Suite) -> Vec<u8> {
    digest::digest(suite.hash.digest(), &[]).as_ref().to_vec()
}

fn derive(suite: &Suite, secret: &[u8], label: &[u8], hash: &[u8]) -> Result<Secret, RecordError> {
    keys::expand_label(suite, secret, label, hash, suite.secret_bytes)
}

/// verify_data of a Finished (RFC 8446 §4.4.4).
pub(super) fn finished(suite: &Suite, base: &[u8], hash: &[u8]) -> Result<Secret, RecordError> {
    let key = keys::expand_label(suite, base, b"finished", &[], suite.secret_bytes)?;
    Ok(mac(suite, &key, hash))
}

/// Compares in constant time.
pub(super) fn constant_time_eq(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}

/// Makes the keys of one direction from this traffic secret.
pub(super) fn keys(suite: &'static Suite, secret: &[u8]) -> Result<Keys, RecordError> {
    Keys::new(suite, direction(suite, secret)?)
}

/// As [`keys`], for a snapshot.
pub(super) fn direction(
    suite: &'static Suite,
    secret: &[u8],
) -> Result<DirectionSecrets, RecordError> {
    keys::from_traffic_secret(suite, secret)
}
