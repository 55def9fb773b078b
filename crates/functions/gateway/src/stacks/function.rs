//! `AWS::Lambda::Function`, by the operations of Lambda's API.

use std::collections::BTreeMap;
use std::io::{Cursor, Write as _};

use base64::Engine as _;
use serde_json::{Map, Value, json};
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::arn;
use zip::write::SimpleFileOptions;

use super::outcome::{Done, Failed, deleted};
use super::properties::{text_of, typed};
use super::task::Task;
use crate::config::REGION;
use crate::lambda_api::{self, OperationKind, Order};

/// Most bytes of code in a template, as in CloudFormation.
const INLINE_BYTES_MAX: usize = 4 << 20;

/// The parts of a function's properties.
struct Parts {
    /// The parameters of its configuration.
    configuration: Map<String, Value>,
    /// The parameters of its code.
    code: Map<String, Value>,
    tags: BTreeMap<String, String>,
    reserved: Option<u64>,
}

impl Parts {
    fn of(task: &Task<'_>, properties: &Value) -> Result<Parts, Failed> {
        let mut configuration = typed(properties);
        for name in ["FunctionName", "Tags"] {
            configuration.remove(name);
        }
        // The template has another name for it.
        if let Some(key) = configuration.remove("KmsKeyArn") {
            configuration.insert("KMSKeyArn".to_owned(), key);
        }
        let reserved = match configuration.remove("ReservedConcurrentExecutions") {
            None | Some(Value::Null) => None,
            Some(value) => Some(value.as_u64().ok_or_else(|| {
                Failed::new("ReservedConcurrentExecutions must be a number from 0")
            })?),
        };
        if let Some(variables) =
            configuration.get_mut("Environment").and_then(|own| own.get_mut("Variables"))
        {
            *variables = texts(variables)?;
        }
        let runtime = configuration.get("Runtime").and_then(Value::as_str).unwrap_or_default();
        let code = code(&configuration, runtime)?;
        configuration.remove("Code");
        Ok(Parts { configuration, code, tags: task.labels(properties)?, reserved })
    }
}

/// An object whose values are texts; numbers and truth values become text.
fn texts(object: &Value) -> Result<Value, Failed> {
    let wrong = || Failed::new("Environment: Variables must be an object of texts");
    let members = object.as_object().ok_or_else(wrong)?;
    let text = |(name, value): (&String, &Value)| Some((name.clone(), text_of(value)?.into()));
    let members: Option<Map<String, Value>> = members.iter().map(text).collect();
    members.map(Value::Object).ok_or_else(wrong)
}

/// The parameters of the code: an object of the store, or an archive of the text in the template.
fn code(properties: &Map<String, Value>, runtime: &str) -> Result<Map<String, Value>, Failed> {
    let code = properties.get("Code").and_then(Value::as_object).cloned().unwrap_or_default();
    let Some(Value::String(text)) = code.get("ZipFile") else { return Ok(code) };
    let name = match runtime {
        _ if runtime.starts_with("python") => "index.py",
        _ if runtime.starts_with("nodejs") => "index.js",
        _ => {
            return Err(Failed::new(format!(
                "Code.ZipFile is the text of a program in Python or JavaScript; for the runtime \
                 {runtime:?} put an archive into S3"
            )));
        }
    };
    if text.len() > INLINE_BYTES_MAX {
        return Err(Failed::new(format!("Code.ZipFile has {INLINE_BYTES_MAX} bytes at most")));
    }
    let packed = archive(name, text).map_err(|error| Failed::new(format!("Code: {error}")))?;
    let packed = base64::engine::general_purpose::STANDARD.encode(packed);
    Ok(Map::from_iter([("ZipFile".to_owned(), packed.into())]))
}

fn archive(name: &str, text: &str) -> zip::result::ZipResult<Vec<u8>> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    writer.start_file(name, SimpleFileOptions::default())?;
    writer.write_all(text.as_bytes())?;
    Ok(writer.finish()?.into_inner())
}

fn done(name: &str) -> Done {
    Done::new(name).with("Arn", arn(REGION, name, None))
}

/// Makes a function.
///
/// # Errors
/// The name is taken, or the function is refused, with the reason.
pub async fn create(task: &Task<'_>, name: &str, properties: &Value) -> Result<Done, Failed> {
    let Parts { configuration, code, tags, reserved } = Parts::of(task, properties)?;
    let is_there = task.host.registry.get(name).is_some() || task.host.function(name).is_some();
    task.claim(&format!("the function {name}"), is_there).await?;
    if is_there && task.record(name).is_none() {
        let why = format!("the function {name} already exists; choose another name");
        return Err(Failed::new(why));
    }
    if !is_there {
        let mut parameters = configuration;
        parameters.insert("FunctionName".to_owned(), name.into());
        parameters.insert("Code".to_owned(), code.into());
        parameters.insert("Tags".to_owned(), json!(tags));
        task.lambda(OperationKind::CreateFunction, ("", ""), parameters).await?;
    }
    if let Some(reserved) = reserved {
        reserve(task, name, reserved).await.map_err(|failed| failed.left(name))?;
    }
    Ok(done(name))
}

