//! The configuration in `CreateFunction` and `UpdateFunctionConfiguration`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use unlade_config::ByteSize;
use unlade_fn_model::destination::{Kind, Target};
use unlade_fn_model::isolation::Runtime;
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::Edition;

use super::parameters::{Parameters, is_empty};
use crate::permit;

/// Most bytes of all environment variables together, as in Lambda.
const ENVIRONMENT_BYTES_MAX: usize = 4096;
/// Longest description, in characters, as in Lambda.
const DESCRIPTION_CHARS_MAX: usize = 256;
/// Largest memory, in MiB, as in Lambda.
const MEMORY_MIB_MAX: u64 = 10_240;
/// Smallest and largest `/tmp`, in MiB, as in Lambda.
const SCRATCH_MIB_MIN: u64 = 512;
const SCRATCH_MIB_MAX: u64 = 10_240;
/// Longest timeout, in seconds, as in Lambda.
const TIMEOUT_S_MAX: u64 = 900;

/// Variables that the runtime sets.
const RESERVED: [&str; 13] = [
    "_HANDLER",
    "_X_AMZN_TRACE_ID",
    "AWS_REGION",
    "AWS_EXECUTION_ENV",
    "AWS_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_LAMBDA_FUNCTION_NAME",
    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
    "AWS_LAMBDA_FUNCTION_VERSION",
    "LAMBDA_TASK_ROOT",
    "LAMBDA_RUNTIME_DIR",
];

/// Parameters that have one value here, or none; the reason is part of the error.
const UNSERVED: [(&str, &str); 13] = [
    ("Layers", "layers are not served: put their files into the archive"),
    ("VpcConfig", "functions have no network of their own"),
    ("FileSystemConfigs", "file systems are not mounted"),
    ("ImageConfig", "container images are not served"),
    ("CodeSigningConfigArn", "code is not signed"),
    ("KMSKeyArn", "environment variables are not encrypted with a key of KMS"),
    ("TenancyConfig", "isolation by tenant identifiers is not served"),
    ("CapacityProviderConfig", "capacity providers are not served"),
    ("DurableConfig", "durable functions are not served"),
    ("PublishTo", "only numbered versions are published"),
    ("RuntimeConfig", "the runtime is that of the gateway"),
    ("AcceleratorConfig", "accelerators are not served"),
    ("MasterArn", "functions are not replicated"),
];

/// The parameters of a configuration. Absent ones stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    handler: Option<String>,
    runtime: Option<String>,
    role: Option<String>,
    description: Option<String>,
    timeout: Option<Duration>,
    memory: Option<ByteSize>,
    scratch: Option<ByteSize>,
    environment: Option<BTreeMap<String, String>>,
    /// `Some(None)` removes it.
    dead_letter: Option<Option<Target>>,
}

fn refused(why: impl Into<String>) -> Refusal {
    Refusal::Parameter(why.into())
}

impl Settings {
    /// Takes the configuration out of a body. `scratch_mib` is the size of `/tmp` of functions that
    /// choose none; it may be below Lambda's.
    ///
    /// # Errors
    /// A value is invalid or not served.
    pub fn take(own: &mut Parameters, scratch_mib: u64) -> Result<Settings, Refusal> {
        for (name, why) in UNSERVED {
            if own.value(name).is_some_and(|value| !is_empty(&value)) {
                return Err(refused(format!("{name}: {why}")));
            }
        }
        only(own, "TracingConfig", &json!({"Mode": "PassThrough"}), "traces are not recorded")?;
        only(
            own,
            "SnapStart",
            &json!({"ApplyOn": "None"}),
            "every version starts from a template",
        )?;
        logging(own)?;
        let runtime = own.text("Runtime")?;
        if let Some(runtime) = runtime.as_ref().filter(|name| runtime_of(name).is_none()) {
            let why = format!(
                "Runtime: {runtime:?} is not served; python3 and nodejs with their versions, \
                 provided.al2023, provided.al2 and provided are"
            );
            return Err(refused(why));
        }
        let description = own.text("Description")?;
        let length = description.as_ref().map_or(0, |text| text.chars().count());
        if length > DESCRIPTION_CHARS_MAX {
            return Err(refused(format!(
                "Description: {DESCRIPTION_CHARS_MAX} characters at most"
            )));
        }
        let memory = own.number("MemorySize", 16..=MEMORY_MIB_MAX)?;
        let timeout = own.number("Timeout", 1..=TIMEOUT_S_MAX)?;
        Ok(Settings {
            handler: own.text("Handler")?,
            runtime,
            role: own.text("Role")?,
            description,
            timeout: timeout.map(Duration::from_secs),
            memory: memory.map(|mib| ByteSize(mib << 20)),
            scratch: scratch(own, scratch_mib)?,
            environment: environment(own)?,
            dead_letter: dead_letter(own)?,
        })
    }

