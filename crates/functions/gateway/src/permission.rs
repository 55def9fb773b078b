//! The right of callers of other tenants, of services, and of callers of function URLs and HTTP APIs to
//! invoke a function: its resource policy.

use std::net::IpAddr;
use std::time::SystemTime;

use hyper::header::HeaderMap;
use unlade_fn_model::lifecycle::reference::ACCOUNT;
use unlade_fn_model::lifecycle::{Qualifier, Record, UrlAuth, arn};
use unlade_s3::policy::Decision;
use unlade_s3::policy::facts::{Environment, Facts};
use unlade_s3::policy::invocation::{Principal, ResourcePolicy};

use crate::auth::Caller;
use crate::config::REGION;
use crate::request::header;

/// The action of an invocation.
const INVOKE: &str = "lambda:InvokeFunction";
/// The action of an invocation by a function URL, beside [`INVOKE`].
const INVOKE_URL: &str = "lambda:InvokeFunctionUrl";
/// The service that HTTP APIs are.
const API_GATEWAY: &str = "apigateway.amazonaws.com";
/// The header field in which a service names the resource that it acts for.
pub const SOURCE_ARN: &str = "x-amz-source-arn";
/// The header field in which a service names the account that it acts for.
pub const SOURCE_ACCOUNT: &str = "x-amz-source-account";

pub use crate::permit::tenant_arn;

/// A function, by name, record and qualifier of the request.
pub type Place<'a> = (&'a str, &'a Record, Option<&'a Qualifier>);

fn function_arn((name, _, qualifier): Place<'_>) -> String {
    arn(REGION, name, qualifier.map(ToString::to_string).as_deref())
}

/// The facts of every request for a function.
fn facts(function: &str, source: IpAddr, is_by_url: bool) -> Facts {
    let (now, region) = (SystemTime::now(), REGION.to_owned());
    let now = Environment { now, region, has_tls: false, is_deferred: false };
    Facts::default()
        .in_environment(&now)
        .with("aws:SourceIp", &source.to_canonical().to_string())
        .with("lambda:FunctionArn", function)
        .with("lambda:InvokedViaFunctionUrl", &is_by_url.to_string())
}

/// The facts of a tenant.
fn of_tenant(facts: Facts, tenant: &str) -> Facts {
    facts
        .with("aws:PrincipalAccount", ACCOUNT)
        .with("aws:PrincipalArn", &tenant_arn(tenant))
        .with("aws:PrincipalIsAWSService", "false")
        .with("aws:PrincipalType", "User")
        .with("aws:username", tenant)
}

/// The facts of a service.
fn of_service(facts: Facts, service: &str) -> Facts {
    facts.with("aws:PrincipalIsAWSService", "true").with("aws:PrincipalServiceName", service)
}

/// Returns true if the resource policy of a function allows an action. The policy is that of the
/// qualifier in the request, or of the function itself without one.
fn is_allowed(place: Place<'_>, principal: Principal<'_>, action: &str, facts: &Facts) -> bool {
    let (_, record, qualifier) = place;
    let Ok(policy) = record.policy(qualifier) else { return false };
    let function = function_arn(place);
    // Each statement is a permission: one that the host cannot evaluate gives none, and takes none
    // of the others.
    policy.statements.iter().any(|statement| {
        let document = serde_json::json!({"Statement": [statement.document(&function)]});
        ResourcePolicy::from_value(&document).is_ok_and(|policy| {
            policy.decide(principal, (action, &function), facts) == Decision::Allowed
        })
    })
}

/// Returns true if a resource policy of a function lets a caller invoke it.
pub fn may_invoke(
    caller: &Caller,
    place: Place<'_>,
    (headers, source): (&HeaderMap, IpAddr),
) -> bool {
    let facts = facts(&function_arn(place), source, false);
    match caller {
        // Without authentication every caller has all rights already.
        Caller::Anyone => true,
        Caller::Tenant(tenant) => {
            let (own, facts) = (tenant_arn(tenant), of_tenant(facts, tenant));
            is_allowed(place, Principal::Identity { arn: &own, account: ACCOUNT }, INVOKE, &facts)
        }
        Caller::Service(service) => {
            let mut facts = of_service(facts, service);
            for (key, field) in
                [("aws:SourceArn", SOURCE_ARN), ("aws:SourceAccount", SOURCE_ACCOUNT)]
            {
                facts = match header(headers, field) {
                    Some(value) => facts.with(key, value),
                    None => facts,
                };
            }
            is_allowed(place, Principal::Service(service), INVOKE, &facts)
        }
    }
}

