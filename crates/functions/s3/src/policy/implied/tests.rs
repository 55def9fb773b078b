use serde_json::{Map, Value, json};

use super::super::facts::Environment;
use super::super::{Decision, Policy, Refused};
use super::*;
use crate::operation::{all, find};

/// The least that a request of an operation has.
fn least(operation: &str) -> Value {
    match operation {
        "CreateBucket" => json!({"Bucket": "b"}),
        "CopyObject" => json!({"Bucket": "b", "Key": "k", "CopySource": "c/s",
            "TaggingDirective": "REPLACE", "AnnotationDirective": "EXCLUDE"}),
        "UploadPartCopy" => json!({"Bucket": "b", "Key": "k", "CopySource": "c/s"}),
        "DeleteObjects" => json!({"Bucket": "b", "Delete": {"Objects": [{"Key": "k"}]}}),
        _ => json!({"Bucket": "b", "Key": "k"}),
    }
}

/// A request to which a row applies because of one parameter, for each of its parameters.
fn requests(row: &Row, operation: &'static Operation) -> Vec<Map<String, Value>> {
    let least = least(operation.name).as_object().unwrap().clone();
    let with = |path: &str, value: Value| {
        let (mut own, value) = (least.clone(), value);
        let (first, rest) = path.split_once('.').unwrap_or((path, ""));
        let around = rest.split('.').rev().filter(|name| !name.is_empty());
        let value = around.fold(value, |value, name| json!({ name: value }));
        own.insert(first.to_owned(), value);
        own
    };
    let is_known = |name: &&&str| operation.field(name.split('.').next().unwrap()).is_some();
    match row.when {
        When::Always => vec![least.clone()],
        When::Given(names) => {
            names.iter().filter(is_known).map(|name| with(name, json!("x"))).collect()
        }
        When::GivenBut(name, _) => vec![with(name, json!("public-read"))],
        When::Is(name, value) => vec![with(name, json!(value))],
        When::Unless(name, _) => {
            let mut absent = least.clone();
            absent.remove(name);
            // With the value itself, another row makes the action necessary.
            let named = (row.need != Need::Possible).then(|| with(name, json!("COPY")));
            std::iter::once(absent).chain(named).collect()
        }
    }
}

/// The ARN of the resource that a row is on, in these requests.
fn arn(row: &Row, operation: &str) -> &'static str {
    match (row.on, operation) {
        (On::Target, "CreateBucket") => "arn:aws:s3:::b",
        (On::Target, _) => "arn:aws:s3:::b/k",
        (On::Source, _) => "arn:aws:s3:::c/s",
        (On::Output, _) => "arn:aws:s3:::*",
    }
}

fn decide(
    statements: Value,
    operation: &Operation,
    asked: &Map<String, Value>,
) -> (Decision, String) {
    let policy = json!({"Version": "2012-10-17", "Statement": statements});
    let policy = Policy::from_value(&policy).unwrap();
    match policy.decide(operation, asked, &Environment::of_tests()) {
        Ok(()) => (Decision::Allowed, String::new()),
        Err(Refused::Action(not)) => (not.decision, not.asked.action.text()),
        Err(Refused::Name) => panic!("{asked:?}"),
    }
}

/// A document that allows everything but the row's action.
fn all_but(row: &Row) -> Value {
    json!({"Effect": "Allow", "NotAction": row.action, "Resource": "*"})
}

#[test]
fn every_row_decides_about_its_requests_and_the_denial_names_the_action() {
    let everything = json!({"Effect": "Allow", "Action": "*", "Resource": "*"});
    for row in TABLE {
        for operation in row.operations.iter().map(|name| find(name).unwrap()) {
            let requests = requests(row, operation);
            assert!(!requests.is_empty(), "{row:?} {}", operation.name);
            for asked in requests {
                let at = format!("{row:?} {} {asked:?}", operation.name);
                let of = |statements| decide(statements, operation, &asked);
                assert_eq!(of(everything.clone()).0, Decision::Allowed, "{at}");
                let deny = |resource: &str| json!({"Effect": "Deny", "Action": row.action, "Resource": resource});
                let denied = of(json!([everything, deny(arn(row, operation.name))]));
                assert_eq!(denied, (Decision::Denied, row.action.to_owned()), "{at}");
                let other = of(json!([everything, deny("arn:aws:s3:::other/x")]));
                assert_eq!(other.0, Decision::Allowed, "{at}");
                let missing = of(json!([all_but(row)]));
                let due = match row.need {
                    Need::Possible => (Decision::Allowed, String::new()),
                    Need::Certain | Need::Covered(_) => {
                        (Decision::NotAllowed, row.action.to_owned())
                    }
                };
                assert_eq!(missing, due, "{at}");
            }
        }
    }
}

