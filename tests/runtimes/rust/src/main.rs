//! A function with AWS's own runtime and SDK. Without a Runtime API it does its work once, and
//! prints the result: that is the comparison.

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart, Delete, ObjectIdentifier};
use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde_json::{Value, json};

const KEY: &str = "a b/ü+%";

async fn work(bucket: &str) -> Result<Value, Error> {
    let http = aws_smithy_http_client::Builder::new().build_http();
    let config = aws_config::defaults(aws_config::BehaviorVersion::latest());
    let client = aws_sdk_s3::Client::new(&config.http_client(http).load().await);
    let small = "small ".repeat(1000);
    let put = client.put_object().bucket(bucket).key(KEY).content_type("text/plain");
    put.metadata("who", "me").body(ByteStream::from(small.into_bytes())).send().await?;
    let got = client.get_object().bucket(bucket).key(KEY).send().await?;
    let about = (got.content_type.clone(), got.e_tag.clone(), got.metadata.clone());
    let body = got.body.collect().await?.into_bytes();
    let get = json!([body.len(), about.0, about.1, about.2]);
    let part = client.get_object().bucket(bucket).key(KEY).range("bytes=3-9").send().await?;
    let range = part.content_range.clone();
    let range = json!([String::from_utf8(part.body.collect().await?.to_vec())?, range]);
    let upload = client.create_multipart_upload().bucket(bucket).key("large").send().await?;
    let upload = upload.upload_id.ok_or("no upload")?;
    let mut parts = Vec::new();
    for (number, bytes) in [(1, 6 << 20), (2, 1 << 20)] {
        let part = client.upload_part().bucket(bucket).key("large").upload_id(&upload);
        let body = ByteStream::from(vec![number as u8; bytes]);
        let sent = part.part_number(number).body(body).send().await?;
        let crc = sent.checksum_crc32.clone();
        let done = CompletedPart::builder().part_number(number).set_e_tag(sent.e_tag);
        parts.push(done.set_checksum_crc32(crc).build());
    }
    let whole = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
    let complete = client.complete_multipart_upload().bucket(bucket).key("large");
    let complete = complete.upload_id(upload).multipart_upload(whole).send().await?;
    let large = client.get_object().bucket(bucket).key("large").send().await?;
    let large = large.body.collect().await?.into_bytes();
    let sum = large.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    client.copy_object().bucket(bucket).key("copy").copy_source(format!("{bucket}/large")).send().await?;
    let list = client.list_objects_v2().bucket(bucket).send().await?;
    let list: Vec<_> = list.contents().iter().map(|o| json!([o.key(), o.size()])).collect();
    let missing = client.get_object().bucket(bucket).key("none").send().await;
    let missing = missing.err().and_then(|e| e.into_service_error().meta().code().map(str::to_owned));
    let absent = client.head_object().bucket(bucket).key("none").send().await;
    let absent = absent.is_err_and(|e| e.into_service_error().is_not_found());
    let ids = ["copy", "large"].map(|key| ObjectIdentifier::builder().key(key).build());
    let ids = ids.into_iter().collect::<Result<Vec<_>, _>>()?;
    let delete = Delete::builder().set_objects(Some(ids)).build()?;
    let deleted = client.delete_objects().bucket(bucket).delete(delete).send().await?;
    Ok(json!({"get": get, "range": range, "etag": complete.e_tag, "large": [large.len(), sum],
        "list": list, "missing": missing, "absent": absent, "deleted": deleted.deleted().len()}))
}

async fn handle(event: LambdaEvent<Value>) -> Result<Value, Error> {
    match event.payload["fail"].as_str() {
        Some(why) => Err(why.into()),
        None => work(event.payload["bucket"].as_str().unwrap_or_default()).await,
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    if std::env::var_os("AWS_LAMBDA_RUNTIME_API").is_some() {
        return lambda_runtime::run(service_fn(handle)).await;
    }
    let bucket = std::env::args().nth(1).ok_or("a bucket is missing")?;
    println!("{}", work(&bucket).await?);
    Ok(())
}
