//! `TagResource`, `UntagResource`, `ListTags`.

use serde_json::json;
use unlade_fn_model::lambda::Refusal;

use super::view::Call;
use crate::answer::{Reply, json_reply};

pub async fn tag(mut call: Call<'_>) -> Result<Reply, Refusal> {
    let name = call.name()?;
    let missing = || Refusal::Parameter("Tags is missing".to_owned());
    let tags = call.parameters.texts("Tags")?.ok_or_else(missing)?;
    std::mem::take(&mut call.parameters).done()?;
    call.edit(&name, |record| record.tag(tags)).await?;
    Ok(json_reply(204, ""))
}

pub async fn untag(call: &Call<'_>) -> Result<Reply, Refusal> {
    let (name, keys) = (call.name()?, call.query.all("tagKeys"));
    let act = |record: &mut unlade_fn_model::lifecycle::Record| {
        record.untag(&keys);
        Ok(())
    };
    call.edit(&name, act).await?;
    Ok(json_reply(204, ""))
}

pub fn list(call: &Call<'_>) -> Result<Reply, Refusal> {
    let record = call.record(&call.name()?)?;
    Ok(json_reply(200, json!({"Tags": record.tags}).to_string()))
}
