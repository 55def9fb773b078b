//! A slow evaluation of documents, straight from their JSON, and the comparison with it.

use serde_json::{Map, Value, json};
use unlade_testkit::{Random, cases};

use super::facts::{Environment, Facts};
use super::{Decision, Policy};

/// The request: action, ARN, and its keys with their values.
struct Asked {
    action: &'static str,
    arn: String,
    keys: Vec<(&'static str, &'static str)>,
}

fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => {
            glob(rest, text) || text.split_first().is_some_and(|(_, left)| glob(pattern, left))
        }
        ([b'?', rest @ ..], [_, left @ ..]) => glob(rest, left),
        ([due, rest @ ..], [found, left @ ..]) => due == found && glob(rest, left),
        _ => false,
    }
}

fn list(value: &Value) -> Vec<&Value> {
    value.as_array().map_or_else(|| vec![value], |all| all.iter().collect())
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A text in which a star is no pattern.
fn literal(text: &str) -> String {
    text.replace('*', "\u{1}")
}

/// The text of a value with its variable replaced, and whether it can match at all.
fn replaced(value: &str, asked: &Asked) -> Option<String> {
    let Some((before, rest)) = value.split_once("${") else { return Some(value.to_owned()) };
    let (key, after) = rest.split_once('}').unwrap();
    let found = asked.keys.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
    found.map(|(_, own)| format!("{before}{}{after}", literal(own)))
}

fn compare(operator: &str, own: &str, due: &Value, asked: &Asked) -> bool {
    let due = text(due);
    match operator {
        "NumericLessThan" => own.parse::<i64>().unwrap() < due.parse::<i64>().unwrap(),
        "Bool" => own == due,
        _ => {
            let Some(due) = replaced(&due, asked) else { return false };
            match operator {
                "StringEquals" => literal(own) == literal(&due),
                "StringEqualsIgnoreCase" => literal(own).eq_ignore_ascii_case(&literal(&due)),
                "StringLike" => glob(due.as_bytes(), literal(own).as_bytes()),
                _ => panic!("{operator}"),
            }
        }
    }
}

fn condition(name: &str, key: &str, values: &Value, asked: &Asked) -> bool {
    let own = asked.keys.iter().find(|(found, _)| found.eq_ignore_ascii_case(key));
    let own = own.map(|(_, value)| *value);
    if name == "Null" {
        return list(values).iter().any(|value| text(value) == own.is_none().to_string());
    }
    let (set, rest) = match name.split_once(':') {
        Some((set, rest)) => (set, rest),
        None => ("", name),
    };
    let if_exists = rest.ends_with("IfExists");
    let rest = rest.trim_end_matches("IfExists");
    let is_not = rest.contains("Not");
    let Some(own) = own else {
        return if_exists || set == "ForAllValues" || (set.is_empty() && is_not);
    };
    let positive = rest.replace("Not", "");
    list(values).iter().any(|value| compare(&positive, own, value, asked)) != is_not
}

fn selected(statement: &Value, name: &str, matches: impl Fn(&str) -> bool) -> bool {
    match statement.get(name) {
        Some(own) => list(own).iter().any(|own| matches(&text(own))),
        None => !list(&statement[format!("Not{name}")]).iter().any(|own| matches(&text(own))),
    }
}

fn decide(document: &Value, asked: &Asked) -> Decision {
    let applies = |statement: &&&Value| {
        let is_action = |pattern: &str| {
            glob(pattern.to_lowercase().as_bytes(), asked.action.to_lowercase().as_bytes())
        };
        let is_resource = |pattern: &str| {
            replaced(pattern, asked).is_some_and(|own| glob(own.as_bytes(), asked.arn.as_bytes()))
        };
        let block = statement.get("Condition").and_then(Value::as_object);
        selected(statement, "Action", is_action)
            && selected(statement, "Resource", is_resource)
            && block.into_iter().flatten().all(|(name, keys)| {
                let keys = keys.as_object().unwrap();
                keys.iter().all(|(key, values)| condition(name, key, values, asked))
            })
    };
    let all = list(&document["Statement"]);
    let found: Vec<&str> =
        all.iter().filter(applies).map(|own| own["Effect"].as_str().unwrap()).collect();
    match (found.contains(&"Deny"), found.contains(&"Allow")) {
        (true, _) => Decision::Denied,
        (false, true) => Decision::Allowed,
        _ => Decision::NotAllowed,
    }
}

fn one<T: Clone>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len() as u64) as usize].clone()
}

