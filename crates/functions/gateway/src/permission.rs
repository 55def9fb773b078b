//! The right of callers of other tenants, and of services, to invoke a function: its resource
//! policy.

use std::net::IpAddr;
use std::time::SystemTime;

use hyper::header::HeaderMap;
use unlade_fn_model::lifecycle::reference::ACCOUNT;
use unlade_fn_model::lifecycle::{Qualifier, Record, arn};
use unlade_s3::policy::Decision;
use unlade_s3::policy::facts::{Environment, Facts};
use unlade_s3::policy::invocation::{Principal, ResourcePolicy};

use crate::auth::Caller;
use crate::config::REGION;
use crate::request::header;

/// The action of an invocation.
const INVOKE: &str = "lambda:InvokeFunction";
/// The header field in which a service names the resource that it acts for.
pub const SOURCE_ARN: &str = "x-amz-source-arn";
/// The header field in which a service names the account that it acts for.
pub const SOURCE_ACCOUNT: &str = "x-amz-source-account";

pub use crate::permit::tenant_arn;

/// Returns true if a resource policy of a function lets a caller invoke it. The policy is that of
/// the qualifier in the request, or of the function itself without one.
pub fn may_invoke(
    caller: &Caller,
    (name, record, qualifier): (&str, &Record, Option<&Qualifier>),
    (headers, source): (&HeaderMap, IpAddr),
) -> bool {
    let Ok(policy) = record.policy(qualifier) else { return false };
    let text = qualifier.map(ToString::to_string);
    let function = arn(REGION, name, text.as_deref());
    let (now, region) = (SystemTime::now(), REGION.to_owned());
    let now = Environment { now, region, has_tls: false, is_deferred: false };
    let facts = Facts::default()
        .in_environment(&now)
        .with("aws:SourceIp", &source.to_canonical().to_string())
        .with("lambda:FunctionArn", &function)
        .with("lambda:InvokedViaFunctionUrl", "false");
    let own;
    let (principal, facts) = match caller {
        // Without authentication every caller has all rights already.
        Caller::Anyone => return true,
        Caller::Tenant(tenant) => {
            own = tenant_arn(tenant);
            let facts = facts
                .with("aws:PrincipalAccount", ACCOUNT)
                .with("aws:PrincipalArn", &own)
                .with("aws:PrincipalIsAWSService", "false")
                .with("aws:PrincipalType", "User")
                .with("aws:username", tenant);
            (Principal::Identity { arn: &own, account: ACCOUNT }, facts)
        }
        Caller::Service(service) => {
            let mut facts = facts
                .with("aws:PrincipalIsAWSService", "true")
                .with("aws:PrincipalServiceName", service);
            for (key, field) in
                [("aws:SourceArn", SOURCE_ARN), ("aws:SourceAccount", SOURCE_ACCOUNT)]
            {
                facts = match header(headers, field) {
                    Some(value) => facts.with(key, value),
                    None => facts,
                };
            }
            (Principal::Service(service), facts)
        }
    };
    // Each statement is a permission: one that the host cannot evaluate gives none, and takes none
    // of the others.
    policy.statements.iter().any(|statement| {
        let document = serde_json::json!({"Statement": [statement.document(&function)]});
        ResourcePolicy::from_value(&document).is_ok_and(|policy| {
            policy.decide(principal, (INVOKE, &function), &facts) == Decision::Allowed
        })
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use unlade_fn_model::Manifest;
    use unlade_fn_model::lifecycle::Statement;

    use super::*;
    use crate::deploy;

    const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// A principal, an action, and conditions.
    type Own<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str, &'a str)]);

    fn record(statements: &[Own<'_>]) -> Record {
        let manifest = Manifest::of_handler("app.handler");
        let stamp = deploy::stamp();
        let mut record = Record::new("owner", deploy::edition(manifest, 1, &[], &stamp));
        for (number, (principal, action, conditions)) in statements.iter().enumerate() {
            let text = |(a, b, c): &(&str, &str, &str)| {
                ((*a).to_owned(), (*b).to_owned(), (*c).to_owned())
            };
            let statement = Statement {
                sid: format!("s{number}"),
                action: (*action).to_owned(),
                principal: (*principal).to_owned(),
                conditions: conditions.iter().map(text).collect(),
            };
            record.add_permission(None, statement, None, deploy::stamp()).unwrap();
        }
        record
    }

    fn is(record: &Record, caller: &Caller, headers: &[(&'static str, &str)]) -> bool {
        let mut fields = HeaderMap::new();
        for (name, value) in headers {
            fields.insert(*name, value.parse().unwrap());
        }
        may_invoke(caller, ("f", record, None), (&fields, SOURCE))
    }

    #[test]
    fn a_tenant_is_allowed_by_its_name() {
        let guest = Caller::Tenant("guest".to_owned());
        let other = Caller::Tenant("other".to_owned());
        let own = record(&[(&tenant_arn("guest"), INVOKE, &[])]);
        assert!(is(&own, &guest, &[]) && !is(&own, &other, &[]));
        assert!(!is(&record(&[]), &guest, &[]));
        let reads = record(&[(&tenant_arn("guest"), "lambda:GetFunction", &[])]);
        assert!(!is(&reads, &guest, &[]));
        let all = record(&[("*", "lambda:*", &[])]);
        assert!(is(&all, &guest, &[]) && is(&all, &other, &[]));
        assert!(!is(&all, &Caller::Service("s3.amazonaws.com".to_owned()), &[]));
        let account = record(&[(ACCOUNT, INVOKE, &[])]);
        assert!(is(&account, &guest, &[]));
        // A statement that the host cannot evaluate gives no right, and takes none.
        let organisation = ("StringEquals", "aws:PrincipalOrgID", "o-1");
        let unknown = ("*", INVOKE, &[organisation][..]);
        assert!(!is(&record(&[unknown]), &guest, &[]));
        assert!(is(&record(&[unknown, ("*", INVOKE, &[])]), &guest, &[]));
        let by_url = ("Bool", "lambda:InvokedViaFunctionUrl", "true");
        assert!(!is(&record(&[("*", INVOKE, &[by_url])]), &guest, &[]));
    }

    #[test]
    fn a_qualifier_has_a_policy_of_its_own() {
        let own = record(&[("*", INVOKE, &[])]);
        let guest = Caller::Tenant("guest".to_owned());
        let latest = Qualifier::parse("$LATEST").unwrap();
        let with = (&HeaderMap::new(), SOURCE);
        assert!(may_invoke(&guest, ("f", &own, None), with));
        assert!(!may_invoke(&guest, ("f", &own, Some(&latest)), with));
    }

    #[test]
    fn a_service_names_its_source_and_a_tenant_does_not() {
        let from = ("ArnLike", "AWS:SourceArn", "arn:aws:s3:::photos");
        let of = ("StringEquals", "AWS:SourceAccount", ACCOUNT);
        let own = record(&[("s3.amazonaws.com", INVOKE, &[from, of])]);
        let s3 = Caller::Service("s3.amazonaws.com".to_owned());
        let right = [(SOURCE_ARN, "arn:aws:s3:::photos"), (SOURCE_ACCOUNT, ACCOUNT)];
        assert!(is(&own, &s3, &right));
        assert!(!is(&own, &s3, &right[..1]));
        assert!(!is(&own, &s3, &[(SOURCE_ARN, "arn:aws:s3:::other"), right[1]]));
        assert!(!is(&own, &Caller::Service("sns.amazonaws.com".to_owned()), &right));
        let anyone = record(&[("*", INVOKE, &[from, of])]);
        assert!(!is(&anyone, &Caller::Tenant("guest".to_owned()), &right));
    }
}
