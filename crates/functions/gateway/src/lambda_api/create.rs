//! `CreateFunction`, and the code in requests.

use std::path::Path;

use base64::Engine as _;
use bytes::Bytes;
use unlade_fn_model::Manifest;
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::{Edition, Publication, Record, Reference, Version};
use unlade_fn_stacks::Object;

use super::operation::ZIP_BYTES_MAX;
use super::parameters::Parameters;
use super::settings::{Settings, architectures};
use super::view::{Call, View};
use crate::answer::{Reply, json_reply};
use crate::archive::unpack_zip;
use crate::auth::Caller;
use crate::deploy::{self, MANIFEST, Unpacked};
use crate::host::Host;
use crate::install;
use crate::object;

/// The timeout of a function whose deployment names none, in seconds, as in Lambda.
const TIMEOUT_S: u64 = 3;

/// The code of a request.
pub enum Source {
    /// An archive in it.
    Archive(Bytes),
    /// An object of the tenant's store.
    Object(Object),
}

/// Takes the place of the archive out of the parameters of the code.
///
/// # Errors
/// There is none, there are two, it is too long, or the code is an image.
pub fn source(code: &mut Parameters) -> Result<Source, Refusal> {
    let wrong = |why: &str| Err(Refusal::Parameter(why.to_owned()));
    if code.text("ImageUri")?.is_some() {
        return wrong("ImageUri: container images are not served: send an archive as ZipFile");
    }
    if code.text("S3ObjectStorageMode")?.is_some_and(|mode| mode != "COPY") {
        return wrong("S3ObjectStorageMode can only be COPY: the archive is unpacked");
    }
    let mut take = |name: &str| -> Result<Option<String>, Refusal> {
        Ok(code.text(name)?.filter(|text| !text.is_empty()))
    };
    let (bucket, key) = (take("S3Bucket")?, take("S3Key")?);
    let (version, text) = (take("S3ObjectVersion")?, take("ZipFile")?);
    let text = match (bucket, key, text) {
        (Some(bucket), Some(key), None) => {
            return Ok(Source::Object(Object { bucket, key, version }));
        }
        (None, None, Some(text)) if version.is_none() => text,
        (None, None, None) => return wrong("ZipFile is missing, or S3Bucket and S3Key"),
        _ => return wrong("the code is either a ZipFile, or an S3Bucket with an S3Key"),
    };
    let decoded = base64::engine::general_purpose::STANDARD.decode(text);
    let decoded = decoded.map_err(|error| Refusal::Parameter(format!("ZipFile: {error}")))?;
    if decoded.len() > ZIP_BYTES_MAX {
        return Err(Refusal::TooLarge(ZIP_BYTES_MAX));
    }
    Ok(Source::Archive(decoded.into()))
}

impl Source {
    /// The archive. An object is read by the worker of the function's tenant.
    ///
    /// # Errors
    /// The object cannot be read, or is too long.
    pub async fn archive(self, host: &Host, caller: &Caller, name: &str) -> Result<Bytes, Refusal> {
        let object = match self {
            Source::Archive(archive) => return Ok(archive),
            Source::Object(object) => object,
        };
        let tenant = install::tenant(host, caller, name);
        let absent = || Refusal::Service(format!("the tenant {tenant} is not configured"));
        let tenant = host.tenants.get(&tenant).ok_or_else(absent)?;
        // Few archives are in memory at a time. The semaphore is never closed.
        let _place = host.uploads.acquire().await.ok();
        object::read(host, &tenant, &object, ZIP_BYTES_MAX).await
    }
}

/// A new revision, with the hash of its archive.
pub struct NewCode {
    /// Its files.
    pub unpacked: Unpacked,
    /// As in [`Edition::code_sha256`].
    pub sha256: String,
    /// Length of the archive.
    pub bytes: u64,
}

