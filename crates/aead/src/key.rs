//! A key, and what is done with it.

use std::fmt;

use subtle::ConstantTimeEq;
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use crate::backend::Backend;
use crate::portable::{self, Cipher};
use crate::progress::{BLOCK_BYTES, Progress, tag_block};

/// A key cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Not of a size that is supported.
    #[error("a key of {0} octets; AES-GCM takes 16 or 32 here")]
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
    hash_key: [u8; BLOCK_BYTES],
}

enum Engine {
    Portable(Box<portable::Keys>),
}

impl Key {
    /// A key of 16 or 32 octets, for the fastest backend of this machine.
    ///
    /// # Errors
    /// [`KeyError::Length`].
    pub fn new(key: &[u8]) -> Result<Key, KeyError> {
        Key::with_backend(key, Backend::best())
    }

    /// A key of 16 or 32 octets, for this backend.
    ///
    /// # Errors
    /// [`KeyError::Length`]; [`KeyError::Unsupported`] where the machine cannot.
    pub fn with_backend(key: &[u8], backend: Backend) -> Result<Key, KeyError> {
        let cipher = Cipher::new(key).ok_or(KeyError::Length(key.len()))?;
        if !backend.is_supported() {
            return Err(KeyError::Unsupported(backend));
        }
        let hash_key = Zeroizing::new(cipher.block([0; BLOCK_BYTES]));
        let engine = match backend {
            Backend::Portable => Engine::Portable(Box::new(portable::Keys::new(cipher, &hash_key))),
        };
        Ok(Key { engine, hash_key: *hash_key })
    }

    /// The backend that it uses.
    pub fn backend(&self) -> Backend {
        match self.engine {
            Engine::Portable(_) => Backend::Portable,
        }
    }

    /// A message under `nonce`, which no other message under this key may have, with its additional
    /// data.
    pub fn begin(&self, nonce: &[u8; 12], aad: &[u8]) -> Progress {
        let mut at = Progress { whole: true, ..Progress::part(nonce, 0) };
        at.aad_bytes = aad.len() as u64;
        self.absorb(&mut at.hash, 0, aad);
        if !aad.len().is_multiple_of(BLOCK_BYTES) {
            let padding = [0; BLOCK_BYTES];
            let skip = aad.len() % BLOCK_BYTES;
            self.absorb(&mut at.hash, skip, &padding[skip..]);
        }
        at
    }

    /// Encrypts `data`, the next octets of the message, in place.
    ///
    /// # Panics
    /// The message would have more than [`DATA_BYTES_MAX`](crate::DATA_BYTES_MAX) octets. So with
    /// everything below that takes data.
    pub fn encrypt(&self, at: &mut Progress, data: &mut [u8]) {
        at.admit(data.len());
        let skip = at.skip();
        match &self.engine {
            Engine::Portable(keys) => {
                keys.cipher(at, data);
                keys.absorb(&mut at.hash, skip, data);
            }
        }
        at.offset += data.len() as u64;
    }

    /// Encrypts `plain`, the next octets of the message, to `sealed`.
    ///
    /// # Panics
    /// The lengths differ, or as [`Key::encrypt`].
    pub fn encrypt_to(&self, at: &mut Progress, plain: &[u8], sealed: &mut [u8]) {
        sealed.copy_from_slice(plain);
        self.encrypt(at, sealed);
    }

    /// Decrypts `data`, the next octets of the message, in place. They are not to be believed before
    /// [`Key::verify`].
    ///
    /// # Panics
    /// As [`Key::encrypt`].
    pub fn decrypt(&self, at: &mut Progress, data: &mut [u8]) {
        at.admit(data.len());
        let skip = at.skip();
        match &self.engine {
            Engine::Portable(keys) => {
                keys.absorb(&mut at.hash, skip, data);
                keys.cipher(at, data);
            }
        }
        at.offset += data.len() as u64;
    }

    /// Decrypts `sealed`, the next octets of the message, to `plain`.
    ///
    /// # Panics
    /// The lengths differ, or as [`Key::encrypt`].
    pub fn decrypt_to(&self, at: &mut Progress, sealed: &[u8], plain: &mut [u8]) {
        plain.copy_from_slice(sealed);
        self.decrypt(at, plain);
    }

    /// Passes over `sealed`, the next octets of the message, which nobody wants decrypted.
    ///
    /// # Panics
    /// As [`Key::encrypt`].
    pub fn authenticate(&self, at: &mut Progress, sealed: &[u8]) {
        at.admit(sealed.len());
        let skip = at.skip();
        self.absorb(&mut at.hash, skip, sealed);
        at.offset += sealed.len() as u64;
    }

    /// Encrypts or decrypts octets of the message under `nonce`, from `offset` on, in place, and
    /// authenticates nothing.
    ///
    /// # Panics
    /// As [`Key::encrypt`].
    pub fn keystream(&self, nonce: &[u8; 12], offset: u64, data: &mut [u8]) {
        let at = Progress::part(nonce, offset);
        at.admit(data.len());
        match &self.engine {
            Engine::Portable(keys) => keys.cipher(&at, data),
        }
    }

    /// The tag of the message, were `at` its end. More can follow nevertheless.
    ///
    /// # Panics
    /// `at` is a part without the message's begin.
    pub fn tag(&self, at: &Progress) -> Tag {
        assert!(at.is_whole(), "a part has no tag");
        let mut hash = at.hash;
        if at.skip() > 0 {
            let padding = [0; BLOCK_BYTES];
            self.absorb(&mut hash, at.skip(), &padding[at.skip()..]);
        }
        self.absorb(&mut hash, 0, &at.lengths());
        match &self.engine {
            Engine::Portable(keys) => portable::add(&mut hash, &keys.block(tag_block(&at.nonce))),
        }
        Tag(hash)
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
    /// part that starts where `first` ends, at any octet. As if the octets of `second` had been
    /// given after those of `first`. It takes time with the logarithm of the length of `second`.
    ///
    /// # Errors
    /// [`NotNeighbours`].
    pub fn combine(&self, first: &Progress, second: &Progress) -> Result<Progress, NotNeighbours> {
        if second.whole || first.offset != second.start || first.nonce != second.nonce {
            return Err(NotNeighbours);
        }
        // GHASH is linear in its state and its data: the state of `first` is multiplied as often as
        // blocks were completed since, and octets of a block that both share add up in it.
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

    fn absorb(&self, hash: &mut [u8; BLOCK_BYTES], skip: usize, data: &[u8]) {
        match &self.engine {
            Engine::Portable(keys) => keys.absorb(hash, skip, data),
        }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.hash_key.zeroize();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("backend", &self.backend()).finish_non_exhaustive()
    }
}
