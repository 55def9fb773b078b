//! What a function's author says of it: `function.toml`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use unlade_config::ByteSize;
use unlade_guest_protocol::control::WriteMode;
use unlade_s3::Policy;
use unlade_s3::hint::Template;

use crate::isolation::{Mode, Preload};

/// Longest name of a function, as Lambda's.
pub const NAME_BYTES_MAX: usize = 64;
/// Most static hints.
pub const HINTS_MAX: usize = unlade_s3::hint::OBJECTS_MAX;

/// Why a manifest is none. The author's fault.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {why}")]
pub struct ManifestError {
    /// Which key.
    pub key: String,
    /// What is wrong, and what it should be.
    pub why: String,
}

/// Which isolation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// A sandboxed process.
    #[default]
    Process,
    /// A virtual machine of QEMU.
    Qemu,
}

/// `function.toml`. Everything but the handler has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// `module.function`; the module is a file of the function's directory.
    pub handler: String,
    /// Whose it is: tenants have workers, credentials and quotas of their own. A caller deploys as
    /// its own tenant only, which it is where nothing is said.
    #[serde(default)]
    pub tenant: Option<String>,
    /// What an instance may use.
    #[serde(default = "memory")]
    pub memory: ByteSize,
    /// How long an invocation may take.
    #[serde(default = "timeout", with = "unlade_config::duration")]
    pub timeout: Duration,
    /// Variables of its environment.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// What it may do; all of its tenant's store where it is not said.
    #[serde(default)]
    pub role: Option<serde_json::Value>,
    /// What its instances run in.
    #[serde(default)]
    pub isolation: Backend,
    /// What stands between it and its objects.
    #[serde(default)]
    pub mode: Mode,
    /// When a write is acknowledged, and its caller answered; `mode` decides first.
    #[serde(default)]
    pub writes: WriteMode,
    /// Most instances.
    #[serde(default = "concurrency")]
    pub concurrency: u32,
    /// How long an idle instance is kept.
    #[serde(default = "keep_alive", with = "unlade_config::duration")]
    pub keep_alive: Duration,
    /// Objects that it will read: `bucket/prefix{/json/pointer}`.
    #[serde(default)]
    pub hints: Vec<String>,
    /// What is imported before instances start from its template.
    #[serde(default = "preload")]
    pub preload: Preload,
    /// Directories of packages beside its own files.
    #[serde(default)]
    pub packages: Vec<std::path::PathBuf>,
    /// The interpreter; the gateway's where it is not said.
    #[serde(default)]
    pub python: Option<std::path::PathBuf>,
}

fn memory() -> ByteSize {
    ByteSize(128 * 1024 * 1024)
}

fn timeout() -> Duration {
    Duration::from_secs(30)
}

fn concurrency() -> u32 {
    100
}

fn keep_alive() -> Duration {
    Duration::from_secs(600)
}

fn preload() -> Preload {
    Preload { handler: true, modules: Vec::new() }
}

/// Whether a name is one of Lambda's functions.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(allowed)
}

impl Manifest {
    /// That of a handler, all else by default.
    pub fn of_handler(handler: &str) -> Manifest {
        Manifest {
            handler: handler.to_owned(),
            tenant: None,
            memory: memory(),
            timeout: timeout(),
            environment: BTreeMap::new(),
            role: None,
            isolation: Backend::default(),
            mode: Mode::default(),
            writes: WriteMode::default(),
            concurrency: concurrency(),
            keep_alive: keep_alive(),
            hints: Vec::new(),
            preload: preload(),
            packages: Vec::new(),
            python: None,
        }
    }

    /// Refuses values that cannot be.
    ///
    /// # Errors
    /// The first that cannot.
    pub fn check(&self) -> Result<(), ManifestError> {
        let wrong =
            |key: &str, why: &str| Err(ManifestError { key: key.to_owned(), why: why.to_owned() });
        let (module, function) = self.handler.rsplit_once('.').unwrap_or_default();
        let parts = module.split(['.', '/']).chain([function]);
        let is_word = |word: &str| {
            let mut chars = word.chars();
            chars.next().is_some_and(|c| c.is_alphabetic() || c == '_')
                && chars.all(|c| c.is_alphanumeric() || c == '_')
        };
        if !parts.clone().all(is_word) {
            return wrong("handler", "must be MODULE.FUNCTION, as `app.handler`");
        }
        if self.tenant.as_deref().is_some_and(|tenant| !is_name(tenant)) {
            return wrong("tenant", "must be letters, digits, - and _, 64 at most");
        }
        if self.memory.0 < 16 << 20 {
            return wrong("memory", "must be 16MiB at least");
        }
        if self.timeout.is_zero() || self.timeout > Duration::from_secs(900) {
            return wrong("timeout", "must be more than 0s and 15m at most");
        }
        if self.concurrency == 0 {
            return wrong("concurrency", "must be 1 at least");
        }
        let is_variable = |name: &String| {
            !name.is_empty() && !name.contains(['=', '\0']) && !name.starts_with("UNLADE_")
        };
        if let Some(name) = self.environment.keys().find(|name| !is_variable(name)) {
            return wrong("environment", &format!("{name:?} is no variable, or is reserved"));
        }
        if self.environment.values().any(|value| value.contains('\0')) {
            return wrong("environment", "a value has a zero byte");
        }
        if self.hints.len() > HINTS_MAX {
            return wrong("hints", &format!("{HINTS_MAX} at most"));
        }
        self.templates()?;
        self.policy().map(|_| ())
    }

