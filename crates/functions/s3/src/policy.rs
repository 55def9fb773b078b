//! The rights of a role: actions, resources and conditions.
//!
//! Statements are those of `fn.toml` and `function.toml` (patterns of buckets and keys), or those of
//! a [`document`] in AWS's JSON. The semantics are IAM's: a denial overrides every permission; the
//! default is denial. [`services`] decides about requests to services other than S3, by the same
//! statements; [`invocation`] about invocations by callers of other tenants. Stages: [`document`] →
//! `statement` with `pattern`, `condition` and `operator` → the actions that a request needs
//! (`needed`, by the table in `implied`) and its [`facts`] → a decision, which [`explain`] shows.

use serde::Deserialize;
use serde_json::{Map, Value};

mod condition;
pub mod document;
mod error;
pub mod explain;
pub mod facts;
mod implied;
pub mod invocation;
mod names;
mod needed;
mod operator;
#[cfg(test)]
mod oracle;
mod pattern;
#[cfg(test)]
mod published;
pub mod services;
mod statement;

pub use self::error::{Decision, PATTERN_BYTES_MAX, PATTERNS_MAX, PolicyError, STATEMENTS_MAX};
pub use self::explain::Explained;
use self::facts::{Facts, Vocabulary};
pub use self::implied::is_action;
pub use self::needed::Refused;
use self::statement::{ResourcePattern, Selection, Statement, Verdict, judge};

/// The start of an S3 resource's ARN.
const STORE_ARN: &str = "arn:aws:s3:::";
/// The member with facts about the role's principal, which the host adds.
pub const FACTS: &str = "facts";
/// The member with the operator's policy, which the host adds.
pub const BOUNDARY: &str = "boundary";
/// The members that only the host may add.
pub const OF_HOST: [&str; 2] = [BOUNDARY, FACTS];

/// The effect of a statement in TOML.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PlainEffect {
    #[serde(alias = "Allow")]
    Allow,
    #[serde(alias = "Deny")]
    Deny,
}

/// A statement in TOML.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainStatement {
    effect: PlainEffect,
    actions: Vec<String>,
    resources: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainPolicy {
    statements: Vec<PlainStatement>,
}

/// The rights of a role: `{"statements": [{"effect": "allow", "actions": ["s3:GetObject"],
/// "resources": ["bucket/prefix/*"]}]}`, or a [`document`]. A resource of the former is a bucket, or
/// a bucket, a slash and a key; a leading `arn:aws:s3:::` is ignored, and listing a bucket is also
/// allowed for a prefix that a resource covers completely. A `boundary` is another policy, which
/// must also allow the action. `facts` are condition keys of the role's principal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    statements: Vec<Statement>,
    boundary: Option<Vec<Statement>>,
    facts: Facts,
}

impl Policy {
    /// Parses a policy.
    ///
    /// # Errors
    /// It is invalid or too large.
    pub fn from_value(value: &Value) -> Result<Policy, PolicyError> {
        let Some(members) = value.as_object() else {
            return Err(PolicyError::Document("it must be an object".to_owned()));
        };
        let mut own = members.clone();
        let boundary = own.remove(BOUNDARY);
        let facts = own.remove(FACTS).unwrap_or_else(|| Map::new().into());
        let facts: std::collections::BTreeMap<String, String> = Deserialize::deserialize(facts)?;
        let with = |all: Facts, (key, value): (&String, &String)| all.with(key, value);
        let boundary = boundary.map(|boundary| match boundary {
            Value::Object(boundary) => statements(boundary),
            _ => Err(PolicyError::Document("the boundary must be an object".to_owned())),
        });
        Ok(Policy {
            statements: statements(own)?,
            boundary: boundary.transpose()?,
            facts: facts.iter().fold(Facts::default(), with),
        })
    }

    /// A role with all rights, for tests and single users.
    pub fn everything() -> Policy {
        Policy { statements: vec![plain_permission("*")], boundary: None, facts: Facts::default() }
    }

    /// A role with all rights to objects, and none to other services: that of a function whose
    /// manifest has no role.
    pub fn of_store() -> Policy {
        let statements = vec![plain_permission("s3:*")];
        Policy { statements, boundary: None, facts: Facts::default() }
    }

    /// The decision, the number of the statement that made it, and true if that is one of the
    /// boundary.
    fn answer(
        &self,
        question: &dyn statement::Question,
        facts: &Facts,
    ) -> (Decision, Option<usize>, bool) {
        let (decision, number) = judge(&self.statements, question, facts);
        match &self.boundary {
            Some(boundary) if decision == Decision::Allowed => {
                match judge(boundary, question, facts) {
                    (Decision::Allowed, _) => (decision, number, false),
                    (bound, by) => (bound, by, true),
                }
            }
            _ => (decision, number, false),
        }
    }
}

