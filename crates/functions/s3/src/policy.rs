//! The rights of a role: actions, buckets and prefixes.
//!
//! The semantics are those of the store's policies: patterns with `*` and `?`; a denial overrides
//! every permission; the default is denial. [`services`] decides about requests to services other
//! than S3, by the same statements.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::copy_source::{self, COPY_SOURCE};
use crate::operation::{Operation, Target};

pub mod services;

/// Most statements of a policy.
pub const STATEMENTS_MAX: usize = 64;
/// Most patterns of a statement.
pub const PATTERNS_MAX: usize = 64;
/// Most bytes of a pattern.
pub const PATTERN_BYTES_MAX: usize = 2048;

/// The reason why a policy is invalid. The operator is at fault.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// It is not of this form.
    #[error("the policy is not understood: {0}")]
    Form(#[from] serde_json::Error),
    /// It exceeds a limit.
    #[error("the policy has more than {limit} {what}; split the role")]
    TooMuch {
        /// The limited quantity.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// The decision about an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A statement allows it, and none denies it.
    Allowed,
    /// A statement denies it.
    Denied,
    /// No statement allows it.
    NotAllowed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    #[serde(alias = "Allow")]
    Allow,
    #[serde(alias = "Deny")]
    Deny,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    effect: Verdict,
    actions: Vec<String>,
    resources: Vec<String>,
}

/// The rights of a role: `{"statements": [{"effect": "allow", "actions": ["s3:GetObject"],
/// "resources": ["bucket/prefix/*"]}]}`. A resource is a bucket, or a bucket, a slash and a key; a
/// leading `arn:aws:s3:::` is ignored. Listing a bucket is also allowed for a prefix that a
/// resource covers completely. A `boundary` is another policy, which must also allow the action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    statements: Vec<Statement>,
    #[serde(default)]
    boundary: Option<Boundary>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Boundary {
    statements: Vec<Statement>,
}

/// An action on a resource.
struct Question<'a> {
    action: &'a str,
    resource: String,
    /// For a list: the common prefix of its keys, after the bucket and a slash.
    covers: Option<String>,
}

impl Policy {
    /// Parses a policy.
    ///
    /// # Errors
    /// It is invalid or too large.
    pub fn from_value(value: &Value) -> Result<Policy, PolicyError> {
        let policy = Policy::deserialize(value)?;
        let too_much = |what, limit| Err(PolicyError::TooMuch { what, limit });
        let bounds = policy.boundary.as_ref().map_or(&[][..], |boundary| &boundary.statements);
        if policy.statements.len().max(bounds.len()) > STATEMENTS_MAX {
            return too_much("statements", STATEMENTS_MAX);
        }
        for statement in policy.statements.iter().chain(bounds) {
            for patterns in [&statement.actions, &statement.resources] {
                if patterns.len() > PATTERNS_MAX {
                    return too_much("patterns in a statement", PATTERNS_MAX);
                }
                if patterns.iter().any(|pattern| pattern.len() > PATTERN_BYTES_MAX) {
                    return too_much("bytes in a pattern", PATTERN_BYTES_MAX);
                }
            }
        }
        Ok(policy)
    }

    /// A role with all rights, for tests and single users.
    pub fn everything() -> Policy {
        let all = || vec!["*".to_owned()];
        let statement = Statement { effect: Verdict::Allow, actions: all(), resources: all() };
        Policy { statements: vec![statement], boundary: None }
    }

    /// A role with all rights to objects, and none to other services: that of a function whose
    /// manifest has no role.
    pub fn of_store() -> Policy {
        let (actions, resources) = (vec!["s3:*".to_owned()], vec!["*".to_owned()]);
        let statement = Statement { effect: Verdict::Allow, actions, resources };
        Policy { statements: vec![statement], boundary: None }
    }