impl NewCode {
    /// Unpacks an archive.
    ///
    /// # Errors
    /// The archive is invalid or too large, or a system call failed.
    pub async fn unpack(host: &Host, name: &str, archive: Bytes) -> Result<NewCode, Refusal> {
        let (own, bytes) = (archive.clone(), archive.len() as u64);
        let unpacked = install::unpack(host, name, move |root| unpack_zip(root, &own)).await?;
        let hash = tokio::task::spawn_blocking(move || deploy::base64_sha256(&archive)).await;
        let sha256 = hash.map_err(|error| Refusal::Service(error.to_string()))?;
        Ok(NewCode { unpacked, sha256, bytes })
    }
}

/// The manifest of an archive; one that has none gets Lambda's defaults.
fn manifest(code: &Path, handler: &str) -> Result<Manifest, Refusal> {
    if !code.join(MANIFEST).exists() {
        let timeout = std::time::Duration::from_secs(TIMEOUT_S);
        return Ok(Manifest { timeout, ..Manifest::of_handler(handler) });
    }
    let read = deploy::read(code, None).map_err(|error| Refusal::Parameter(error.to_string()))?;
    if let Some(tenant) = read.manifest.tenant {
        let why = format!("{MANIFEST}: tenant {tenant:?}: the key of the caller decides; leave it");
        return Err(Refusal::Parameter(why));
    }
    Ok(read.manifest)
}

pub async fn create(mut call: Call<'_>) -> Result<Reply, Refusal> {
    let host = call.host;
    let name = call.parameters.required("FunctionName")?;
    let reference = Reference::parse(&name, None)?;
    if let Some(qualifier) = reference.qualifier {
        let why = format!("FunctionName: a new function has no qualifier ({qualifier})");
        return Err(Refusal::Parameter(why));
    }
    let name = reference.name;
    let own = &mut call.parameters;
    let settings = Settings::take(own, host.config.scratch.0 >> 20)?;
    architectures(own)?;
    if let Some(other) = own.text("PackageType")?.filter(|kind| kind != "Zip") {
        return Err(Refusal::Parameter(format!("PackageType: {other:?} is not served, Zip is")));
    }
    let (publish, tags) = (own.flag("Publish")?, own.texts("Tags")?.unwrap_or_default());
    let missing = || Refusal::Parameter("Code is missing".to_owned());
    let mut code = own.object("Code")?.ok_or_else(missing)?;
    let source = source(&mut code)?;
    code.done()?;
    call.parameters.done()?;
    if !settings.has_handler() {
        return Err(Refusal::Parameter("Handler is missing: MODULE.FUNCTION".to_owned()));
    }

    install::free(host, &call.caller, &name)?;
    let deploying = host.registry.deploying(&name)?;
    if host.registry.get(&name).is_some() {
        return Err(Refusal::Conflict(format!("Function already exist: {name}")));
    }
    let archive = source.archive(host, &call.caller, &name).await?;
    let code = NewCode::unpack(host, &name, archive).await?;
    let number = code.unpacked.number;
    let created = async {
        let stamp = deploy::stamp();
        let mut edition = Edition {
            code_sha256: code.sha256,
            code_bytes: code.bytes,
            ..deploy::edition(manifest(&code.unpacked.code, "app.handler")?, number, &[], &stamp)
        };
        settings.apply(&mut edition)?;
        let tenant = install::tenant(host, &call.caller, &name);
        let make = |before: Option<Record>, edition| {
            if before.is_some() {
                return Err(Refusal::Conflict(format!("Function already exist: {name}")));
            }
            let mut record = Record::new(&tenant, edition);
            record.tag(tags)?;
            if publish {
                record.publish(Publication::default(), deploy::stamp())?;
            }
            Ok(record)
        };
        install::install(host, &call.caller, &name, &tenant, edition, make).await
    };
    let record = install::refused(host, &name, number, created.await)?;
    drop(deploying);
    let version = match publish {
        true => Version::Number(record.last_version),
        false => Version::Latest,
    };
    let view = View { host, name: &name, record: &record };
    Ok(json_reply(201, view.configuration(version)?.to_string()))
}
