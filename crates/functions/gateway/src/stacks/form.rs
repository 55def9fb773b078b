//! Requests whose operation is in a form: those of CloudFormation, and `GetCallerIdentity` of STS, which
//! deployment tools call first. Answers are XML.

use unlade_fn_model::lambda::{Denial, Refusal};
use unlade_fn_model::lifecycle::reference::ACCOUNT;
use unlade_fn_stacks::query::{self, FORM_BYTES_MAX};
use unlade_fn_stacks::xml::{self, Xml};
use unlade_fn_stacks::{Failure, Request};

use super::service::StackService;
use crate::answer::{Reply, set, xml_reply};
use crate::auth::Caller;
use crate::config::DEFAULT_TENANT;
use crate::host::Host;
use crate::invoke::uuid;
use crate::object;
use crate::permit::tenant_arn;
use crate::request::AuthenticatedRequest;

/// Most bytes of a template in an object, as in CloudFormation.
const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// Serves a request of an authenticated caller.
///
/// # Errors
/// The request is refused before its operation is known, or a change cannot be stored.
pub async fn serve(
    host: &Host,
    service: &StackService,
    asked: AuthenticatedRequest,
) -> Result<Reply, Refusal> {
    let AuthenticatedRequest { caller, body, .. } = asked;
    let form = body.signed(FORM_BYTES_MAX).await?;
    let tenant = match &caller {
        Caller::Tenant(tenant) => tenant.as_str(),
        Caller::Anyone => DEFAULT_TENANT,
        Caller::Service(_) => {
            let why = format!("{caller} has no stacks");
            return Err(Refusal::Denied(Denial::Access, why));
        }
    };
    let id = uuid();
    let (status, text) = match is_identity(&form) {
        true => (200, identity(tenant, &id)),
        false => call(host, service, (tenant, &form), &id).await?,
    };
    let mut reply = xml_reply(status, text);
    set(&mut reply, "x-amzn-requestid", &id);
    Ok(reply)
}

/// Returns true for the operation of STS that is served.
fn is_identity(form: &[u8]) -> bool {
    form.split(|byte| *byte == b'&').any(|member| member == b"Action=GetCallerIdentity")
}

fn identity(tenant: &str, id: &str) -> String {
    let mut xml = Xml::default();
    xml.within("GetCallerIdentityResponse", |xml| {
        xml.within("GetCallerIdentityResult", |xml| {
            xml.text("Arn", &tenant_arn(tenant));
            xml.text("UserId", tenant);
            xml.text("Account", ACCOUNT);
        });
        xml.within("ResponseMetadata", |xml| xml.text("RequestId", id));
    });
    xml.finish()
}

/// Carries out a request of CloudFormation; returns status and body.
async fn call(
    host: &Host,
    service: &StackService,
    (tenant, form): (&str, &[u8]),
    id: &str,
) -> Result<(u16, String), Refusal> {
    let failed = |failure: &Failure| (failure.kind.status(), xml::failure(failure, id));
    let request = match query::decode(form) {
        Ok(request) => request,
        Err(failure) => return Ok(failed(&failure)),
    };
    let stacks = service.of(tenant)?;
    let template = match template(host, tenant, &request).await? {
        Ok(template) => template,
        Err(failure) => return Ok(failed(&failure)),
    };
    let called = stacks.call(&request, (id, template.as_deref())).await;
    // Also after a failed write: the disk may have the new operation.
    service.drive(&stacks);
    Ok(match called? {
        Ok(text) => (200, text),
        Err(failure) => failed(&failure),
    })
}

/// The text of the template that a request names by a URL, read from the tenant's store.
async fn template(
    host: &Host,
    tenant: &str,
    request: &Request,
) -> Result<Result<Option<String>, Failure>, Refusal> {
    let Some(url) = request.template_url() else { return Ok(Ok(None)) };
    let named = match query::object_of(url) {
        Ok(named) => named,
        Err(failure) => return Ok(Err(failure)),
    };
    let absent = || Refusal::Service(format!("the tenant {tenant} is not in fn.toml"));
    let tenant = host.tenants.get(tenant).ok_or_else(absent)?;
    let bytes = match object::read(host, &tenant, &named, TEMPLATE_BYTES_MAX).await {
        Ok(bytes) => bytes,
        Err(refusal @ Refusal::Service(_)) => return Err(refusal),
        Err(refusal) => {
            let why = format!("TemplateURL: {}", refusal.message());
            return Ok(Err(Failure::invalid(why)));
        }
    };
    let text = String::from_utf8(bytes.to_vec());
    Ok(text.map(Some).map_err(|_| Failure::format("the template is not UTF-8")))
}

/// The code of a refusal in services with forms.
fn code(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Denied(Denial::Missing, _) => "MissingAuthenticationToken",
        Refusal::Denied(Denial::Incomplete, _) => "IncompleteSignature",
        Refusal::Denied(Denial::Unrecognised, _) => "InvalidClientTokenId",
        Refusal::Denied(Denial::Expired | Denial::Signature, _) => "SignatureDoesNotMatch",
        Refusal::Denied(Denial::Access, _) => "AccessDenied",
        Refusal::Unsupported(_) => "InvalidAction",
        Refusal::Service(_) => "InternalFailure",
        _ => "ValidationError",
    }
}

/// The response to a refused request.
pub fn refuse(refusal: &Refusal) -> Reply {
    let (id, side) = (uuid(), if refusal.status() < 500 { "Sender" } else { "Receiver" });
    let mut xml = Xml::default();
    xml.within("ErrorResponse", |xml| {
        xml.within("Error", |xml| {
            xml.text("Type", side);
            xml.text("Code", code(refusal));
            xml.text("Message", &refusal.message());
        });
        xml.text("RequestId", &id);
    });
    let mut reply = xml_reply(refusal.status(), xml.finish());
    set(&mut reply, "x-amzn-errortype", code(refusal));
    set(&mut reply, "x-amzn-requestid", &id);
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_of_a_caller_is_its_tenant() {
        assert!(is_identity(b"Version=2011-06-15&Action=GetCallerIdentity"));
        assert!(!is_identity(b"Action=ListStacks&StackName=Action%3DGetCallerIdentity"));
        let text = identity("t", "1");
        assert!(text.contains("<Account>000000000000</Account>"), "{text}");
        assert!(text.contains("<Arn>arn:aws:iam::000000000000:user/t</Arn>"), "{text}");
    }

    #[test]
    fn refusals_have_the_codes_of_forms() {
        for (denial, due) in [
            (Denial::Missing, "MissingAuthenticationToken"),
            (Denial::Unrecognised, "InvalidClientTokenId"),
            (Denial::Expired, "SignatureDoesNotMatch"),
        ] {
            let reply = refuse(&Refusal::Denied(denial, "why".to_owned()));
            assert_eq!(reply.status(), 403);
            assert_eq!(reply.headers()["x-amzn-errortype"], due);
        }
        assert_eq!(refuse(&Refusal::Service("x".to_owned())).status(), 500);
    }
}
