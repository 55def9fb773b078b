//! The configuration of a gateway. Every key that is absent has a safe default.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use unlade_config::{ByteSize, SettingsError};
use unlade_fn_model::isolation::Mode;
use unlade_fn_model::manifest::is_name;
use unlade_fn_model::pool::Limits;
use unlade_runtime::logs::LogConfig;
use unlade_s3::Policy;
use unlade_s3::policy::OF_HOST;

use crate::role_document;
use crate::tenant::relay;

/// The tenant of a function that names none.
pub const DEFAULT_TENANT: &str = "default";
/// The role that has the rights of its tenant, or those in the function's manifest.
pub const DEFAULT_ROLE: &str = "default";
/// The region of the built-in store, in signatures.
pub const REGION: &str = "us-east-1";
/// The default modes of a tenant: none of them gives access to the host's network or to a key of
/// the store.
const MODES: [Mode; 3] = [Mode::Offload, Mode::Prefetch, Mode::Sdk];
/// Most tenants of a shared worker, including `default`.
const SHARED_TENANTS_MAX: usize = 256;
/// Longest domain of URLs: room for the identifier, the service and the region in a name (RFC 1035).
const DOMAIN_BYTES_MAX: usize = 128;
/// Longest path of a socket (unix(7)), without its terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The reason why a configuration is invalid. The operator is at fault.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be parsed.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A value is invalid.
    #[error("{key}: {why}")]
    Value {
        /// The key.
        key: &'static str,
        /// The valid values.
        why: String,
    },
}

/// The file given to `unlade fn serve --config`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayConfig {
    /// The address where callers connect.
    pub listen: SocketAddr,
    /// The address where callers of function URLs and HTTP APIs connect; none if absent.
    pub urls: Option<SocketAddr>,
    /// The domain of the host names of function URLs and HTTP APIs.
    pub urls_domain: String,
    /// Most connections of these callers; one more is answered with 503.
    pub urls_connections_max: usize,
    /// Timeout of reading the head or the body of one of their requests, and of a write that waits.
    #[serde(with = "unlade_config::duration")]
    pub urls_timeout: Duration,
    /// True if callers of other machines are allowed: their requests are signed but not encrypted.
    pub allow_remote: bool,
    /// The authentication of callers.
    pub authentication: Authentication,
    /// True if a function is served only after its handler was imported successfully.
    pub check_imports: bool,
    /// The address of `/metrics` and `/healthz`.
    pub admin: Option<SocketAddr>,
    /// The directory of the gateway's state.
    pub state: PathBuf,
    /// A directory of functions that are served in place.
    pub functions: Option<PathBuf>,
    /// Memory limit of all instances together; three quarters of the machine's if absent.
    pub memory_max: Option<ByteSize>,
    /// Most instances.
    pub instances_max: usize,
    /// Most invocations of one function that wait for an instance.
    pub waiting_max: usize,
    /// Longest wait of an invocation.
    #[serde(with = "unlade_config::duration")]
    pub waiting_timeout: Duration,
    /// Most instances of a function that start at a time.
    pub starting_max: usize,
    /// Timeout of an instance's start.
    #[serde(with = "unlade_config::duration")]
    pub start_timeout: Duration,
    /// Timeout of pending writes after the handler has returned.
    #[serde(with = "unlade_config::duration")]
    pub settle_timeout: Duration,
    /// Timeout of a drain.
    #[serde(with = "unlade_config::duration")]
    pub drain_timeout: Duration,
    /// The interpreter of functions that name none.
    pub python: PathBuf,
    /// Node.js, for functions with this runtime.
    pub node: PathBuf,
    /// Directories of packages for all functions.
    pub packages: Vec<PathBuf>,
    /// Writable space of a function, in memory.
    pub scratch: ByteSize,
    /// The object store, as in a worker's configuration; the built-in store if absent.
    pub store: Option<toml::Table>,
    /// Services other than S3, as in a worker's configuration; none but this gateway, as `lambda`,
    /// if absent.
    pub services: Option<toml::Table>,
    /// The address of the built-in store.
    pub store_listen: SocketAddr,
    /// The assignment of I/O workers to tenants.
    pub workers: Workers,
    /// The address of the shared worker's `/metrics`, with a label for the tenant.
    pub workers_admin: Option<SocketAddr>,
    /// Tenants, by name.
    pub tenant: BTreeMap<String, TenantConfig>,
    /// Services that invoke functions, by the name of their principal: `s3.amazonaws.com`.
    pub principal: BTreeMap<String, PrincipalConfig>,
    /// The isolation backends, by name.
    pub isolation: toml::Table,
    /// The logs of functions.
    pub function_log: FunctionLogConfig,
    /// Most functions with samples of their own in the metrics; the others share one.
    pub metrics_functions_max: usize,
    /// Format and level of the log.
    pub log: LogConfig,
}