fn some(random: &mut Random, all: &[&str]) -> Value {
    match random.below(3) {
        0 => json!(one(random, all)),
        count => (0..count).map(|_| json!(one(random, all))).collect(),
    }
}

fn random_condition(random: &mut Random) -> (String, &'static str, Value) {
    let prefixes = ["a", "A", "ab", "a*", "?b", "${s3:delimiter}", "x${s3:delimiter}*"];
    let (name, key, values) = match random.below(4) {
        0 => return ("Null".to_owned(), "s3:prefix", some(random, &["true", "false"])),
        1 => ("NumericLessThan", "s3:max-keys", some(random, &["1", "10", "-7"])),
        2 => ("Bool", "aws:SecureTransport", some(random, &["true", "false"])),
        _ => {
            let names = [
                "StringEquals",
                "StringNotEquals",
                "StringLike",
                "StringNotLike",
                "StringEqualsIgnoreCase",
                "StringNotEqualsIgnoreCase",
            ];
            (one(random, &names), "S3:Prefix", some(random, &prefixes))
        }
    };
    let set = one(random, &["", "", "ForAllValues:", "ForAnyValue:"]);
    let end = one(random, &["", "IfExists"]);
    (format!("{set}{name}{end}"), key, values)
}

fn random_statement(random: &mut Random) -> Value {
    let actions = ["*", "s3:*", "s3:ListBucket", "S3:list*", "s3:Get*", "sqs:*"];
    let arns = [
        "*",
        "arn:aws:s3:::*",
        "arn:aws:s3:::b",
        "arn:aws:s3:::?",
        "arn:aws:s3:::b/*",
        "arn:aws:s3:::${s3:prefix}*",
        "arn:aws:s3:::${s3:delimiter}",
        "arn:aws:sqs:eu-west-1:1:q",
    ];
    let mut statement = Map::new();
    statement.insert("Effect".to_owned(), json!(one(random, &["Allow", "Allow", "Deny"])));
    let action = one(random, &["Action", "Action", "NotAction"]);
    statement.insert(action.to_owned(), some(random, &actions));
    let resource = one(random, &["Resource", "Resource", "NotResource"]);
    statement.insert(resource.to_owned(), some(random, &arns));
    let mut block = Map::new();
    for _ in 0..random.below(3) {
        let (name, key, values) = random_condition(random);
        block.insert(name, json!({ key: values }));
    }
    if !block.is_empty() {
        statement.insert("Condition".to_owned(), block.into());
    }
    statement.into()
}

#[test]
fn documents_decide_as_a_slow_evaluation_does() {
    let mut decisions = [0_u32; 3];
    cases(20_000, |random| {
        let count = 1 + random.below(3);
        let all: Vec<Value> = (0..count).map(|_| random_statement(random)).collect();
        let document = json!({"Version": "2012-10-17", "Statement": all});
        let mut keys = vec![("aws:SecureTransport", "true")];
        for (key, values) in [
            ("s3:prefix", &["a", "ab", "b", "xa"][..]),
            ("s3:delimiter", &["a", "b", "*"]),
            ("s3:max-keys", &["0", "5"]),
        ] {
            if random.below(2) == 0 {
                keys.push((key, one(random, values)));
            }
        }
        let action = one(random, &["s3:ListBucket", "s3:GetObject"]);
        let arn = one(random, &["arn:aws:s3:::b", "arn:aws:s3:::b/k", "arn:aws:s3:::a"]);
        let more: Vec<_> = keys.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let asked = Asked { action, arn: arn.to_owned(), keys };
        let policy = Policy::from_value(&document).unwrap();
        let explained = policy.explain(action, arn, &Environment::of_tests(), &more);
        let due = decide(&document, &asked);
        assert_eq!(explained.decision, due, "{document} {action} {arn} {more:?}");
        decisions[due as usize] += 1;
    });
    assert!(decisions.iter().all(|count| *count > 100), "{decisions:?}");
}

/// The actions of a request and their resources, written out for each operation; the last part is
/// true if the request need not have the right.
type Needed = (&'static str, String, Option<&'static str>, bool);