    /// Returns true if a handler is among them.
    pub fn has_handler(&self) -> bool {
        self.handler.is_some()
    }

    /// Applies them to an edition.
    ///
    /// # Errors
    /// The configuration is invalid then.
    pub fn apply(self, edition: &mut Edition) -> Result<(), Refusal> {
        let manifest = &mut edition.manifest;
        manifest.handler = self.handler.unwrap_or_else(|| manifest.handler.clone());
        manifest.timeout = self.timeout.unwrap_or(manifest.timeout);
        manifest.memory = self.memory.unwrap_or(manifest.memory);
        manifest.scratch = self.scratch.or(manifest.scratch);
        manifest.environment = self.environment.unwrap_or_else(|| manifest.environment.clone());
        if let Some(runtime) = self.runtime {
            manifest.runtime = runtime_of(&runtime).unwrap_or(manifest.runtime);
            edition.runtime = runtime;
        }
        edition.dead_letter = self.dead_letter.unwrap_or_else(|| edition.dead_letter.clone());
        edition.role = self.role.unwrap_or_else(|| edition.role.clone());
        edition.description = self.description.unwrap_or_else(|| edition.description.clone());
        let invalid = |error: unlade_fn_model::ManifestError| refused(error.to_string());
        permit::role_name(&edition.role).map_err(invalid)?;
        edition.manifest.check().map_err(invalid)
    }
}

/// The runtime of a manifest, by Lambda's name.
fn runtime_of(name: &str) -> Option<Runtime> {
    match name {
        "provided" | "provided.al2" | "provided.al2023" => Some(Runtime::Provided),
        _ if name.starts_with("python3") => Some(Runtime::Python),
        _ => is_node(name).then_some(Runtime::Node),
    }
}

/// Returns true for `nodejs`, `nodejs20.x` and others of this form.
fn is_node(name: &str) -> bool {
    let Some(version) = name.strip_prefix("nodejs") else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    version.is_empty() || version.strip_suffix(".x").is_some_and(is_number)
}

/// Refuses a parameter with another value than the only one.
fn only(own: &mut Parameters, name: &str, value: &Value, why: &str) -> Result<(), Refusal> {
    match own.value(name) {
        Some(found) if !is_empty(&found) && found != *value => {
            Err(refused(format!("{name} can only be {value}: {why}")))
        }
        _ => Ok(()),
    }
}

fn logging(own: &mut Parameters) -> Result<(), Refusal> {
    let Some(mut logging) = own.object("LoggingConfig")? else { return Ok(()) };
    only(&mut logging, "LogFormat", &"Text".into(), "output is not converted")?;
    logging.done()
}

fn scratch(own: &mut Parameters, scratch_mib: u64) -> Result<Option<ByteSize>, Refusal> {
    let Some(mut storage) = own.object("EphemeralStorage")? else { return Ok(None) };
    let size = storage.number("Size", SCRATCH_MIB_MIN.min(scratch_mib)..=SCRATCH_MIB_MAX)?;
    storage.done()?;
    Ok(size.map(|mib| ByteSize(mib << 20)))
}

fn environment(own: &mut Parameters) -> Result<Option<BTreeMap<String, String>>, Refusal> {
    let Some(mut environment) = own.object("Environment")? else { return Ok(None) };
    let variables = environment.texts("Variables")?.unwrap_or_default();
    environment.done()?;
    if let Some(name) = variables.keys().find(|name| RESERVED.contains(&name.as_str())) {
        return Err(refused(format!("Environment: {name} is reserved: the runtime sets it")));
    }
    let bytes: usize = variables.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > ENVIRONMENT_BYTES_MAX {
        return Err(refused(format!("Environment: {ENVIRONMENT_BYTES_MAX} bytes at most")));
    }
    Ok(Some(variables))
}

fn dead_letter(own: &mut Parameters) -> Result<Option<Option<Target>>, Refusal> {
    let Some(mut config) = own.object("DeadLetterConfig")? else { return Ok(None) };
    let arn = config.text("TargetArn")?.filter(|arn| !arn.is_empty());
    config.done()?;
    let Some(arn) = arn else { return Ok(Some(None)) };
    match Target::parse(&arn) {
        Ok(target) if matches!(target.kind, Kind::Queue | Kind::Topic) => Ok(Some(Some(target))),
        Ok(target) => Err(refused(format!("DeadLetterConfig: {target} is no queue and no topic"))),
        Err(why) => Err(refused(format!("DeadLetterConfig: {why}"))),
    }
}

