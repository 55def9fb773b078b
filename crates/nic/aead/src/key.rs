//! A key, and what is done with it.

use std::fmt;

use subtle::ConstantTimeEq;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::backend::{Backend, mode};
use crate::engine::{Engine, Piece};
use crate::portable;
use crate::progress::{BLOCK_BYTES, Progress};

/// A key cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Not of a size that is supported.
    #[error("a key of {0} bytes; AES-GCM takes 16 or 32 here")]
    Length(usize),
    /// The instructions of that backend are not there.
    #[error("this machine has no {0:?}; use Backend::best()")]
    Unsupported(Backend),
}

/// The tag is not that of the message: somebody has changed it, or the key is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the tag does not fit the message")]
pub struct Forged;

/// The second part does not begin where the first one ends, or is of another message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the parts are not neighbours in one message")]
pub struct NotNeighbours;

/// The tag of a message; comparing two takes the same time whatever is in them.
#[derive(Clone, Copy, Debug)]
pub struct Tag(pub [u8; BLOCK_BYTES]);

impl PartialEq for Tag {
    fn eq(&self, other: &Tag) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Tag {}

/// An AES-128 or AES-256 key, expanded, with powers of its hash key. It is zeroised when dropped,
/// and not printed.
pub struct Key {
    engine: Engine,
    /// H of SP 800-38D: the zero block, encrypted.
    hash_key: Zeroizing<[u8; BLOCK_BYTES]>,
}

impl Key {
    /// A key of 16 or 32 bytes, for the fastest backend of this machine.
    ///
    /// # Errors
    /// [`KeyError::Length`].
    pub fn new(key: &[u8]) -> Result<Key, KeyError> {
        Key::with_backend(key, Backend::best())
    }

    /// A key of 16 or 32 bytes, for this backend.
    ///
    /// # Errors
    /// [`KeyError::Length`]; [`KeyError::Unsupported`] where the machine cannot.
    pub fn with_backend(key: &[u8], backend: Backend) -> Result<Key, KeyError> {
        if !matches!(key.len(), 16 | 32) {
            return Err(KeyError::Length(key.len()));
        }
        let (engine, hash_key) = Engine::new(key, backend).ok_or(KeyError::Unsupported(backend))?;
        Ok(Key { engine, hash_key })
    }

    /// The backend that it uses.
    pub fn backend(&self) -> Backend {
        self.engine.backend()
    }

    /// A message under `nonce`, which no other message under this key may have, with its additional
    /// data.
    pub fn begin(&self, nonce: &[u8; 12], aad: &[u8]) -> Progress {
        let aad_bytes = aad.len() as u64;
        let hash = self.engine.begin(aad);
        Progress { hash, whole: true, aad_bytes, ..Progress::part(nonce, 0) }
    }

    /// Encrypts `data`, the next bytes of the message, in place.
    ///
    /// # Panics
    /// The message would have more than [`DATA_BYTES_MAX`](crate::DATA_BYTES_MAX) bytes. So with
    /// everything below that takes data.
    pub fn encrypt(&self, at: &mut Progress, data: &mut [u8]) {
        self.engine.run::<{ mode::ENCRYPT }>(at, Piece::InPlace(data));
    }

    /// Encrypts `plain`, the next bytes of the message, to `sealed`.
    ///
    /// # Panics
    /// The lengths differ, or as [`Key::encrypt`].
    pub fn encrypt_to(&self, at: &mut Progress, plain: &[u8], sealed: &mut [u8]) {
        self.engine.run::<{ mode::ENCRYPT }>(at, Piece::Between(plain, sealed));
    }

    /// Decrypts `data`, the next bytes of the message, in place. They are not to be believed before
    /// [`Key::verify`].
    ///
    /// # Panics
    /// As [`Key::encrypt`].
    pub fn decrypt(&self, at: &mut Progress, data: &mut [u8]) {
        self.engine.run::<{ mode::DECRYPT }>(at, Piece::InPlace(data));
    }

    /// Decrypts `sealed`, the next bytes of the message, to `plain`.
    ///
    /// # Panics
    /// The lengths differ, or as [`Key::encrypt`].
    pub fn decrypt_to(&self, at: &mut Progress, sealed: &[u8], plain: &mut [u8]) {
        self.engine.run::<{ mode::DECRYPT }>(at, Piece::Between(sealed, plain));
    }

    /// Passes over `sealed`, the next bytes of the message, which nobody wants decrypted.
    ///
    /// # Panics
    /// As [`Key::encrypt`].
    pub fn authenticate(&self, at: &mut Progress, sealed: &[u8]) {
        self.engine.run::<{ mode::AUTHENTICATE }>(at, Piece::Read(sealed));
    }

    /// Encrypts or decrypts bytes of the message under `nonce`, from `offset` on, in place, and
    /// authenticates nothing.
    ///
    /// # Panics
    /// As [`Key::encrypt`].
    pub fn keystream(&self, nonce: &[u8; 12], offset: u64, data: &mut [u8]) {
        let mut at = Progress::part(nonce, offset);
        self.engine.run::<{ mode::KEYSTREAM }>(&mut at, Piece::InPlace(data));
    }

    /// The tag of the message, were `at` its end. More can follow nevertheless.
    ///
    /// # Panics
    /// `at` is a part without the message's begin.
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

    /// Puts two neighbours together: `first`, a begun message or a part of one, and `second`, the
    /// part that starts where `first` ends, at any byte. As if the bytes of `second` had been
    /// given after those of `first`. It takes time with the logarithm of the length of `second`.
    ///
    /// # Errors
    /// [`NotNeighbours`].
    pub fn combine(&self, first: &Progress, second: &Progress) -> Result<Progress, NotNeighbours> {
        if second.whole || first.offset != second.start || first.nonce != second.nonce {
            return Err(NotNeighbours);
        }
        // GHASH is linear in its state and its data: the state of `first` is multiplied as often as
        // blocks were completed since, and bytes of a block that both share add up in it.
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
