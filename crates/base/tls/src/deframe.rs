//! Reads one record: finds it, checks its header, opens it (RFC 8446 §5; RFC 5246 §6.2).

use aws_lc_rs::aead::{Aad, Nonce};

use crate::error::RecordError;
use crate::keys::Keys;
use crate::record::{ALERT, APPLICATION_DATA, HANDSHAKE, HEADER_BYTES, PLAINTEXT_BYTES_MAX};
use crate::suite::{EXPLICIT_NONCE_BYTES, SEQUENCE_MAX, Suite, TAG_BYTES};

/// Most bytes after a header (RFC 8446 §5.2); the supported TLS 1.2 AEADs add less.
pub(crate) const CIPHERTEXT_BYTES_MAX: usize = PLAINTEXT_BYTES_MAX + 256;

/// The header of a complete record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    content_type: u8,
    payload_bytes: usize,
}

impl Header {
    /// Length of the record with its header.
    pub(crate) fn record_bytes(&self) -> usize {
        HEADER_BYTES + self.payload_bytes
    }
}

/// Parses the header of the record at the start of `input`; `None` if the record is not complete.
/// An invalid header is refused at once, without waiting for the bytes that it announces.
pub(crate) fn header(suite: &Suite, input: &[u8]) -> Result<Option<Header>, RecordError> {
    let Some(&[content_type, major, minor, high, low]) = input.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    match (suite.is_13(), content_type) {
        (_, APPLICATION_DATA) | (false, ALERT | HANDSHAKE) => {}
        (true, ALERT | HANDSHAKE) => {
            return Err(RecordError::UnexpectedMessage("an unencrypted record"));
        }
        (_, 20) => return Err(RecordError::UnexpectedMessage("a late ChangeCipherSpec")),
        _ => return Err(RecordError::UnexpectedMessage("a record of an unknown type")),
    }
    let version = u16::from_be_bytes([major, minor]);
    if version != 0x0303 {
        return Err(RecordError::Version(version));
    }
    let payload_bytes = u16::from_be_bytes([high, low]).into();
    if payload_bytes > CIPHERTEXT_BYTES_MAX {
        return Err(RecordError::RecordOverflow { bytes: payload_bytes });
    }
    let header = Header { content_type, payload_bytes };
    Ok((input.len() >= header.record_bytes()).then_some(header))
}

/// Opens `record` under `keys` and appends its content to `plaintext`; returns the content's type.
/// The ciphertext does not change; on an error, neither does `plaintext`.
pub(crate) fn open(
    keys: &Keys,
    header: Header,
    record: &[u8],
    plaintext: &mut Vec<u8>,
) -> Result<u8, RecordError> {
    let from = plaintext.len();
    let opened = open_payload(keys, header, record, plaintext)
        .and_then(|content_type| finish(keys.suite(), content_type, plaintext, from));
    if opened.is_err() {
        plaintext.truncate(from);
    }
    opened
}

/// Decrypts directly into the tail of `plaintext`.
fn open_payload(
    keys: &Keys,
    header: Header,
    record: &[u8],
    plaintext: &mut Vec<u8>,
) -> Result<u8, RecordError> {
    let sequence = keys.sequence();
    let forged = RecordError::BadRecordMac { sequence };
    if sequence >= SEQUENCE_MAX {
        return Err(RecordError::Exhausted { records: sequence });
    }
    let (head, payload) = record.split_at_checked(HEADER_BYTES).ok_or(forged)?;
    let mut nonce = keys.nonce();
    let sealed = if keys.suite().explicit_nonce {
        let (explicit, sealed) =
            payload.split_first_chunk::<EXPLICIT_NONCE_BYTES>().ok_or(forged)?;
        nonce[4..].copy_from_slice(explicit);
        sealed
    } else {
        payload
    };
    let content_bytes = sealed.len().checked_sub(TAG_BYTES).ok_or(forged)?;
    let (content, tag) = sealed.split_at_checked(content_bytes).ok_or(forged)?;
    let from = plaintext.len();
    plaintext.resize(from + content_bytes, 0);
    let target = &mut plaintext[from..];
    let nonce = Nonce::assume_unique_for_key(nonce);
    let aad_12 = keys.aad_12(header.content_type, content_bytes);
    let aad = Aad::from(if keys.suite().is_13() { head } else { &aad_12 });
    keys.aead().open_separate_gather(nonce, aad, content, tag, target).map_err(|_| forged)?;
    Ok(header.content_type)
}

/// Removes padding and type of a TLS 1.3 inner plaintext (RFC 8446 §5.4), which starts at `from`,
/// and checks its length. `content_type` is the one in the header; returns that of the content.
pub(crate) fn finish(
    suite: &Suite,
    content_type: u8,
    plaintext: &mut Vec<u8>,
    from: usize,
) -> Result<u8, RecordError> {
    let opened = &plaintext[from..];
    let type_bytes = usize::from(suite.is_13());
    if opened.len() > PLAINTEXT_BYTES_MAX + type_bytes {
        let explicit = if suite.explicit_nonce { EXPLICIT_NONCE_BYTES } else { 0 };
        return Err(RecordError::RecordOverflow { bytes: explicit + opened.len() + TAG_BYTES });
    }
    if !suite.is_13() {
        return Ok(content_type);
    }
    let Some(at) = opened.iter().rposition(|&byte| byte != 0) else {
        return Err(RecordError::UnexpectedMessage("a record without a content type"));
    };
    let inner_type = opened[at];
    plaintext.truncate(from + at);
    Ok(inner_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(version: u16, bytes: &[u8]) -> Result<Option<usize>, RecordError> {
        let number = if version == 0x0304 { 0x1301 } else { 0xc02b };
        let suite = Suite::find(version, number).unwrap();
        header(suite, bytes).map(|header| header.map(|header| header.record_bytes()))
    }

    #[test]
    fn headers_are_checked_before_the_payload_is_there() {
        for short in 0..5 {
            assert_eq!(check(0x0304, &[23, 3, 3, 0, 20][..short]), Ok(None));
        }
        assert_eq!(check(0x0304, &[23, 3, 3, 0, 1]), Ok(None));
        assert_eq!(check(0x0304, &[23, 3, 3, 0, 1, 0, 9]), Ok(Some(6)));
        assert_eq!(check(0x0304, &[23, 3, 3, 0x41, 0]), Ok(None));
        assert_eq!(
            check(0x0304, &[23, 3, 3, 0x41, 1]),
            Err(RecordError::RecordOverflow { bytes: 16641 })
        );
        assert_eq!(check(0x0304, &[23, 3, 4, 0, 1]), Err(RecordError::Version(0x0304)));
        for content_type in [0, 20, 21, 22, 24, 255] {
            assert!(matches!(
                check(0x0304, &[content_type, 3, 3, 0, 1]),
                Err(RecordError::UnexpectedMessage(_))
            ));
        }
        assert_eq!(check(0x0303, &[21, 3, 3, 0, 0]), Ok(Some(5)));
        assert!(check(0x0303, &[20, 3, 3, 0, 1]).is_err());
    }
}