fn plain_permission(action: &str) -> Statement {
    let resources = vec!["*".to_owned()];
    let actions = vec![action.to_owned()];
    plain(PlainStatement { effect: PlainEffect::Allow, actions, resources })
}

fn plain(own: PlainStatement) -> Statement {
    let effect = match own.effect {
        PlainEffect::Allow => Verdict::Allow,
        PlainEffect::Deny => Verdict::Deny,
    };
    let resources = own.resources.into_iter().map(ResourcePattern::Plain).collect();
    Statement {
        sid: None,
        effect,
        actions: statement::actions(&own.actions),
        resources: Selection { patterns: resources, is_negated: false },
        conditions: Vec::new(),
        principals: None,
    }
}

/// The statements of a policy without a boundary.
fn statements(own: Map<String, Value>) -> Result<Vec<Statement>, PolicyError> {
    if own.contains_key("Statement") || own.contains_key("Version") {
        let members = ["Version", "Id", "Statement"];
        if let Some(name) = own.keys().find(|name| !members.contains(&name.as_str())) {
            return Err(PolicyError::Document(format!("{name:?} is none of {members:?}")));
        }
        return document::statements(&own, Vocabulary::Function);
    }
    let too_much = |what, limit| Err(PolicyError::TooMuch { what, limit });
    let policy = PlainPolicy::deserialize(Value::Object(own))?;
    if policy.statements.len() > STATEMENTS_MAX {
        return too_much("statements", STATEMENTS_MAX);
    }
    for statement in &policy.statements {
        for patterns in [&statement.actions, &statement.resources] {
            if patterns.len() > PATTERNS_MAX {
                return too_much("patterns in a statement", PATTERNS_MAX);
            }
            if patterns.iter().any(|pattern| pattern.len() > PATTERN_BYTES_MAX) {
                return too_much("bytes in a pattern", PATTERN_BYTES_MAX);
            }
        }
    }
    Ok(policy.statements.into_iter().map(plain).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::find;
    use crate::policy::facts::Environment;
    use crate::policy::needed::NAME_BYTES_MAX;
    use serde_json::json;

    fn policy(statements: Value) -> Policy {
        Policy::from_value(&json!({ "statements": statements })).unwrap()
    }

    fn decide(policy: &Policy, operation: &str, parameters: Value) -> Decision {
        let parameters = parameters.as_object().unwrap();
        let operation = find(operation).unwrap();
        match policy.decide(operation, parameters, &Environment::of_tests()) {
            Ok(()) => Decision::Allowed,
            Err(Refused::Action(not)) => not.decision,
            Err(Refused::Name) => Decision::Denied,
        }
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
    fn a_source_that_stores_read_in_several_ways_needs_all_of_the_rights() {
        let allow = |actions: &[&str]| {
            policy(json!([
                {"effect": "allow", "actions": ["s3:PutObject"], "resources": ["out/*"]},
                {"effect": "allow", "actions": actions, "resources": ["*"]},
            ]))
        };
        let copy = |role: &Policy, source: &str| {
            let parameters = json!({"Bucket": "out", "Key": "k", "CopySource": source});
            decide(role, "CopyObject", parameters)
        };
        let (object, version) = (allow(&["s3:GetObject"]), allow(&["s3:GetObjectVersion"]));
        let both = allow(&["s3:GetObject", "s3:GetObjectVersion"]);
        for (source, by_object, by_version) in [
            ("in/k", true, false),
            ("in/k?versionId=7", false, true),
            ("in/k?version%49d=7", false, false),
            ("in/k?x", false, false),
        ] {
            let may = |role: &Policy| copy(role, source) == Decision::Allowed;
            assert_eq!((may(&object), may(&version)), (by_object, by_version), "{source}");
            assert!(may(&both), "{source}");
        }
        for source in ["arn:aws:s3:eu-west-1:1:accesspoint/p/object/k", "/arn%3Aaws%3As3:::in/k"] {
            assert_eq!(copy(&Policy::everything(), source), Decision::Denied, "{source}");
        }
        let long = json!({"Bucket": "in", "Key": "k".repeat(NAME_BYTES_MAX + 1)});
        assert_eq!(decide(&Policy::everything(), "GetObject", long), Decision::Denied);
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
}