    /// Decides about an operation with these parameters: every object that it reads or changes
    /// must be allowed. A name that is not text is denied.
    pub fn decide(&self, operation: &Operation, parameters: &Map<String, Value>) -> Decision {
        let Ok(questions) = questions(operation, parameters) else { return Decision::Denied };
        let mut decisions = questions.iter().map(|question| self.answer(question));
        decisions.find(|decision| *decision != Decision::Allowed).unwrap_or(Decision::Allowed)
    }

    fn answer(&self, question: &Question<'_>) -> Decision {
        let own = answer(&self.statements, question);
        match &self.boundary {
            Some(boundary) if own == Decision::Allowed => answer(&boundary.statements, question),
            _ => own,
        }
    }
}

fn answer(statements: &[Statement], question: &Question<'_>) -> Decision {
    let mut decision = Decision::NotAllowed;
    for statement in statements {
        let about = statement.actions.iter().any(|pattern| {
            matches(&pattern.to_ascii_lowercase(), &question.action.to_ascii_lowercase())
        });
        if !about {
            continue;
        }
        let allows = statement.effect == Verdict::Allow;
        let meant = |pattern: &String| {
            let pattern = pattern.strip_prefix("arn:aws:s3:::").unwrap_or(pattern);
            matches(pattern, &question.resource)
                || (allows && question.covers.as_deref().is_some_and(|all| covers(pattern, all)))
        };
        match (statement.resources.iter().any(meant), allows) {
            (true, false) => return Decision::Denied,
            (true, true) => decision = Decision::Allowed,
            (false, _) => {}
        }
    }
    decision
}

/// A parameter that names a bucket, a key or a version is not text.
struct NotText;

/// Returns the text of a parameter that names something; empty if it is absent.
fn name_of(value: Option<&Value>) -> Result<&str, NotText> {
    match value {
        None | Some(Value::Null) => Ok(""),
        Some(value) => value.as_str().ok_or(NotText),
    }
}

/// Returns the action on a version of an object, where it differs from that on the object.
fn of_version(action: &str) -> &str {
    match action {
        "s3:DeleteObject" => "s3:DeleteObjectVersion",
        "s3:DeleteObjectTagging" => "s3:DeleteObjectVersionTagging",
        "s3:GetObject" => "s3:GetObjectVersion",
        "s3:GetObjectAcl" => "s3:GetObjectVersionAcl",
        "s3:GetObjectAttributes" => "s3:GetObjectVersionAttributes",
        "s3:GetObjectTagging" => "s3:GetObjectVersionTagging",
        "s3:PutObjectAcl" => "s3:PutObjectVersionAcl",
        "s3:PutObjectTagging" => "s3:PutObjectVersionTagging",
        other => other,
    }
}

fn questions<'a>(
    operation: &'a Operation,
    parameters: &Map<String, Value>,
) -> Result<Vec<Question<'a>>, NotText> {
    let text = |name: &str| name_of(parameters.get(name));
    let bucket = text("Bucket")?;
    let mut all = Vec::new();
    let mut ask = |action, resource| all.push(Question { action, resource, covers: None });
    match operation.target {
        Target::Service => ask(operation.action, "*".to_owned()),
        Target::Object => {
            let action = match text("VersionId")? {
                "" => operation.action,
                _ => of_version(operation.action),
            };
            ask(action, format!("{bucket}/{}", text("Key")?));
        }
        Target::Bucket if operation.name == "DeleteObjects" => {
            let objects = parameters.get("Delete").and_then(|delete| delete.get("Objects"));
            for object in objects.and_then(Value::as_array).into_iter().flatten() {
                let action = match name_of(object.get("VersionId"))? {
                    "" => operation.action,
                    _ => of_version(operation.action),
                };
                ask(action, format!("{bucket}/{}", name_of(object.get("Key"))?));
            }
        }
        Target::Bucket => {
            let lists = operation.field("Prefix").is_some();
            let covers = if lists { Some(format!("{bucket}/{}", text("Prefix")?)) } else { None };
            all.push(Question { action: operation.action, resource: bucket.to_owned(), covers });
        }
    }
    // The result of a restore by query is written to a separate object.
    let location = parameters.get("RestoreRequest").and_then(|value| value.get("OutputLocation"));
    if let Some(place) = location.and_then(|location| location.get("S3")) {
        let bucket = name_of(place.get("BucketName"))?;
        let start = format!("{bucket}/{}", name_of(place.get("Prefix"))?);
        let resource = format!("{start}*");
        all.push(Question { action: "s3:PutObject", covers: Some(start), resource });
    }
    if operation.field(COPY_SOURCE).is_some() {
        let source = text(COPY_SOURCE)?;
        let action = match copy_source::has_version(source) {
            true => of_version("s3:GetObject"),
            false => "s3:GetObject",
        };
        for resource in copy_source::readings(source) {
            all.push(Question { action, resource, covers: None });
        }
    }
    Ok(all)
}

