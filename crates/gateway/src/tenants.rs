//! The tenants of a gateway, which come and go, and their I/O workers: one each, or one for all.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tokio::task::JoinHandle;

use crate::config::{DEFAULT_TENANT, GatewayConfig, Workers};
use crate::serve::worker_table;
use crate::store::Access;
use crate::tenant::{Tenant, config_file, configure, write_private};
use crate::worker::{Kind, Worker};

/// See the [module](self).
pub struct Tenants {
    executable: PathBuf,
    access: Option<Access>,
    state: PathBuf,
    all: RefCell<BTreeMap<String, Entry>>,
    /// Those that are not for new functions any more, and are served for a while.
    leaving: RefCell<Vec<Entry>>,
    shared: Option<Rc<Worker>>,
    processes: RefCell<Vec<(Rc<Worker>, JoinHandle<()>)>>,
}

struct Entry {
    tenant: Rc<Tenant>,
    /// What its worker was told.
    table: toml::Table,
    stays: JoinHandle<()>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.stays.abort();
    }
}

impl Tenants {
    /// Those of a configuration; their workers are started in a moment. Must be called within a
    /// [`LocalSet`](tokio::task::LocalSet).
    ///
    /// # Errors
    /// The system's: what they are told cannot be written.
    pub fn start(
        config: &GatewayConfig,
        executable: &Path,
        access: Option<Access>,
    ) -> io::Result<Tenants> {
        let shared = (config.workers == Workers::Shared).then(|| {
            let file = config.state.join("shared.toml");
            Worker::new(Kind::Shared, "shared", executable, file)
        });
        let tenants = Tenants {
            executable: executable.to_owned(),
            access,
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

    /// The tenant of a name.
    pub fn get(&self, name: &str) -> Option<Rc<Tenant>> {
        self.all.borrow().get(name).map(|entry| entry.tenant.clone())
    }

    /// All of them, by name.
    pub fn all(&self) -> Vec<Rc<Tenant>> {
        self.all.borrow().values().map(|entry| entry.tenant.clone()).collect()
    }

    fn run(&self, worker: Rc<Worker>) {
        let task = tokio::task::spawn_local(worker.clone().supervise());
        let mut processes = self.processes.borrow_mut();
        processes.retain(|(_, task)| !task.is_finished());
        processes.push((worker, task));
    }

    /// New tenants, and what others are told from now on. Those that have gone stay until
    /// [`Tenants::part`].
    ///
    /// # Errors
    /// The system's: what they are told cannot be written.
    pub fn apply(&self, config: &GatewayConfig) -> io::Result<()> {
        let (mut configured, mut is_other) = (config.tenant.clone(), false);
        configured.entry(DEFAULT_TENANT.to_owned()).or_default();
        for (name, own) in configured {
            let table = worker_table(config, &own, self.access.as_ref());
            let dir = self.dir(&name);
            if let Some(entry) = self.all.borrow_mut().get_mut(&name) {
                if entry.table != table {
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

    /// Tells the shared worker who its tenants are.
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

    /// Parts with tenants that the configuration does not have any more, and no function is of:
    /// they are not for new functions. Gives them; they are served until [`Tenants::leave`].
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

    /// The worker serves a tenant no more, when it has written what is pending.
    ///
    /// # Errors
    /// The system's: the worker cannot be told.
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

    /// Workers write what is pending, and end.
    pub async fn drain(&self) {
        let processes = std::mem::take(&mut *self.processes.borrow_mut());
        for (worker, _) in &processes {
            worker.drain();
        }
        for (_, task) in processes {
            // A worker has its own limit.
            let _ = task.await;
        }
    }
}
