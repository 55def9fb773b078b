//! The text of a CALL (`docs/guest-protocol.md`): the operation and its parameters.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Most bytes of a body that follows the text.
pub const INLINE_BYTES_MAX: usize = 4096;
/// Most bytes of the text of a CALL: the usual size of a guest's meta arena. It is sufficient for
/// a thousand names of objects to delete, or for thousands of an upload's parts.
pub const TEXT_BYTES_MAX: usize = 512 * 1024;

/// The reason why a CALL's text was refused. The guest is at fault.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// It is not JSON of this form.
    #[error("the call's text: {0}")]
    Text(#[from] serde_json::Error),
    /// It is longer than [`TEXT_BYTES_MAX`].
    #[error("the call's text has {0} bytes, more than {TEXT_BYTES_MAX}")]
    TooLong(usize),
    /// The body after the text has not the announced length, or is too long for this place.
    #[error("{found} bytes behind the call's text, {due} announced")]
    Inline {
        /// The length found.
        found: usize,
        /// The length announced.
        due: u64,
    },
}

/// A call of a guest.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// `s3`.
    pub service: String,
    /// `GetObject`.
    pub operation: String,
    /// The parameters, with the names of the API.
    #[serde(default)]
    pub parameters: Map<String, Value>,
    /// Length of the whole body.
    #[serde(default)]
    pub body_bytes: u64,
    /// True if the body follows the text.
    #[serde(default)]
    pub inline: bool,
    /// The region of the function's client.
    #[serde(default)]
    pub region: Option<String>,
    /// True if the function wants no signature: only public objects are accessible.
    #[serde(default)]
    pub unsigned: bool,
    /// The number of the call that this one repeats on the host's request.
    #[serde(default)]
    pub again: Option<u64>,
}

impl Call {
    /// Decodes the meta of a CALL: the call, and the body after its text.
    ///
    /// # Errors
    /// The meta is invalid. The guest is at fault; the call is refused.
    pub fn decode(meta: &[u8]) -> Result<(Call, &[u8]), CallError> {
        let (text, inline) = match meta.iter().position(|&byte| byte == 0) {
            Some(at) => (&meta[..at], &meta[at + 1..]),
            None => (meta, &[][..]),
        };
        if text.len() > TEXT_BYTES_MAX {
            return Err(CallError::TooLong(text.len()));
        }
        let call: Call = serde_json::from_slice(text)?;
        let due = if call.inline { call.body_bytes } else { 0 };
        if inline.len() as u64 != due || inline.len() > INLINE_BYTES_MAX {
            return Err(CallError::Inline { found: inline.len(), due });
        }
        Ok((call, inline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_behind_the_text_or_nowhere() {
        let text = |more: &str| {
            format!(r#"{{"service":"s3","operation":"PutObject","parameters":{{}}{more}}}"#)
        };
        let inline = text(r#","inline":true,"body_bytes":3"#) + "\0abc";
        let (call, body) = Call::decode(inline.as_bytes()).unwrap();
        assert_eq!((call.operation.as_str(), body), ("PutObject", &b"abc"[..]));
        let short = text(r#","inline":true,"body_bytes":4"#) + "\0abc";
        assert!(Call::decode(short.as_bytes()).is_err());
        let without = text(r#","body_bytes":70000"#);
        assert_eq!(Call::decode(without.as_bytes()).unwrap().0.body_bytes, 70000);
        assert!(Call::decode((without + "\0abc").as_bytes()).is_err());
        assert!(Call::decode(text(r#","other":1"#).as_bytes()).is_err());
        assert!(Call::decode(b"\0").is_err());
    }

    #[test]
    fn long_lists_of_parameters_are_understood_up_to_a_limit() {
        let deletion = |key_bytes: usize| {
            let key = format!(r#"{{"Key":"{}"}}"#, "k".repeat(key_bytes));
            let list = vec![key.as_str(); 1000].join(",");
            let head = r#"{"service":"s3","operation":"DeleteObjects","parameters":{"Objects":["#;
            format!("{head}{list}]}}}}")
        };
        let call = Call::decode(deletion(200).as_bytes()).unwrap().0;
        assert_eq!(call.parameters["Objects"].as_array().unwrap().len(), 1000);
        let too_long = deletion(TEXT_BYTES_MAX / 1000);
        assert!(matches!(Call::decode(too_long.as_bytes()), Err(CallError::TooLong(_))));
    }
}
