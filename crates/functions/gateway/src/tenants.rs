//! The tenants of a gateway, which can be added and removed, and their I/O workers: one each, or
//! one for all.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tokio::task::JoinHandle;

use crate::auth::Keys;
use crate::config::{DEFAULT_TENANT, GatewayConfig, TenantConfig, Workers};
use crate::store::Access;
use crate::tenant::{Tenant, config_file, configure, write_private};
use crate::worker::{Kind, Worker};

/// The gateway, as its own functions call it.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// Its URL.
    pub url: String,
    /// The keys of callers; `None` without authentication.
    pub keys: Option<Keys>,
}

/// See the [module](self).
pub struct Tenants {
    executable: PathBuf,
    access: Option<Access>,
    own: RefCell<Own>,
    state: PathBuf,
    all: RefCell<BTreeMap<String, Entry>>,
    /// Tenants that accept no new functions, and are served until they have drained.
    leaving: RefCell<Vec<Entry>>,
    shared: Option<Rc<Worker>>,
    processes: RefCell<Vec<(Rc<Worker>, JoinHandle<()>)>>,
}

struct Entry {
    tenant: Rc<Tenant>,
    /// The configuration of its worker.
    table: toml::Table,
    stays: JoinHandle<()>,
}

/// The part of the table whose change affects instances; other changes need a restart.
fn served(table: &toml::Table) -> toml::Table {
    let is_of_process = |key: &String| ["log", "drain_timeout"].contains(&key.as_str());
    let parts = table.iter().filter(|(key, _)| !is_of_process(key));
    parts.map(|(key, value)| (key.clone(), value.clone())).collect()
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.stays.abort();
    }
}

impl Tenants {
    /// Creates the tenants of a configuration; their workers are started soon after. Must be
    /// called within a [`LocalSet`](tokio::task::LocalSet).
    ///
    /// # Errors
    /// A configuration file cannot be written.
    pub fn start(
        config: &GatewayConfig,
        executable: &Path,
        access: Option<Access>,
        own: Own,
    ) -> io::Result<Tenants> {
        let shared = (config.workers == Workers::Shared).then(|| {
            let file = config.state.join("shared.toml");
            Worker::new(Kind::Shared, "shared", executable, file)
        });
        let tenants = Tenants {
            executable: executable.to_owned(),
            access,
            own: RefCell::new(own),
            state: config.state.clone(),
            all: RefCell::default(),
            leaving: RefCell::default(),
            shared: shared.clone(),
            processes: RefCell::default(),
        };
        tenants.apply(config)?;
        if let Some(shared) = shared {
            tenants.run(shared);
        }
        Ok(tenants)
    }

    /// The tenant with this name.
    pub fn get(&self, name: &str) -> Option<Rc<Tenant>> {
        self.all.borrow().get(name).map(|entry| entry.tenant.clone())
    }

    /// Changes the keys of callers; [`Tenants::apply`] passes them to the workers.
    pub fn set_keys(&self, keys: Option<Keys>) {
        self.own.borrow_mut().keys = keys;
    }

    /// All tenants, by name.
    pub fn all(&self) -> Vec<Rc<Tenant>> {
        self.all.borrow().values().map(|entry| entry.tenant.clone()).collect()
    }

    fn run(&self, worker: Rc<Worker>) {
        let task = tokio::task::spawn_local(worker.clone().supervise());
        let mut processes = self.processes.borrow_mut();
        processes.retain(|(_, task)| !task.is_finished());
        processes.push((worker, task));
    }