/// The logs of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FunctionLogConfig {
    /// Size of the last lines that the gateway keeps of each function.
    pub bytes_max: ByteSize,
    /// Most lines of a function in a second; more are dropped and counted.
    pub lines_per_s: u32,
}

impl Default for FunctionLogConfig {
    fn default() -> FunctionLogConfig {
        FunctionLogConfig { bytes_max: ByteSize(1 << 20), lines_per_s: 2000 }
    }
}

/// The authentication of callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Authentication {
    /// By a signature with a key of the caller's tenant.
    #[default]
    Keys,
    /// None: every caller that can reach the gateway has all rights, as any tenant.
    Off,
}

/// The assignment of I/O workers to tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workers {
    /// One process for each tenant.
    #[default]
    PerTenant,
    /// One process for all tenants: it uses less memory, and a crash affects all of them.
    Shared,
}

/// A pair of keys.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyPair {
    /// The access key, which is not secret.
    pub access_key_id: String,
    /// The secret.
    pub secret_access_key: String,
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyPair")
            .field("access_key_id", &self.access_key_id)
            .finish_non_exhaustive()
    }
}

/// A service that invokes functions. Their resource policies decide whether it may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrincipalConfig {
    /// The keys that sign its requests.
    pub keys: Vec<KeyPair>,
}

/// A tenant: its keys, the choices of its functions, and the configuration of its worker.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TenantConfig {
    /// The keys of its callers; if empty, a pair is generated and stored in the state.
    pub keys: Vec<KeyPair>,
    /// The upper bound of its functions' rights, regardless of their manifests; unlimited if
    /// absent.
    pub role: Option<serde_json::Value>,
    /// The rights of the roles that its functions may have, by name.
    pub roles: BTreeMap<String, serde_json::Value>,
    /// The modes that its manifests may choose.
    pub modes: Vec<Mode>,
    /// Directories that its manifests may name as packages, or directories below them.
    pub packages: Vec<PathBuf>,
    /// Interpreters that its manifests may choose beside the gateway's.
    pub pythons: Vec<PathBuf>,
    /// Its object store and credentials.
    pub store: Option<toml::Table>,
    /// Its services other than S3, and credentials.
    pub services: Option<toml::Table>,
    /// `[instance]` of its worker.
    pub instance: Option<toml::Table>,
    /// `[copies]` of its worker.
    pub copies: Option<toml::Table>,
    /// `[tenant]` of its worker.
    pub limits: Option<toml::Table>,
    /// The address of its worker's `/metrics`.
    pub admin: Option<SocketAddr>,
}

impl Default for TenantConfig {
    fn default() -> TenantConfig {
        TenantConfig {
            keys: Vec::new(),
            role: None,
            roles: BTreeMap::new(),
            modes: MODES.to_vec(),
            packages: Vec::new(),
            pythons: Vec::new(),
            store: None,
            services: None,
            instance: None,
            copies: None,
            limits: None,
            admin: None,
        }
    }
}

impl TenantConfig {
    fn check(&self) -> Result<(), ConfigError> {
        if let Some(role) = &self.role {
            let understood = Policy::from_value(role);
            understood.map_err(|error| value("[tenant] role", error))?;
            if OF_HOST.iter().any(|key| role.get(key).is_some()) {
                return Err(value("[tenant] role", "is itself a boundary, and has none"));
            }
        }
        for (name, role) in &self.roles {
            if !is_name(name) || name == DEFAULT_ROLE {
                let why = format!(
                    "{name:?} must be letters, digits, - and _; {DEFAULT_ROLE} is built in"
                );
                return Err(value("[tenant] roles", why));
            }
            let understood = Policy::from_value(role);
            understood.map_err(|error| value("[tenant] roles", format!("{name}: {error}")))?;
            if OF_HOST.iter().any(|key| role.get(key).is_some()) {
                return Err(value("[tenant] roles", "the boundary is `role` of the tenant"));
            }
        }
        check_keys("[tenant] keys", &self.keys)
    }
}

fn check_keys(key: &'static str, pairs: &[KeyPair]) -> Result<(), ConfigError> {
    let is_word = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && !"/,;=[]".contains(c))
    };
    let is_wrong =
        |pair: &KeyPair| !is_word(&pair.access_key_id) || pair.secret_access_key.is_empty();
    match pairs.iter().any(is_wrong) {
        true => {
            let why = "an access_key_id is letters and digits, and a secret is not empty";
            Err(value(key, why))
        }
        false => Ok(()),
    }
}

