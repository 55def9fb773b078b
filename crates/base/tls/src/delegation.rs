//! Records that another machine seals for the owner of a connection.
//!
//! ```text
//!  owner: RecordLayer::delegate ──Delegation──► other machine: Sealer ── records ──► peer
//!         (it seals nothing)                                   │
//!         RecordLayer::resume ◄── number of the records, with a proof (piece.rs)
//! ```
//! The delegation has the key of one direction and the number of the next record. It has no traffic secret,
//! so its holder cannot follow a change of the key, and reads nothing of the other direction. A nonce must
//! not be used twice: the owner seals nothing until it knows how many records the other machine has
//! sealed. If it never learns that, the connection has to be reset.

use unlade_net::state::DirectionSecrets;
use zeroize::Zeroizing;

use crate::error::RecordError;
use crate::keys::Keys;
use crate::record::{APPLICATION_DATA, PLAINTEXT_BYTES_MAX};
use crate::seal::{self, Layout};
use crate::suite::{SEQUENCE_MAX, Suite};

/// Bytes of an encoding beside the key.
const FIXED_BYTES: usize = 2 + 2 + 8 + 12;

/// The right to seal the next records of one direction of a connection.
pub struct Delegation {
    pub(crate) suite: &'static Suite,
    pub(crate) key: Zeroizing<Vec<u8>>,
    pub(crate) iv: [u8; 12],
    pub(crate) sequence: u64,
}

impl core::fmt::Debug for Delegation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Delegation")
            .field("suite", &self.suite.name)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl Delegation {
    /// Returns the encoding: version and suite (two bytes each), number of the next record (8), IV (12), key;
    /// integers in network order.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(FIXED_BYTES + self.key.len()));
        out.extend_from_slice(&self.suite.version.to_be_bytes());
        out.extend_from_slice(&self.suite.number.to_be_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&self.iv);
        out.extend_from_slice(&self.key);
        out
    }

    /// Decodes the bytes of [`Delegation::to_bytes`].
    ///
    /// # Errors
    /// [`RecordError::Snapshot`] if they are not that.
    pub fn from_bytes(bytes: &[u8]) -> Result<Delegation, RecordError> {
        const SHORT: RecordError = RecordError::Snapshot("a delegation that is too short");
        let (version, rest) = bytes.split_first_chunk().ok_or(SHORT)?;
        let (number, rest) = rest.split_first_chunk().ok_or(SHORT)?;
        let (sequence, rest) = rest.split_first_chunk().ok_or(SHORT)?;
        let (iv, key) = rest.split_first_chunk().ok_or(SHORT)?;
        let suite = Suite::find(u16::from_be_bytes(*version), u16::from_be_bytes(*number))
            .ok_or(RecordError::Snapshot("cipher suite unknown in this version"))?;
        let sequence = u64::from_be_bytes(*sequence);
        if key.len() != suite.cipher.key_bytes() {
            return Err(RecordError::Snapshot("AEAD key of the wrong length"));
        }
        if sequence >= SEQUENCE_MAX {
            return Err(RecordError::Snapshot("sequence number about to wrap"));
        }
        Ok(Delegation { suite, key: Zeroizing::new(key.to_vec()), iv: *iv, sequence })
    }

    /// Returns the bytes of content in so many bytes of records; `None`: they are too few.
    pub fn content_bytes(&self, sealed_bytes: u64, records: u64) -> Option<u64> {
        let overhead_bytes = Layout::new(self.suite, 0).overhead_bytes() as u64;
        sealed_bytes.checked_sub(records.checked_mul(overhead_bytes)?)
    }

    fn keys(&self) -> Result<Keys, RecordError> {
        let Delegation { suite, iv, sequence, .. } = *self;
        let secrets =
            DirectionSecrets { key: self.key.to_vec(), iv, sequence, traffic_secret: Vec::new() };
        Keys::of_one_generation(suite, secrets)
    }
}

/// Returns the number of records with so many bytes of content, each but the last one full.
pub fn records_of(content_bytes: u64) -> u64 {
    content_bytes.div_ceil(PLAINTEXT_BYTES_MAX as u64)
}

/// Seals the records of a delegation.
pub struct Sealer {
    keys: Keys,
}

impl Sealer {
    /// Creates the sealer of the next record.
    ///
    /// # Errors
    /// [`RecordError::Snapshot`] if the delegation's key is unusable.
    pub fn new(delegation: &Delegation) -> Result<Sealer, RecordError> {
        Ok(Sealer { keys: delegation.keys()? })
    }

    /// Appends the records with `content` to `out`: each but the last one is full.
    ///
    /// # Errors
    /// [`RecordError::Exhausted`] if the key must not be used further. `out` then has the records of a part
    /// of `content`.
    pub fn seal(&mut self, content: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        out.reserve(Layout::new(self.keys.suite(), content.len()).sealed_bytes());
        content.chunks(PLAINTEXT_BYTES_MAX).try_for_each(|content| {
            seal::append_record(&mut self.keys, APPLICATION_DATA, content, out)
        })
    }

    /// Returns the bytes of the records with so many bytes of content, each record but the last one full.
    pub fn sealed_bytes(&self, content_bytes: u64) -> u64 {
        let overhead_bytes = Layout::new(self.keys.suite(), 0).overhead_bytes() as u64;
        content_bytes + records_of(content_bytes) * overhead_bytes
    }
}

#[cfg(test)]
mod tests {
    use unlade_net::state::TlsSnapshot;

    use super::*;
    use crate::control::Side;
    use crate::layer::RecordLayer;
    use crate::suite::SUITES;

