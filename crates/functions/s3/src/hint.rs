//! Hints about the objects that an invocation will read: derived from an event in the format of an
//! S3 notification, or from templates in the function's manifest.
//!
//! A hint is a guess: a wrong one is never an error. The function's role decides elsewhere which
//! objects may be prefetched.

use serde_json::Value;
use unlade_guest_protocol::control::ObjectName;

use crate::encode::unpercent;

/// Most objects of one invocation.
pub const OBJECTS_MAX: usize = 16;
/// Most bytes of an event that is parsed.
pub const EVENT_BYTES_MAX: usize = 256 * 1024;

/// The objects that an event names: in `Records` of S3 notifications, and in EventBridge's `Object
/// Created`. Notifications within the `body` or `Message` of queues and topics are ignored.
pub fn of_event(event: &[u8]) -> Vec<ObjectName> {
    let mut objects = Vec::new();
    if event.len() > EVENT_BYTES_MAX {
        return objects;
    }
    let Ok(event) = serde_json::from_slice::<Value>(event) else { return objects };
    let records = event.get("Records").and_then(Value::as_array).into_iter().flatten();
    for record in records.take(OBJECTS_MAX) {
        if is_created(record.get("eventName")) {
            // The key of a notification is encoded as in a form (S3 user guide, "Event message
            // structure"); EventBridge's is not.
            push(&mut objects, record.get("s3"), true);
        }
    }
    if event.get("source").and_then(Value::as_str) == Some("aws.s3") {
        push(&mut objects, event.get("detail"), false);
    }
    objects
}

/// Returns true unless the event is a deletion, whose object no longer exists.
fn is_created(name: Option<&Value>) -> bool {
    let name = name.and_then(Value::as_str).unwrap_or("ObjectCreated:Put");
    let name = name.strip_prefix("s3:").unwrap_or(name);
    !name.starts_with("ObjectRemoved") && !name.starts_with("LifecycleExpiration")
}

fn push(objects: &mut Vec<ObjectName>, from: Option<&Value>, encoded: bool) {
    let text = |path: [&str; 2]| {
        let value = from.and_then(|from| from.get(path[0])).and_then(|part| part.get(path[1]));
        value.and_then(Value::as_str).map(str::to_owned)
    };
    let (Some(bucket), Some(key)) = (text(["bucket", "name"]), text(["object", "key"])) else {
        return;
    };
    let key = if encoded { unpercent(&key, true) } else { key };
    let version = text(["object", "versionId"]).or_else(|| text(["object", "version-id"]));
    add(objects, ObjectName { bucket, key, version, range: None });
}

fn add(objects: &mut Vec<ObjectName>, object: ObjectName) {
    if objects.len() < OBJECTS_MAX && !objects.contains(&object) {
        objects.push(object);
    }
}

/// The reason why a template is invalid. The operator is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hint {template:?} is not BUCKET/KEY, with {{/pointer}} into the event")]
pub struct TemplateError {
    /// The template.
    pub template: String,
}

/// `bucket/thumbnails/{/detail/name}.jpg`: text, and JSON pointers (RFC 6901) into the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Pointer(String),
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// It has no slash outside its pointers, or an unclosed brace.
    pub fn parse(template: &str) -> Result<Template, TemplateError> {
        let wrong = || TemplateError { template: template.to_owned() };
        let mut parts = Vec::new();
        let mut rest = template;
        while let Some((before, behind)) = rest.split_once('{') {
            let (pointer, after) = behind.split_once('}').ok_or_else(wrong)?;
            if !pointer.starts_with('/') || before.contains('}') {
                return Err(wrong());
            }
            parts.push(Part::Text(before.to_owned()));
            parts.push(Part::Pointer(pointer.to_owned()));
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        let slash = |part: &Part| matches!(part, Part::Text(text) if text.contains('/'));
        match parts.iter().any(slash) && !rest.contains('}') {
            true => Ok(Template { parts }),
            false => Err(wrong()),
        }
    }

    /// The object that it names for an event; `None` if the event lacks a referenced value.
    pub fn fill(&self, event: &Value) -> Option<ObjectName> {
        let mut name = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => name.push_str(text),
                Part::Pointer(pointer) => match event.pointer(pointer)? {
                    Value::String(text) => name.push_str(text),
                    Value::Number(number) => name.push_str(&number.to_string()),
                    _ => return None,
                },
            }
        }
        let (bucket, key) = name.split_once('/')?;
        if bucket.is_empty() || key.is_empty() {
            return None;
        }
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        Some(ObjectName { bucket, key, version: None, range: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use unlade_testkit::cases;

    fn names(event: Value) -> Vec<(String, String, Option<String>)> {
        let objects = of_event(event.to_string().as_bytes());
        objects.into_iter().map(|object| (object.bucket, object.key, object.version)).collect()
    }

    #[test]
    fn notifications_name_objects_once() {
        let record = |name: &str, key: &str| {
            json!({"eventSource": "aws:s3", "eventName": name,
                "s3": {"bucket": {"name": "in"}, "object": {"key": key, "versionId": "v"}}})
        };
        let event = json!({"Records": [record("ObjectCreated:Put", "a+b%2B%C3%BC"),
            record("ObjectCreated:Copy", "a+b%2B%C3%BC"), record("ObjectRemoved:Delete", "gone")]});
        let due = ("in".to_owned(), "a b+ü".to_owned(), Some("v".to_owned()));
        assert_eq!(names(event), [due]);
        let bridge = json!({"source": "aws.s3", "detail": {"bucket": {"name": "b"},
            "object": {"key": "a+b", "version-id": "1"}}});
        assert_eq!(names(bridge), [("b".to_owned(), "a+b".to_owned(), Some("1".to_owned()))]);
        assert!(names(json!({"Records": [1, {"s3": {"bucket": 5}}], "detail": []})).is_empty());
        assert!(of_event(b"\xff").is_empty());
    }

    #[test]
    fn no_event_names_more_than_the_limit() {
        let record = |key: usize| {
            json!({"s3": {"bucket": {"name": "b"},
            "object": {"key": key.to_string()}}})
        };
        let records: Vec<Value> = (0..100).map(record).collect();
        assert_eq!(names(json!({ "Records": records })).len(), OBJECTS_MAX);
    }

    #[test]
    fn templates_are_filled_from_the_event_or_name_nothing() {
        let template = Template::parse("models/{/kind}/v{/version}.bin").unwrap();
        let filled = template.fill(&json!({"kind": "cnn", "version": 3})).unwrap();
        assert_eq!((filled.bucket.as_str(), filled.key.as_str()), ("models", "cnn/v3.bin"));
        assert_eq!(template.fill(&json!({"kind": "cnn"})), None);
        assert_eq!(template.fill(&json!({"kind": {}, "version": 3})), None);
        for wrong in ["bucket", "a/{name}", "a/{/b", "a/}b", "{/a}"] {
            assert!(Template::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn any_event_is_survived() {
        let seed = json!({"Records": [{"eventName": "ObjectCreated:Put",
            "s3": {"bucket": {"name": "in"}, "object": {"key": "a"}}}]});
        let seed = seed.to_string().into_bytes();
        cases(2000, |random| {
            let mut event = seed.clone();
            let at = random.below(event.len() as u64) as usize;
            event[at] = random.next() as u8;
            for object in of_event(&event) {
                assert!(object.bucket.len() + object.key.len() < event.len());
            }
        });
    }
}
