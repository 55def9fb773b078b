//! The manifest of a function: `function.toml`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use unlade_config::ByteSize;
use unlade_guest_protocol::control::WriteMode;
use unlade_s3::Policy;
use unlade_s3::hint::Template;

use crate::isolation::{Mode, Preload, Runtime};

/// Longest name of a function, as Lambda's.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest handler of a runtime of the function's own, as Lambda's.
pub const HANDLER_BYTES_MAX: usize = 128;
/// Smallest and largest `/tmp` of an instance; the largest is Lambda's.
pub const SCRATCH_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=10 << 30;
/// Most static hints.
pub const HINTS_MAX: usize = unlade_s3::hint::OBJECTS_MAX;

/// The reason why a manifest is invalid. The author is at fault.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {why}")]
pub struct ManifestError {
    /// The key.
    pub key: String,
    /// The error, and the valid values.
    pub why: String,
}

/// An isolation backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// A sandboxed process.
    #[default]
    Process,
    /// A virtual machine of QEMU.
    Qemu,
}

/// `function.toml`. Every key except the handler has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// `module.function`; the module is a file of the function's directory. With a runtime of the
    /// function's own it is any text, which the runtime interprets.
    pub handler: String,
    /// The program that runs the code.
    #[serde(default)]
    pub runtime: Runtime,
    /// The tenant: tenants have separate workers, credentials and quotas. A caller deploys only as
    /// its own tenant, which is also the default.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Memory limit of an instance.
    #[serde(default = "memory")]
    pub memory: ByteSize,
    /// Size of an instance's `/tmp`, which is apart from its memory; the gateway's if absent.
    #[serde(default)]
    pub scratch: Option<ByteSize>,
    /// Timeout of an invocation.
    #[serde(default = "timeout", with = "unlade_config::duration")]
    pub timeout: Duration,
    /// Environment variables.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Its rights; all of its tenant's store, and no other service, if absent.
    #[serde(default)]
    pub role: Option<serde_json::Value>,
    /// The isolation backend of its instances.
    #[serde(default)]
    pub isolation: Backend,
    /// The I/O path between the function and its objects.
    #[serde(default)]
    pub mode: Mode,
    /// When a write is acknowledged, and its caller answered; subordinate to `mode`.
    #[serde(default)]
    pub writes: WriteMode,
    /// Most instances.
    #[serde(default = "concurrency")]
    pub concurrency: u32,
    /// Time after which an idle instance is stopped.
    #[serde(default = "keep_alive", with = "unlade_config::duration")]
    pub keep_alive: Duration,
    /// Objects that it will read: `bucket/prefix{/json/pointer}`.
    #[serde(default)]
    pub hints: Vec<String>,
    /// Modules that are imported before instances start from the template.
    #[serde(default = "preload")]
    pub preload: Preload,
    /// Directories of packages in addition to its own files.
    #[serde(default)]
    pub packages: Vec<std::path::PathBuf>,
    /// The interpreter; the gateway's if absent.
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

/// Returns true if a name is a valid function name in Lambda.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(allowed)
}

/// Returns true for `[DIRECTORY/]FILE.FUNCTION`, below the function's directory.
fn is_node_handler(handler: &str) -> bool {
    let mut parts = handler.split('/').collect::<Vec<_>>();
    let last = parts.pop().unwrap_or_default();
    let is_inside = !parts
        .iter()
        .enumerate()
        .any(|(at, part)| part.is_empty() || *part == ".." || (*part == "." && at > 0));
    let named = last.split_once('.');
    is_inside && named.is_some_and(|(file, function)| !file.is_empty() && !function.is_empty())
}

