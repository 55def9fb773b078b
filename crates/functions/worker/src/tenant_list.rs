//! The tenants of a shared worker: a file that names the configuration of each.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use unlade_runtime::logs::LogConfig;

use crate::config::{ConfigError, WorkerConfig};

/// Most tenants of a worker.
pub const TENANTS_MAX: usize = 256;
/// Longest name of a tenant.
pub const NAME_BYTES_MAX: usize = 64;

/// The file given to `unlade fn worker --shared`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantListFile {
    /// The configuration file of each tenant, by name, as for a worker of its own.
    #[serde(default)]
    tenants: BTreeMap<String, PathBuf>,
    /// The address of the metrics of all tenants, with a label for the tenant.
    #[serde(default)]
    admin: Option<SocketAddr>,
    /// Format and level of the log.
    #[serde(default)]
    log: LogConfig,
}

/// The tenants that can be served, and those that cannot.
#[derive(Debug)]
pub struct TenantList {
    /// The address of the metrics of all tenants; not served if absent.
    pub admin: Option<SocketAddr>,
    /// Format and level of the log.
    pub log: LogConfig,
    /// Tenants by name.
    pub tenants: BTreeMap<String, WorkerConfig>,
    /// Tenants whose configuration is invalid, with the error; the others are served.
    pub refused: BTreeMap<String, ConfigError>,
}

impl TenantList {
    /// Reads the file, and the files that it names.
    ///
    /// # Errors
    /// The file itself is invalid, or has too many tenants.
    pub fn load(path: &Path) -> Result<TenantList, ConfigError> {
        let file: TenantListFile = unlade_config::load(path)?;
        if file.tenants.len() > TENANTS_MAX {
            return Err(wrong("[tenants]", format!("{TENANTS_MAX} at most in a worker")));
        }
        let (mut tenants, mut refused) = (BTreeMap::new(), BTreeMap::new());
        let mut paths = HashMap::new();
        for (name, path) in file.tenants {
            let read = checked_name(&name).and_then(|()| WorkerConfig::load(&path));
            match read.and_then(|config| alone(&name, &config, &mut paths).map(|()| config)) {
                Ok(config) => drop(tenants.insert(name, config)),
                Err(error) => drop(refused.insert(name, error)),
            }
        }
        Ok(TenantList { admin: file.admin, log: file.log, tenants, refused })
    }

    /// Checks that every tenant can be served.
    ///
    /// # Errors
    /// The error of the first tenant that cannot be served.
    pub fn check(self) -> Result<(), ConfigError> {
        self.refused.into_values().next().map_or(Ok(()), Err)
    }
}

fn wrong(key: &'static str, why: String) -> ConfigError {
    ConfigError::Value { key, why }
}

fn checked_name(name: &str) -> Result<(), ConfigError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(allowed) {
        return Err(wrong("[tenants]", format!("{name:?} is no name")));
    }
    Ok(())
}

/// Checks that no path is used by two tenants: the socket identifies the tenant.
fn alone(
    name: &str,
    config: &WorkerConfig,
    paths: &mut HashMap<PathBuf, String>,
) -> Result<(), ConfigError> {
    let relay = config.relay.as_ref().map(|relay| &relay.path);
    let own = [Some(&config.control), config.tenant.journal.as_ref(), relay];
    for path in own.into_iter().flatten() {
        if let Some(other) = paths.insert(path.clone(), name.to_owned()) {
            let why = format!("{} is used by {other} and {name}", path.display());
            return Err(wrong("control, [tenant] journal, [relay] path", why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str, tenants: &[(&str, &str)]) -> Result<TenantList, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (name, text) in tenants {
            std::fs::write(at(name), text).unwrap();
        }
        let file = file.replace("DIR", &dir.path().display().to_string());
        std::fs::write(at("shared.toml"), file).unwrap();
        TenantList::load(&at("shared.toml"))
    }

    #[test]
    fn a_tenant_that_cannot_be_served_keeps_none_else_from_it() {
        let good = "control = \"/run/a\"\n[store]\n";
        let file = "[tenants]\na = \"DIR/a\"\nb = \"DIR/b\"\nc = \"DIR/missing\"\n\
                    \"d/e\" = \"DIR/a\"\nf = \"DIR/a\"\n";
        let tenant_list = load(file, &[("a", good), ("b", "control = 1")]).unwrap();
        let served: Vec<_> = tenant_list.tenants.keys().map(String::as_str).collect();
        assert_eq!(served, ["a"]);
        let refused: Vec<_> = tenant_list.refused.keys().map(String::as_str).collect();
        assert_eq!(refused, ["b", "c", "d/e", "f"]);
        let why = tenant_list.refused["f"].to_string();
        assert!(why.contains("/run/a is used by a and f"), "{why}");
        assert!(tenant_list.check().is_err());
    }

    #[test]
    fn a_file_that_is_none_is_told() {
        assert!(load("tenant = {}", &[]).is_err());
        assert!(load("", &[]).unwrap().tenants.is_empty());
        let many: String = (0..=TENANTS_MAX).map(|n| format!("t{n} = \"/x\"\n")).collect();
        let why = load(&format!("[tenants]\n{many}"), &[]).unwrap_err().to_string();
        assert!(why.contains("256"), "{why}");
    }
}
