//! Logging with `tracing` to standard error, as text or as one JSON object per line.

use serde::Deserialize;
use tracing_subscriber::EnvFilter;

/// Environment variable that overrides the configured level, in `tracing` filter syntax
/// (`debug`, `info,unlade_backend=trace`).
pub const LEVEL_VARIABLE: &str = "UNLADE_LOG";

/// The format of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The `[log]` table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Text or JSON.
    pub format: LogFormat,
    /// Lowest level shown, or a whole filter.
    pub level: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { format: LogFormat::Text, level: "info".to_owned() }
    }
}

/// The reason why logging cannot start; the operator can resolve it.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter does not parse.
    #[error(
        "{origin}: `{text}` is not a log filter ({reason}); try `info` or \
         `info,unlade_backend=debug`"
    )]
    Filter {
        /// `log.level`, or the environment variable.
        origin: &'static str,
        /// The filter as given.
        text: String,
        /// The message of the parser.
        reason: String,
    },
    /// Another subscriber is already installed.
    #[error("logging was started twice in one process")]
    Started,
}

/// Starts logging for the process.
///
/// # Errors
/// A filter that does not parse, or a second start.
pub fn init(config: &LogConfig) -> Result<(), LogError> {
    let filter = filter(config, std::env::var(LEVEL_VARIABLE).ok())?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match config.format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|_| LogError::Started)
}

fn filter(config: &LogConfig, variable: Option<String>) -> Result<EnvFilter, LogError> {
    let (origin, text) = match variable {
        Some(text) if !text.is_empty() => (LEVEL_VARIABLE, text),
        _ => ("log.level", config.level.clone()),
    };
    EnvFilter::builder().parse(&text).map_err(|error| LogError::Filter {
        origin,
        text,
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_has_precedence_unless_it_is_empty() {
        let config = LogConfig { level: "warn".to_owned(), ..LogConfig::default() };
        let from = |variable: Option<&str>| {
            filter(&config, variable.map(str::to_owned)).unwrap().to_string()
        };
        assert_eq!(from(Some("debug")), "debug");
        assert_eq!(from(Some("")), "warn");
        assert_eq!(from(None), "warn");
    }

    #[test]
    fn a_bad_filter_names_its_origin() {
        let config = LogConfig { level: "no=such=level".to_owned(), ..LogConfig::default() };
        let message = filter(&config, None).unwrap_err().to_string();
        assert!(message.starts_with("log.level: `no=such=level`"), "{message}");
    }

    #[test]
    fn the_table_refuses_unknown_keys() {
        let good: LogConfig = serde_json::from_str(r#"{"format":"json"}"#).unwrap();
        assert_eq!(good, LogConfig { format: LogFormat::Json, level: "info".to_owned() });
        assert!(serde_json::from_str::<LogConfig>(r#"{"colour":true}"#).is_err());
    }
}
