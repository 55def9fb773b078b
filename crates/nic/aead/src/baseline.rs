//! aws-lc's incremental AES-GCM (its EVP interface), as a baseline for measurements: it is the
//! fastest available alternative for records in chunks. Only with the feature `baseline`.

use std::ffi::c_int;
use std::ptr;

use aws_lc_sys as aws;

use crate::key::KeyError;

/// A key of aws-lc for one direction.
#[derive(Debug)]
pub struct AwsLc {
    context: *mut aws::EVP_CIPHER_CTX,
    seal: c_int,
}

impl AwsLc {
    /// Creates a key of 16 or 32 bytes, for sealing or for opening.
    ///
    /// # Errors
    /// [`KeyError::Length`].
    ///
    /// # Panics
    /// aws-lc cannot allocate memory.
    pub fn new(key: &[u8], seal: bool) -> Result<AwsLc, KeyError> {
        let seal = c_int::from(seal);
        // SAFETY: the cipher matches the key length, and the key's bytes are copied; the nonce is
        // set later.
        unsafe {
            let cipher = match key.len() {
                16 => aws::EVP_aes_128_gcm(),
                32 => aws::EVP_aes_256_gcm(),
                other => return Err(KeyError::Length(other)),
            };
            let context = aws::EVP_CIPHER_CTX_new();
            assert!(!context.is_null(), "aws-lc has memory");
            let (key, none) = (key.as_ptr(), ptr::null());
            let done = aws::EVP_CipherInit_ex(context, cipher, ptr::null_mut(), key, none, seal);
            assert_eq!(done, 1, "aws-lc takes the key");
            Ok(AwsLc { context, seal })
        }
    }

    /// Seals or opens a record in place, in chunks of `piece_bytes`, and returns the computed tag.
    /// When it opens, the tag is compared with a zero tag, which takes as long as with the correct
    /// one.
    ///
    /// # Panics
    /// `piece_bytes` is 0, or aws-lc rejects a chunk.
    pub fn record(
        &mut self,
        nonce: &[u8; 12],
        aad: &[u8],
        data: &mut [u8],
        piece_bytes: usize,
    ) -> [u8; 16] {
        let mut tag = [0_u8; 16];
        let mut done = 0;
        let (context, none) = (self.context, ptr::null());
        // SAFETY: the context is valid, and so are the slices for their lengths; in-place
        // operation is allowed.
        unsafe {
            let (cipher, engine) = (ptr::null(), ptr::null_mut());
            aws::EVP_CipherInit_ex(context, cipher, engine, none, nonce.as_ptr(), self.seal);
            let aad_bytes = aad.len() as c_int;
            aws::EVP_CipherUpdate(context, ptr::null_mut(), &mut done, aad.as_ptr(), aad_bytes);
            for piece in data.chunks_mut(piece_bytes) {
                let (to, bytes) = (piece.as_mut_ptr(), piece.len() as c_int);
                let updated = aws::EVP_CipherUpdate(context, to, &mut done, to, bytes);
                assert_eq!(updated, 1, "aws-lc takes the piece");
            }
            if self.seal == 1 {
                aws::EVP_CipherFinal_ex(context, tag.as_mut_ptr(), &mut done);
                let get = aws::EVP_CTRL_AEAD_GET_TAG as c_int;
                aws::EVP_CIPHER_CTX_ctrl(context, get, 16, tag.as_mut_ptr().cast());
            } else {
                let set = aws::EVP_CTRL_AEAD_SET_TAG as c_int;
                aws::EVP_CIPHER_CTX_ctrl(context, set, 16, tag.as_mut_ptr().cast());
                aws::EVP_CipherFinal_ex(context, tag.as_mut_ptr(), &mut done);
            }
        }
        tag
    }
}

impl Drop for AwsLc {
    fn drop(&mut self) {
        // SAFETY: the context was created by `new`, and is freed once.
        unsafe { aws::EVP_CIPHER_CTX_free(self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    #[test]
    fn it_seals_as_the_others_do() {
        for key_bytes in [16, 32] {
            let secret = vec![5; key_bytes];
            let plain: Vec<u8> = (0..5000_u32).map(|byte| byte as u8).collect();
            let mut theirs = plain.clone();
            let mut context = AwsLc::new(&secret, true).unwrap();
            let tag = context.record(&[9; 12], b"aad", &mut theirs, 1448);
            let key = Key::new(&secret).unwrap();
            let mut at = key.begin(&[9; 12], b"aad");
            let mut ours = plain;
            key.encrypt(&mut at, &mut ours);
            assert_eq!(ours, theirs);
            assert_eq!(key.tag(&at).0, tag);
        }
        assert_eq!(AwsLc::new(&[0; 24], true).unwrap_err(), KeyError::Length(24));
    }
}
