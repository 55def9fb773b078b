//! The keys of one direction: the AEAD, the nonce of each record, and the next generation
//! (RFC 8446 §5.3, §7.2, §7.3; RFC 5288 §3 and RFC 7905 §2 for TLS 1.2).

use aws_lc_rs::aead::{LessSafeKey, UnboundKey};
use unlade_net::state::DirectionSecrets;
use zeroize::Zeroizing;

use crate::device_keys;
use crate::error::RecordError;
use crate::expand;
use crate::suite::{SEQUENCE_MAX, Suite};

/// The keys of one direction and the number of records under them.
pub(crate) struct Keys {
    suite: &'static Suite,
    aead: LessSafeKey,
    secrets: DirectionSecrets,
    /// Number of earlier generations since the layer was made.
    generation: u32,
    /// True if a device seals the records.
    left_to_device: bool,
}

impl Keys {
    /// Builds the AEAD once for all records of this generation.
    pub(crate) fn new(
        suite: &'static Suite,
        secrets: DirectionSecrets,
    ) -> Result<Keys, RecordError> {
        if secrets.traffic_secret.len() != suite.secret_bytes {
            return Err(RecordError::Snapshot("traffic secret of the wrong length"));
        }
        Keys::of_one_generation(suite, secrets)
    }

    /// As [`Keys::new`], also without a traffic secret: then there is no next generation.
    pub(crate) fn of_one_generation(
        suite: &'static Suite,
        secrets: DirectionSecrets,
    ) -> Result<Keys, RecordError> {
        if secrets.sequence >= SEQUENCE_MAX {
            return Err(RecordError::Snapshot("sequence number about to wrap"));
        }
        let key = UnboundKey::new(suite.cipher.algorithm(), &secrets.key)
            .map_err(|_| RecordError::Snapshot("AEAD key of the wrong length"))?;
        let aead = LessSafeKey::new(key);
        Ok(Keys { suite, aead, secrets, generation: 0, left_to_device: false })
    }

    pub(crate) fn suite(&self) -> &'static Suite {
        self.suite
    }

    pub(crate) fn aead(&self) -> &LessSafeKey {
        &self.aead
    }

    /// Number of the next record.
    pub(crate) fn sequence(&self) -> u64 {
        self.secrets.sequence
    }

    /// Advances to the next record, after one has been sealed or opened.
    pub(crate) fn advance(&mut self) {
        // `Keys::new` and the record limits keep the number below the wrap. Saturating prevents a
        // mistake elsewhere from repeating a nonce: the limit then stays reached.
        self.secrets.sequence = self.secrets.sequence.saturating_add(1);
    }

    /// Advances past records that were sealed elsewhere.
    pub(crate) fn skip(&mut self, records: u64) {
        self.secrets.sequence = self.secrets.sequence.saturating_add(records);
    }

    /// The keys as a device takes them; `None` if no device supports the suite.
    pub(crate) fn for_device(&self) -> Option<device_keys::Keys> {
        let DirectionSecrets { key, iv, sequence, .. } = &self.secrets;
        device_keys::Keys::of(self.suite.cipher, self.suite.is_13(), key, *iv, *sequence)
    }

    /// All secrets, for a snapshot.
    pub(crate) fn secrets(&self) -> &DirectionSecrets {
        &self.secrets
    }

    /// IV XOR sequence number. rustls uses this for the explicit nonce of TLS 1.2 AES-GCM as well,
    /// so continuing with it after a handshake by rustls repeats no nonce.
    pub(crate) fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.secrets.iv;
        for (byte, sequence) in nonce[4..].iter_mut().zip(self.secrets.sequence.to_be_bytes()) {
            *byte ^= sequence;
        }
        nonce
    }

    /// Additional data of TLS 1.2 (RFC 5246 §6.2.3.3).
    pub(crate) fn aad_12(&self, content_type: u8, content_bytes: usize) -> [u8; 13] {
        let mut aad = [0; 13];
        aad[..8].copy_from_slice(&self.secrets.sequence.to_be_bytes());
        aad[8] = content_type;
        aad[9..11].copy_from_slice(&[3, 3]);
        aad[11..].copy_from_slice(&(content_bytes as u16).to_be_bytes());
        aad
    }

    /// The next generation of a TLS 1.3 direction (RFC 8446 §7.2).
    pub(crate) fn next_generation(&self) -> Result<Keys, RecordError> {
        let secret = expand_label(
            self.suite,
            &self.secrets.traffic_secret,
            b"traffic upd",
            &[],
            self.suite.secret_bytes,
        )?;
        let secrets = from_traffic_secret(self.suite, &secret)?;
        let next = Keys::new(self.suite, secrets)?;
        let generation = self.generation.wrapping_add(1);
        Ok(Keys { generation, left_to_device: self.left_to_device, ..next })
    }

    /// Leaves the sealing of records to a device from now on.
    pub(crate) fn leave_sealing(&mut self) {
        self.left_to_device = true;
    }

    /// Resumes the sealing of records in software.
    pub(crate) fn resume_sealing(&mut self) {
        self.left_to_device = false;
    }

    pub(crate) fn leaves_sealing(&self) -> bool {
        self.left_to_device
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }
}

