//! The construction of a tenant from its configuration.

use std::rc::Rc;
use std::sync::Arc;

use unlade_metrics::Meter;
use unlade_runtime::admin::AdminError;
use unlade_runtime::system::{SystemError, system};

use crate::config::{ConfigError, WorkerConfig};
use crate::cut::Services;
use crate::journal::{Journal, Opened};
use crate::perform::StoreClient;
use crate::quota::{self, Quota};
use crate::scheduler::Turn;
use crate::store::HttpStore;
use crate::tenant::Tenant;
use crate::writeback::WriteBack;

/// The reason why a worker does not run.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The operator is at fault.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The admin endpoint failed.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A task of a shared worker has ended unexpectedly: a bug.
    #[error("the worker's own tasks have ended; please report this")]
    Ended,
    /// The machine, or another worker, is at fault.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// Creates a tenant from a configuration. Starts the writes that a previous worker had
/// acknowledged.
///
/// # Errors
/// A resource is missing. Must be called within a [`LocalSet`](tokio::task::LocalSet).
pub fn tenant(config: &WorkerConfig, meter: Arc<Meter>) -> Result<Rc<Tenant>, WorkerError> {
    tenant_with(config, meter, Rc::default(), read_journal(config)?)
}

/// Reads a tenant's journal, if it has one. The journal may be long.
///
/// # Errors
/// The system call failed, or another worker has locked the journal.
pub fn read_journal(config: &WorkerConfig) -> Result<Option<Opened>, WorkerError> {
    let Some(path) = &config.tenant.journal else { return Ok(None) };
    let what = format!("the journal {}", path.display());
    Ok(Journal::read(path).map(Some).map_err(system(what))?)
}

/// As [`tenant`], with a journal that was read, and a turn if other tenants use the same thread.
///
/// # Errors
/// A resource is missing.
pub fn tenant_with(
    config: &WorkerConfig,
    meter: Arc<Meter>,
    turn: Rc<Turn>,
    journal: Option<Opened>,
) -> Result<Rc<Tenant>, WorkerError> {
    let own = &config.tenant;
    let transport = Box::new(HttpStore::new(config.store.endpoint()?));
    let (calls_max, held_bytes_max) = (own.calls_max, own.held_bytes_max.0);
    let quota = Quota::new(quota::Limits { calls_max, held_bytes_max });
    let (journal, begun) = match journal.map(Journal::from) {
        None => (None, Vec::new()),
        Some((journal, begun)) => (Some(journal), begun),
    };
    let limits = unlade_s3::pending::Limits {
        dirty_bytes_max: own.dirty_bytes_max.0,
        writes_max: own.pending_writes_max,
        in_flight_max: own.writes_in_flight_max,
    };
    let mut seed = [0; 8];
    rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| system("getrandom")(error.into()))?;
    let seed = u64::from_le_bytes(seed);
    let store_client = StoreClient::new(transport, meter, seed);
    let writeback = WriteBack::new(limits, journal, store_client);
    let services = Services::new(&config.services)?;
    let tenant = Tenant::new(config.limits(), quota, writeback, services, turn, seed);
    if !begun.is_empty() {
        tracing::info!(writes = begun.len(), "journal: made again");
    }
    tenant.writeback.replay(begun);
    Ok(tenant)
}
