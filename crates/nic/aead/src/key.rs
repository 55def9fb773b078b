//! Keys, and the operations on a message.

use std::fmt;

use subtle::ConstantTimeEq;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::backend::{Backend, mode};
use crate::chunk::Chunk;
use crate::engine::Engine;
use crate::portable;
use crate::progress::{BLOCK_BYTES, Progress};

/// Error in the creation of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Unsupported key length.
    #[error("a key of {0} bytes; AES-GCM takes 16 or 32 here")]
    Length(usize),
    /// The processor lacks the instructions of the backend.
    #[error("this machine has no {0:?}; use Backend::best()")]
    Unsupported(Backend),
}

/// The tag does not match: the message was changed, or the key is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the tag does not fit the message")]
pub struct Forged;

/// The second part does not start where the first one ends, or belongs to another message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the parts are not neighbours in one message")]
pub struct NotNeighbours;

/// The tag of a message; comparison takes constant time.
#[derive(Clone, Copy, Debug)]
pub struct Tag(pub [u8; BLOCK_BYTES]);

impl PartialEq for Tag {
    fn eq(&self, other: &Tag) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Tag {}

/// An expanded AES-128 or AES-256 key, with powers of its hash key. It is zeroised on drop, and
/// not printed.
pub struct Key {
    engine: Engine,
    /// H of SP 800-38D: the encrypted zero block.
    hash_key: Zeroizing<[u8; BLOCK_BYTES]>,
}

impl Key {
    /// Creates a key of 16 or 32 bytes, for the fastest backend of this machine.
    ///
    /// # Errors
    /// [`KeyError::Length`].
    pub fn new(key: &[u8]) -> Result<Key, KeyError> {
        Key::with_backend(key, Backend::best())
    }

    /// Creates a key of 16 or 32 bytes, for the given backend.
    ///
    /// # Errors
    /// [`KeyError::Length`]; [`KeyError::Unsupported`] if the machine does not support the
    /// backend.
    pub fn with_backend(key: &[u8], backend: Backend) -> Result<Key, KeyError> {
        if !matches!(key.len(), 16 | 32) {
            return Err(KeyError::Length(key.len()));
        }
        let (engine, hash_key) = Engine::new(key, backend).ok_or(KeyError::Unsupported(backend))?;
        Ok(Key { engine, hash_key })
    }

    /// The backend.
    pub fn backend(&self) -> Backend {
        self.engine.backend()
    }

    /// Starts a message under `nonce`, which must be unique for this key, with its additional
    /// data.
    pub fn begin(&self, nonce: &[u8; 12], aad: &[u8]) -> Progress {
        let aad_bytes = aad.len() as u64;
        let hash = self.engine.begin(aad);
        Progress { hash, whole: true, aad_bytes, ..Progress::part(nonce, 0) }
    }

    /// Encrypts `data`, the next bytes of the message, in place.
    ///
    /// # Panics
    /// The message would exceed [`DATA_BYTES_MAX`](crate::DATA_BYTES_MAX) bytes. This applies to
    /// all methods below that take data.
    pub fn encrypt(&self, at: &mut Progress, data: &mut [u8]) {
        self.engine.run::<{ mode::ENCRYPT }>(at, Chunk::InPlace(data));
    }

    /// Encrypts `plain`, the next bytes of the message, to `sealed`.
    ///
    /// # Panics
    /// The lengths differ, or as [`Key::encrypt`].
    pub fn encrypt_to(&self, at: &mut Progress, plain: &[u8], sealed: &mut [u8]) {
        self.engine.run::<{ mode::ENCRYPT }>(at, Chunk::Between(plain, sealed));
    }

    /// Decrypts `data`, the next bytes of the message, in place. They must not be used before
    /// [`Key::verify`].
    ///
    /// # Panics
    /// As [`Key::encrypt`].
    pub fn decrypt(&self, at: &mut Progress, data: &mut [u8]) {
        self.engine.run::<{ mode::DECRYPT }>(at, Chunk::InPlace(data));
    }

    /// Decrypts `sealed`, the next bytes of the message, to `plain`.
    ///
    /// # Panics
    /// The lengths differ, or as [`Key::encrypt`].
    pub fn decrypt_to(&self, at: &mut Progress, sealed: &[u8], plain: &mut [u8]) {
        self.engine.run::<{ mode::DECRYPT }>(at, Chunk::Between(sealed, plain));
    }

    /// Authenticates `sealed`, the next bytes of the message, without decryption.
    ///
    /// # Panics
    /// As [`Key::encrypt`].
    pub fn authenticate(&self, at: &mut Progress, sealed: &[u8]) {
        self.engine.run::<{ mode::AUTHENTICATE }>(at, Chunk::Read(sealed));
    }

    /// Encrypts or decrypts bytes of the message under `nonce`, from `offset` on, in place,
    /// without authentication.
    ///
    /// # Panics
    /// As [`Key::encrypt`].
    pub fn keystream(&self, nonce: &[u8; 12], offset: u64, data: &mut [u8]) {
        let mut at = Progress::part(nonce, offset);
        self.engine.run::<{ mode::KEYSTREAM }>(&mut at, Chunk::InPlace(data));
    }

    /// The tag of a message that ends at `at`. More bytes may follow.
    ///
    /// # Panics
    /// `at` is a part without the start of the message.
    pub fn tag(&self, at: &Progress) -> Tag {
        assert!(at.is_whole(), "a part has no tag");
        Tag(self.engine.tag(at))
    }

    /// Compares `tag` with that of the message that ends at `at`.
    ///
    /// # Errors
    /// [`Forged`].
    ///
    /// # Panics
    /// As [`Key::tag`].
    pub fn verify(&self, at: &Progress, tag: &[u8; 16]) -> Result<(), Forged> {
        match self.tag(at) == Tag(*tag) {
            true => Ok(()),
            false => Err(Forged),
        }
    }

    /// Combines two adjacent parts: `first`, a started message or a part of one, and `second`, the
    /// part that starts where `first` ends, at any byte. The result is as if the bytes of `second`
    /// had followed those of `first`. The time is logarithmic in the length of `second`.
    ///
    /// # Errors
    /// [`NotNeighbours`].
    pub fn combine(&self, first: &Progress, second: &Progress) -> Result<Progress, NotNeighbours> {
        if second.whole || first.offset != second.start || first.nonce != second.nonce {
            return Err(NotNeighbours);
        }
        // GHASH is linear in its state and its data: the state of `first` is multiplied once for
        // each block completed since, and the bytes of a block that both share add up in it.
        let block_bytes = BLOCK_BYTES as u64;
        let blocks = second.offset / block_bytes - second.start / block_bytes;
        let mut hash = first.hash;
        if blocks > 0 {
            let power = Zeroizing::new(portable::power(&self.hash_key, blocks));
            hash = portable::product(&power, &hash);
        }
        portable::add(&mut hash, &second.hash);
        Ok(Progress { hash, offset: second.offset, ..*first })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("backend", &self.backend()).finish_non_exhaustive()
    }
}