/// Without the parameter, with `false`, and with the value that is excepted, the action is not
/// needed.
#[test]
fn no_row_decides_about_other_requests() {
    for row in TABLE.iter().filter(|row| row.when != When::Always) {
        for operation in row.operations.iter().map(|name| find(name).unwrap()) {
            let least = least(operation.name).as_object().unwrap().clone();
            let with = |name: &str, value: Value| {
                let mut own = least.clone();
                own.insert(name.to_owned(), value);
                own
            };
            let others = match row.when {
                When::Given(names) if !names[0].contains('.') => {
                    vec![least.clone(), with(names[0], json!(false)), with(names[0], Value::Null)]
                }
                When::GivenBut(name, value) => vec![least.clone(), with(name, json!(value))],
                _ => vec![least.clone()],
            };
            for asked in others {
                let found = decide(json!([all_but(row)]), operation, &asked);
                assert_eq!(found.0, Decision::Allowed, "{row:?} {} {asked:?}", operation.name);
            }
        }
    }
}

/// The holder of a URL could add a header field: what is denied stays denied, and what is not
/// allowed is not needed.
#[test]
fn holders_of_urls_could_add_what_a_denial_is_about() {
    let later = Environment { is_deferred: true, ..Environment::of_tests() };
    let put = find("PutObject").unwrap();
    let decide = |statements: Value, asked: Value| {
        let policy = json!({"Version": "2012-10-17", "Statement": statements});
        let policy = Policy::from_value(&policy).unwrap();
        policy.decide(put, asked.as_object().unwrap(), &later).is_ok()
    };
    let plain = || json!({"Bucket": "b", "Key": "k"});
    let only = json!({"Effect": "Allow", "Action": "s3:PutObject", "Resource": "*"});
    assert!(decide(json!([only]), plain()));
    let acl = json!({"Bucket": "b", "Key": "k", "ACL": "public-read"});
    assert!(!decide(json!([only]), acl));
    for action in
        ["s3:PutObjectAcl", "s3:PutObjectTagging", "s3:PutObjectRetention", "s3:PutObjectLegalHold"]
    {
        let deny = json!({"Effect": "Deny", "Action": action, "Resource": "*"});
        assert!(!decide(json!([only, deny]), plain()), "{action}");
    }
    let other = json!({"Effect": "Deny", "Action": "s3:GetObjectTagging", "Resource": "*"});
    assert!(decide(json!([only, other]), plain()));
}

/// Statements in TOML that allow a copy allow it with the tags of its source, and nothing else.
#[test]
fn a_copy_in_toml_includes_the_tags_of_its_source() {
    let copy = find("CopyObject").unwrap();
    let role = |more: Value| {
        let mut statements = vec![
            json!({"effect": "allow", "actions": ["s3:GetObject"], "resources": ["in/*"]}),
            json!({"effect": "allow", "actions": ["s3:PutObject"], "resources": ["out/*"]}),
        ];
        statements.extend(more.as_array().unwrap().iter().cloned());
        Policy::from_value(&json!({ "statements": statements })).unwrap()
    };
    let named = |policy: &Policy, operation: &Operation, asked: Value| {
        let decided =
            policy.decide(operation, asked.as_object().unwrap(), &Environment::of_tests());
        match decided {
            Ok(()) => String::new(),
            Err(Refused::Action(not)) => not.asked.action.text(),
            Err(Refused::Name) => panic!("{asked}"),
        }
    };
    let from = |source: &str| json!({"Bucket": "out", "Key": "k", "CopySource": source});
    let plain = role(json!([]));
    assert_eq!(named(&plain, copy, from("in/k")), "");
    assert_eq!(named(&plain, copy, from("in/k?versionId=7")), "s3:GetObjectVersion");
    let versions = json!([
        {"effect": "allow", "actions": ["s3:GetObjectVersion"], "resources": ["in/*"]}]);
    assert_eq!(named(&role(versions), copy, from("in/k?versionId=7")), "");
    let read = json!({"Bucket": "in", "Key": "k"});
    let tags = find("GetObjectTagging").unwrap();
    assert_eq!(named(&plain, tags, read), "s3:GetObjectTagging");
    for action in ["s3:GetObjectTagging", "s3:PutObjectTagging"] {
        let deny = json!([{"effect": "deny", "actions": [action], "resources": ["*"]}]);
        assert_eq!(named(&role(deny), copy, from("in/k")), action);
    }
    let mut tagged = from("in/k");
    tagged["TaggingDirective"] = json!("REPLACE");
    tagged["Tagging"] = json!("a=b");
    assert_eq!(named(&plain, copy, tagged), "s3:PutObjectTagging");
}