/// Asks the resource policy of a function if a caller may use its URL; `None` is a caller that has not
/// signed. Both actions are asked, as Lambda does since October 2025. The owner has all rights on its own
/// functions, and its requests are signed; a URL without authentication has a policy for everyone.
///
/// # Errors
/// The action that is not allowed.
pub fn may_use_url(
    caller: Option<&Caller>,
    place: Place<'_>,
    (auth, source): (UrlAuth, IpAddr),
) -> Result<(), &'static str> {
    let facts =
        facts(&function_arn(place), source, true).with("lambda:FunctionUrlAuthType", auth.as_str());
    let own;
    let (principal, facts) = match caller {
        Some(caller) if caller.is(&place.1.tenant) => return Ok(()),
        Some(Caller::Tenant(tenant)) => {
            own = tenant_arn(tenant);
            (Principal::Identity { arn: &own, account: ACCOUNT }, of_tenant(facts, tenant))
        }
        Some(Caller::Service(service)) => (Principal::Service(service), of_service(facts, service)),
        Some(Caller::Anyone) | None => {
            let facts = facts.with("aws:PrincipalIsAWSService", "false");
            (Principal::Anonymous, facts.with("aws:PrincipalType", "Anonymous"))
        }
    };
    let denied = |action: &&str| !is_allowed(place, principal, action, &facts);
    [INVOKE_URL, INVOKE].into_iter().find(denied).map_or(Ok(()), Err)
}

/// Returns true if a resource policy of a function lets an HTTP API invoke it, for a route of it:
/// `arn:aws:execute-api:REGION:ACCOUNT:API/STAGE/METHOD/path`.
pub fn may_integrate(place: Place<'_>, route_arn: &str, source: IpAddr) -> bool {
    let facts = of_service(facts(&function_arn(place), source, false), API_GATEWAY)
        .with("aws:SourceArn", route_arn)
        .with("aws:SourceAccount", ACCOUNT);
    is_allowed(place, Principal::Service(API_GATEWAY), INVOKE, &facts)
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
    fn a_url_needs_both_actions_for_its_kind_of_authentication() {
        let of = |auth: &'static str| [("StringEquals", "lambda:FunctionUrlAuthType", auth)];
        let (none, iam) = (of("NONE"), of("AWS_IAM"));
        let by_url = [("Bool", "lambda:InvokedViaFunctionUrl", "true")];
        let ask = |record: &Record, caller: Option<&Caller>, auth: UrlAuth| {
            may_use_url(caller, ("f", record, None), (auth, SOURCE))
        };
        let guest = Caller::Tenant("guest".to_owned());
        let public = record(&[("*", INVOKE_URL, &none), ("*", INVOKE, &by_url)]);
        assert_eq!(ask(&public, None, UrlAuth::None), Ok(()));
        assert_eq!(ask(&public, Some(&guest), UrlAuth::Iam), Err(INVOKE_URL));
        let half = record(&[("*", INVOKE_URL, &none)]);
        assert_eq!(ask(&half, None, UrlAuth::None), Err(INVOKE));
        assert_eq!(ask(&record(&[]), None, UrlAuth::None), Err(INVOKE_URL));
        let named = tenant_arn("guest");
        let signed = record(&[(&named, INVOKE_URL, &iam), (&named, INVOKE, &by_url)]);
        assert_eq!(ask(&signed, Some(&guest), UrlAuth::Iam), Ok(()));
        assert_eq!(ask(&signed, None, UrlAuth::None), Err(INVOKE_URL));
        let other = Caller::Tenant("other".to_owned());
        assert_eq!(ask(&signed, Some(&other), UrlAuth::Iam), Err(INVOKE_URL));
        let owner = Caller::Tenant("owner".to_owned());
        assert_eq!(ask(&record(&[]), Some(&owner), UrlAuth::Iam), Ok(()));
        // The permission by URL is none for the Invoke API.
        assert!(!is(&public, &guest, &[]));
    }

    #[test]
    fn an_http_api_invokes_what_a_statement_allows_for_its_routes() {
        let from = |arn: &'static str| [("ArnLike", "AWS:SourceArn", arn)];
        let route = "arn:aws:execute-api:us-east-1:000000000000:api/$default/GET/pets/{id}";
        let ask = |arn| {
            let own = record(&[(API_GATEWAY, INVOKE, &from(arn))]);
            may_integrate(("f", &own, None), route, SOURCE)
        };
        assert!(ask("arn:aws:execute-api:us-east-1:000000000000:api/*/GET/pets/*"));
        assert!(!ask("arn:aws:execute-api:us-east-1:000000000000:api/*/POST/pets/*"));
        assert!(!ask("arn:aws:execute-api:us-east-1:000000000000:other/*"));
        assert!(!may_integrate(("f", &record(&[("*", INVOKE, &[])]), None), route, SOURCE));
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