impl Manifest {
    /// A manifest with this handler and defaults for the other keys.
    pub fn of_handler(handler: &str) -> Manifest {
        Manifest {
            handler: handler.to_owned(),
            runtime: Runtime::default(),
            tenant: None,
            memory: memory(),
            scratch: None,
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

    /// Refuses invalid values.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), ManifestError> {
        let wrong =
            |key: &str, why: &str| Err(ManifestError { key: key.to_owned(), why: why.to_owned() });
        self.check_runtime()?;
        if self.tenant.as_deref().is_some_and(|tenant| !is_name(tenant)) {
            return wrong("tenant", "must be letters, digits, - and _, 64 at most");
        }
        if self.memory.0 < 16 << 20 {
            return wrong("memory", "must be 16MiB at least");
        }
        if self.scratch.is_some_and(|scratch| !SCRATCH_BYTES.contains(&scratch.0)) {
            return wrong("scratch", "must be 1MiB to 10GiB");
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

    /// Refuses a handler that the runtime does not understand, and keys that it does not have.
    fn check_runtime(&self) -> Result<(), ManifestError> {
        let wrong =
            |key: &str, why: &str| Err(ManifestError { key: key.to_owned(), why: why.to_owned() });
        if self.runtime == Runtime::Node && !is_node_handler(&self.handler) {
            return wrong("handler", "must be FILE.FUNCTION, as `index.handler`");
        }
        if self.runtime == Runtime::Python {
            let (module, function) = self.handler.rsplit_once('.').unwrap_or_default();
            let is_word = |word: &str| {
                let mut chars = word.chars();
                chars.next().is_some_and(|c| c.is_alphabetic() || c == '_')
                    && chars.all(|c| c.is_alphanumeric() || c == '_')
            };
            // A file that only `importlib` can import, `data-load.py`, may have a handler, too.
            let is_file = |name: &str| {
                !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c))
            };
            return match module.split(['.', '/']).all(is_file) && is_word(function) {
                true => Ok(()),
                false => wrong("handler", "must be MODULE.FUNCTION, as `app.handler`"),
            };
        }
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control();
        if !(1..=HANDLER_BYTES_MAX).contains(&self.handler.len())
            || !self.handler.chars().all(is_plain)
        {
            return wrong("handler", "must be 1 to 128 bytes without blanks, as `bootstrap`");
        }
        if self.isolation == Backend::Qemu {
            let why = format!(
                "machines run Python functions only: runtime = \"{}\" needs \"process\"",
                self.runtime.name()
            );
            return wrong("isolation", &why);
        }
        if !self.mode.is_offloaded() {
            let why = format!(
                "runtime = \"{}\" has no network: choose \"offload\", \"prefetch\" or \"sdk\"",
                self.runtime.name()
            );
            return wrong("mode", &why);
        }
        let of_python = [
            ("python", self.python.is_some()),
            ("packages", !self.packages.is_empty()),
            ("preload", !self.preload.modules.is_empty()),
        ];
        match of_python.iter().find(|(_, is_there)| *is_there) {
            Some((key, _)) => wrong(key, "is for runtime = \"python\" only"),
            None => Ok(()),
        }
    }

    /// The parsed hints.
    ///
    /// # Errors
    /// A hint is invalid.
    pub fn templates(&self) -> Result<Vec<Template>, ManifestError> {
        let parse = |hint: &String| {
            Template::parse(hint)
                .map_err(|error| ManifestError { key: "hints".to_owned(), why: error.to_string() })
        };
        self.hints.iter().map(parse).collect()
    }

    /// The rights of its role.
    ///
    /// # Errors
    /// The policy cannot be parsed.
    pub fn policy(&self) -> Result<Policy, ManifestError> {
        let wrong = |why: String| ManifestError { key: "role".to_owned(), why };
        match &self.role {
            None => Ok(Policy::of_store()),
            Some(role) => Policy::from_value(role).map_err(|error| wrong(error.to_string())),
        }
    }

    /// The write mode, restricted by its mode.
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
    fn a_handler_of_an_own_runtime_is_any_text() {
        for handler in ["bootstrap", "hello.handler", "com.example.Handler::call"] {
            let text = format!("handler = \"{handler}\"\nruntime = \"provided\"\n");
            assert_eq!(parsed(&text).unwrap().runtime, Runtime::Provided);
        }
    }

    #[test]
    fn a_handler_of_node_is_a_file_and_a_function() {
        for handler in ["index.handler", "src/my-file.handler", "./a/b.c.d", "$x._y"] {
            let text = format!("handler = \"{handler}\"\nruntime = \"nodejs\"\n");
            assert_eq!(parsed(&text).unwrap().runtime, Runtime::Node);
        }
    }

    #[test]
    fn everything_can_be_said() {
        let text = "handler = \"a/b.handler\"\ntenant = \"t\"\nmemory = \"256MiB\"\nscratch = \"1GiB\"\ntimeout = \"5s\"\n\
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
    fn a_handlers_file_need_not_be_a_word() {
        for name in ["data-load.handler", "a/2nd-part.handler", "_x.main"] {
            let manifest = parsed(&format!("handler = \"{name}\"")).unwrap();
            assert_eq!(manifest.handler, name);
        }
    }

    #[test]
    fn what_cannot_be_is_said_with_its_key() {
        for (text, key) in [
            ("handler = \"app\"", "handler"),
            ("handler = \"../app.handler\"", "handler"),
            ("handler = \"data-load.hand-ler\"", "handler"),
            ("handler = \".handler\"", "handler"),
            ("handler = \"a.b\"\nmemory = \"1MiB\"", "memory"),
            ("handler = \"a.b\"\nscratch = \"1KiB\"", "scratch"),
            ("handler = \"a.b\"\nscratch = \"11GiB\"", "scratch"),
            ("handler = \"a.b\"\ntimeout = \"1h\"", "timeout"),
            ("handler = \"a.b\"\ntenant = \"a b\"", "tenant"),
            ("handler = \"a.b\"\nconcurrency = 0", "concurrency"),
            ("handler = \"a.b\"\nhints = [\"x\"]", "hints"),
            ("handler = \"a.b\"\nrole = { a = 1 }", "role"),
            ("handler = \"a.b\"\n[environment]\nUNLADE_CHANNEL_FD = \"3\"", "environment"),
            ("handler = \"a.b\"\nmod = \"sdk\"", "mod"),
            ("handler = \"a.b\"\nruntime = \"java\"", "runtime"),
            ("handler = \"a b\"\nruntime = \"provided\"", "handler"),
            ("handler = \"b\"\nruntime = \"provided\"\nisolation = \"qemu\"", "isolation"),
            ("handler = \"b\"\nruntime = \"provided\"\nmode = \"stock\"", "mode"),
            ("handler = \"index\"\nruntime = \"nodejs\"", "handler"),
            ("handler = \"../index.handler\"\nruntime = \"nodejs\"", "handler"),
            ("handler = \"/index.handler\"\nruntime = \"nodejs\"", "handler"),
            ("handler = \"a.b\"\nruntime = \"nodejs\"\nisolation = \"qemu\"", "isolation"),
            ("handler = \"a.b\"\nruntime = \"nodejs\"\nmode = \"tcp\"", "mode"),
            ("handler = \"a.b\"\nruntime = \"nodejs\"\npackages = [\"/x\"]", "packages"),
            ("handler = \"b\"\nruntime = \"provided\"\npython = \"/usr/bin/python3\"", "python"),
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