    /// Applies a configuration: new tenants, and changes of others. Removed tenants stay until
    /// [`Tenants::part`].
    ///
    /// # Errors
    /// A configuration file cannot be written.
    pub fn apply(&self, config: &GatewayConfig) -> io::Result<()> {
        let (mut configured, mut is_other) = (config.tenant.clone(), false);
        configured.entry(DEFAULT_TENANT.to_owned()).or_default();
        // Without keys the gateway cannot tell the functions of several tenants apart.
        let has_lambda = configured.len() == 1 || self.own.borrow().keys.is_some();
        for (name, own) in configured {
            let mut table = worker_table(config, &own, self.access.as_ref());
            if has_lambda {
                add_lambda(&mut table, &name, &self.own.borrow());
            }
            let dir = self.dir(&name);
            if let Some(entry) = self.all.borrow_mut().get_mut(&name) {
                if served(&entry.table) != served(&table) {
                    configure(&dir, table.clone())?;
                    entry.table = table;
                    is_other = true;
                    if self.shared.is_none() {
                        entry.tenant.worker.reload();
                    }
                }
                continue;
            }
            configure(&dir, table.clone())?;
            is_other = true;
            let worker = self.shared.clone().unwrap_or_else(|| {
                let worker = Worker::new(Kind::Own, &name, &self.executable, config_file(&dir));
                self.run(worker.clone());
                worker
            });
            let tenant = Tenant::new(&name, &dir, worker);
            let stays = tokio::task::spawn_local(tenant.clone().stay());
            self.all.borrow_mut().insert(name, Entry { tenant, table, stays });
        }
        match is_other {
            true => self.tell(config),
            false => Ok(()),
        }
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.state.join("tenants").join(name)
    }

    /// Writes the list of tenants for the shared worker.
    fn tell(&self, config: &GatewayConfig) -> io::Result<()> {
        let Some(worker) = &self.shared else { return Ok(()) };
        let (all, leaving) = (self.all.borrow(), self.leaving.borrow());
        let names = all.values().chain(leaving.iter()).map(|entry| entry.tenant.name.clone());
        let file = |name: &String| config_file(&self.dir(name)).display().to_string();
        let files = names.map(|name| (name.clone(), file(&name).into()));
        let mut table = toml::Table::new();
        if let Some(admin) = config.workers_admin {
            table.insert("admin".to_owned(), admin.to_string().into());
        }
        table.insert("tenants".to_owned(), toml::Table::from_iter(files).into());
        let level = ("level".to_owned(), config.log.level.clone().into());
        table.insert("log".to_owned(), toml::Table::from_iter([level]).into());
        write_private(&self.state.join("shared.toml"), &table.to_string())?;
        worker.reload();
        Ok(())
    }

    /// Retires the tenants that are no longer configured and have no functions: they accept no new
    /// functions. Returns them; they are served until [`Tenants::leave`].
    pub fn part(
        &self,
        config: &GatewayConfig,
        is_used: impl Fn(&Rc<Tenant>) -> bool,
    ) -> Vec<Rc<Tenant>> {
        let is_gone = |name: &String| !config.tenant.contains_key(name) && name != DEFAULT_TENANT;
        let mut parted = Vec::new();
        let mut all = self.all.borrow_mut();
        let gone: Vec<String> = all.keys().filter(|name| is_gone(name)).cloned().collect();
        for name in gone {
            if all.get(&name).is_some_and(|entry| is_used(&entry.tenant)) {
                tracing::error!(tenant = name, "stays: functions are of it; remove them first");
            } else if let Some(entry) = all.remove(&name) {
                parted.push(entry.tenant.clone());
                self.leaving.borrow_mut().push(entry);
            }
        }
        parted
    }

    /// Removes a tenant from its worker, which finishes pending writes first.
    ///
    /// # Errors
    /// The configuration file cannot be written.
    pub fn leave(&self, config: &GatewayConfig, tenant: &Rc<Tenant>) -> io::Result<()> {
        self.leaving.borrow_mut().retain(|entry| !Rc::ptr_eq(&entry.tenant, tenant));
        match self.shared {
            Some(_) => self.tell(config),
            None => {
                tenant.worker.drain();
                Ok(())
            }
        }
    }

    /// Drains the workers: they finish pending writes and end.
    pub async fn drain(&self) {
        let processes = std::mem::take(&mut *self.processes.borrow_mut());
        for (worker, _) in &processes {
            worker.drain();
        }
        for (_, task) in processes {
            // A worker has its own timeout.
            let _ = task.await;
        }
    }
}