/// Takes the architectures of the code.
///
/// # Errors
/// They are not this machine's.
pub fn architectures(own: &mut Parameters) -> Result<(), Refusal> {
    let due = json!([super::view::architecture()]);
    only(own, "Architectures", &due, "the code runs on this machine")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy;
    use unlade_fn_model::Manifest;

    fn taken(value: &Value) -> Result<Settings, Refusal> {
        let mut own = Parameters::parse(&value.to_string().into()).unwrap();
        let settings = Settings::take(&mut own, 512)?;
        own.done().map(|()| settings)
    }

    #[test]
    fn absent_parameters_stay_as_they_are() {
        let manifest = Manifest::of_handler("app.handler");
        let mut edition = deploy::edition(manifest, 1, b"", &deploy::stamp());
        let before = edition.clone();
        taken(&json!({})).unwrap().apply(&mut edition).unwrap();
        assert_eq!(edition, before);
        let all = json!({
            "Handler": "b.main", "Runtime": "python3.12", "Timeout": 7, "MemorySize": 256,
            "Role": "arn:aws:iam::000000000000:role/reader", "Description": "d",
            "DeadLetterConfig": {"TargetArn": "arn:aws:sqs:us-east-1:123456789012:dead"},
            "Environment": {"Variables": {"A": "b"}}, "EphemeralStorage": {"Size": 1024},
        });
        taken(&all).unwrap().apply(&mut edition).unwrap();
        let manifest = &edition.manifest;
        assert_eq!((manifest.handler.as_str(), manifest.timeout.as_secs()), ("b.main", 7));
        assert_eq!((manifest.memory.0, manifest.environment["A"].as_str()), (256 << 20, "b"));
        assert_eq!((edition.runtime.as_str(), edition.description.as_str()), ("python3.12", "d"));
        assert_eq!(edition.dead_letter.as_ref().unwrap().name, "dead");
        taken(&json!({"Description": "e"})).unwrap().apply(&mut edition).unwrap();
        assert_eq!(edition.manifest.scratch, Some(ByteSize(1 << 30)));
        assert!(edition.dead_letter.is_some());
        let none = json!({"DeadLetterConfig": {"TargetArn": ""}});
        taken(&none).unwrap().apply(&mut edition).unwrap();
        assert_eq!(edition.dead_letter, None);
        assert_eq!(edition.description, "e");
        taken(&json!({"Environment": {"Variables": {}}})).unwrap().apply(&mut edition).unwrap();
        assert!(edition.manifest.environment.is_empty());
        let wrong = taken(&json!({"Role": "reader"})).unwrap().apply(&mut edition);
        assert_eq!(wrong.unwrap_err().status(), 400);
    }

    #[test]
    fn a_setting_that_would_have_no_effect_is_refused() {
        for (wrong, word) in [
            (json!({"Layers": ["arn:aws:lambda:us-east-1:1:layer:x:1"]}), "archive"),
            (json!({"VpcConfig": {"SubnetIds": ["s-1"]}}), "VpcConfig"),
            (json!({"DeadLetterConfig": {"TargetArn": "arn:aws:sqs:::q"}}), "DeadLetterConfig"),
            (
                json!({"DeadLetterConfig": {
                    "TargetArn": "arn:aws:lambda:us-east-1:000000000000:function:f"}}),
                "no queue",
            ),
            (json!({"TracingConfig": {"Mode": "Active"}}), "PassThrough"),
            (json!({"SnapStart": {"ApplyOn": "PublishedVersions"}}), "SnapStart"),
            (json!({"EphemeralStorage": {"Size": 511}}), "Size"),
            (json!({"EphemeralStorage": {"Size": 10_241}}), "Size"),
            (json!({"EphemeralStorage": {"Bytes": 1024}}), "Bytes"),
            (json!({"LoggingConfig": {"LogFormat": "JSON"}}), "LogFormat"),
            (json!({"LoggingConfig": {"LogGroup": "/own"}}), "LogGroup"),
            (json!({"Runtime": "java21"}), "python3"),
            (json!({"Runtime": "nodejs.x"}), "nodejs"),
            (json!({"Runtime": "nodejs20"}), "nodejs"),
            (json!({"Timeout": 0}), "Timeout"),
            (json!({"MemorySize": 1}), "MemorySize"),
            (json!({"Environment": {"Variables": {"AWS_REGION": "x"}}}), "reserved"),
            (json!({"Environment": {"Variables": {"A": "x".repeat(4096)}}}), "4096"),
            (json!({"Description": "x".repeat(257)}), "Description"),
            (json!({"Unheard": 1}), "Unheard"),
        ] {
            let refused = taken(&wrong).unwrap_err();
            assert_eq!(refused.code(), "InvalidParameterValueException");
            assert!(refused.message().contains(word), "{wrong}: {refused:?}");
        }
        let same = json!({
            "Layers": [], "VpcConfig": {"SubnetIds": [], "SecurityGroupIds": []},
            "TracingConfig": {"Mode": "PassThrough"}, "SnapStart": {"ApplyOn": "None"},
            "EphemeralStorage": {"Size": 512}, "DeadLetterConfig": {"TargetArn": ""},
            "LoggingConfig": {"LogFormat": "Text"},
        });
        taken(&same).unwrap();
    }
}