impl Default for GatewayConfig {
    fn default() -> GatewayConfig {
        let local = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let python = ["/usr/bin/python3", "/usr/local/bin/python3"].map(PathBuf::from);
        let found = python.iter().find(|path| path.exists());
        let node = ["/usr/bin/node", "/usr/local/bin/node"].map(PathBuf::from);
        let found_node = node.iter().find(|path| path.exists());
        GatewayConfig {
            listen: local(9001),
            urls: None,
            urls_domain: "localhost".to_owned(),
            urls_connections_max: 1024,
            urls_timeout: Duration::from_secs(60),
            allow_remote: false,
            authentication: Authentication::default(),
            check_imports: true,
            admin: None,
            state: PathBuf::from("/var/lib/unlade/fn"),
            functions: None,
            memory_max: None,
            instances_max: 1000,
            waiting_max: 1000,
            waiting_timeout: Duration::from_secs(10),
            starting_max: 8,
            start_timeout: Duration::from_secs(60),
            settle_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
            python: found.unwrap_or(&python[0]).clone(),
            node: found_node.unwrap_or(&node[0]).clone(),
            packages: Vec::new(),
            scratch: ByteSize(512 << 20),
            store: None,
            services: None,
            store_listen: local(9000),
            workers: Workers::default(),
            workers_admin: None,
            tenant: BTreeMap::new(),
            principal: BTreeMap::new(),
            isolation: toml::Table::new(),
            function_log: FunctionLogConfig::default(),
            metrics_functions_max: 1000,
            log: LogConfig::default(),
        }
    }
}

fn value(key: &'static str, why: impl ToString) -> ConfigError {
    ConfigError::Value { key, why: why.to_string() }
}

impl GatewayConfig {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// The error, with file, line and key.
    pub fn load(path: &Path) -> Result<GatewayConfig, ConfigError> {
        let mut config: GatewayConfig = unlade_config::load(path)?;
        let directory = path.parent().unwrap_or(Path::new(""));
        for (name, tenant) in &mut config.tenant {
            for role in tenant.role.iter_mut().chain(tenant.roles.values_mut()) {
                role_document::of_operator(role, directory)
                    .map_err(|why| value("[tenant]", format!("{name}: {why}")))?;
            }
        }
        config.check()?;
        Ok(config)
    }

    /// Refuses invalid values.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !self.listen.ip().is_loopback() && !self.allow_remote {
            let why = "events and results are not encrypted: an address that is not of this \
                       machine needs allow_remote = true";
            return Err(value("listen", why));
        }
        if self.urls.is_some_and(|urls| !urls.ip().is_loopback()) && !self.allow_remote {
            let why = "requests and responses are not encrypted: an address that is not of this \
                       machine needs allow_remote = true";
            return Err(value("urls", why));
        }
        let is_label = |label: &str| {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            (1..=63).contains(&label.len()) && label.bytes().all(is_letter)
        };
        if !self.urls_domain.split('.').all(is_label) || self.urls_domain.len() > DOMAIN_BYTES_MAX {
            let why = format!("{:?} is no domain: functions.example.com", self.urls_domain);
            return Err(value("urls_domain", why));
        }
        if self.urls_timeout.is_zero() {
            return Err(value("urls_timeout", "must be longer than 0"));
        }
        if self.allow_remote && self.authentication == Authentication::Off {
            let why = "must be \"keys\" with allow_remote: any caller could deploy";
            return Err(value("authentication", why));
        }
        for tenant in self.tenant.values() {
            tenant.check()?;
        }
        for (name, principal) in &self.principal {
            if !name.ends_with(".amazonaws.com") || name.contains(char::is_whitespace) {
                let why = format!("{name:?} is no service: s3.amazonaws.com, for example");
                return Err(value("[principal]", why));
            }
            check_keys("[principal] keys", &principal.keys)?;
        }
        if self.store.is_none() && !self.store_listen.ip().is_loopback() && !self.allow_remote {
            return Err(value("store_listen", "must be of this machine, or set allow_remote"));
        }
        if self.workers_admin.is_some() && self.workers != Workers::Shared {
            let why = "is of workers = \"shared\"; others have [tenant.NAME] admin";
            return Err(value("workers_admin", why));
        }
        if self.workers == Workers::Shared && self.tenant.len() >= SHARED_TENANTS_MAX {
            let why = format!("{SHARED_TENANTS_MAX} at most share a worker");
            return Err(value("[tenant]", why));
        }
        for name in self.tenant.keys().map(String::as_str).chain([DEFAULT_TENANT]) {
            if !is_name(name) {
                return Err(value("[tenant]", format!("{name:?} is no name")));
            }
            // The socket with the longest path.
            let length = relay(&self.tenant_dir(name)).as_os_str().len();
            if length > SOCKET_PATH_BYTES_MAX {
                let why = format!(
                    "{} is too long for the sockets in it by {} bytes",
                    self.state.display(),
                    length - SOCKET_PATH_BYTES_MAX
                );
                return Err(value("state", why));
            }
        }
        for (key, number) in [
            ("instances_max", self.instances_max),
            ("waiting_max", self.waiting_max),
            ("starting_max", self.starting_max),
            ("urls_connections_max", self.urls_connections_max),
        ] {
            if number == 0 {
                return Err(value(key, "must be 1 at least"));
            }
        }
        Ok(())
    }

    /// Limits of the pool.
    pub fn limits(&self) -> Limits {
        Limits {
            memory_bytes_max: self.memory_max.map_or_else(three_quarters_bytes, |size| size.0),
            instances_max: self.instances_max,
            waiting_max: self.waiting_max,
            waiting_timeout: self.waiting_timeout,
            starting_max: self.starting_max,
        }
    }

    /// The directory of a tenant.
    pub fn tenant_dir(&self, tenant: &str) -> PathBuf {
        self.state.join("tenants").join(tenant)
    }
}