/// The configuration of a tenant's worker. Its `[store]` is the tenant's own, else the gateway's,
/// else the built-in store.
fn worker_table(
    config: &GatewayConfig,
    tenant: &TenantConfig,
    access: Option<&Access>,
) -> toml::Table {
    let mut table = toml::Table::new();
    let builtin = || access.map(Access::table).unwrap_or_default();
    let store = tenant.store.clone().or_else(|| config.store.clone()).unwrap_or_else(builtin);
    table.insert("store".to_owned(), store.into());
    let services = tenant.services.clone().or_else(|| config.services.clone());
    table.insert("services".to_owned(), services.unwrap_or_default().into());
    let parts =
        [("instance", &tenant.instance), ("copies", &tenant.copies), ("tenant", &tenant.limits)];
    for (key, part) in parts {
        if let Some(part) = part {
            table.insert(key.to_owned(), part.clone().into());
        }
    }
    if let Some(admin) = tenant.admin {
        table.insert("admin".to_owned(), admin.to_string().into());
    }
    let drain = format!("{}s", config.drain_timeout.as_secs().max(1));
    table.insert("drain_timeout".to_owned(), drain.into());
    let mut log = toml::Table::new();
    log.insert("level".to_owned(), config.log.level.clone().into());
    table.insert("log".to_owned(), log.into());
    table
}

