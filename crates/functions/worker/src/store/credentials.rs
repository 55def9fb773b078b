//! Keys of the tenant: from the configuration, the environment, or a profile file.

use std::path::{Path, PathBuf};

use aws_credential_types::Credentials;
use serde::Deserialize;
use unlade_guest_protocol::request_keys::RequestKeys;

/// Largest profile file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The source of the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "from")]
pub enum CredentialsConfig {
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`; else the profile
    /// `AWS_PROFILE`, or `default`, in `AWS_SHARED_CREDENTIALS_FILE`, or `~/.aws/credentials`.
    #[default]
    Environment,
    /// A profile of a file.
    Profile {
        /// The file.
        file: PathBuf,
        /// The profile.
        #[serde(default = "default_profile")]
        profile: String,
    },
    /// Keys in the configuration.
    Keys {
        /// The access key.
        access_key_id: String,
        /// The secret.
        secret_access_key: Secret,
        /// The token of a session.
        #[serde(default)]
        session_token: Option<Secret>,
    },
    /// No keys: requests are not signed.
    Anonymous,
}

fn default_profile() -> String {
    "default".to_owned()
}

/// A secret text, omitted from debug output.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// A pair of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The access key.
    pub access_key_id: String,
    /// The secret.
    pub secret_access_key: Secret,
    /// The token of a session.
    pub session_token: Option<Secret>,
}

impl From<&RequestKeys> for Keys {
    fn from(keys: &RequestKeys) -> Keys {
        Keys {
            access_key_id: keys.access_key_id.clone(),
            secret_access_key: Secret(keys.secret_access_key.clone()),
            session_token: keys.session_token.clone().map(Secret),
        }
    }
}

impl Keys {
    /// The keys for AWS's library.
    pub fn credentials(&self) -> Credentials {
        let token = self.session_token.as_ref().map(|token| token.0.clone());
        let (id, secret) = (self.access_key_id.clone(), self.secret_access_key.0.clone());
        Credentials::new(id, secret, token, None, "unlade")
    }
}

/// The reason why there are no keys. The operator is at fault.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The environment has none, and there is no file.
    #[error("no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile")]
    None,
    /// The file cannot be read.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        why: String,
    },
    /// The file has no such profile, or a profile without keys.
    #[error("{path}: no keys in the profile {profile}")]
    Profile {
        /// The file.
        path: PathBuf,
        /// The profile.
        profile: String,
    },
}

impl CredentialsConfig {
    /// The keys; `None` if requests are not to be signed.
    ///
    /// # Errors
    /// The keys are missing at their configured source.
    pub fn keys(&self) -> Result<Option<Keys>, CredentialsError> {
        match self {
            CredentialsConfig::Anonymous => Ok(None),
            CredentialsConfig::Keys { access_key_id, secret_access_key, session_token } => {
                Ok(Some(Keys {
                    access_key_id: access_key_id.clone(),
                    secret_access_key: secret_access_key.clone(),
                    session_token: session_token.clone(),
                }))
            }
            CredentialsConfig::Profile { file, profile } => from_file(file, profile).map(Some),
            CredentialsConfig::Environment => from_environment(&|name| std::env::var(name).ok()),
        }
    }
}

fn from_environment(
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<Keys>, CredentialsError> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let (Some(access_key_id), Some(secret)) =
        (set("AWS_ACCESS_KEY_ID"), set("AWS_SECRET_ACCESS_KEY"))
    {
        let session_token = set("AWS_SESSION_TOKEN").map(Secret);
        return Ok(Some(Keys { access_key_id, secret_access_key: Secret(secret), session_token }));
    }
    let profile = set("AWS_PROFILE").unwrap_or_else(default_profile);
    let home = || set("HOME").map(|home| Path::new(&home).join(".aws/credentials"));
    let file = set("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from).or_else(home);
    match file.filter(|file| file.exists()) {
        Some(file) => from_file(&file, &profile).map(Some),
        None => Err(CredentialsError::None),
    }
}

fn from_file(path: &Path, profile: &str) -> Result<Keys, CredentialsError> {
    let failed = |why: String| CredentialsError::File { path: path.to_owned(), why };
    let length = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if length > FILE_BYTES_MAX {
        return Err(failed(format!("longer than {FILE_BYTES_MAX} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let missing = CredentialsError::Profile { path: path.to_owned(), profile: profile.to_owned() };
    in_profile(&text, profile).ok_or(missing)
}

fn in_profile(text: &str, profile: &str) -> Option<Keys> {
    let (mut inside, mut id, mut secret, mut token) = (false, None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let name = name.trim();
            inside = name.strip_prefix("profile ").unwrap_or(name).trim() == profile;
        } else if let (true, Some((key, value))) = (inside, line.split_once('=')) {
            let value = Some(value.trim().to_owned());
            match key.trim() {
                "aws_access_key_id" => id = value,
                "aws_secret_access_key" => secret = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
    }
    let (access_key_id, secret_access_key) = (id?, Secret(secret?));
    Some(Keys { access_key_id, secret_access_key, session_token: token.map(Secret) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[default]\naws_access_key_id = A\naws_secret_access_key=B=\n\
        # a comment\n[profile other]\naws_access_key_id=C\naws_secret_access_key=D\n\
        aws_session_token = E\n[half]\naws_access_key_id=F\n";

    #[test]
    fn a_profile_has_its_own_keys() {
        let default = in_profile(FILE, "default").unwrap();
        assert_eq!(default.access_key_id, "A");
        assert_eq!(default.secret_access_key.0, "B=");
        assert_eq!(default.session_token, None);
        assert_eq!(in_profile(FILE, "other").unwrap().session_token.unwrap().0, "E");
        assert_eq!(in_profile(FILE, "half"), None);
        assert_eq!(in_profile(FILE, "none"), None);
    }

    #[test]
    fn the_environment_comes_before_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("credentials");
        std::fs::write(&file, FILE).unwrap();
        let with = |keys: bool| {
            let file = file.display().to_string();
            from_environment(&move |name: &str| match name {
                "AWS_ACCESS_KEY_ID" if keys => Some("X".to_owned()),
                "AWS_SECRET_ACCESS_KEY" if keys => Some("Y".to_owned()),
                "AWS_SHARED_CREDENTIALS_FILE" => Some(file.clone()),
                "AWS_PROFILE" => Some("other".to_owned()),
                _ => None,
            })
        };
        assert_eq!(with(true).unwrap().unwrap().access_key_id, "X");
        assert_eq!(with(false).unwrap().unwrap().access_key_id, "C");
        assert!(matches!(from_environment(&|_| None), Err(CredentialsError::None)));
    }

    #[test]
    fn secrets_are_not_shown() {
        let keys = in_profile(FILE, "other").unwrap();
        let shown = format!("{keys:?}");
        assert!(!shown.contains('D') && !shown.contains('E'), "{shown}");
    }
}
