//! Input of a handshake: records, opened once there is a key, and messages in them.

use crate::control::{self, Alert};
use crate::deframe;
use crate::error::RecordError;
use crate::keys::Keys;
use crate::psk::error::PskError;
use crate::record::{ALERT, APPLICATION_DATA, HANDSHAKE, HEADER_BYTES, PLAINTEXT_BYTES_MAX};
use crate::seal;

/// Most bytes that a peer may send before the end of the handshake.
pub(super) const HANDSHAKE_BYTES_MAX: usize = 32 * 1024;
/// Longest handshake message.
const MESSAGE_BYTES_MAX: usize = 1 << 14;
/// Most records without content, and ChangeCipherSpecs, which some peers send for old middleboxes.
const IDLE_RECORDS_MAX: u32 = 4;
const CHANGE_CIPHER_SPEC: u8 = 20;

/// Received bytes that are not consumed.
#[derive(Default)]
pub(super) struct MessageReader {
    incoming: Vec<u8>,
    /// Handshake messages from the records.
    messages: Vec<u8>,
    keys: Option<Keys>,
    seen_bytes: usize,
    idle_records: u32,
}

impl MessageReader {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
    }

    /// The next complete message with its header, if there is one.
    pub(super) fn message(&mut self) -> Result<Option<Vec<u8>>, PskError> {
        loop {
            if let Some(message) = self.split_message()? {
                return Ok(Some(message));
            }
            let Some(record_bytes) = self.record_bytes()? else { return Ok(None) };
            self.seen_bytes += record_bytes;
            if self.seen_bytes > HANDSHAKE_BYTES_MAX {
                return Err(PskError::TooMuchInput { bytes: self.seen_bytes });
            }
            self.take_record(record_bytes)?;
            self.incoming.drain(..record_bytes);
        }
    }

    fn split_message(&mut self) -> Result<Option<Vec<u8>>, PskError> {
        let Some(&[_, high, middle, low]) = self.messages.first_chunk::<4>() else {
            return Ok(None);
        };
        let bytes = 4 + u32::from_be_bytes([0, high, middle, low]) as usize;
        if bytes > MESSAGE_BYTES_MAX {
            return Err(PskError::decode("a handshake message above the limit"));
        }
        if self.messages.len() < bytes {
            return Ok(None);
        }
        let rest = self.messages.split_off(bytes);
        Ok(Some(core::mem::replace(&mut self.messages, rest)))
    }

    /// Length of the first record, if it is complete; its header is checked at once.
    fn record_bytes(&self) -> Result<Option<usize>, PskError> {
        let Some(&[content_type, major, _, high, low]) =
            self.incoming.first_chunk::<HEADER_BYTES>()
        else {
            return match self.incoming.first() {
                Some(&first) if !(20..=23).contains(&first) => Err(PskError::NotTls(first)),
                _ => Ok(None),
            };
        };
        if !(20..=23).contains(&content_type) || major != 3 {
            return Err(PskError::NotTls(content_type));
        }
        let bytes = usize::from(u16::from_be_bytes([high, low]));
        if bytes > deframe::CIPHERTEXT_BYTES_MAX {
            return Err(RecordError::RecordOverflow { bytes }.into());
        }
        Ok((self.incoming.len() >= HEADER_BYTES + bytes).then_some(HEADER_BYTES + bytes))
    }

    fn take_record(&mut self, record_bytes: usize) -> Result<(), PskError> {
        let record = &self.incoming[..record_bytes];
        let payload = &record[HEADER_BYTES..];
        match (record[0], &mut self.keys) {
            (CHANGE_CIPHER_SPEC, _) if payload == [1] => return self.idle(),
            (ALERT, _) => return received_alert(payload),
            (HANDSHAKE, None) => self.messages.extend_from_slice(payload),
            (APPLICATION_DATA, Some(keys)) => {
                let mut content = Vec::new();
                let header = deframe::header(keys.suite(), record)?
                    .ok_or(PskError::Internal("a record that is there is not"))?;
                let inner = deframe::open(keys, header, record, &mut content)?;
                keys.advance();
                match inner {
                    ALERT => return received_alert(&content),
                    HANDSHAKE if content.is_empty() => return self.idle(),
                    HANDSHAKE => self.messages.append(&mut content),
                    _ => return Err(PskError::unexpected("data before the handshake's end")),
                }
            }
            _ => return Err(PskError::unexpected("a record out of place in the handshake")),
        }
        if payload.is_empty() { self.idle() } else { Ok(()) }
    }

    fn idle(&mut self) -> Result<(), PskError> {
        self.idle_records += 1;
        if self.idle_records > IDLE_RECORDS_MAX {
            return Err(PskError::unexpected("too many records without content"));
        }
        Ok(())
    }

    /// Protects records from here on. A key changes between records (RFC 8446 §5.1).
    pub(super) fn protect(&mut self, keys: Keys) -> Result<(), PskError> {
        self.at_boundary()?;
        self.keys = Some(keys);
        Ok(())
    }

    /// Checks that no part of a message remains, as required at a change of keys.
    pub(super) fn at_boundary(&self) -> Result<(), PskError> {
        if self.messages.is_empty() {
            return Ok(());
        }
        Err(PskError::unexpected("a message on both sides of a change of keys"))
    }

    /// The bytes after the handshake.
    pub(super) fn into_leftover(self) -> Vec<u8> {
        self.incoming
    }
}

fn received_alert(content: &[u8]) -> Result<(), PskError> {
    match control::alert(true, content) {
        Ok(Alert::Warning) => Ok(()),
        Ok(Alert::CloseNotify) => Err(PskError::Refused(0)),
        Err(RecordError::AlertReceived(alert)) => Err(PskError::Refused(alert)),
        Err(error) => Err(error.into()),
    }
}

/// Appends a handshake message in the clear.
pub(super) fn send_plain(message: &[u8], out: &mut Vec<u8>) {
    for content in message.chunks(PLAINTEXT_BYTES_MAX) {
        out.extend_from_slice(&[HANDSHAKE, 3, 3]);
        out.extend_from_slice(&(content.len() as u16).to_be_bytes());
        out.extend_from_slice(content);
    }
}

/// Appends the record without meaning that middleboxes require (RFC 8446 §D.4).
pub(super) fn send_change_cipher_spec(out: &mut Vec<u8>) {
    out.extend_from_slice(&[CHANGE_CIPHER_SPEC, 3, 3, 0, 1, 1]);
}

/// Appends handshake messages under `keys`.
pub(super) fn send_protected(
    keys: &mut Keys,
    messages: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), RecordError> {
    seal::append_record(keys, HANDSHAKE, messages, out)
}

/// Appends the alert with the reason for the end of the handshake.
pub(super) fn send_alert(keys: Option<&mut Keys>, error: &PskError, out: &mut Vec<u8>) {
    let Some(description) = error.alert() else { return };
    let content = [control::FATAL, description];
    match keys {
        // Without a usable key only the end of the connection can signal it.
        Some(keys) => drop(seal::append_record(keys, ALERT, &content, out)),
        None => {
            out.extend_from_slice(&[ALERT, 3, 3, 0, 2]);
            out.extend_from_slice(&content);
        }
    }
}
