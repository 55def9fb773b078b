//! The secret of the rules.

use std::fmt;
use std::path::Path;

use unlade_splice::datagram::Key;
use unlade_steering::direct::KEYS_MAX;

use crate::error::AgentError;

/// The secret that balancers and this host share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Reads the file.
    ///
    /// # Errors
    /// [`AgentError::Key`]
    pub fn read(path: &Path) -> Result<Secret, AgentError> {
        Ok(Secret(unlade_config::read_key(path)?))
    }

    /// Returns the secret under every number. A balancer uses the last byte of its address as the
    /// number, so that each one has datagram numbers of its own.
    pub fn keys(self) -> impl Iterator<Item = Key> {
        (0..KEYS_MAX).map(move |number| Key { number, secret: self.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_balancer_has_a_key() {
        let keys: Vec<Key> = Secret([7; 16]).keys().collect();
        assert_eq!(keys.len(), 256);
        assert!(
            (0..).zip(keys).all(|(n, key): (u32, Key)| (key.number, key.secret) == (n, [7; 16]))
        );
    }
}
