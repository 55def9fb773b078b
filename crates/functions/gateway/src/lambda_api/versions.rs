//! `PublishVersion`, `ListVersionsByFunction`.

use unlade_fn_model::lambda::{LATEST, Refusal};
use unlade_fn_model::lifecycle::{Publication, Version, arn, page};

use super::view::{Call, View, listed};
use crate::answer::{Reply, json_reply};
use crate::config::REGION;
use crate::deploy;

pub async fn publish(mut call: Call<'_>) -> Result<Reply, Refusal> {
    let name = call.name()?;
    let own = &mut call.parameters;
    let what = Publication {
        description: own.text("Description")?,
        code_sha256: own.text("CodeSha256")?.filter(|hash| !hash.is_empty()),
        revision: own.text("RevisionId")?,
    };
    std::mem::take(own).done()?;
    let (record, number) = call.edit(&name, |record| record.publish(what, deploy::stamp())).await?;
    let view = View { host: call.host, name: &name, record: &record };
    Ok(json_reply(201, view.configuration(Version::Number(number))?.to_string()))
}

pub fn list(call: &Call<'_>) -> Result<Reply, Refusal> {
    let name = call.name()?;
    let record = call.record(&name)?;
    let versions = record.editions().map(|(version, _)| (version, version));
    let page = page(versions, call.query.get("Marker"), call.query.get("MaxItems"))?;
    let view = View { host: call.host, name: &name, record: &record };
    let mut versions = Vec::new();
    for version in page.items {
        let mut description = view.configuration(version)?;
        if version == Version::Latest {
            description["FunctionArn"] = arn(REGION, &name, Some(LATEST)).into();
        }
        versions.push(description);
    }
    Ok(listed("Versions", versions, page.next))
}