/// Returns true if a pattern matches every text that begins with `start`: the pattern is a literal
/// followed by a star, and `start` begins with the literal.
fn covers(pattern: &str, start: &str) -> bool {
    let Some(literal) = pattern.strip_suffix('*') else { return false };
    // A pattern that consists of a star covers every key.
    literal.is_empty() || (!literal.contains(['*', '?']) && start.starts_with(literal))
}

/// Returns true if a pattern matches: `*` is any text, `?` any character. The time is at most the
/// product of the lengths.
fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut seen) = (0, 0);
    // The position to resume at if the text after the last star does not match.
    let mut retry: Option<(usize, usize)> = None;
    while seen < text.len() {
        match pattern.get(at) {
            Some('*') => {
                retry = Some((at + 1, seen));
                at += 1;
            }
            Some(&wanted) if wanted == '?' || wanted == text[seen] => {
                at += 1;
                seen += 1;
            }
            _ => match retry {
                Some((behind, from)) => {
                    at = behind;
                    seen = from + 1;
                    retry = Some((behind, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|&rest| rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::find;
    use serde_json::json;
    use unlade_testkit::{Random, cases};

    fn policy(statements: Value) -> Policy {
        Policy::from_value(&json!({ "statements": statements })).unwrap()
    }

    fn decide(policy: &Policy, operation: &str, parameters: Value) -> Decision {
        policy.decide(find(operation).unwrap(), parameters.as_object().unwrap())
    }

    fn reader() -> Policy {
        policy(json!([
            {"effect": "allow", "actions": ["s3:Get*", "s3:ListBucket"],
             "resources": ["arn:aws:s3:::in/a/*"]},
            {"effect": "allow", "actions": ["s3:PutObject"], "resources": ["out/*"]},
            {"effect": "deny", "actions": ["*"], "resources": ["in/a/secret*"]},
        ]))
    }

    #[test]
    fn what_is_not_allowed_is_denied_and_a_denial_is_final() {
        let role = reader();
        let get = |key: &str| decide(&role, "GetObject", json!({"Bucket": "in", "Key": key}));
        assert_eq!(get("a/b"), Decision::Allowed);
        assert_eq!(get("b/a"), Decision::NotAllowed);
        assert_eq!(get("a/secret/x"), Decision::Denied);
        let put = json!({"Bucket": "in", "Key": "a/b"});
        assert_eq!(decide(&role, "PutObject", put), Decision::NotAllowed);
        let part = json!({"Bucket": "out", "Key": "x", "UploadId": "u", "PartNumber": 1});
        assert_eq!(decide(&role, "UploadPart", part), Decision::Allowed);
        assert_eq!(decide(&Policy::default(), "ListBuckets", json!({})), Decision::NotAllowed);
        assert_eq!(decide(&Policy::everything(), "ListBuckets", json!({})), Decision::Allowed);
    }

    #[test]
    fn a_boundary_allows_nothing_that_its_policy_does_not() {
        let all = json!([{"effect": "allow", "actions": ["*"], "resources": ["*"]}]);
        let reads =
            json!([{"effect": "allow", "actions": ["s3:GetObject"], "resources": ["in/*"]}]);
        let bound = |own: &Value, boundary: &Value| {
            let value = json!({"statements": own, "boundary": {"statements": boundary}});
            Policy::from_value(&value).unwrap()
        };
        let ask = |policy: &Policy, operation: &str, bucket: &str| {
            decide(policy, operation, json!({"Bucket": bucket, "Key": "k"})) == Decision::Allowed
        };
        for policy in [bound(&all, &reads), bound(&reads, &all)] {
            assert!(ask(&policy, "GetObject", "in"));
            assert!(!ask(&policy, "GetObject", "out") && !ask(&policy, "PutObject", "in"));
        }
        let nothing = json!([]);
        assert!(!ask(&bound(&all, &nothing), "GetObject", "in"));
        let deep = json!({"statements": [], "boundary": {"statements": [], "boundary": {}}});
        assert!(Policy::from_value(&deep).is_err());
    }

    #[test]
    fn a_copy_reads_its_source_and_a_batch_deletes_every_key() {
        let role = reader();
        let copy = |source: &str| {
            let parameters = json!({"Bucket": "out", "Key": "x", "CopySource": source});
            decide(&role, "CopyObject", parameters)
        };
        assert_eq!(copy("in/a/b%20c"), Decision::Allowed);
        assert_eq!(copy("/in/a/b?versionId=7"), Decision::Allowed);
        assert_eq!(copy("in/b"), Decision::NotAllowed);
        assert_eq!(copy("in/a/s%65cret"), Decision::Denied);
        let role = policy(json!([
            {"effect": "allow", "actions": ["s3:DeleteObject"], "resources": ["b/tmp/*"]}]));
        let delete = |keys: Value| {
            decide(&role, "DeleteObjects", json!({"Bucket": "b", "Delete": {"Objects": keys}}))
        };
        assert_eq!(delete(json!([{"Key": "tmp/a"}, {"Key": "tmp/b"}])), Decision::Allowed);
        assert_eq!(delete(json!([{"Key": "tmp/a"}, {"Key": "b"}])), Decision::NotAllowed);
        let versioned = json!([{"Key": "tmp/a", "VersionId": "1"}]);
        assert_eq!(delete(versioned), Decision::NotAllowed);
    }

    /// A name that is not text is sent as text by nobody, and no rule could match it.
    #[test]
    fn names_that_are_not_text_are_denied() {
        let role = policy(json!([
            {"effect": "allow", "actions": ["*"], "resources": ["*"]},
            {"effect": "deny", "actions": ["*"], "resources": ["in/secret*"]}]));
        let hidden = json!({"$octets": "in/secret0000"});
        let copy = json!({"Bucket": "out", "Key": "x", "CopySource": hidden});
        assert_eq!(decide(&role, "CopyObject", copy), Decision::Denied);
        let version = json!({"Bucket": "in", "Key": "x", "VersionId": {"$octets": "null"}});
        assert_eq!(decide(&role, "GetObject", version), Decision::Denied);
        let delete =
            json!({"Bucket": "in", "Delete": {"Objects": [{"Key": {"$octets": "secret00"}}]}});
        assert_eq!(decide(&role, "DeleteObjects", delete), Decision::Denied);
    }

    #[test]
    fn a_version_needs_the_right_for_versions() {
        let role = policy(json!([
            {"effect": "allow", "actions": ["s3:GetObject", "s3:GetObjectTagging",
             "s3:PutObjectTagging", "s3:GetObjectAttributes"], "resources": ["*"]}]));
        for operation in ["GetObject", "HeadObject", "GetObjectTagging", "GetObjectAttributes"] {
            let plain = json!({"Bucket": "in", "Key": "x"});
            assert_eq!(decide(&role, operation, plain), Decision::Allowed, "{operation}");
            let version = json!({"Bucket": "in", "Key": "x", "VersionId": "1"});
            assert_eq!(decide(&role, operation, version), Decision::NotAllowed, "{operation}");
        }
    }

    /// Stores differ in how they read a source: the role must allow each of the readings.
    #[test]
    fn a_source_is_denied_if_one_reading_of_it_is() {
        let role = policy(json!([
            {"effect": "allow", "actions": ["*"], "resources": ["*"]},
            {"effect": "deny", "actions": ["*"], "resources": ["in/secret", "in/a b", "in/k?v*"]}]));
        let copy = |source: &str| {
            let parameters = json!({"Bucket": "out", "Key": "x", "CopySource": source});
            decide(&role, "CopyObject", parameters)
        };
        for source in [
            "in/secret",
            "//in/secret",
            "in/secret?x=1",
            "in/secret#x",
            "in/secret?versionId=1",
            "in/a+b",
            "in/a%20b",
            "in/k%3FversionId=7",
        ] {
            assert_eq!(copy(source), Decision::Denied, "{source}");
        }
        for source in ["in/secrets", "in/a%2Bb", "in/k?versionId=7", "/in/k"] {
            assert_eq!(copy(source), Decision::Allowed, "{source}");
        }
    }

    #[test]
    fn a_list_needs_the_bucket_or_all_of_its_prefix() {
        let role = reader();
        let list = |prefix: &str| {
            decide(&role, "ListObjectsV2", json!({"Bucket": "in", "Prefix": prefix}))
        };
        assert_eq!(list("a/b"), Decision::Allowed);
        assert_eq!(list("a/"), Decision::Allowed);
        assert_eq!(list("a"), Decision::NotAllowed);
        assert_eq!(list(""), Decision::NotAllowed);
        let whole = policy(json!([
            {"effect": "Allow", "actions": ["S3:listbucket"], "resources": ["in"]}]));
        let all = json!({"Bucket": "in"});
        assert_eq!(decide(&whole, "ListObjectsV2", all), Decision::Allowed);
        let other = json!({"Bucket": "in2"});
        assert_eq!(decide(&whole, "ListObjectsV2", other), Decision::NotAllowed);
    }

    #[test]
    fn policies_that_are_none_are_refused() {
        for wrong in [
            json!({}),
            json!({"statements": [{"effect": "maybe", "actions": [], "resources": []}]}),
            json!({"statements": [{"effect": "allow", "actions": [], "resource": []}]}),
        ] {
            assert!(Policy::from_value(&wrong).is_err());
        }
        let many = vec![json!({"effect": "deny", "actions": [], "resources": []}); 65];
        let error = Policy::from_value(&json!({ "statements": many })).unwrap_err();
        assert!(matches!(error, PolicyError::TooMuch { what: "statements", .. }));
    }

    /// A recursive definition of matching.
    fn oracle(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some(('*', rest)), _) => {
                oracle(rest, text) || (!text.is_empty() && oracle(pattern, &text[1..]))
            }
            (Some(('?', rest)), Some((_, left))) => oracle(rest, left),
            (Some((wanted, rest)), Some((found, left))) => wanted == found && oracle(rest, left),
            _ => false,
        }
    }

    fn word(random: &mut Random, letters: &[char]) -> String {
        let count = random.below(9);
        (0..count).map(|_| letters[random.below(letters.len() as u64) as usize]).collect()
    }

    #[test]
    fn patterns_match_as_recursion_says() {
        cases(5000, |random| {
            let pattern = word(random, &['a', 'b', '/', '*', '?']);
            let text = word(random, &['a', 'b', '/']);
            let due =
                oracle(&pattern.chars().collect::<Vec<_>>(), &text.chars().collect::<Vec<_>>());
            assert_eq!(matches(&pattern, &text), due, "{pattern} {text}");
            if covers(&pattern, &text) {
                let longer = text + &word(random, &['a', 'b', '/']);
                assert!(matches(&pattern, &longer), "{pattern} covers {longer}");
            }
        });
    }
}