    /// Its hints.
    ///
    /// # Errors
    /// One that is none.
    pub fn templates(&self) -> Result<Vec<Template>, ManifestError> {
        let parse = |hint: &String| {
            Template::parse(hint)
                .map_err(|error| ManifestError { key: "hints".to_owned(), why: error.to_string() })
        };
        self.hints.iter().map(parse).collect()
    }

    /// Its role's rights.
    ///
    /// # Errors
    /// They are not understood.
    pub fn policy(&self) -> Result<Policy, ManifestError> {
        let wrong = |why: String| ManifestError { key: "role".to_owned(), why };
        match &self.role {
            None => Ok(Policy::everything()),
            Some(role) => Policy::from_value(role).map_err(|error| wrong(error.to_string())),
        }
    }

    /// How its writes are acknowledged, as its mode has it.
    pub fn write_mode(&self) -> WriteMode {
        match self.mode {
            Mode::Offload => self.writes,
            _ => WriteMode::Sync,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Manifest, String> {
        let manifest: Manifest =
            unlade_config::parse(text, "function.toml").map_err(|error| error.to_string())?;
        manifest.check().map_err(|error| error.to_string())?;
        Ok(manifest)
    }

    #[test]
    fn only_the_handler_must_be_said() {
        let manifest = parsed("handler = \"app.handler\"\n").unwrap();
        assert_eq!(manifest, Manifest::of_handler("app.handler"));
        assert_eq!(manifest.write_mode(), WriteMode::DurableReply);
    }

    #[test]
    fn everything_can_be_said() {
        let text = "handler = \"a/b.handler\"\ntenant = \"t\"\nmemory = \"256MiB\"\ntimeout = \"5s\"\n\
            isolation = \"qemu\"\nmode = \"prefetch\"\nwrites = \"early-reply\"\nconcurrency = 2\n\
            keep_alive = \"1m\"\nhints = [\"models/{/name}\"]\npackages = [\"/opt/x\"]\n\
            [preload]\nhandler = false\nmodules = [\"json\"]\n[environment]\nA = \"b\"\n\
            [[role.statements]]\neffect = \"allow\"\nactions = [\"s3:*\"]\nresources = [\"in/*\"]\n";
        let manifest = parsed(text).unwrap();
        assert_eq!(manifest.isolation, Backend::Qemu);
        assert_eq!(manifest.write_mode(), WriteMode::Sync, "the mode decides");
        let again: Manifest = toml::from_str(&toml::to_string(&manifest).unwrap()).unwrap();
        assert_eq!(again, manifest);
    }

    #[test]
    fn what_cannot_be_is_said_with_its_key() {
        for (text, key) in [
            ("handler = \"app\"", "handler"),
            ("handler = \"../app.handler\"", "handler"),
            ("handler = \"a.b\"\nmemory = \"1MiB\"", "memory"),
            ("handler = \"a.b\"\ntimeout = \"1h\"", "timeout"),
            ("handler = \"a.b\"\ntenant = \"a b\"", "tenant"),
            ("handler = \"a.b\"\nconcurrency = 0", "concurrency"),
            ("handler = \"a.b\"\nhints = [\"x\"]", "hints"),
            ("handler = \"a.b\"\nrole = { a = 1 }", "role"),
            ("handler = \"a.b\"\n[environment]\nUNLADE_CHANNEL_FD = \"3\"", "environment"),
            ("handler = \"a.b\"\nmod = \"sdk\"", "mod"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(key), "{text}: {error}");
        }
    }

    #[test]
    fn names_are_lambdas() {
        assert!(is_name("thumb-nail_2"));
        for wrong in ["", "a/b", "a b", "é", &"x".repeat(65)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
