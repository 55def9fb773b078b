//! Generated keys of tenants for which the operator has configured none. They are stored in a file
//! that AWS's tools can read (`AWS_SHARED_CREDENTIALS_FILE`), one profile for each tenant.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::auth::{Caller, Keys};
use crate::config::{DEFAULT_TENANT, GatewayConfig, KeyPair};
use crate::tenant::write_private;

/// Prefix of generated access keys, which distinguishes them from AWS's.
const PREFIX: &str = "UNLADE";

/// The path of the file, within the state.
pub fn file(state: &Path) -> PathBuf {
    state.join("credentials")
}

/// Random bytes, as hexadecimal digits.
///
/// # Errors
/// The system call failed.
pub fn random(bytes: usize) -> io::Result<String> {
    let mut content = vec![0; bytes];
    rustix::rand::getrandom(&mut content, rustix::rand::GetRandomFlags::empty())?;
    Ok(content.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn made() -> io::Result<KeyPair> {
    let access_key_id = format!("{PREFIX}{}", random(7)?.to_uppercase());
    Ok(KeyPair { access_key_id, secret_access_key: random(20)? })
}

/// The profiles of a credentials file.
pub fn parse(text: &str) -> BTreeMap<String, KeyPair> {
    let mut profiles: BTreeMap<String, (Option<String>, Option<String>)> = BTreeMap::new();
    let mut profile = String::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.trim().clone_into(&mut profile);
        } else if let Some((name, value)) = line.split_once('=') {
            let (id, secret) = profiles.entry(profile.clone()).or_default();
            match name.trim() {
                "aws_access_key_id" => *id = Some(value.trim().to_owned()),
                "aws_secret_access_key" => *secret = Some(value.trim().to_owned()),
                _ => {}
            }
        }
    }
    let pair = |(name, (id, secret)): (String, _)| {
        let (access_key_id, secret_access_key) = (id?, secret?);
        Some((name, KeyPair { access_key_id, secret_access_key }))
    };
    profiles.into_iter().filter_map(pair).collect()
}

fn text(profiles: &BTreeMap<String, KeyPair>) -> String {
    let profile = |(name, pair): (&String, &KeyPair)| {
        let KeyPair { access_key_id, secret_access_key } = pair;
        format!(
            "[{name}]\naws_access_key_id = {access_key_id}\naws_secret_access_key = \
             {secret_access_key}\n"
        )
    };
    profiles.iter().map(profile).collect()
}

/// All accepted keys: those of the configuration, and for other tenants those of the file,
/// generated if absent. Also returns the keys of the tenant `default`, for `unlade fn env`.
///
/// # Errors
/// The file cannot be read or written, or two tenants have the same key.
pub fn load(config: &GatewayConfig) -> io::Result<(Keys, Option<KeyPair>)> {
    let path = file(&config.state);
    let mut profiles = match std::fs::read_to_string(&path) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
        Err(error) => return Err(error),
    };
    let (mut keys, mut own, mut has_new) = (Keys::default(), None, false);
    let names = config.tenant.keys().map(String::as_str);
    for tenant in names.chain([DEFAULT_TENANT]) {
        let named = config.tenant.get(tenant).map(|tenant| tenant.keys.clone());
        let mut pairs = named.unwrap_or_default();
        if pairs.is_empty() {
            if !profiles.contains_key(tenant) {
                profiles.insert(tenant.to_owned(), made()?);
                has_new = true;
            }
            pairs.extend(profiles.get(tenant).cloned());
        }
        if tenant == DEFAULT_TENANT {
            own = pairs.first().cloned();
        }
        for pair in pairs {
            keys.add(tenant, pair).map_err(io::Error::other)?;
        }
    }
    for (name, principal) in &config.principal {
        for pair in &principal.keys {
            let caller = Caller::Service(name.clone());
            keys.add_of(caller, pair.clone()).map_err(io::Error::other)?;
        }
    }
    if has_new {
        write_private(&path, &text(&profiles))?;
        tracing::info!(path = %path.display(), "access keys of tenants; a profile each");
    }
    Ok((keys, own))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_are_made_once_and_only_their_owner_reads_them() {
        let state = tempfile::tempdir().unwrap();
        let text =
            "[[tenant.b.keys]]\naccess_key_id = \"B\"\nsecret_access_key = \"b\"\n[tenant.a]\n";
        let text = format!("state = \"{}\"\n{text}", state.path().display());
        let config: GatewayConfig = unlade_config::parse(&text, "fn.toml").unwrap();
        let (_, own) = load(&config).unwrap();
        let path = file(state.path());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let profiles = parse(&std::fs::read_to_string(&path).unwrap());
        assert_eq!(profiles.keys().collect::<Vec<_>>(), ["a", "default"], "b has its own");
        assert_eq!(own.as_ref(), profiles.get("default"));
        assert_ne!(profiles["a"], profiles["default"]);
        assert_eq!(load(&config).unwrap().1, own, "the same ones again");
    }

    #[test]
    fn a_key_of_two_tenants_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let key = "access_key_id = \"K\"\nsecret_access_key = \"s\"\n";
        let text = format!(
            "state = \"{}\"\n[[tenant.a.keys]]\n{key}[[tenant.b.keys]]\n{key}",
            state.path().display()
        );
        let config: GatewayConfig = unlade_config::parse(&text, "fn.toml").unwrap();
        assert!(load(&config).unwrap_err().to_string().contains('K'));
    }

    #[test]
    fn files_of_others_are_read() {
        let text = "# mine\n[ default ]\naws_access_key_id=A\n aws_secret_access_key = s=1\n\
                    region = x\n[half]\naws_access_key_id = H\n";
        let profiles = parse(text);
        assert_eq!(profiles.len(), 1);
        assert_eq!(profiles["default"].secret_access_key, "s=1");
    }
}