async fn reserve(task: &Task<'_>, name: &str, reserved: u64) -> Result<(), Failed> {
    let parameters = Map::from_iter([("ReservedConcurrentExecutions".to_owned(), reserved.into())]);
    task.lambda(OperationKind::PutFunctionConcurrency, (name, ""), parameters).await?;
    Ok(())
}

/// The value of a setting without a property.
fn default_of(name: &str) -> Option<Value> {
    Some(match name {
        "Description" => "".into(),
        "Timeout" => 3.into(),
        "MemorySize" => 128.into(),
        "Environment" => json!({"Variables": {}}),
        "DeadLetterConfig" => json!({"TargetArn": ""}),
        _ => return None,
    })
}

/// Changes a function: configuration and code in one step.
///
/// # Errors
/// It is refused, with the reason.
pub async fn update(
    task: &Task<'_>,
    name: &str,
    (before, after): (&Value, &Value),
    has_new_code: bool,
) -> Result<Done, Failed> {
    let old = Parts::of(task, before)?;
    let new = Parts::of(task, after)?;
    let mut parameters = new.configuration;
    for gone in old.configuration.keys().filter(|key| !after_has(after, key)) {
        if let Some(value) = default_of(gone) {
            parameters.insert(gone.clone(), value);
        } else if gone == "EphemeralStorage" {
            let why = "EphemeralStorage cannot be taken away from a function; give the Size it is to have";
            return Err(Failed::new(why));
        }
    }
    if has_new_code || old.code != new.code {
        parameters.insert("Code".to_owned(), new.code.into());
    }
    let order = Order { kind: None, target: name, item: "", query: &[], parameters };
    lambda_api::perform(task.host, task.tenant, order).await?;
    match (old.reserved, new.reserved) {
        (_, Some(reserved)) => reserve(task, name, reserved).await?,
        (Some(_), None) => {
            let kind = OperationKind::DeleteFunctionConcurrency;
            task.lambda(kind, (name, ""), Map::new()).await?;
        }
        (None, None) => {}
    }
    retag(task, name, (task.labels_gone(before, after)?, new.tags)).await?;
    Ok(done(name))
}

fn after_has(after: &Value, key: &str) -> bool {
    after.get(key).is_some_and(|value| !value.is_null())
}

async fn retag(
    task: &Task<'_>,
    name: &str,
    (gone, new): (Vec<String>, BTreeMap<String, String>),
) -> Result<(), Refusal> {
    let own = arn(REGION, name, None);
    if !gone.is_empty() {
        let query: Vec<(&str, &str)> = gone.iter().map(|key| ("tagKeys", key.as_str())).collect();
        let order = Order {
            kind: Some(OperationKind::UntagResource),
            target: &own,
            item: "",
            query: &query,
            parameters: Map::new(),
        };
        lambda_api::perform(task.host, task.tenant, order).await?;
    }
    if !new.is_empty() {
        let parameters = Map::from_iter([("Tags".to_owned(), json!(new))]);
        task.lambda(OperationKind::TagResource, (&own, ""), parameters).await?;
    }
    Ok(())
}

/// Deletes a function.
///
/// # Errors
/// It cannot be deleted now, or the deletion cannot be stored.
pub async fn delete(task: &Task<'_>, name: &str) -> Result<(), Failed> {
    deleted(task.lambda(OperationKind::DeleteFunction, (name, ""), Map::new()).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_becomes_an_archive() {
        let properties =
            |text: &str| Map::from_iter([("Code".to_owned(), json!({ "ZipFile": text }))]);
        let packed = code(&properties("def handler(e, c): return 1\n"), "python3.12").unwrap();
        let packed = packed["ZipFile"].as_str().unwrap();
        let packed = base64::engine::general_purpose::STANDARD.decode(packed).unwrap();
        let root = tempfile::tempdir().unwrap();
        crate::archive::unpack_zip(root.path(), &packed).unwrap();
        let text = std::fs::read_to_string(root.path().join("index.py")).unwrap();
        assert_eq!(text, "def handler(e, c): return 1\n");
        assert!(code(&properties("exports.handler = 1"), "nodejs20.x").is_ok());
        assert!(code(&properties("x"), "provided.al2023").unwrap_err().reason.contains("S3"));
        let object = json!({"S3Bucket": "b", "S3Key": "k"});
        let of_store = Map::from_iter([("Code".to_owned(), object.clone())]);
        assert_eq!(Value::Object(code(&of_store, "python3.12").unwrap()), object);
    }

    #[test]
    fn variables_are_texts() {
        assert_eq!(
            texts(&json!({"A": 1, "B": true, "C": "x"})).unwrap(),
            json!({"A": "1", "B": "true", "C": "x"})
        );
        assert!(texts(&json!({"A": {}})).is_err() && texts(&json!([])).is_err());
    }
}