fn needed(operation: &str, asked: &Value) -> Vec<Needed> {
    let has = |name: &str| asked.get(name).is_some_and(|value| *value != json!(false));
    let text = |name: &str| asked[name].as_str();
    let target = format!("arn:aws:s3:::b/{}", text("Key").unwrap_or_default());
    let version = text("VersionId").map(|_| "7");
    let by = |plain: &'static str, of_version: &'static str| match version {
        Some(_) => of_version,
        None => plain,
    };
    let mut all: Vec<Needed> = Vec::new();
    let mut at_target = |action, version| all.push((action, target.clone(), version, false));
    match operation {
        "GetObject" | "GetObjectAttributes" => {
            at_target(by("s3:GetObject", "s3:GetObjectVersion"), version);
            if operation == "GetObjectAttributes" {
                let action = by("s3:GetObjectAttributes", "s3:GetObjectVersionAttributes");
                at_target(action, version);
            }
        }
        "DeleteObject" => {
            at_target(by("s3:DeleteObject", "s3:DeleteObjectVersion"), version);
            if has("BypassGovernanceRetention") {
                at_target("s3:BypassGovernanceRetention", version);
            }
        }
        "PutObject" | "CreateMultipartUpload" | "CopyObject" | "UploadPartCopy" => {
            at_target("s3:PutObject", None);
            for (name, action) in [
                ("ACL", "s3:PutObjectAcl"),
                ("GrantRead", "s3:PutObjectAcl"),
                ("Tagging", "s3:PutObjectTagging"),
                ("ObjectLockMode", "s3:PutObjectRetention"),
                ("ObjectLockLegalHoldStatus", "s3:PutObjectLegalHold"),
            ] {
                if has(name) {
                    at_target(action, None);
                }
            }
        }
        _ => panic!("{operation}"),
    }
    let Some(source) = text("CopySource") else { return all };
    let (name, version) = match source.split_once("?versionId=") {
        Some((name, _)) => (name, Some("7")),
        None => (source, None),
    };
    let source = format!("arn:aws:s3:::{name}");
    let actions = match version {
        Some(_) => ["s3:GetObjectVersion", "s3:GetObjectVersionTagging"],
        None => ["s3:GetObject", "s3:GetObjectTagging"],
    };
    all.push((actions[0], source.clone(), version, false));
    if operation == "CopyObject" {
        if text("TaggingDirective") != Some("REPLACE") {
            all.push((actions[1], source.clone(), version, false));
            all.push(("s3:PutObjectTagging", target.clone(), None, false));
        }
        let is_open = text("AnnotationDirective") != Some("COPY");
        if text("AnnotationDirective") != Some("EXCLUDE") {
            all.push(("s3:GetObjectAnnotation", source, version, is_open));
            all.push(("s3:PutObjectAnnotation", target, None, is_open));
        }
    }
    all
}

fn random_request(random: &mut Random) -> (&'static str, Value) {
    let operations = [
        "GetObject",
        "GetObjectAttributes",
        "DeleteObject",
        "PutObject",
        "CreateMultipartUpload",
        "CopyObject",
        "CopyObject",
        "UploadPartCopy",
    ];
    let operation = one(random, &operations);
    let mut asked = json!({"Bucket": "b", "Key": one(random, &["k", "k2"])});
    let versioned = ["GetObject", "GetObjectAttributes", "DeleteObject"].contains(&operation);
    let mut may = |name: &str, values: &[Value], is_possible: bool| {
        if is_possible && random.below(3) == 0 {
            asked[name] = one(random, values);
        }
    };
    may("VersionId", &[json!("7")], versioned);
    let flags = [json!(true), json!(false)];
    may("BypassGovernanceRetention", &flags, operation == "DeleteObject");
    let creates = !versioned && operation != "UploadPartCopy";
    may("ACL", &[json!("private"), json!("public-read")], creates);
    may("GrantRead", &[json!("id=x")], creates);
    may("Tagging", &[json!("a=b")], creates);
    may("ObjectLockMode", &[json!("GOVERNANCE")], creates);
    may("ObjectLockLegalHoldStatus", &[json!("ON"), json!("OFF")], creates);
    let copies = operation == "CopyObject";
    may("TaggingDirective", &[json!("REPLACE"), json!("COPY")], copies);
    may("AnnotationDirective", &[json!("EXCLUDE"), json!("COPY")], copies);
    if operation.contains("Copy") {
        asked["CopySource"] = json!(one(random, &["c/k", "b/k2", "c/k?versionId=7"]));
    }
    (operation, asked)
}

