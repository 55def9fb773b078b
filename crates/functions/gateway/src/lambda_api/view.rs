//! A request of the life cycle, and the descriptions of functions in responses.

use std::rc::Rc;

use serde_json::{Value, json};
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::{Alias, Qualifier, Record, Reference, Stamp, Version, arn};

use super::parameters::Parameters;
use crate::answer::{Reply, json_reply};
use crate::auth::Caller;
use crate::config::REGION;
use crate::deploy;
use crate::function::key;
use crate::host::Host;
use crate::install;
use crate::request::Query;

/// A request.
pub struct Call<'a> {
    /// The gateway.
    pub host: &'a Rc<Host>,
    /// The caller.
    pub caller: Caller,
    /// The function, or the ARN of a resource.
    pub target: String,
    /// The alias or the statement.
    pub item: String,
    /// The query.
    pub query: Query,
    /// The body.
    pub parameters: Parameters,
}

impl Call<'_> {
    /// The function in the path, with its qualifier.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn reference(&self) -> Result<Reference, Refusal> {
        Reference::parse(&self.target, self.query.get("Qualifier"))
    }

    /// The name of the function in the path, which has no qualifier.
    ///
    /// # Errors
    /// The name is invalid, or has a qualifier.
    pub fn name(&self) -> Result<String, Refusal> {
        let Reference { name, qualifier } = self.reference()?;
        match qualifier {
            None | Some(Qualifier::Version(Version::Latest)) => Ok(name),
            Some(other) => {
                let why = format!("this operation is one of the function, not of {name}:{other}");
                Err(Refusal::Parameter(why))
            }
        }
    }

    /// The record of a function of the caller, to be read. That of another tenant is absent.
    ///
    /// # Errors
    /// There is no such function.
    pub fn record(&self, name: &str) -> Result<Rc<Record>, Refusal> {
        let found = record(self.host, name);
        let found = found.ok_or_else(|| Refusal::NotFound(arn(REGION, name, None)))?;
        self.check_owner(name, &found)?;
        Ok(found)
    }

    /// Checks that the caller may change a function.
    ///
    /// # Errors
    /// There is no such function, or it is one of the operator's directory.
    pub fn changeable(&self, name: &str) -> Result<Rc<Record>, Refusal> {
        let record = self.record(name)?;
        install::owned(self.host, name)?;
        Ok(record)
    }

    /// Refuses a record of another tenant: the name may have changed hands while a change waited.
    ///
    /// # Errors
    /// The function is another tenant's.
    pub fn check_owner(&self, name: &str, record: &Record) -> Result<(), Refusal> {
        match self.caller.is(&record.tenant) {
            true => Ok(()),
            false => Err(Refusal::Foreign(arn(REGION, name, None))),
        }
    }

    /// Changes the record of a function of the caller, and what is served, if it is concerned.
    ///
    /// # Errors
    /// There is no such function, or the change is refused.
    pub async fn edit<T>(
        &self,
        name: &str,
        act: impl FnOnce(&mut Record) -> Result<T, Refusal>,
    ) -> Result<(Rc<Record>, T), Refusal> {
        self.changeable(name)?;
        let own = |record: &mut Record| {
            self.check_owner(name, record)?;
            act(record)
        };
        let result = self.host.registry.edit(name, own).await?;
        self.host.reconcile(name);
        Ok((self.record(name)?, result))
    }
}

/// The record of a function. One of the operator's directory has only `$LATEST`.
pub fn record(host: &Host, name: &str) -> Option<Rc<Record>> {
    let deployed = host.registry.get(name);
    deployed.or_else(|| {
        let function = host.function(name).filter(|function| !function.is_deployed)?;
        let time = deploy::time_text(deploy::modified(&function.code.path));
        let stamp = Stamp { time, revision: format!("directory-{}", function.id) };
        let edition = deploy::edition(function.manifest.clone(), 0, &[], &stamp);
        Some(Rc::new(Record::new(&function.tenant.name, edition)))
    })
}

/// The description of a function.
pub struct View<'a> {
    /// The gateway.
    pub host: &'a Rc<Host>,
    /// The function's name.
    pub name: &'a str,
    /// Its record.
    pub record: &'a Record,
}

