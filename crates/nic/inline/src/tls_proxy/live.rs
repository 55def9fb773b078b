//! The part of the configuration that can change while the process runs: roles of listeners,
//! certificates, and limits for new connections.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::config::{Config, Originate, Terminate};
use super::error::RunError;

/// The role of a listener for its connections.
#[derive(Clone)]
pub(super) enum Role {
    /// Accepts TLS, and connects to the server in the clear.
    Terminate(Arc<ServerConfig>, SocketAddr),
    /// Accepts in the clear, and connects by TLS to the server of this name.
    Originate(Arc<ClientConfig>, ServerName<'static>, SocketAddr),
}

/// A listener's table, its role, and the contents of its certificate file.
#[derive(Clone)]
struct Entry {
    table: ListenerTable,
    role: Role,
    certificates: Vec<u8>,
}

/// A `[[terminate]]` or an `[[originate]]` table.
#[derive(Clone, PartialEq, Eq)]
enum ListenerTable {
    Terminate(Terminate),
    Originate(Originate),
}

impl ListenerTable {
    fn listen(&self) -> SocketAddr {
        match self {
            ListenerTable::Terminate(table) => table.listen,
            ListenerTable::Originate(table) => table.listen,
        }
    }

    fn name(&self) -> String {
        match self {
            ListenerTable::Terminate(table) => format!("[[terminate]] {}", table.listen),
            ListenerTable::Originate(table) => format!("[[originate]] {}", table.listen),
        }
    }

    fn all(config: &Config) -> Vec<ListenerTable> {
        let terminate = config.terminate.iter().cloned().map(ListenerTable::Terminate);
        let originate = config.originate.iter().cloned().map(ListenerTable::Originate);
        terminate.chain(originate).collect()
    }

    /// Returns true if this is the same listener, even if other keys differ.
    fn is_same_listener(&self, other: &ListenerTable) -> bool {
        let same_kind = std::mem::discriminant(self) == std::mem::discriminant(other);
        same_kind && self.listen() == other.listen()
    }

    /// The keys in which they differ.
    fn differing(&self, other: &ListenerTable) -> Vec<&'static str> {
        let pairs = match (self, other) {
            (ListenerTable::Terminate(a), ListenerTable::Terminate(b)) => vec![
                ("backend", a.backend != b.backend),
                ("certificate", a.certificate != b.certificate),
                ("key", a.key != b.key),
                ("alpn", a.alpn != b.alpn),
            ],
            (ListenerTable::Originate(a), ListenerTable::Originate(b)) => vec![
                ("connect", a.connect != b.connect),
                ("name", a.name != b.name),
                ("ca", a.ca != b.ca),
                ("alpn", a.alpn != b.alpn),
            ],
            _ => Vec::new(),
        };
        pairs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }

    fn load(self) -> Result<Entry, RunError> {
        let (role, certificates) = match &self {
            ListenerTable::Terminate(table) => {
                let (config, certificates) = server_config(table)?;
                (Role::Terminate(config, table.backend), certificates)
            }
            ListenerTable::Originate(table) => {
                let name = ServerName::try_from(table.name.clone())
                    .map_err(|_| RunError::Name(table.name.clone()))?;
                let (config, certificates) = client_config(table)?;
                (Role::Originate(config, name, table.connect), certificates)
            }
        };
        Ok(Entry { table: self, role, certificates })
    }
}

/// The configuration of new connections; the listeners and their order never change.
pub(super) struct Live {
    entries: Vec<Entry>,
    /// Largest number of concurrent connections.
    pub connections_max: usize,
    /// Time limit from a connection's start to the end of its handshake.
    pub handshake_timeout: Duration,
}

impl Live {
    /// Reads certificates and keys.
    ///
    /// # Errors
    /// [`RunError`].
    pub fn load(config: &Config) -> Result<Live, RunError> {
        let entries: Result<_, _> =
            ListenerTable::all(config).into_iter().map(ListenerTable::load).collect();
        let &Config { connections_max, handshake_timeout, .. } = config;
        Ok(Live { entries: entries?, connections_max, handshake_timeout })
    }

    /// The listeners, each with its address and role.
    pub fn listeners(&self) -> impl Iterator<Item = (SocketAddr, &Role)> {
        self.entries.iter().map(|entry| (entry.table.listen(), &entry.role))
    }

    /// The role of the listener with this number.
    pub fn role(&self, listener: usize) -> Option<&Role> {
        self.entries.get(listener).map(|entry| &entry.role)
    }
}

