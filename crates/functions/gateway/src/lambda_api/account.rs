//! `GetAccountSettings`, `GetFunctionCodeSigningConfig`.

use serde_json::json;
use unlade_fn_model::lambda::Refusal;

use super::functions::own;
use super::operation::ZIP_BYTES_MAX;
use super::view::Call;
use crate::answer::{Reply, json_reply};
use crate::archive::CODE_BYTES_MAX;

pub fn settings(call: &Call<'_>) -> Reply {
    let all = call.host.registry.all();
    let reserved: u64 = all.iter().filter_map(|(_, record)| record.reserved).map(u64::from).sum();
    let instances_max = call.host.config.instances_max as u64;
    let own = own(call);
    let editions = own.values().flat_map(|record| record.editions());
    let code_bytes: u64 = editions.map(|(_, edition)| edition.code_bytes).sum();
    let body = json!({
        "AccountLimit": {
            "CodeSizeUnzipped": CODE_BYTES_MAX,
            "CodeSizeZipped": ZIP_BYTES_MAX,
            "ConcurrentExecutions": instances_max,
            "UnreservedConcurrentExecutions": instances_max.saturating_sub(reserved),
        },
        "AccountUsage": {"TotalCodeSize": code_bytes, "FunctionCount": own.len()},
    });
    json_reply(200, body.to_string())
}

/// Code is not signed: there is no configuration.
pub fn code_signing(call: &Call<'_>) -> Result<Reply, Refusal> {
    let name = call.name()?;
    call.record(&name)?;
    let body = json!({"FunctionName": name, "CodeSigningConfigArn": ""});
    Ok(json_reply(200, body.to_string()))
}