/// Three quarters of the machine's memory.
fn three_quarters_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram as u64 * u64::from(system.mem_unit) / 4 * 3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<GatewayConfig, ConfigError> {
        let config: GatewayConfig = unlade_config::parse(text, "fn.toml")?;
        config.check()?;
        Ok(config)
    }

    #[test]
    fn nothing_has_to_be_said() {
        let config = parsed("").unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:9001");
        assert!(config.limits().memory_bytes_max > 0);
    }

    #[test]
    fn what_cannot_be_is_said() {
        for wrong in [
            "listen = \"0.0.0.0:9001\"",
            "store_listen = \"0.0.0.0:9000\"",
            "urls = \"0.0.0.0:9002\"",
            "urls_domain = \"a_b\"",
            "urls_domain = \"a..b\"",
            "urls_timeout = \"0s\"",
            "urls_connections_max = 0",
            "instances_max = 0",
            "[tenant.\"a/b\"]",
            "lisen = \"127.0.0.1:1\"",
            "workers = \"one\"",
            "workers_admin = \"127.0.0.1:1\"",
            "authentication = \"off\"\nallow_remote = true",
            "authentication = \"none\"",
            "[tenant.a]\nmodes = [\"fast\"]",
            "[tenant.a]\nrole = { a = 1 }",
            "[tenant.a]\nrole = { statements = [], boundary = { statements = [] } }",
            "[tenant.a.roles.r]\na = 1",
            "[tenant.a.roles.default]\nstatements = []",
            "[tenant.a.roles.\"a b\"]\nstatements = []",
            "[tenant.a.roles.r]\nstatements = []\nboundary = { statements = [] }",
            "[[tenant.a.keys]]\naccess_key_id = \"a/b\"\nsecret_access_key = \"s\"",
            "[[tenant.a.keys]]\naccess_key_id = \"ab\"\nsecret_access_key = \"\"",
            "[[principal.\"s3.amazonaws.com\".keys]]\naccess_key_id = \"ab\"\nsecret_access_key = \"\"",
            "[principal.tenant]\nkeys = []",
            "[tenant.a]\nrole = { document = \"not-read.json\" }",
            "[tenant.a]\nrole = { Version = \"2012-10-17\", Statement = [{ Effect = \"Allow\" }] }",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        let long = format!("state = \"/{}\"", "x".repeat(100));
        assert!(parsed(&long).unwrap_err().to_string().contains("too long"));
        let rest = "/tenants/default/tcp/relay".len();
        for (bytes, fits) in [(SOCKET_PATH_BYTES_MAX, true), (SOCKET_PATH_BYTES_MAX + 1, false)] {
            let state = format!("state = \"/{}\"", "x".repeat(bytes - rest - 1));
            assert_eq!(parsed(&state).is_ok(), fits, "{bytes}");
        }
        assert!(parsed("listen = \"0.0.0.0:9001\"\nallow_remote = true").is_ok());
        assert!(parsed("urls = \"127.0.0.1:9002\"\nurls_domain = \"fn.example.com\"").is_ok());
        let shared = "workers = \"shared\"\nworkers_admin = \"127.0.0.1:1\"";
        assert_eq!(parsed(shared).unwrap().workers, Workers::Shared);
        let many: String = (0..SHARED_TENANTS_MAX).map(|n| format!("[tenant.t{n}]\n")).collect();
        assert!(parsed(&many).is_ok() && parsed(&format!("{shared}\n{many}")).is_err());
    }
}