/// The differences that a new configuration makes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Changes that apply to new connections, from now on.
    pub made: Vec<String>,
    /// Keys that take effect only after a restart.
    pub left: Vec<String>,
}

impl Changes {
    /// Logs the changes, and the keys that need a restart.
    pub fn log(&self) {
        match self.made.as_slice() {
            [] => tracing::info!("nothing has changed that can change without a restart"),
            made => tracing::info!(changed = made.join("; "), "for new connections, from now on"),
        }
        if !self.left.is_empty() {
            tracing::warn!(
                keys = self.left.join(", "),
                "changed in the configuration, but unchanged here: restart the process for them"
            );
        }
    }
}

/// The running configuration, and the source of the next one.
pub(super) struct Reloader<F> {
    running: Config,
    entries: Vec<Entry>,
    read: F,
}

impl<F, E> Reloader<F>
where
    F: FnMut() -> Result<Config, E>,
    E: Display,
{
    /// Creates a reloader. `live` was built from `running`; `read` returns the next
    /// configuration.
    pub fn new(running: Config, live: &Live, read: F) -> Reloader<F> {
        Reloader { running, entries: live.entries.clone(), read }
    }

    /// Reads the next configuration, and applies the keys that can change.
    ///
    /// # Errors
    /// The configuration, or a file that it names, is invalid; nothing has changed then.
    pub fn reload(&mut self) -> Result<(Live, Changes), RunError> {
        let next = (self.read)().map_err(|error| RunError::Reload(error.to_string()))?;
        next.check()?;
        let mut changes = Changes { left: left(&self.running, &next), ..Changes::default() };
        let mut tables = ListenerTable::all(&next);
        let mut entries = Vec::new();
        for entry in &self.entries {
            let found = tables.iter().position(|table| table.is_same_listener(&entry.table));
            let Some(found) = found else {
                changes.left.push(format!("{} (removed)", entry.table.name()));
                entries.push(entry.clone());
                continue;
            };
            let new = tables.remove(found).load()?;
            let mut keys: Vec<_> = entry.table.differing(&new.table);
            if entry.certificates != new.certificates {
                keys.push("the certificates in the file");
            }
            if !keys.is_empty() {
                changes.made.push(format!("{}: {}", entry.table.name(), keys.join(", ")));
            }
            entries.push(new);
        }
        changes.left.extend(tables.iter().map(|table| format!("{} (new)", table.name())));
        let Config { connections_max, handshake_timeout, .. } = next;
        if connections_max != self.running.connections_max {
            changes.made.push(format!("connections_max = {connections_max}"));
        }
        if handshake_timeout != self.running.handshake_timeout {
            changes.made.push(format!("handshake_timeout = {handshake_timeout:?}"));
        }
        self.running.connections_max = connections_max;
        self.running.handshake_timeout = handshake_timeout;
        self.entries = entries.clone();
        Ok((Live { entries, connections_max, handshake_timeout }, changes))
    }
}

/// The keys in which `next` differs and that take effect only after a restart, without listeners.
fn left(running: &Config, next: &Config) -> Vec<String> {
    let keys = [
        ("tap", running.tap != next.tap),
        ("addresses", running.addresses != next.addresses),
        ("routes", running.routes != next.routes),
        ("wire", running.wire != next.wire),
        ("mtu_bytes", running.mtu_bytes != next.mtu_bytes),
        ("software", running.software != next.software),
        ("impair", running.impair != next.impair),
        ("pcap", running.pcap != next.pcap),
        ("engine_core", running.engine_core != next.engine_core),
        ("host_core", running.host_core != next.host_core),
        ("admin", running.admin != next.admin),
        ("drain_timeout", running.drain_timeout != next.drain_timeout),
        ("log", running.log != next.log),
    ];
    keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key.to_owned()).collect()
}

fn read(path: &PathBuf) -> Result<Vec<u8>, RunError> {
    std::fs::read(path).map_err(|error| RunError::File { path: path.clone(), error })
}

fn server_config(terminate: &Terminate) -> Result<(Arc<ServerConfig>, Vec<u8>), RunError> {
    let failed = |error: unlade_tls::ConfigError| RunError::Tls {
        path: terminate.certificate.clone(),
        said: error.to_string(),
    };
    let (certificate, key) = (read(&terminate.certificate)?, read(&terminate.key)?);
    let (chain, key) = unlade_tls::config::identity_from_pem(&certificate, &key).map_err(failed)?;
    let alpn: Vec<&[u8]> = terminate.alpn.iter().map(|name| name.as_bytes()).collect();
    let config = unlade_tls::server_config(chain, key, &alpn).map_err(failed)?;
    Ok((config, certificate))
}