impl View<'_> {
    /// `FunctionConfiguration` of a version, with the function's ARN.
    ///
    /// # Errors
    /// There is no such version.
    pub fn configuration(&self, version: Version) -> Result<Value, Refusal> {
        let absent = || Refusal::NotFound(arn(REGION, self.name, Some(&version.to_string())));
        let edition = self.record.edition(version).ok_or_else(absent)?;
        let manifest = &edition.manifest;
        let qualifier = (version != Version::Latest).then(|| version.to_string());
        let mut description = json!({
            "FunctionName": self.name,
            "FunctionArn": arn(REGION, self.name, qualifier.as_deref()),
            "Runtime": edition.runtime,
            "Role": edition.role,
            "Handler": manifest.handler,
            "CodeSize": edition.code_bytes,
            "CodeSha256": edition.code_sha256,
            "Description": edition.description,
            "Timeout": manifest.timeout.as_secs_f64().ceil() as u64,
            "MemorySize": manifest.memory.0 >> 20,
            "LastModified": edition.modified,
            "Version": version,
            "RevisionId": edition.revision,
            "TracingConfig": {"Mode": "PassThrough"},
            "PackageType": "Zip",
            "Architectures": [architecture()],
            "EphemeralStorage": {"Size": self.host.scratch_bytes(manifest) >> 20},
            "SnapStart": {"ApplyOn": "None", "OptimizationStatus": "Off"},
            "LoggingConfig": {
                "LogFormat": "Text",
                "LogGroup": format!("/aws/lambda/{}", self.name),
            },
        });
        if let Some(target) = &edition.dead_letter {
            description["DeadLetterConfig"] = json!({"TargetArn": target.arn});
        }
        if !manifest.environment.is_empty() {
            description["Environment"] = json!({"Variables": manifest.environment});
        }
        self.state(version, &mut description);
        Ok(description)
    }

    /// The fields that tools wait for.
    fn state(&self, version: Version, description: &mut Value) {
        let is_updated = version == Version::Latest && self.host.registry.is_deploying(self.name);
        let status = if is_updated { "InProgress" } else { "Successful" };
        description["LastUpdateStatus"] = status.into();
        if self.host.function(&key(self.name, version)).is_some() {
            description["State"] = "Active".into();
            return;
        }
        let edition = self.record.edition(version);
        let tenant = &self.record.tenant;
        let made = edition.map(|own| self.host.make_edition(self.name, tenant, version, own));
        let why = match made {
            Some(Err(error)) => error.to_string(),
            _ => "it is not served since a change of fn.toml: deploy it again".to_owned(),
        };
        description["State"] = "Failed".into();
        description["StateReason"] = why.into();
        description["StateReasonCode"] = "InternalError".into();
    }

    /// `FunctionConfiguration` of a qualifier, with its ARN.
    ///
    /// # Errors
    /// There is no such version or alias.
    pub fn qualified(&self, qualifier: Option<&Qualifier>) -> Result<Value, Refusal> {
        let version = self.record.resolve(qualifier)?;
        let mut description = self.configuration(version)?;
        if let Some(qualifier) = qualifier {
            let text = qualifier.to_string();
            description["FunctionArn"] = arn(REGION, self.name, Some(&text)).into();
        }
        Ok(description)
    }

    /// `AliasConfiguration`.
    pub fn alias(&self, name: &str, alias: &Alias) -> Value {
        let mut description = json!({
            "AliasArn": arn(REGION, self.name, Some(name)),
            "Name": name,
            "FunctionVersion": alias.version,
            "Description": alias.description,
            "RevisionId": alias.revision,
        });
        if !alias.weights.is_empty() {
            description["RoutingConfig"] = json!({"AdditionalVersionWeights": alias.weights});
        }
        description
    }
}

/// A page of a list. The last one has no marker.
pub fn listed(name: &str, items: Vec<Value>, next: Option<String>) -> Reply {
    let mut body = json!({ name: items });
    if let Some(next) = next {
        body["NextMarker"] = next.into();
    }
    json_reply(200, body.to_string())
}

/// A time as some descriptions have it: seconds since the UNIX epoch.
pub fn seconds(at_ms: u64) -> f64 {
    at_ms as f64 / 1e3
}

/// The architecture of this machine, in Lambda's words.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        other => other,
    }
}
