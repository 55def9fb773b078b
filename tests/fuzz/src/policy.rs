//! Policy documents in AWS's JSON.

use std::time::UNIX_EPOCH;

use unlade_s3::policy::document::from_text;
use unlade_s3::policy::facts::{Environment, Facts};
use unlade_s3::policy::invocation::{Principal, ResourcePolicy};
use unlade_s3::{Decision, Policy};

const ARN: &str = "arn:aws:lambda:us-east-1:000000000000:function:f";

/// A document that is accepted decides about every request; with a statement that denies everything
/// it allows nothing.
pub fn policy_document(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(value) = from_text(text) else { return };
    let region = "us-east-1".to_owned();
    let now = Environment { now: UNIX_EPOCH, region, has_tls: true, is_deferred: false };
    let keys = [("s3:prefix".to_owned(), "a*".to_owned())];
    if let Ok(policy) = Policy::from_value(&value) {
        let of = |policy: &Policy, (action, resource): (&str, &str)| {
            policy.explain(action, resource, &now, &keys).decision
        };
        let mut denying = value.clone();
        let all = from_text(r#"{"Effect": "Deny", "Action": "*", "Resource": "*"}"#).expect("JSON");
        let statement = &mut denying["Statement"];
        match statement.as_array_mut() {
            Some(statements) => statements.push(all),
            None => *statement = vec![statement.take(), all].into(),
        }
        // One statement more may be too many; a policy in lower case has no such member.
        let denying = Policy::from_value(&denying).ok();
        for asked in [("s3:GetObject", "b/k"), ("s3:ListBucket", "b"), ("sqs:SendMessage", "*")] {
            let decision = of(&policy, asked);
            if let Some(denying) = &denying {
                assert_eq!(of(denying, asked), Decision::Denied, "{decision:?} {text}");
            }
        }
    }
    if let Ok(policy) = ResourcePolicy::from_value(&value) {
        let facts = Facts::default().with("aws:SourceArn", "arn:aws:s3:::b");
        for principal in [
            Principal::Service("s3.amazonaws.com"),
            Principal::Identity { arn: "arn:aws:iam::1:user/x", account: "1" },
        ] {
            let _ = policy.decide(principal, ("lambda:InvokeFunction", ARN), &facts);
        }
    }
}

/// The seeds: the target, the name, the content.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let all = [
        (
            "identity",
            r#"{"Version": "2012-10-17", "Statement": [{"Sid": "A", "Effect": "Allow", "Action": ["s3:Get*", "s3:ListBucket"], "Resource": ["arn:aws:s3:::b/${aws:PrincipalAccount}/*", "arn:aws:s3:::b"], "Condition": {"ForAllValues:StringLikeIfExists": {"s3:prefix": ["a*", "${s3:delimiter, 'x'}"]}, "NumericLessThan": {"s3:max-keys": 10}}}, {"Effect": "Deny", "NotAction": "s3:*", "NotResource": "arn:aws:sqs:*:*:q", "Condition": {"DateGreaterThan": {"aws:CurrentTime": "2026-01-01T00:00Z"}, "Bool": {"aws:SecureTransport": "false"}, "Null": {"s3:VersionId": true}}}]}"#,
        ),
        (
            "resource",
            r#"{"Version": "2012-10-17", "Id": "default", "Statement": {"Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com", "AWS": ["1", "arn:aws:iam::1:root"]}, "Action": "lambda:InvokeFunction", "Resource": "arn:aws:lambda:us-east-1:000000000000:function:f", "Condition": {"ArnLike": {"AWS:SourceArn": "arn:aws:s3:::b*"}, "NotIpAddress": {"aws:SourceIp": ["10.0.0.0/8", "2001:db8::/32"]}}}}"#,
        ),
        ("twice", r#"{"Statement": [], "Statement": []}"#),
    ];
    let seed = |(name, text): (&'static str, &str)| ("policy_document", name, text.into());
    all.map(seed).into()
}