/// Each version has a value of `s3:VersionId` of its own: that of the source of a copy, and of each
/// object of a batch.
#[test]
fn a_version_is_that_of_its_object() {
    let seven = json!({"StringEquals": {"s3:VersionId": "7"}});
    let allow = json!({"Effect": "Allow", "Action": "*", "Resource": "*"});
    let deny = json!({"Effect": "Deny", "Action": "s3:*Version", "Resource": "arn:aws:s3:::c/s",
        "Condition": seven});
    let only = json!([
        {"Effect": "Allow", "NotAction": "s3:*ObjectVersion", "Resource": "*"},
        {"Effect": "Allow", "Action": "s3:*ObjectVersion", "Resource": "*", "Condition": seven}]);
    let copy = find("CopyObject").unwrap();
    for (source, is_denied, is_allowed) in [
        ("c/s?versionId=7", true, true),
        ("c/s?versionId=8", false, false),
        ("c/s", false, true),
        ("c/s?versionId=7&x", true, false),
    ] {
        let asked = json!({"Bucket": "b", "Key": "k", "CopySource": source});
        let asked = asked.as_object().unwrap();
        let denied = decide(json!([allow, deny]), copy, asked);
        assert_eq!(denied.0 == Decision::Denied, is_denied, "{source}");
        assert_eq!(
            decide(only.clone(), copy, asked).0 == Decision::Allowed,
            is_allowed,
            "{source}"
        );
    }
    let delete = find("DeleteObjects").unwrap();
    for (versions, is_allowed) in [(["7", "7"], true), (["7", "8"], false)] {
        let objects: Vec<Value> =
            versions.iter().map(|version| json!({"Key": "k", "VersionId": version})).collect();
        let asked = json!({"Bucket": "b", "Delete": {"Objects": objects}});
        let found = decide(only.clone(), delete, asked.as_object().unwrap());
        assert_eq!(found.0 == Decision::Allowed, is_allowed, "{versions:?}");
    }
    let read = find("GetObject").unwrap();
    for (version, is_allowed) in [("7", true), ("8", false)] {
        let asked = json!({"Bucket": "b", "Key": "k", "VersionId": version});
        let found = decide(only.clone(), read, asked.as_object().unwrap());
        assert_eq!(found.0 == Decision::Allowed, is_allowed, "{version}");
    }
}

/// A field that AWS has an action of its own for is in a row, or its operation has that action.
#[test]
fn no_field_with_an_action_of_its_own_is_without_a_row() {
    let of_fields = [
        ("x-amz-acl", "Acl"),
        ("x-amz-grant-", "Acl"),
        ("x-amz-tagging", "Tagging"),
        ("x-amz-object-lock-", "Retention"),
        ("x-amz-bypass-governance-retention", ""),
        ("x-amz-bucket-object-lock-enabled", ""),
        ("x-amz-object-ownership", ""),
        ("x-amz-copy-source", ""),
    ];
    let mut found = 0;
    for operation in all() {
        for field in operation.input.iter().copied().flatten() {
            let Place::Header(header) = field.place else { continue };
            let own = of_fields.iter().find(|(start, _)| header.starts_with(start));
            // The conditions on a source are no rights.
            let Some((_, of_action)) =
                own.filter(|(start, _)| *start != "x-amz-copy-source" || header == *start)
            else {
                continue;
            };
            found += 1;
            let is_own = !of_action.is_empty() && operation.action.ends_with(of_action);
            let names = |row: &Row| match row.when {
                When::Given(names) => names.contains(&field.name),
                When::GivenBut(name, _) | When::Is(name, _) | When::Unless(name, _) => {
                    name == field.name
                }
                When::Always => row.on == On::Source && field.name == "CopySource",
            };
            let is_in_table = of(operation).any(names) || header == "x-amz-tagging-directive";
            assert!(is_own || is_in_table, "{} {header}", operation.name);
        }
    }
    assert!(found > 30, "{found}");
    for row in TABLE {
        for operation in row.operations.iter().map(|name| find(name).unwrap()) {
            assert_ne!(operation.action, row.action, "{}", operation.name);
        }
    }
}

#[test]
fn actions_are_known_by_their_names() {
    for action in ["s3:GetObject", "S3:bypassgovernanceretention", "s3:GetObjectVersionTagging"] {
        assert!(is_action(action), "{action}");
    }
    assert!(!is_action("s3:FetchObject") && !is_action("sqs:GetObject"));
}
