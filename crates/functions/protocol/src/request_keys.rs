//! Keys of a function's own, in the text of a REQUEST: its client signs with other keys than those
//! of the host.
//!
//! Debug output omits them, and so do the errors of [`RequestKeys::check`].

use std::fmt::{Debug, Formatter};

use serde::{Deserialize, Serialize};

use crate::request_error::RequestError;

/// Most bytes of an access key.
pub const ACCESS_KEY_BYTES_MAX: usize = 128;
/// Most bytes of a secret.
pub const SECRET_BYTES_MAX: usize = 128;
/// Most bytes of the token of a session.
pub const TOKEN_BYTES_MAX: usize = 8192;

/// The keys of a client that a function has made with keys of its own.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestKeys {
    /// The access key.
    pub access_key_id: String,
    /// The secret.
    pub secret_access_key: String,
    /// The token of a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_token: Option<String>,
}

impl Debug for RequestKeys {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("(keys)")
    }
}

impl RequestKeys {
    /// Refuses keys that are empty or too long, and those that do not fit a header field.
    ///
    /// # Errors
    /// The first such part, by its name.
    pub fn check(&self) -> Result<(), RequestError> {
        let parts = [
            ("access key", Some(&self.access_key_id), ACCESS_KEY_BYTES_MAX),
            ("secret access key", Some(&self.secret_access_key), SECRET_BYTES_MAX),
            ("session token", self.session_token.as_ref(), TOKEN_BYTES_MAX),
        ];
        for (what, part, limit) in parts {
            let Some(part) = part else { continue };
            if part.len() > limit {
                return Err(RequestError::TooLong { what, limit });
            }
            if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(RequestError::Malformed(what));
            }
        }
        // It follows `Credential=` in a list with commas.
        match self.access_key_id.contains([',', '=']) {
            true => Err(RequestError::Malformed("access key")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(id: &str, secret: &str, token: Option<&str>) -> RequestKeys {
        RequestKeys {
            access_key_id: id.to_owned(),
            secret_access_key: secret.to_owned(),
            session_token: token.map(str::to_owned),
        }
    }

    #[test]
    fn keys_are_bounded_and_fit_a_header_field() {
        let (id, token) = ("i".repeat(ACCESS_KEY_BYTES_MAX), "t".repeat(TOKEN_BYTES_MAX));
        let secret = "s/+=".repeat(SECRET_BYTES_MAX / 4);
        assert_eq!(keys(&id, &secret, Some(&token)).check(), Ok(()));
        assert_eq!(keys("i", "s", None).check(), Ok(()));
        for (long, what, limit) in [
            (keys(&format!("{id}i"), "s", None), "access key", 128),
            (keys("i", &format!("{secret}s"), None), "secret access key", 128),
            (keys("i", "s", Some(&format!("{token}t"))), "session token", 8192),
        ] {
            assert_eq!(long.check(), Err(RequestError::TooLong { what, limit }));
        }
        for wrong in ["", "a b", "a\r\nhost: b", "\0", "é", "\t"] {
            let malformed = |what| Err(RequestError::Malformed(what));
            assert_eq!(keys(wrong, "s", None).check(), malformed("access key"), "{wrong:?}");
            assert_eq!(keys("i", wrong, None).check(), malformed("secret access key"));
            assert_eq!(keys("i", "s", Some(wrong)).check(), malformed("session token"));
        }
        for list in ["a,b", "Signature=a"] {
            assert!(keys(list, "s", None).check().is_err(), "{list}");
        }
    }

    #[test]
    fn keys_are_not_shown() {
        let shown = format!("{:?}", keys("AKID", "hidden", Some("token")));
        assert_eq!(shown, "(keys)");
    }
}
