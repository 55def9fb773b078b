//! A slow evaluation of documents, straight from their JSON, and the comparison with it.

use serde_json::{Map, Value, json};
use unlade_testkit::{Random, cases};

use super::facts::{Environment, Facts};
use super::{Decision, Policy};

/// The request: action, ARN, and its keys with their values.
struct Asked {
    action: &'static str,
    arn: &'static str,
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
        let asked = Asked { action, arn, keys };
        let policy = Policy::from_value(&document).unwrap();
        let explained = policy.explain(action, arn, &Environment::of_tests(), &more);
        let due = decide(&document, &asked);
        assert_eq!(explained.decision, due, "{document} {action} {arn} {more:?}");
        decisions[due as usize] += 1;
    });
    assert!(decisions.iter().all(|count| *count > 100), "{decisions:?}");
}

/// A fact that the host cannot tell: a permission needs every possible value, a denial one.
#[test]
fn what_the_host_cannot_tell_decides_against_the_request() {
    cases(5_000, |random| {
        let all: Vec<Value> = (0..2).map(|_| random_statement(random)).collect();
        let document = json!({"Version": "2012-10-17", "Statement": all});
        let policy = Policy::from_value(&document).unwrap();
        let action = one(random, &["s3:ListBucket", "s3:GetObject"]);
        let question = super::Question::of(action, "b".to_owned());
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
