//! The file with the secret of the rules: 32 hexadecimal digits.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use unlade_splice::datagram::Key;
use unlade_steering::direct::KEYS_MAX;

use crate::error::AgentError;

/// Permissions of users other than the owner.
const OTHERS: u32 = 0o077;
/// A longer file is no key.
const FILE_BYTES_MAX: u64 = 128;

/// The secret that balancers and this host share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Reads the file. Only its owner may have access to it.
    ///
    /// # Errors
    /// [`AgentError::KeyUnreadable`], [`AgentError::KeyExposed`], [`AgentError::KeyMalformed`].
    pub fn read(path: &Path) -> Result<Secret, AgentError> {
        let unreadable = |source| AgentError::KeyUnreadable { path: path.to_owned(), source };
        let file = File::open(path).map_err(unreadable)?;
        let mode = file.metadata().map_err(unreadable)?.permissions().mode() & 0o777;
        if mode & OTHERS != 0 {
            return Err(AgentError::KeyExposed { path: path.to_owned(), mode });
        }
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(unreadable)?;
        parse(text.trim_ascii()).ok_or_else(|| AgentError::KeyMalformed { path: path.to_owned() })
    }

    /// Returns the secret under every number. A balancer uses the last byte of its address as the
    /// number, so that each one has datagram numbers of its own.
    pub fn keys(self) -> impl Iterator<Item = Key> {
        (0..KEYS_MAX).map(move |number| Key { number, secret: self.0 })
    }
}

fn parse(text: &[u8]) -> Option<Secret> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let mut secret = [0; 16];
    if text.len() != 2 * secret.len() {
        return None;
    }
    for (byte, digits) in secret.iter_mut().zip(text.chunks_exact(2)) {
        *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
    }
    Some(Secret(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, mode: u32) -> Result<Secret, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        Secret::read(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_of_its_owner_is_read() {
        let text = "000102030405060708090a0b0c0d0EfF\n";
        let keys: Vec<Key> = read(text, 0o600).unwrap().keys().collect();
        assert_eq!(keys.len(), 256);
        for (number, key) in (0..).zip(keys) {
            assert_eq!(key.number, number);
            assert_eq!(key.secret, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        }
        assert!(read(text, 0o400).is_ok());
    }

    #[test]
    fn other_files_are_refused() {
        let key = "0".repeat(32);
        for mode in [0o640, 0o604, 0o620] {
            let error = read(&key, mode).unwrap_err();
            assert!(error.contains("lets other users read the key"), "{error}");
        }
        for text in ["", &key[1..], &format!("{key}0"), &key.replacen('0', "g", 1)] {
            let error = read(text, 0o600).unwrap_err();
            assert!(error.contains("must have 32 hexadecimal digits"), "{error}");
        }
        let error = Secret::read(Path::new("/nonexistent/rules.key")).unwrap_err().to_string();
        assert!(error.starts_with("key_file /nonexistent/rules.key: No such file"), "{error}");
    }
}
