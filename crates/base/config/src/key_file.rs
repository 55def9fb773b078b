//! Files with a secret of 16 bytes.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Permissions of users other than the owner.
const OTHERS: u32 = 0o077;
/// A longer file is no key.
const FILE_BYTES_MAX: u64 = 128;

/// Error of a key file, for the operator to resolve.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("key_file {}: {source}; make it with `openssl rand -hex 16`", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The permissions of the file include other users.
    #[error(
        "key_file {}: mode {mode:03o} lets other users read the key; `chmod 600` it",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The file has other contents.
    #[error(
        "key_file {}: it must have 32 hexadecimal digits; make it with `openssl rand -hex 16`",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
    },
}

/// Reads a file with 32 hexadecimal digits. Only its owner may have access to it.
///
/// # Errors
/// [`KeyFileError`]
pub fn read_key(path: &Path) -> Result<[u8; 16], KeyFileError> {
    let unreadable = |source| KeyFileError::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.permissions().mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(KeyFileError::Exposed { path: path.to_owned(), mode });
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(unreadable)?;
    parse(text.trim_ascii()).ok_or_else(|| KeyFileError::Malformed { path: path.to_owned() })
}

fn parse(text: &[u8]) -> Option<[u8; 16]> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let mut key = [0; 16];
    if text.len() != 2 * key.len() {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(text.chunks_exact(2)) {
        *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, mode: u32) -> Result<[u8; 16], String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        read_key(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_of_its_owner_is_read() {
        let text = "000102030405060708090a0b0c0d0EfF\n";
        let key = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert_eq!(read(text, 0o600), Ok(key));
        assert_eq!(read(text, 0o400), Ok(key));
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
        let error = read_key(Path::new("/nonexistent/rules.key")).unwrap_err().to_string();
        assert!(error.starts_with("key_file /nonexistent/rules.key: No such file"), "{error}");
    }
}
