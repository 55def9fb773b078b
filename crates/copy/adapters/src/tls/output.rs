//! Encoding of records to send. rustls writes into a slice, and reports the required length.

use rustls::unbuffered::{EncodeError, EncodeTlsData, EncryptError, WriteTraffic};

use super::TlsError;

/// Maximum overhead of a record, and of a KeyUpdate before it.
const SEALED_EXTRA_BYTES: usize = 256;

/// Appends a handshake message to `output`.
pub(super) fn encode<D>(
    mut message: EncodeTlsData<'_, D>,
    output: &mut Vec<u8>,
) -> Result<(), TlsError> {
    let from = output.len();
    let needed = match message.encode(&mut []) {
        Ok(_) => return Ok(()),
        Err(EncodeError::InsufficientSize(error)) => error.required_size,
        Err(EncodeError::AlreadyEncoded) => return Ok(()),
    };
    output.resize(from + needed, 0);
    match message.encode(&mut output[from..]) {
        Ok(count) => output.truncate(from + count),
        Err(error) => return Err(rustls::Error::General(error.to_string()).into()),
    }
    Ok(())
}

/// Appends a record with `plaintext` to `output`.
pub(super) fn seal<D>(
    traffic: &mut WriteTraffic<'_, D>,
    plaintext: &[u8],
    output: &mut Vec<u8>,
) -> Result<(), TlsError> {
    append(plaintext.len(), output, |out| traffic.encrypt(plaintext, out))
}

/// Appends close_notify to `output`.
pub(super) fn close<D>(
    traffic: &mut WriteTraffic<'_, D>,
    output: &mut Vec<u8>,
) -> Result<(), TlsError> {
    append(0, output, |out| traffic.queue_close_notify(out))
}

/// Appends to `output` the result of `write` for `bytes` bytes of plaintext.
fn append(
    bytes: usize,
    output: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncryptError>,
) -> Result<(), TlsError> {
    let from = output.len();
    let mut needed = bytes + SEALED_EXTRA_BYTES;
    loop {
        output.resize(from + needed, 0);
        match write(&mut output[from..]) {
            Ok(count) => {
                output.truncate(from + count);
                return Ok(());
            }
            Err(EncryptError::InsufficientSize(error)) if error.required_size > needed => {
                needed = error.required_size;
            }
            Err(error) => {
                output.truncate(from);
                return Err(rustls::Error::General(error.to_string()).into());
            }
        }
    }
}
