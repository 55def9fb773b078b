//! `[services]` of a worker: which services other than S3 its functions reach, and where.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::route::Origin;
use super::services::find;
use crate::config_error::ConfigError;
use crate::store::credentials::CredentialsConfig;

/// Services other than S3. Without it no function reaches one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServicesConfig {
    /// True if services without an endpoint here are AWS's own, in the region of the function's
    /// client.
    pub aws: bool,
    /// The keys, for endpoints that name none.
    pub credentials: CredentialsConfig,
    /// A PEM file of trusted certificate authorities; the system's if absent.
    pub ca: Option<PathBuf>,
    /// Timeout of a connection attempt.
    #[serde(with = "unlade_config::duration")]
    pub connect_timeout: Duration,
    /// Timeout of a read or write without progress, for clients that name none.
    #[serde(with = "unlade_config::duration")]
    pub read_timeout: Duration,
    /// Most idle connections.
    pub idle_connections_max: usize,
    /// Time after which an idle connection is closed.
    #[serde(with = "unlade_config::duration")]
    pub idle_timeout: Duration,
    /// Endpoints of services by their names in boto3.
    pub endpoint: BTreeMap<String, EndpointConfig>,
}

impl Default for ServicesConfig {
    fn default() -> ServicesConfig {
        ServicesConfig {
            aws: false,
            credentials: CredentialsConfig::default(),
            ca: None,
            connect_timeout: Duration::from_secs(60),
            read_timeout: Duration::from_secs(60),
            idle_connections_max: 64,
            idle_timeout: Duration::from_secs(15),
            endpoint: BTreeMap::new(),
        }
    }
}

/// An endpoint of a service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointConfig {
    /// `http://HOST[:PORT]` or `https://HOST[:PORT]`.
    pub url: String,
    /// The keys; those of all services if absent.
    #[serde(default)]
    pub credentials: Option<CredentialsConfig>,
}

fn wrong(key: &'static str, why: String) -> ConfigError {
    ConfigError::Value { key, why }
}

impl ServicesConfig {
    /// Checks what the types cannot express.
    ///
    /// # Errors
    /// A value is invalid.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (name, endpoint) in &self.endpoint {
            if let Err(refusal) = find(name) {
                return Err(wrong("[services.endpoint]", format!("{name}: {}", refusal.why)));
            }
            if Origin::parse(&endpoint.url).is_none() {
                let why = format!("{name}: http://HOST[:PORT] or https://HOST[:PORT]");
                return Err(wrong("[services.endpoint] url", why));
            }
        }
        Ok(())
    }

    /// True if an endpoint uses the keys of all services.
    pub fn needs_keys(&self) -> bool {
        self.aws || self.endpoint.values().any(|endpoint| endpoint.credentials.is_none())
    }

    /// True if an endpoint uses TLS.
    pub fn needs_tls(&self) -> bool {
        self.aws || self.endpoint.values().any(|endpoint| endpoint.url.starts_with("https:"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<ServicesConfig, ConfigError> {
        let config: ServicesConfig = unlade_config::parse(text, "worker.toml")?;
        config.check()?;
        Ok(config)
    }

    #[test]
    fn nothing_is_reached_by_default() {
        let none = parsed("").unwrap();
        assert!(!none.aws && none.endpoint.is_empty() && !none.needs_keys() && !none.needs_tls());
        let aws = parsed("aws = true").unwrap();
        assert!(aws.needs_keys() && aws.needs_tls());
        let own = "[endpoint.sqs]\nurl = \"http://127.0.0.1:9324\"\n\
                   credentials = { from = \"anonymous\" }\n";
        let own = parsed(own).unwrap();
        assert!(!own.needs_keys() && !own.needs_tls());
    }

    #[test]
    fn what_cannot_be_is_said() {
        for wrong in [
            "aws = 1",
            "other = 1",
            "[endpoint.s3]\nurl = \"http://a\"",
            "[endpoint.nothing]\nurl = \"http://a\"",
            "[endpoint.sqs]\nurl = \"http://a/b\"",
            "[endpoint.sqs]\nurl = \"a\"",
            "[endpoint.sqs]\nhost = \"a\"",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