fn random_right(random: &mut Random) -> Value {
    let actions = [
        "*",
        "s3:*",
        "s3:Put*",
        "s3:Get*",
        "s3:PutObject",
        "s3:GetObject",
        "s3:*Version",
        "s3:*Tagging",
        "s3:*Acl",
        "s3:PutObjectLegalHold",
        "s3:*Retention",
        "s3:*Annotation",
        "s3:GetObject*Attributes",
        "s3:DeleteObject",
    ];
    let arns = ["*", "*", "arn:aws:s3:::b/*", "arn:aws:s3:::c/*", "arn:aws:s3:::?/k"];
    let mut statement = Map::new();
    let effects = ["Allow", "Allow", "Allow", "Deny"];
    statement.insert("Effect".to_owned(), json!(one(random, &effects)));
    let action = one(random, &["Action", "Action", "Action", "NotAction"]);
    statement.insert(action.to_owned(), some(random, &actions));
    statement.insert("Resource".to_owned(), some(random, &arns));
    let conditions = [
        json!({"StringEquals": {"s3:VersionId": "7"}}),
        json!({"Null": {"s3:VersionId": "true"}}),
        json!({"StringNotEquals": {"s3:x-amz-acl": "public-read"}}),
    ];
    if random.below(3) == 0 {
        statement.insert("Condition".to_owned(), one(random, &conditions));
    }
    statement.into()
}

/// A request is allowed if each of its actions is, and the denial names one that is not.
#[test]
fn requests_are_decided_as_each_of_their_actions() {
    let mut counts = [0_u32; 2];
    cases(20_000, |random| {
        let count = 1 + random.below(4);
        let all: Vec<Value> = (0..count).map(|_| random_right(random)).collect();
        let document = json!({"Version": "2012-10-17", "Statement": all});
        let (operation, asked) = random_request(random);
        let mut due = std::collections::BTreeSet::new();
        for (action, arn, version, need_not) in needed(operation, &asked) {
            let mut keys = vec![("aws:SecureTransport", "true")];
            keys.extend(version.map(|version| ("s3:VersionId", version)));
            let acl = asked.get("ACL").and_then(Value::as_str);
            keys.extend(acl.map(|acl| match acl {
                "private" => ("s3:x-amz-acl", "private"),
                _ => ("s3:x-amz-acl", "public-read"),
            }));
            let decision = decide(&document, &Asked { action, arn: arn.clone(), keys });
            let is_allowed = match decision {
                Decision::Allowed => true,
                Decision::NotAllowed => need_not,
                Decision::Denied => false,
            };
            if !is_allowed {
                due.insert((action.to_owned(), arn));
            }
        }
        let policy = Policy::from_value(&document).unwrap();
        let found = crate::operation::find(operation).unwrap();
        let parameters = asked.as_object().unwrap();
        let at = format!("{document} {operation} {asked} {due:?}");
        let decided = policy.decide(found, parameters, &Environment::of_tests());
        let explained = policy.explain_operation(found, parameters, &Environment::of_tests(), &[]);
        let is_allowed = |own: &super::Explained| own.explanation.decision == Decision::Allowed;
        let refused = explained.iter().filter(|own| !is_allowed(own));
        let arn = |name: &str| format!("arn:aws:s3:::{name}");
        let refused: std::collections::BTreeSet<_> =
            refused.map(|own| (own.action.clone(), arn(&own.resource))).collect();
        assert_eq!(refused, due, "{at}");
        match decided {
            Ok(()) => assert!(due.is_empty(), "{at}"),
            Err(super::Refused::Action(not)) => {
                let named = (not.asked.action.text(), not.asked.resource.arn());
                assert!(due.contains(&named), "{named:?} {at}");
            }
            Err(super::Refused::Name) => panic!("{at}"),
        }
        counts[usize::from(due.is_empty())] += 1;
    });
    assert!(counts.iter().all(|count| *count > 1000), "{counts:?}");
}

