//! `AddPermission`, `RemovePermission`, `GetPolicy`. [`crate::permission`] evaluates policies when
//! callers of other tenants, and services, invoke. A tenant has all rights on its own functions.

use serde_json::json;
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::{Record, Reference, Statement, arn};

use super::view::Call;
use crate::answer::{Reply, json_reply};
use crate::config::REGION;
use crate::deploy;

/// Parameters that are conditions: their operator and key.
const CONDITIONS: [(&str, &str, &str); 5] = [
    ("SourceArn", "ArnLike", "AWS:SourceArn"),
    ("SourceAccount", "StringEquals", "AWS:SourceAccount"),
    ("EventSourceToken", "StringEquals", "lambda:EventSourceToken"),
    ("PrincipalOrgID", "StringEquals", "aws:PrincipalOrgID"),
    ("FunctionUrlAuthType", "StringEquals", "lambda:FunctionUrlAuthType"),
];

pub async fn add(mut call: Call<'_>) -> Result<Reply, Refusal> {
    let Reference { name, qualifier } = call.reference()?;
    let own = &mut call.parameters;
    let mut statement = Statement {
        sid: own.required("StatementId")?,
        action: own.required("Action")?,
        principal: own.required("Principal")?,
        conditions: Vec::new(),
    };
    for (parameter, operator, key) in CONDITIONS {
        if let Some(value) = own.text(parameter)? {
            statement.conditions.push((operator.to_owned(), key.to_owned(), value));
        }
    }
    if own.flag("InvokedViaFunctionUrl")? {
        let condition = ["Bool", "lambda:InvokedViaFunctionUrl", "true"].map(str::to_owned);
        statement.conditions.push(condition.into());
    }
    let expected = own.text("RevisionId")?;
    std::mem::take(own).done()?;
    let text = qualifier.as_ref().map(ToString::to_string);
    let document = statement.document(&arn(REGION, &name, text.as_deref())).to_string();
    let act = |record: &mut Record| {
        let (expected, stamp) = (expected.as_deref(), deploy::stamp());
        record.add_permission(qualifier.as_ref(), statement, expected, stamp)
    };
    call.edit(&name, act).await?;
    Ok(json_reply(201, json!({"Statement": document}).to_string()))
}

pub async fn remove(call: &Call<'_>) -> Result<Reply, Refusal> {
    let Reference { name, qualifier } = call.reference()?;
    let expected = call.query.get("RevisionId");
    let act = |record: &mut Record| {
        record.remove_permission(qualifier.as_ref(), &call.item, expected, deploy::stamp())
    };
    call.edit(&name, act).await?;
    Ok(json_reply(204, ""))
}

pub fn get(call: &Call<'_>) -> Result<Reply, Refusal> {
    let Reference { name, qualifier } = call.reference()?;
    let record = call.record(&name)?;
    let policy = record.policy(qualifier.as_ref())?;
    let text = qualifier.as_ref().map(ToString::to_string);
    let document = policy.document(&arn(REGION, &name, text.as_deref())).to_string();
    let body = json!({"Policy": document, "RevisionId": policy.revision});
    Ok(json_reply(200, body.to_string()))
}
