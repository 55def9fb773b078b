//! Cases of AWS's documentation (IAM user guide: *policy evaluation logic*, *condition operators*,
//! *multivalued context keys*, *policy variables*; S3 user guide: *policy examples using condition
//! keys*), as decisions of a document.

use serde_json::{Value, json};

use super::facts::Environment;
use super::{Decision, Policy, PolicyError};

use Decision::{Allowed, Denied, NotAllowed};

fn load(statements: Value) -> Result<Policy, PolicyError> {
    Policy::from_value(&json!({"Version": "2012-10-17", "Statement": statements}))
}

/// An action, a resource, keys, and the decision that is due.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], Decision);

/// Explains each request: action, resource, keys, and the decision that is due.
fn check(statements: Value, cases: &[Case<'_>]) {
    let policy = load(statements.clone()).unwrap();
    for (action, resource, keys, due) in cases {
        let more: Vec<_> = keys.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let found = policy.explain(action, resource, &Environment::of_tests(), &more);
        assert_eq!(found.decision, *due, "{statements}\n{action} {resource} {keys:?}");
    }
}

#[test]
fn an_explicit_denial_overrides_and_the_default_is_denial() {
    check(
        json!([
            {"Effect": "Allow", "Action": "s3:*", "Resource": "arn:aws:s3:::reports/*"},
            {"Effect": "Deny", "Action": "s3:Delete*", "Resource": "arn:aws:s3:::reports/final/*"}]),
        &[
            ("s3:GetObject", "arn:aws:s3:::reports/final/a", &[], Allowed),
            ("s3:DeleteObject", "arn:aws:s3:::reports/draft/a", &[], Allowed),
            ("s3:DeleteObject", "arn:aws:s3:::reports/final/a", &[], Denied),
            ("s3:GetObject", "arn:aws:s3:::other/a", &[], NotAllowed),
            ("s3:ListBucket", "arn:aws:s3:::reports", &[], NotAllowed),
            ("sqs:SendMessage", "q", &[], NotAllowed),
        ],
    );
}

/// `NotAction` with Allow permits everything else, also of other services; with Deny it denies
/// everything else, and permits nothing.
#[test]
fn all_but_the_named_actions_and_resources() {
    check(
        json!({"Effect": "Allow", "NotAction": "s3:DeleteBucket", "Resource": "arn:aws:s3:::*"}),
        &[
            ("s3:PutObject", "arn:aws:s3:::b/k", &[], Allowed),
            ("s3:DeleteBucket", "arn:aws:s3:::b", &[], NotAllowed),
            ("dynamodb:GetItem", "table/t", &[], NotAllowed),
        ],
    );
    check(
        json!([
            {"Effect": "Allow", "Action": "*", "Resource": "*"},
            {"Effect": "Deny", "NotAction": ["iam:*", "s3:Get*"], "Resource": "*"}]),
        &[
            ("s3:GetObject", "b/k", &[], Allowed),
            ("iam:GetUser", "user/x", &[], Allowed),
            ("s3:PutObject", "b/k", &[], Denied),
        ],
    );
    check(
        json!([
            {"Effect": "Allow", "Action": "s3:*", "Resource": "*"},
            {"Effect": "Deny", "Action": "s3:*", "NotResource":
                ["arn:aws:s3:::HRBucket/Payroll", "arn:aws:s3:::HRBucket/Payroll/*"]}]),
        &[
            ("s3:GetObject", "HRBucket/Payroll/a", &[], Allowed),
            ("s3:GetObject", "HRBucket/Other/a", &[], Denied),
        ],
    );
}

/// The tables of absent keys: positive operators fail, negated ones hold, `IfExists` holds, `Null`
/// tells.
#[test]
fn an_absent_key_fails_or_holds_by_its_operator() {
    let with = |operator: &str, value: Value| {
        json!([{"Effect": "Allow", "Action": "s3:PutObject", "Resource": "*",
            "Condition": {operator: {"s3:x-amz-acl": value}}}])
    };
    let key = "s3:x-amz-acl";
    for (operator, value, present, other, absent) in [
        ("StringEquals", json!("private"), Allowed, NotAllowed, NotAllowed),
        ("StringNotEquals", json!("private"), NotAllowed, Allowed, Allowed),
        ("StringEqualsIfExists", json!("private"), Allowed, NotAllowed, Allowed),
        ("StringNotEqualsIfExists", json!("private"), NotAllowed, Allowed, Allowed),
        ("StringLike", json!(["priv*", "x"]), Allowed, NotAllowed, NotAllowed),
        ("StringNotLike", json!(["priv*", "x"]), NotAllowed, Allowed, Allowed),
        ("StringEqualsIgnoreCase", json!("PRIVATE"), Allowed, NotAllowed, NotAllowed),
        ("ForAllValues:StringEquals", json!(["private"]), Allowed, NotAllowed, Allowed),
        ("ForAnyValue:StringEquals", json!(["private"]), Allowed, NotAllowed, NotAllowed),
        ("ForAnyValue:StringNotEquals", json!(["private"]), NotAllowed, Allowed, NotAllowed),
        ("Null", json!("true"), NotAllowed, NotAllowed, Allowed),
        ("Null", json!(false), Allowed, Allowed, NotAllowed),
    ] {
        check(
            with(operator, value),
            &[
                ("s3:PutObject", "b/k", &[(key, "private")], present),
                ("s3:PutObject", "b/k", &[(key, "public-read")], other),
                ("s3:PutObject", "b/k", &[], absent),
            ],
        );
    }
}

/// Several values of a key are alternatives; several keys and operators must all hold.
#[test]
fn conditions_are_a_conjunction_of_alternatives() {
    check(
        json!({"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::b",
            "Condition": {
                "StringLike": {"s3:prefix": ["", "home/*"]},
                "StringEquals": {"s3:delimiter": ["/"]},
                "NumericLessThanEquals": {"s3:max-keys": 10}}}),
        &[
            (
                "s3:ListBucket",
                "b",
                &[("s3:prefix", "home/a"), ("s3:delimiter", "/"), ("s3:max-keys", "10")],
                Allowed,
            ),
            (
                "s3:ListBucket",
                "b",
                &[("s3:prefix", "etc"), ("s3:delimiter", "/"), ("s3:max-keys", "10")],
                NotAllowed,
            ),
            (
                "s3:ListBucket",
                "b",
                &[("s3:prefix", ""), ("s3:delimiter", "/"), ("s3:max-keys", "11")],
                NotAllowed,
            ),
            ("s3:ListBucket", "b", &[("s3:prefix", ""), ("s3:delimiter", "/")], NotAllowed),
        ],
    );
}

#[test]
fn uploads_need_encryption_and_transport_and_time() {
    check(
        json!([
            {"Effect": "Allow", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::b/*"},
            {"Sid": "DenyUnencrypted", "Effect": "Deny", "Action": "s3:PutObject",
             "Resource": "arn:aws:s3:::b/*",
             "Condition": {"Null": {"s3:x-amz-server-side-encryption": "true"}}},
            {"Effect": "Deny", "Action": "s3:*", "Resource": "*",
             "Condition": {"Bool": {"aws:SecureTransport": "false"}}},
            {"Effect": "Deny", "Action": "s3:*", "Resource": "*",
             "Condition": {"DateGreaterThan": {"aws:CurrentTime": "2020-06-30T23:59:59Z"}}}]),
        &[
            ("s3:PutObject", "b/k", &[("s3:x-amz-server-side-encryption", "AES256")], Allowed),
            ("s3:PutObject", "b/k", &[], Denied),
            (
                "s3:PutObject",
                "b/k",
                &[("s3:x-amz-server-side-encryption", "AES256"), ("aws:SecureTransport", "false")],
                Denied,
            ),
            (
                "s3:PutObject",
                "b/k",
                &[
                    ("s3:x-amz-server-side-encryption", "AES256"),
                    ("aws:CurrentTime", "2020-07-01T00:00:00Z"),
                ],
                Denied,
            ),
        ],
    );
}

/// A host's own request, and a URL for the same, which others use at another time and perhaps
/// without TLS; the region is that of its signature.
#[test]
fn a_url_is_decided_without_the_keys_of_its_use() {
    let allow = |condition: Value| {
        json!({"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*",
            "Condition": condition})
    };
    let deny = |condition: Value| {
        json!([
            {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"},
            {"Effect": "Deny", "Action": "*", "Resource": "*", "Condition": condition}])
    };
    let operation = crate::operation::find("GetObject").unwrap();
    let asked = json!({"Bucket": "b", "Key": "k"});
    let decide = |statements: &Value, environment: &Environment| {
        let policy = load(statements.clone()).unwrap();
        policy.decide(operation, asked.as_object().unwrap(), environment).is_ok()
    };
    let own = Environment::of_tests();
    let url = Environment { is_deferred: true, ..own.clone() };
    for (statements, of_url) in [
        (deny(json!({"Bool": {"aws:SecureTransport": "false"}})), false),
        (deny(json!({"BoolIfExists": {"aws:SecureTransport": "false"}})), false),
        (deny(json!({"StringNotEquals": {"aws:SecureTransport": "true"}})), false),
        (allow(json!({"Bool": {"aws:SecureTransport": "true"}})), false),
        (deny(json!({"DateGreaterThan": {"aws:CurrentTime": "2020-01-01T00:00:00Z"}})), false),
        (
            allow(json!({"DateLessThanIfExists": {"aws:CurrentTime": "2020-01-01T00:00:00Z"}})),
            false,
        ),
        (allow(json!({"NumericLessThan": {"aws:EpochTime": "1577836800"}})), false),
        (allow(json!({"StringEquals": {"aws:RequestedRegion": "us-east-1"}})), true),
        (deny(json!({"StringNotEquals": {"aws:RequestedRegion": ["us-east-1", "a"]}})), true),
        (deny(json!({"StringEquals": {"s3:VersionId": "7"}})), true),
    ] {
        assert!(decide(&statements, &own), "{statements}");
        assert_eq!(decide(&statements, &url), of_url, "{statements}");
    }
    // A store whose region the host does not know.
    let nowhere = Environment { region: String::new(), ..own };
    for statements in [
        allow(json!({"StringEquals": {"aws:RequestedRegion": "us-east-1"}})),
        deny(json!({"StringNotEquals": {"aws:RequestedRegion": "us-east-1"}})),
        deny(json!({"StringEquals": {"aws:RequestedRegion": "eu-west-1"}})),
    ] {
        assert!(!decide(&statements, &nowhere), "{statements}");
    }
}

#[test]
fn variables_stand_for_values_of_the_request() {
    let statement = json!({"Effect": "Allow", "Action": "s3:GetObject",
        "Resource": "arn:aws:s3:::b/${aws:PrincipalAccount}/*"});
    check(
        statement.clone(),
        &[
            ("s3:GetObject", "b/123/k", &[("aws:PrincipalAccount", "123")], Allowed),
            ("s3:GetObject", "b/124/k", &[("aws:PrincipalAccount", "123")], NotAllowed),
            ("s3:GetObject", "b/124/k", &[("aws:PrincipalAccount", "*")], NotAllowed),
            ("s3:GetObject", "b/${aws:PrincipalAccount}/k", &[], NotAllowed),
        ],
    );
    // The version before variables takes them literally.
    let old = json!({"Version": "2008-10-17", "Statement": statement});
    let old = Policy::from_value(&old).unwrap();
    let literal = "b/${aws:PrincipalAccount}/k";
    let found = old.explain("s3:GetObject", literal, &Environment::of_tests(), &[]);
    assert_eq!(found.decision, Allowed);
}

#[test]
fn arns_have_region_and_account() {
    let arn = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders";
    check(
        json!([
            {"Effect": "Allow", "Action": "dynamodb:*", "Resource": arn},
            {"Effect": "Deny", "Action": "dynamodb:DeleteItem",
             "NotResource": "arn:aws:dynamodb:*:123456789012:table/orders"}]),
        &[
            ("dynamodb:GetItem", arn, &[], Allowed),
            ("dynamodb:GetItem", "arn:aws:dynamodb:eu-west-1:1:table/orders", &[], NotAllowed),
            (
                "dynamodb:GetItem",
                "arn:aws:dynamodb:us-east-1:123456789012:table/orders",
                &[],
                NotAllowed,
            ),
            ("dynamodb:ListTables", "*", &[], NotAllowed),
            ("dynamodb:DeleteItem", arn, &[], Allowed),
            ("dynamodb:DeleteItem", "arn:aws:dynamodb:eu-west-1:1:table/orders", &[], Denied),
            // The request does not name its account: it could be another one.
            ("dynamodb:DeleteItem", "table/orders", &[], Denied),
        ],
    );
}

/// An object of the store is no resource of a list of tables; any table could be.
#[test]
fn a_denial_on_one_resource_denies_what_could_be_on_it() {
    let of = |arn: &str| {
        json!([{"Effect": "Allow", "Action": "*", "Resource": "*"},
               {"Effect": "Deny", "Action": "*", "Resource": arn}])
    };
    let list = |due| [("dynamodb:ListTables", "*", &[][..], due)];
    check(of("arn:aws:s3:::secret/*"), &list(Allowed));
    check(of("arn:aws:dynamodb:*:*:table/secret"), &list(Denied));
}

#[test]
fn what_cannot_be_evaluated_is_refused_with_its_place() {
    let of = |key: &str, value: Value| {
        let mut statement =
            json!({"Sid": "S", "Effect": "Allow", "Action": "s3:*", "Resource": "*"});
        statement[key] = value;
        load(json!([statement])).unwrap_err().to_string()
    };
    let condition =
        |operator: &str, key: &str, value: Value| of("Condition", json!({operator: {key: value}}));
    for (message, part) in [
        (of("Effect", json!("allow")), "Effect must be"),
        (of("Principal", json!("*")), "Principal"),
        (of("Condtion", json!({})), "Condtion"),
        (of("NotAction", json!("s3:Get*")), "exactly one of Action and NotAction"),
        (of("Action", json!("GetObject")), "SERVICE:NAME"),
        (of("Action", json!("*:Get*")), "SERVICE:NAME"),
        (of("Action", json!([])), "1 to 64"),
        (of("Resource", json!("bucket/*")), "no ARN"),
        (of("Resource", json!("arn:aws:*:::b")), "must be a name"),
        (of("Resource", json!("arn:aws:s3:::b/${aws:FederatedProvider}")), "variable"),
        (of("Resource", json!("arn:aws:S3:::b")), "must be a name"),
        (of("Resource", json!("arn:amazon:s3:::b")), "no partition"),
        (of("Resource", json!("arn:aws:sqs:*:${aws:PrincipalAccount}:q")), "last part only"),
        (of("Resource", json!(7)), "string or a list"),
        (of("Sid", json!(7)), "Sid"),
        (condition("StringMatches", "s3:prefix", json!("a")), "no condition operator"),
        (condition("BinaryEquals", "s3:prefix", json!("a")), "no condition operator"),
        (condition("NullIfExists", "s3:prefix", json!("true")), "Null has"),
        (condition("StringEquals", "s3:ExistingObjectTag/a", json!("a")), "does not know"),
        (condition("StringEquals", "aws:SourceIp", json!("a")), "it knows aws:CurrentTime"),
        (condition("NumericEquals", "s3:max-keys", json!("ten")), "not a number"),
        (condition("StringEquals", "s3:prefix", json!([])), "1 to 256 values"),
        (condition("StringEquals", "s3:prefix", json!({})), "a value must be"),
        (of("Condition", json!({"StringEquals": {}})), "has no key"),
        (of("Condition", json!([])), "must be an object"),
    ] {
        assert!(message.contains(part), "{message}");
        assert!(message.contains("Statement 1"), "{message}");
    }
    let plain = json!({"Effect": "Allow", "Action": "*", "Resource": "*"});
    for wrong in [
        json!({"Version": "2012-10-18", "Statement": plain}),
        json!({"Version": "2012-10-17", "Statement": []  , "statements": []}),
        json!({"Version": "2012-10-17"}),
        json!({"Version": "2012-10-17", "Statement": "x"}),
        json!({"Version": "2012-10-17", "Id": 1, "Statement": plain}),
        json!({"Version": "2012-10-17", "Statement": vec![plain.clone(); 65]}),
        json!([plain]),
    ] {
        assert!(Policy::from_value(&wrong).is_err(), "{wrong}");
    }
    let twice = json!({"Sid": "a", "Effect": "Deny", "Action": "*", "Resource": "*"});
    assert!(load(json!([twice, twice])).unwrap_err().to_string().contains("another statement"));
}

/// Of two members with a name JSON's readers take one, and which one differs.
#[test]
fn a_member_that_is_there_twice_is_refused() {
    use super::document::{DOCUMENT_BYTES_MAX, from_text};
    let good = r#"{"Version": "2012-10-17", "Statement": {"Effect": "Deny", "Action": ["s3:*", "sqs:*"], "Resource": "*", "Condition": {"Bool": {"aws:SecureTransport": false}}}}"#;
    let value = from_text(good).unwrap();
    assert_eq!(value, serde_json::from_str::<Value>(good).unwrap());
    assert!(Policy::from_value(&value).is_ok());
    let twice = good.replace("\"Action\"", "\"Effect\": \"Allow\", \"Action\"");
    assert!(from_text(&twice).unwrap_err().to_string().contains("twice"));
    let deep = format!("{}{}", "[".repeat(20), "]".repeat(20));
    assert!(from_text(&deep).unwrap_err().to_string().contains("deeper"));
    assert!(from_text(&format!("{good} x")).is_err());
    assert!(from_text(&" ".repeat(DOCUMENT_BYTES_MAX + 1)).is_err());
}