/// A fact that the host cannot tell: a permission needs every possible value, a denial one.
#[test]
fn what_the_host_cannot_tell_decides_against_the_request() {
    cases(5_000, |random| {
        let all: Vec<Value> = (0..2).map(|_| random_statement(random)).collect();
        let document = json!({"Version": "2012-10-17", "Statement": all});
        let policy = Policy::from_value(&document).unwrap();
        let action = one(random, &["s3:ListBucket", "s3:GetObject"]);
        let question = super::needed::Question::of(action, "b".to_owned());
        let facts = || Facts::default().with("aws:SecureTransport", "true");
        let unknown = facts().with_unknown("s3:prefix").with_unknown("s3:delimiter");
        let found = policy.answer(&question, &unknown).0;
        for prefix in [None, Some("a"), Some("ab"), Some("xb")] {
            for delimiter in [None, Some("a"), Some("b")] {
                let mut own = facts();
                for (key, value) in [("s3:prefix", prefix), ("s3:delimiter", delimiter)] {
                    own = value.map_or(own.clone(), |value| own.with(key, value));
                }
                if found == Decision::Allowed {
                    let due = policy.answer(&question, &own).0;
                    assert_eq!(due, Decision::Allowed, "{document} {prefix:?} {delimiter:?}");
                }
            }
        }
    });
}

fn condition_of_a_url(random: &mut Random) -> (String, &'static str, Value) {
    let (names, key, values): (&[&str], _, &[&str]) = match random.below(4) {
        0 => (&["Bool"], "aws:SecureTransport", &["true", "false"]),
        1 => (&["NumericLessThan"], "aws:EpochTime", &["100", "200"]),
        2 => (
            &["StringEquals", "StringNotEquals", "StringLike"],
            "aws:RequestedRegion",
            &["us-east-1", "us-*", "eu-west-1"],
        ),
        _ => (
            &["StringEquals", "StringNotEquals", "StringLike"],
            "s3:x-amz-acl",
            &["private", "p*", "public-read"],
        ),
    };
    if random.below(5) == 0 {
        return ("Null".to_owned(), key, some(random, &["true", "false"]));
    }
    let end = one(random, &["", "IfExists"]);
    (format!("{}{end}", one(random, names)), key, some(random, values))
}

/// A URL that is signed: whenever, over whatever, and with whatever added field its holder uses it,
/// the document allows that.
#[test]
fn no_use_of_a_url_is_one_that_the_document_does_not_allow() {
    let mut counts = [0_u32; 2];
    cases(10_000, |random| {
        let statement = |random: &mut Random| {
            let mut own = json!({"Effect": one(random, &["Allow", "Allow", "Deny"]),
                "Action": one(random, &["*", "s3:PutObject"]), "Resource": "*"});
            for _ in 0..random.below(3) {
                let (name, key, values) = condition_of_a_url(random);
                own["Condition"][name] = json!({ key: values });
            }
            own
        };
        let all: Vec<Value> = (0..1 + random.below(3)).map(|_| statement(random)).collect();
        let document = json!({"Version": "2012-10-17", "Statement": all});
        let policy = Policy::from_value(&document).unwrap();
        let parameters = json!({"Bucket": "b", "Key": "k"});
        let operation = crate::operation::find("PutObject").unwrap();
        let url = Environment { is_deferred: true, ..Environment::of_tests() };
        let is_signed = policy.decide(operation, parameters.as_object().unwrap(), &url).is_ok();
        counts[usize::from(is_signed)] += 1;
        for (at, transport, acl) in ["99", "100", "300"].into_iter().flat_map(|at| {
            let acls = [None, Some("private"), Some("public-read")];
            let all = ["true", "false"].into_iter();
            all.flat_map(move |transport| acls.map(|acl| (at, transport, acl)))
        }) {
            let mut keys = vec![
                ("aws:EpochTime", at),
                ("aws:SecureTransport", transport),
                ("aws:RequestedRegion", "us-east-1"),
            ];
            keys.extend(acl.map(|acl| ("s3:x-amz-acl", acl)));
            let asked = Asked { action: "s3:PutObject", arn: "arn:aws:s3:::b/k".to_owned(), keys };
            let due = decide(&document, &asked);
            assert!(!is_signed || due == Decision::Allowed, "{document} {:?}", asked.keys);
        }
    });
    assert!(counts.iter().all(|count| *count > 500), "{counts:?}");
}
