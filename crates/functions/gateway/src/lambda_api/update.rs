//! `UpdateFunctionCode`, `UpdateFunctionConfiguration`.

use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::{Edition, Publication, Record, Version};

use super::create::{NewCode, source};
use super::settings::{Settings, architectures};
use super::view::{Call, View};
use crate::answer::{Reply, json_reply};
use crate::deploy;
use crate::install;

/// A record with another `$LATEST`.
fn updated(
    name: &str,
    record: Option<Record>,
    edition: Edition,
    expected: Option<&str>,
) -> Result<Record, Refusal> {
    let mut record = record.ok_or_else(|| Refusal::NotFound(name.to_owned()))?;
    record.update(edition, expected)?;
    Ok(record)
}

pub async fn code(mut call: Call<'_>) -> Result<Reply, Refusal> {
    let (host, name) = (call.host, call.name()?);
    let own = &mut call.parameters;
    let (dry_run, publish) = (own.flag("DryRun")?, own.flag("Publish")?);
    let expected = own.text("RevisionId")?;
    architectures(own)?;
    let source = source(own)?;
    std::mem::take(own).done()?;

    call.changeable(&name)?;
    let deploying = host.registry.deploying(&name)?;
    let record = call.record(&name)?;
    // Refused before the import; the record is checked again with the change.
    (*record).clone().update(record.latest.clone(), expected.as_deref())?;
    let archive = source.archive(host, &call.caller, &name).await?;
    let code = NewCode::unpack(host, &name, archive).await?;
    let number = code.unpacked.number;
    let stamp = deploy::stamp();
    let edition = Edition {
        code: number,
        code_sha256: code.sha256,
        code_bytes: code.bytes,
        modified: stamp.time,
        revision: stamp.revision,
        ..record.latest.clone()
    };
    if dry_run {
        let tried = install::try_out(host, &name, &record.tenant, &edition).await;
        let tried = install::refused(host, &name, number, tried.map(drop));
        host.registry.release(&name, number);
        tried?;
        drop(deploying);
        let with = updated(&name, Some((*record).clone()), edition, None)?;
        let view = View { host, name: &name, record: &with };
        return Ok(json_reply(200, view.configuration(Version::Latest)?.to_string()));
    }
    let make = |before: Option<Record>, edition| {
        let mut record = updated(&name, before, edition, expected.as_deref())?;
        if publish {
            record.publish(Publication::default(), deploy::stamp())?;
        }
        Ok(record)
    };
    let installed =
        install::install(host, &call.caller, &name, &record.tenant, edition, make).await;
    let record = install::refused(host, &name, number, installed)?;
    drop(deploying);
    let version = match publish {
        true => Version::Number(record.last_version),
        false => Version::Latest,
    };
    let view = View { host, name: &name, record: &record };
    Ok(json_reply(200, view.configuration(version)?.to_string()))
}

pub async fn configuration(mut call: Call<'_>) -> Result<Reply, Refusal> {
    let (host, name) = (call.host, call.name()?);
    let own = &mut call.parameters;
    let settings = Settings::take(own, host.config.scratch.0 >> 20)?;
    let expected = own.text("RevisionId")?;
    std::mem::take(own).done()?;

    call.changeable(&name)?;
    let deploying = host.registry.deploying(&name)?;
    let record = call.record(&name)?;
    let mut edition = record.latest.clone();
    (*record).clone().update(edition.clone(), expected.as_deref())?;
    settings.apply(&mut edition)?;
    let stamp = deploy::stamp();
    (edition.modified, edition.revision) = (stamp.time, stamp.revision);
    let (tenant, number) = (&record.tenant, edition.code);
    let make = |before, edition| updated(&name, before, edition, expected.as_deref());
    let installed = install::install(host, &call.caller, &name, tenant, edition, make).await;
    let record = install::refused(host, &name, number, installed)?;
    drop(deploying);
    let view = View { host, name: &name, record: &record };
    Ok(json_reply(200, view.configuration(Version::Latest)?.to_string()))
}

/// Changes code and configuration in one step, so that neither is tried with the other's former state:
/// an update of a stack. The parameters are those of both operations, with the code in `Code`.
pub async fn whole(mut call: Call<'_>) -> Result<Reply, Refusal> {
    let (host, name) = (call.host, call.name()?);
    let own = &mut call.parameters;
    let settings = Settings::take(own, host.config.scratch.0 >> 20)?;
    architectures(own)?;
    let from = match own.object("Code")? {
        Some(mut code) => {
            let from = source(&mut code)?;
            code.done()?;
            Some(from)
        }
        None => None,
    };
    std::mem::take(own).done()?;

    call.changeable(&name)?;
    let deploying = host.registry.deploying(&name)?;
    let record = call.record(&name)?;
    let mut edition = record.latest.clone();
    if let Some(from) = from {
        let archive = from.archive(host, &call.caller, &name).await?;
        let code = NewCode::unpack(host, &name, archive).await?;
        edition.code = code.unpacked.number;
        (edition.code_sha256, edition.code_bytes) = (code.sha256, code.bytes);
    }
    let number = edition.code;
    let installed = async {
        settings.apply(&mut edition)?;
        let stamp = deploy::stamp();
        (edition.modified, edition.revision) = (stamp.time, stamp.revision);
        let make = |before, edition| updated(&name, before, edition, None);
        install::install(host, &call.caller, &name, &record.tenant, edition, make).await
    };
    let record = install::refused(host, &name, number, installed.await)?;
    drop(deploying);
    let view = View { host, name: &name, record: &record };
    Ok(json_reply(200, view.configuration(Version::Latest)?.to_string()))
}
