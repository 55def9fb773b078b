//! Objects that a browser puts with a form.

use hyper::header::{ETAG, HOST, HeaderName, HeaderValue, LOCATION};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use crate::disk::Disk;
use crate::event::Creation;
use crate::list;
use crate::objects::Objects;
use crate::offered::{is_by_store, not_offered};

/// The fields of a form that a PUT has, too.
fn put_of(form: PostObjectInput) -> PutObjectInput {
    PutObjectInput {
        body: form.body,
        bucket: form.bucket,
        cache_control: form.cache_control,
        checksum_algorithm: form.checksum_algorithm,
        checksum_crc32: form.checksum_crc32,
        checksum_crc32c: form.checksum_crc32c,
        checksum_crc64nvme: form.checksum_crc64nvme,
        checksum_sha1: form.checksum_sha1,
        checksum_sha256: form.checksum_sha256,
        content_disposition: form.content_disposition,
        content_encoding: form.content_encoding,
        content_language: form.content_language,
        content_length: form.content_length,
        content_md5: form.content_md5,
        content_type: form.content_type,
        expires: form.expires,
        if_match: form.if_match,
        if_none_match: form.if_none_match,
        key: form.key,
        metadata: form.metadata,
        storage_class: form.storage_class,
        tagging: form.tagging,
        website_redirect_location: form.website_redirect_location,
        ..PutObjectInput::default()
    }
}

impl<D: Disk> Objects<D> {
    /// Puts the object of a form; the answer has its address, its ETag and its checksums.
    pub(crate) async fn post(
        self,
        req: S3Request<PostObjectInput>,
    ) -> S3Result<S3Response<PostObjectOutput>> {
        let form = &req.input;
        let encryption = form.server_side_encryption.as_ref();
        let asked = [
            (
                "x-amz-server-side-encryption",
                encryption.is_some_and(|asked| !is_by_store(asked.as_str())),
            ),
            ("x-amz-server-side-encryption-customer-key", form.sse_customer_key.is_some()),
            ("x-amz-object-lock-mode", form.object_lock_mode.is_some()),
            ("x-amz-object-lock-legal-hold", form.object_lock_legal_hold_status.is_some()),
        ];
        if let Some((name, _)) = asked.into_iter().find(|(_, is_asked)| *is_asked) {
            return Err(not_offered(name).into());
        }
        let host = req.headers.get(HOST).and_then(|host| host.to_str().ok());
        // The protocol library writes this field of the answer if the form asks for a redirect.
        let host = host.filter(|_| form.success_action_redirect.is_none());
        let place = host
            .map(|host| format!("http://{host}/{}/{}", form.bucket, list::url(&form.key)))
            .and_then(|place| HeaderValue::try_from(place).ok());
        let put = self.put_by(req.map_input(put_of), Creation::Post).await?;
        let e_tag = put.e_tag.as_ref().and_then(|e_tag| e_tag.to_http_header().ok());
        let sums = [
            ("x-amz-checksum-crc32", put.checksum_crc32),
            ("x-amz-checksum-crc32c", put.checksum_crc32c),
            ("x-amz-checksum-crc64nvme", put.checksum_crc64nvme),
            ("x-amz-checksum-sha1", put.checksum_sha1),
            ("x-amz-checksum-sha256", put.checksum_sha256),
            ("x-amz-version-id", put.version_id.clone()),
        ];
        let sums = sums.map(|(name, text)| {
            (HeaderName::from_static(name), text.and_then(|text| HeaderValue::try_from(text).ok()))
        });
        let mut response = S3Response::new(PostObjectOutput {
            e_tag: put.e_tag,
            version_id: put.version_id,
            ..PostObjectOutput::default()
        });
        let fields = [(LOCATION, place), (ETAG, e_tag)].into_iter().chain(sums);
        response.headers.extend(fields.filter_map(|(name, value)| Some((name, value?))));
        Ok(response)
    }
}