/// Adds this gateway as the service `lambda`, unless the configuration names another endpoint.
fn add_lambda(table: &mut toml::Table, tenant: &str, own: &Own) {
    let entry = |table: &mut toml::Table, key: &str| -> Option<toml::Table> {
        table.remove(key).unwrap_or_else(|| toml::Table::new().into()).try_into().ok()
    };
    // A value that is no table is left for the worker to refuse.
    let kept = table.clone();
    let Some(mut services) = entry(table, "services") else { return *table = kept };
    let Some(mut endpoints) = entry(&mut services, "endpoint") else { return *table = kept };
    if !endpoints.contains_key("lambda") {
        let text = |text: &str| toml::Value::from(text.to_owned());
        let pair = own.keys.as_ref().and_then(|keys| keys.of(tenant));
        let credentials = match pair {
            None => vec![("from", text("anonymous"))],
            Some(pair) => vec![
                ("from", text("keys")),
                ("access_key_id", text(&pair.access_key_id)),
                ("secret_access_key", text(&pair.secret_access_key)),
            ],
        };
        let credentials = credentials.into_iter().map(|(key, value)| (key.to_owned(), value));
        let mut lambda = toml::Table::new();
        lambda.insert("url".to_owned(), text(&own.url));
        lambda.insert("credentials".to_owned(), toml::Table::from_iter(credentials).into());
        endpoints.insert("lambda".to_owned(), lambda.into());
    }
    services.insert("endpoint".to_owned(), endpoints.into());
    table.insert("services".to_owned(), services.into());
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;

    use super::*;

    fn config(state: &Path, text: &str) -> GatewayConfig {
        let text = format!("state = \"{}\"\n{text}", state.display());
        unlade_config::parse(&text, "fn.toml").unwrap()
    }

    /// Runs a test without awaiting: no process is started.
    fn within(test: impl FnOnce(&Path)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        LocalSet::new().block_on(&runtime, async { test(dir.path()) });
    }

    fn start(config: &GatewayConfig) -> Tenants {
        let own = Own { url: "http://127.0.0.1:9001".to_owned(), keys: None };
        Tenants::start(config, Path::new("/nothing"), None, own).unwrap()
    }

    fn told(state: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(state.join("shared.toml")).unwrap();
        let table: toml::Table = text.parse().unwrap();
        table["tenants"].as_table().unwrap().keys().cloned().collect()
    }

    #[test]
    fn a_shared_worker_is_told_who_its_tenants_are() {
        within(|state| {
            let shared = "workers = \"shared\"\n";
            let tenants = start(&config(state, &format!("{shared}[tenant.a]\n[tenant.b]\n")));
            assert_eq!(told(state), ["a", "b", "default"]);
            let workers: Vec<_> = tenants.all().iter().map(|t| t.worker.clone()).collect();
            assert!(workers.iter().all(|worker| Rc::ptr_eq(worker, &workers[0])));
            let fewer = config(state, &format!("{shared}[tenant.c]\n"));
            tenants.apply(&fewer).unwrap();
            assert_eq!(told(state), ["a", "b", "c", "default"]);
            // A tenant stays while it has functions.
            let parted = tenants.part(&fewer, |tenant| tenant.name == "a");
            assert!(tenants.get("a").is_some() && tenants.get("b").is_none());
            assert_eq!(parted.len(), 1);
            assert_eq!(told(state), ["a", "b", "c", "default"]);
            tenants.leave(&fewer, &parted[0]).unwrap();
            assert_eq!(told(state), ["a", "c", "default"]);
        });
    }

    #[test]
    fn each_tenant_has_a_worker_of_its_own_otherwise() {
        within(|state| {
            let tenants = start(&config(state, "[tenant.a]\n"));
            let [a, default] = ["a", "default"].map(|name| tenants.get(name).unwrap());
            assert!(!Rc::ptr_eq(&a.worker, &default.worker));
            assert!(!state.join("shared.toml").exists());
            assert_eq!((a.worker.kind, a.pid()), (Kind::Own, None));
        });
    }

    #[test]
    fn what_a_worker_is_told_changes_when_its_tenant_does() {
        within(|state| {
            let tenants = start(&config(state, ""));
            let file = config_file(&state.join("tenants/default"));
            let read = || std::fs::read_to_string(&file).unwrap();
            let before = read();
            tenants.apply(&config(state, "drain_timeout = \"7s\"\n")).unwrap();
            assert_eq!(read(), before, "instances go on");
            tenants.apply(&config(state, "[tenant.default.limits]\ncalls_max = 7\n")).unwrap();
            assert!(read().contains("calls_max = 7"));
        });
    }

    #[test]
    fn functions_reach_their_gateway_with_a_key_of_their_tenant() {
        let pair = |id: &str| crate::config::KeyPair {
            access_key_id: id.to_owned(),
            secret_access_key: "s".to_owned(),
        };
        let mut keys = Keys::default();
        keys.add("a", pair("A")).unwrap();
        keys.add("b", pair("B")).unwrap();
        let own = Own { url: "http://127.0.0.1:9001".to_owned(), keys: Some(keys) };
        let config = GatewayConfig::default();
        let lambda = |tenant: &TenantConfig, own: &Own| {
            let mut table = worker_table(&config, tenant, None);
            add_lambda(&mut table, "b", own);
            table["services"]["endpoint"]["lambda"].clone()
        };
        let found = lambda(&TenantConfig::default(), &own);
        assert_eq!(found["url"].as_str(), Some("http://127.0.0.1:9001"));
        assert_eq!(found["credentials"]["access_key_id"].as_str(), Some("B"));
        let open = Own { keys: None, ..own.clone() };
        let found = lambda(&TenantConfig::default(), &open);
        assert_eq!(found["credentials"]["from"].as_str(), Some("anonymous"));
        let other = "[endpoint.lambda]\nurl = \"https://lambda.example\"";
        let services = Some(toml::from_str(other).unwrap());
        let found = lambda(&TenantConfig { services, ..TenantConfig::default() }, &own);
        assert_eq!(found["url"].as_str(), Some("https://lambda.example"));
        assert!(found.get("credentials").is_none());
    }

    #[test]
    fn tenants_have_their_own_store_or_the_common_one() {
        let access = Access {
            endpoint: "http://127.0.0.1:9000".to_owned(),
            region: "us-east-1".to_owned(),
            access_key_id: "a".to_owned(),
            secret_access_key: "b".to_owned(),
        };
        let config = GatewayConfig::default();
        let common = worker_table(&config, &TenantConfig::default(), Some(&access));
        assert_eq!(common["store"]["endpoint"].as_str(), Some("http://127.0.0.1:9000"));
        let own: toml::Table = toml::from_str("endpoint = \"https://s3.example\"").unwrap();
        let copies = Some(toml::from_str("service = \"off\"").unwrap());
        let tenant = TenantConfig { store: Some(own), copies, ..TenantConfig::default() };
        let own = worker_table(&config, &tenant, Some(&access));
        assert_eq!(own["store"]["endpoint"].as_str(), Some("https://s3.example"));
        assert_eq!(own["copies"]["service"].as_str(), Some("off"));
    }
}
