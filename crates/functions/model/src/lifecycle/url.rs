//! A URL of a function or an alias, at which callers without an SDK invoke it.

use serde::{Deserialize, Serialize};
use unlade_fn_http_event::Cors;

use crate::lambda::Refusal;

/// The authentication of a URL's callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UrlAuth {
    /// Everyone whom the resource policy allows.
    #[serde(rename = "NONE")]
    None,
    /// Callers that sign their requests.
    #[serde(rename = "AWS_IAM")]
    Iam,
}

impl UrlAuth {
    /// The name in Lambda's API.
    pub fn as_str(self) -> &'static str {
        match self {
            UrlAuth::None => "NONE",
            UrlAuth::Iam => "AWS_IAM",
        }
    }

    /// Parses the name in Lambda's API.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn parse(text: &str) -> Result<UrlAuth, Refusal> {
        let all = [UrlAuth::None, UrlAuth::Iam];
        let found = all.into_iter().find(|auth| auth.as_str() == text);
        found.ok_or_else(|| Refusal::Parameter(format!("AuthType {text:?} is not NONE or AWS_IAM")))
    }
}

/// A URL of a function or an alias.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionUrl {
    /// The identifier: the first label of its host name.
    pub id: String,
    /// The authentication of callers.
    pub auth: UrlAuth,
    /// Cross-origin requests.
    #[serde(default)]
    pub cors: Option<Cors>,
    /// The time of its creation, as in [`Stamp`](super::Stamp).
    pub created: String,
    /// The time of its last change.
    pub modified: String,
}

/// The parameters of a change. Absent ones stay as they are; a configuration of `Some(None)` is removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UrlChange {
    /// The authentication of callers.
    pub auth: Option<UrlAuth>,
    /// Cross-origin requests.
    pub cors: Option<Option<Cors>>,
}