    /// Server and client.
    fn ends(suite: &'static Suite, sequence: u64) -> (RecordLayer, RecordLayer) {
        let secrets = |seed: u8| DirectionSecrets {
            key: vec![seed; suite.cipher.key_bytes()],
            iv: [seed; 12],
            sequence,
            traffic_secret: vec![seed; suite.secret_bytes],
        };
        let mut snapshot = TlsSnapshot {
            version: suite.version,
            suite: suite.number,
            read: secrets(1),
            write: secrets(2),
            ciphertext: vec![],
        };
        let server = RecordLayer::from_snapshot(&snapshot).unwrap();
        core::mem::swap(&mut snapshot.read, &mut snapshot.write);
        (server, RecordLayer::for_side(Side::Client, &snapshot).unwrap())
    }

    #[test]
    fn the_peer_sees_one_sender() {
        for suite in SUITES {
            let (mut owner, mut client) = ends(suite, 7);
            let (mut sent, mut seen) = (Vec::new(), Vec::new());
            owner.seal(b"before ", &mut sent).unwrap();
            let delegation = owner.delegate(1000).unwrap();
            let delegation = Delegation::from_bytes(&delegation.to_bytes()).unwrap();
            let mut sealer = Sealer::new(&delegation).unwrap();
            let mut body = vec![b'x'; 40_000];
            body.push(b'y');
            let at = sent.len();
            sealer.seal(b"HTTP/1.1 200 OK\r\n\r\n", &mut sent).unwrap();
            let body_at = sent.len();
            sealer.seal(&body, &mut sent).unwrap();
            let records = 1 + records_of(40_001);
            let body_bytes = (sent.len() - body_at) as u64;
            assert_eq!(body_bytes, sealer.sealed_bytes(40_001));
            let sealed_bytes = (sent.len() - at) as u64;
            assert_eq!(delegation.content_bytes(sealed_bytes, records), Some(40_020));
            assert_eq!(delegation.content_bytes(10, 1), None);
            owner.resume(records);
            owner.seal(b" after", &mut sent).unwrap();
            owner.close_notify(&mut sent);
            assert!(client.receive(&sent, &mut seen).unwrap().close_notify);
            let due = [b"before HTTP/1.1 200 OK\r\n\r\n", &body[..], b" after"].concat();
            assert!(seen == due);
        }
    }

    #[test]
    fn an_owner_that_has_delegated_seals_nothing() {
        for suite in SUITES {
            let (mut owner, mut client) = ends(suite, 0);
            assert!(owner.is_movable());
            owner.delegate(10).unwrap();
            assert!(!owner.is_movable() && owner.delegate(10).is_none());
            let mut out = Vec::new();
            assert_eq!(owner.seal(b"x", &mut out), Err(RecordError::Delegated));
            let layout = owner.layout(1);
            let mut buffer = vec![0; layout.sealed_bytes()];
            let sealed = owner.seal_in_place(&mut buffer, &layout, 1);
            assert_eq!(sealed, Err(RecordError::Delegated));
            assert!(owner.seal_with(1, &mut out, |_| Ok(())).is_err());
            owner.close_notify(&mut out);
            // What the peer causes waits.
            let mut asked = Vec::new();
            if client.update_keys(true, &mut asked).unwrap() {
                assert!(!owner.receive(&asked, &mut Vec::new()).unwrap().output_pending);
                assert_eq!(owner.update_keys(false, &mut out), Err(RecordError::Delegated));
            }
            owner.take_output(&mut out);
            assert!(out.is_empty() && !owner.output_pending());
            owner.resume(0);
            assert_eq!(owner.output_pending(), suite.is_13());
            owner.seal(b"x", &mut out).unwrap();
            let mut seen = Vec::new();
            client.receive(&out, &mut seen).unwrap();
            assert_eq!(seen, b"x");
        }
    }

    #[test]
    fn a_failed_owner_sends_no_alert_while_it_has_delegated() {
        for suite in SUITES {
            let (mut owner, _) = ends(suite, 0);
            owner.delegate(10).unwrap();
            let mut out = Vec::new();
            let forged = [&[23, 3, 3, 0, 40][..], &[0; 40]].concat();
            assert!(owner.receive(&forged, &mut Vec::new()).is_err());
            owner.take_output(&mut out);
            assert!(out.is_empty());
        }
    }

    #[test]
    fn what_is_owed_goes_first_and_a_used_key_is_not_delegated() {
        for suite in SUITES {
            let (mut owner, mut client) = ends(suite, 0);
            let mut asked = Vec::new();
            if client.update_keys(true, &mut asked).unwrap() {
                owner.receive(&asked, &mut Vec::new()).unwrap();
                assert!(owner.delegate(10).is_none());
                owner.take_output(&mut Vec::new());
                assert!(owner.delegate(10).is_some());
            }
            let (mut owner, _) = ends(suite, suite.records_soft - 10);
            assert!(owner.delegate(11).is_none() && owner.delegate(10).is_some());
        }
    }

    #[test]
    fn other_bytes_are_no_delegation() {
        let suite = &SUITES[0];
        let (mut owner, _) = ends(suite, 0);
        let delegation = owner.delegate(10).unwrap();
        let bytes = delegation.to_bytes();
        for length in 0..bytes.len() {
            assert!(Delegation::from_bytes(&bytes[..length]).is_err());
        }
        let mut wrong = bytes.to_vec();
        wrong[0] ^= 1;
        assert!(Delegation::from_bytes(&wrong).is_err());
        wrong[0] ^= 1;
        wrong[4..12].fill(255);
        assert!(Delegation::from_bytes(&wrong).is_err());
    }
}
