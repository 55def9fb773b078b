//! Deployments: unpacked, tried, and then served. `unlade fn deploy` and Lambda's API meet here.

use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use unlade_fn_model::lambda::{Denial, Refusal};
use unlade_fn_model::lifecycle::{Edition, Record, Version};
use unlade_metrics::Event;

use crate::archive::{ArchiveError, unpack_tar};
use crate::auth::Caller;
use crate::config::DEFAULT_TENANT;
use crate::deploy::{self, DeployError, Unpacked};
use crate::function::Function;
use crate::host::Host;
use crate::trial;

/// Refuses changes of a function that the gateway does not own.
///
/// # Errors
/// The function is one of the operator's directory.
pub fn owned(host: &Host, name: &str) -> Result<(), Refusal> {
    let is_of_directory = host.function(name).is_some_and(|function| !function.is_deployed);
    if !is_of_directory {
        return Ok(());
    }
    let why = "it is served from the directory `functions`: change or remove it there, and reload";
    Err(Refusal::Conflict(why.to_owned()))
}

/// Refuses a name that another tenant uses, or a function of the directory uses, because that one
/// would return at the next reload.
///
/// # Errors
/// The name is taken.
pub fn free(host: &Host, caller: &Caller, name: &str) -> Result<(), Refusal> {
    let record = host.registry.get(name).map(|record| record.tenant.clone());
    let served = || host.function(name).map(|function| function.tenant.name.clone());
    match record.or_else(served) {
        Some(tenant) if !caller.is(&tenant) => Err(Refusal::Taken(name.to_owned())),
        _ => owned(host, name),
    }
}

/// The tenant for which a caller deploys a function.
pub fn tenant(host: &Host, caller: &Caller, name: &str) -> String {
    match caller {
        Caller::Tenant(tenant) => tenant.clone(),
        // A service deploys nothing: its requests are refused before.
        Caller::Anyone | Caller::Service(_) => {
            let record = host.registry.get(name);
            record.map_or_else(|| DEFAULT_TENANT.to_owned(), |record| record.tenant.clone())
        }
    }
}

fn refusal(error: DeployError) -> Refusal {
    match error.is_callers() {
        true => Refusal::Parameter(error.to_string()),
        false => Refusal::Service(error.to_string()),
    }
}

/// Unpacks an archive as a new revision, beside the requests of others.
///
/// # Errors
/// The archive is invalid or too large, or a system call failed.
pub async fn unpack(
    host: &Host,
    name: &str,
    extract: impl FnOnce(&Path) -> Result<(), ArchiveError> + Send + 'static,
) -> Result<Unpacked, Refusal> {
    let (state, own) = (host.config.state.clone(), name.to_owned());
    let unpacked = tokio::task::spawn_blocking(move || deploy::unpack(&state, &own, extract)).await;
    let unpacked = unpacked.map_err(|error| Refusal::Service(error.to_string()))?;
    unpacked.map_err(refusal).inspect_err(|_| host.meter.add(Event::FnDeployRefused))
}

/// Deploys an archive of `unlade fn deploy`, with `function.toml` in it, as `$LATEST`.
///
/// # Errors
/// The archive or the manifest is invalid, the operator forbids it, or it cannot be imported.
pub async fn deploy_tar(
    host: &Rc<Host>,
    caller: &Caller,
    name: &str,
    archive: Bytes,
) -> Result<Rc<Record>, Refusal> {
    let _deploying = host.registry.deploying(name)?;
    let own = archive.clone();
    let unpacked = unpack(host, name, move |root| unpack_tar(root, own.as_ref())).await?;
    let installed = deploy_unpacked(host, caller, name, &archive, &unpacked).await;
    refused(host, name, unpacked.number, installed)
}

/// Counts a refused deployment, and removes its files.
///
/// # Errors
/// The given one.
pub fn refused<T>(
    host: &Host,
    name: &str,
    number: u64,
    installed: Result<T, Refusal>,
) -> Result<T, Refusal> {
    installed.inspect_err(|_| {
        host.meter.add(Event::FnDeployRefused);
        host.registry.release(name, number);
    })
}

async fn deploy_unpacked(
    host: &Rc<Host>,
    caller: &Caller,
    name: &str,
    archive: &Bytes,
    unpacked: &Unpacked,
) -> Result<Rc<Record>, Refusal> {
    let tenant = match caller {
        Caller::Tenant(tenant) => Some(tenant.as_str()),
        Caller::Anyone | Caller::Service(_) => None,
    };
    let revision = deploy::read(&unpacked.code, tenant).map_err(refusal)?;
    if let Some(other) = revision.manifest.tenant.as_ref().filter(|named| !caller.is(named)) {
        let why = format!(
            "tenant: the key is one of tenant {}, which cannot deploy for tenant {other}; leave \
             tenant out of the manifest, or sign with a key of {other}",
            revision.tenant
        );
        return Err(Refusal::Denied(Denial::Access, why));
    }
    let own = archive.clone();
    let (manifest, number, stamp) = (revision.manifest, unpacked.number, deploy::stamp());
    let edition =
        tokio::task::spawn_blocking(move || deploy::edition(manifest, number, &own, &stamp)).await;
    let edition = edition.map_err(|error| Refusal::Service(error.to_string()))?;
    let tenant = revision.tenant;
    install(host, caller, name, &tenant, edition, |before, mut edition| match before {
        Some(mut record) => {
            // No manifest has it: it stays as it was.
            edition.dead_letter.clone_from(&record.latest.dead_letter);
            record.tenant.clone_from(&tenant);
            record.update(edition, None)?;
            Ok(record)
        }
        None => Ok(Record::new(&tenant, edition)),
    })
    .await
}

/// Tries an edition: its handler is imported in an instance.
///
/// # Errors
/// The manifest is invalid, the operator forbids it, or it cannot be imported.
pub async fn try_out(
    host: &Rc<Host>,
    name: &str,
    tenant: &str,
    edition: &Edition,
) -> Result<Rc<Function>, Refusal> {
    let made = host.make_edition(name, tenant, Version::Latest, edition);
    let function = made.map_err(|error| Refusal::Parameter(error.to_string()))?;
    let wrong = |why| Refusal::Parameter(format!("{name} does not start: {why}"));
    let template = host.template(&function).await.map_err(wrong)?;
    if host.config.check_imports {
        trial::check(host, &function, template).await.map_err(wrong)?;
    }
    Ok(function)
}

/// Tries an edition, stores the record that `act` makes with it, and serves it as `$LATEST`. An
/// import error is reported to the deployer; the previous edition continues to serve then.
///
/// # Errors
/// As [`try_out`], or `act` refuses, or the record cannot be stored.
pub async fn install(
    host: &Rc<Host>,
    caller: &Caller,
    name: &str,
    tenant: &str,
    edition: Edition,
    act: impl FnOnce(Option<Record>, Edition) -> Result<Record, Refusal>,
) -> Result<Rc<Record>, Refusal> {
    let function = try_out(host, name, tenant, &edition).await?;
    // The directory may have such a function meanwhile, and the rules may have changed.
    free(host, caller, name)?;
    host.permit(&function).map_err(|error| Refusal::Parameter(error.to_string()))?;
    let changed = host.registry.change(name, |before| Ok((Some(act(before, edition)?), ())));
    changed.await?;
    host.publish(&function);
    host.reconcile(name);
    host.registry.get(name).ok_or_else(|| Refusal::NotFound(name.to_owned()))
}