fn client_config(originate: &Originate) -> Result<(Arc<ClientConfig>, Vec<u8>), RunError> {
    let failed = |said: String| RunError::Tls { path: originate.ca.clone(), said };
    let mut roots = RootCertStore::empty();
    let certificates = read(&originate.ca)?;
    for certificate in CertificateDer::pem_slice_iter(&certificates) {
        let certificate = certificate.map_err(|error| failed(error.to_string()))?;
        roots.add(certificate).map_err(|error| failed(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(failed("holds no certificate".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = originate.alpn.iter().map(|name| name.clone().into_bytes()).collect();
    Ok((Arc::new(config), certificates))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn identity(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let made = rcgen::generate_simple_self_signed(vec!["peer.example".to_owned()]).unwrap();
        let paths = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
        std::fs::write(&paths.0, made.cert.pem()).unwrap();
        std::fs::write(&paths.1, made.signing_key.serialize_pem()).unwrap();
        paths
    }

    fn config(dir: &Path) -> Config {
        let (certificate, key) = identity(dir, "a");
        let listen = "127.0.0.1:443".parse().unwrap();
        let backend = "127.0.0.1:80".parse().unwrap();
        let terminate = vec![Terminate { listen, backend, certificate, key, alpn: Vec::new() }];
        Config { terminate, ..Config::default() }
    }

    /// Loads `config`, then a copy that `change` has modified.
    fn reload(
        config: Config,
        change: impl FnOnce(&mut Config),
    ) -> (Reloader<impl FnMut() -> Result<Config, String>>, Result<Changes, RunError>) {
        let live = Live::load(&config).unwrap();
        let mut next = config.clone();
        change(&mut next);
        let mut reloader = Reloader::new(config, &live, move || Ok(next.clone()));
        let changes = reloader.reload().map(|(_, changes)| changes);
        (reloader, changes)
    }

    #[test]
    fn what_changed_is_said_and_what_needs_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let change = |config: &mut Config| {
            identity(dir.path(), "a");
            config.connections_max = 7;
            config.tap = "unl9".to_owned();
            config.terminate[0].backend = "127.0.0.1:81".parse().unwrap();
            let mut other = config.terminate[0].clone();
            other.listen = "127.0.0.1:444".parse().unwrap();
            config.terminate.push(other);
        };
        let (mut reloader, changes) = reload(config(dir.path()), change);
        let expected = Changes {
            made: vec![
                "[[terminate]] 127.0.0.1:443: backend, the certificates in the file".to_owned(),
                "connections_max = 7".to_owned(),
            ],
            left: vec!["tap".to_owned(), "[[terminate]] 127.0.0.1:444 (new)".to_owned()],
        };
        assert_eq!(changes.unwrap(), expected);
        // The change was applied before; the keys that need a restart still do.
        let (live, again) = reloader.reload().unwrap();
        assert_eq!(again, Changes { made: Vec::new(), ..expected });
        let Some(Role::Terminate(_, backend)) = live.role(0) else { panic!("another role") };
        assert_eq!((backend.port(), live.connections_max, live.listeners().count()), (81, 7, 1));
    }

    #[test]
    fn an_invalid_configuration_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (_, other_key) = identity(dir.path(), "b");
        let config = config(dir.path());
        let wrong: [fn(&mut Config, PathBuf); 4] = [
            // A key of another certificate.
            |config, other_key| config.terminate[0].key = other_key,
            |config, _| config.terminate[0].certificate = "/nonexistent".into(),
            |config, _| config.connections_max = 0,
            |config, _| config.terminate.clear(),
        ];
        for change in wrong {
            let (mut reloader, changes) = reload(config.clone(), |config| {
                config.handshake_timeout = Duration::from_secs(1);
                change(config, other_key.clone());
            });
            assert!(changes.is_err());
            assert_eq!(reloader.running, config);
            assert!(
                reloader.entries[0].table == ListenerTable::Terminate(config.terminate[0].clone())
            );
            assert!(reloader.reload().is_err(), "it is refused again");
        }
    }

    #[test]
    fn a_listener_that_is_gone_from_the_file_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let (_, changes) = reload(config(dir.path()), |config| {
            config.terminate[0].listen = "127.0.0.1:999".parse().unwrap();
        });
        let left = ["[[terminate]] 127.0.0.1:443 (removed)", "[[terminate]] 127.0.0.1:999 (new)"];
        assert_eq!(changes.unwrap().left, left);
    }
}