/// Derives key and IV from a traffic secret, at sequence 0 (RFC 8446 §7.3).
pub(crate) fn from_traffic_secret(
    suite: &'static Suite,
    traffic_secret: &[u8],
) -> Result<DirectionSecrets, RecordError> {
    let key = expand_label(suite, traffic_secret, b"key", &[], suite.cipher.key_bytes())?;
    let iv_bytes = expand_label(suite, traffic_secret, b"iv", &[], 12)?;
    let mut iv = [0; 12];
    iv.copy_from_slice(&iv_bytes);
    Ok(DirectionSecrets {
        key: key.to_vec(),
        iv,
        sequence: 0,
        traffic_secret: traffic_secret.to_vec(),
    })
}

/// [`expand::expand_label`] with the hash of a TLS 1.3 suite.
pub(crate) fn expand_label(
    suite: &Suite,
    secret: &[u8],
    label: &[u8],
    context: &[u8],
    bytes: usize,
) -> Result<Zeroizing<Vec<u8>>, RecordError> {
    const REFUSED: RecordError = RecordError::Snapshot("traffic secret that HKDF refuses");
    let mut out = Zeroizing::new(vec![0; bytes]);
    expand::expand_label(suite.hash, secret, label, context, &mut out).map_err(|_| REFUSED)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unhex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> =
            text.bytes().filter_map(|c| (c as char).to_digit(16)).map(|d| d as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    // RFC 8448 §3: the server's application traffic secret, key and IV.
    #[test]
    fn key_and_iv_are_those_of_rfc_8448() {
        let suite = Suite::find(0x0304, 0x1301).unwrap();
        let secret = unhex(
            "a1 1a f9 f0 55 31 f8 56 ad 47 11 6b 45 a9 50 32 82 04 b4 f4 4b fb 6b 3a 4b 4f 1f 3f
             cb 63 16 43",
        );
        let secrets = from_traffic_secret(suite, &secret).unwrap();
        assert_eq!(secrets.key, unhex("9f 02 28 3b 6c 9c 07 ef c2 6b b9 f2 ac 92 e3 56"));
        assert_eq!(secrets.iv[..], unhex("cf 78 2b 88 dd 83 54 9a ad f1 e9 84"));
    }

    #[test]
    fn a_nonce_is_iv_xor_sequence() {
        let suite = Suite::find(0x0303, 0xc02b).unwrap();
        let secrets = DirectionSecrets {
            key: vec![1; 16],
            iv: [0xf0; 12],
            sequence: 0x0102_0304_0506_0708,
            traffic_secret: vec![],
        };
        let keys = Keys::new(suite, secrets).unwrap();
        let expected = [0xf0, 0xf0, 0xf0, 0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8];
        assert_eq!(keys.nonce(), expected);
    }

    #[test]
    fn secrets_of_the_wrong_shape_are_refused() {
        let suite = Suite::find(0x0304, 0x1301).unwrap();
        let make = |key: usize, secret: usize, sequence: u64| {
            Keys::new(
                suite,
                DirectionSecrets {
                    key: vec![1; key],
                    iv: [0; 12],
                    sequence,
                    traffic_secret: vec![2; secret],
                },
            )
            .map(|_| ())
        };
        assert_eq!(make(16, 32, 0), Ok(()));
        for wrong in [make(17, 32, 0), make(16, 48, 0), make(16, 32, u64::MAX), make(0, 0, 0)] {
            assert!(matches!(wrong, Err(RecordError::Snapshot(_))));
        }
    }
}
