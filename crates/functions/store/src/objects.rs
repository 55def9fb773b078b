//! The supported operations of S3, over a [`Vault`].
//!
//! A change that has begun is completed even if its caller disconnects.

use std::pin::Pin;
use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3, S3Error, S3Request, S3Response, S3Result};

use crate::about::{About, Version};
use crate::body::{self, Expected, PIECE_BYTES, blocking, give, md5_of, take};
use crate::conditions::{Conditions, strong, timestamp};
use crate::disk::{self, Disk, DiskFile as _, Stat};
use crate::fault::Fault;
use crate::list::{self, ENTRIES_MAX, Entry};
use crate::vault::{OpenObject, Vault};

/// The S3 server over objects that are files.
pub struct Objects<D> {
    vault: Arc<Vault<D>>,
}

impl<D> Clone for Objects<D> {
    fn clone(&self) -> Objects<D> {
        Objects { vault: self.vault.clone() }
    }
}

/// The metadata of a new object, from a request's input.
macro_rules! about {
    ($input:expr) => {
        About {
            user_metadata: $input.metadata.take(),
            cache_control: $input.cache_control.take(),
            content_disposition: $input.content_disposition.take(),
            content_encoding: $input.content_encoding.take().and_then(own_encodings),
            content_language: $input.content_language.take(),
            content_type: $input.content_type.take(),
            expires: About::expires_text($input.expires.as_ref()),
            website_redirect_location: $input.website_redirect_location.take(),
            ..About::default()
        }
    };
}

/// The announced properties of a request's body.
macro_rules! expected {
    ($input:expr) => {
        Expected {
            md5: $input.content_md5.take(),
            bytes: $input.content_length,
            checksum: Checksum {
                checksum_crc32: $input.checksum_crc32.take(),
                checksum_crc32c: $input.checksum_crc32c.take(),
                checksum_crc64nvme: $input.checksum_crc64nvme.take(),
                checksum_sha1: $input.checksum_sha1.take(),
                checksum_sha256: $input.checksum_sha256.take(),
                ..Checksum::default()
            },
            algorithm: $input.checksum_algorithm.take(),
        }
    };
}

/// Removes the encoding of the transfer, which is not part of the object: S3 does not store it.
fn own_encodings(all: String) -> Option<String> {
    let own = all.split(',').map(str::trim).filter(|one| !one.is_empty() && *one != "aws-chunked");
    let own = own.collect::<Vec<_>>().join(",");
    (!own.is_empty()).then_some(own)
}

/// An open object, with the values for a list or head response.
struct Opened<F> {
    file: F,
    stat: Stat,
    about: About,
}

fn open<D: Disk>(vault: &Vault<D>, bucket: &str, key: &str) -> Result<Opened<D::File>, Fault> {
    let OpenObject { file, stat, about } = vault.open_object(bucket, key)?;
    let mut about = about.unwrap_or_default();
    if about.e_tag.is_empty() {
        about.e_tag = md5_of(&file, stat.bytes)?;
    }
    Ok(Opened { file, stat, about })
}

/// The ETag of the object that a change replaces. For a file of the operator it is the MD5.
fn e_tag_now<D: Disk>(
    vault: &Vault<D>,
    bucket: &str,
    key: &str,
    version: Option<&Version>,
) -> Result<Option<String>, Fault> {
    match version {
        Some(version) if version.about.e_tag.is_empty() => {
            Ok(Some(open(vault, bucket, key)?.about.e_tag))
        }
        version => Ok(version.map(|version| version.about.e_tag.clone())),
    }
}

/// Runs a change to its end. An incomplete body is an error in it, before anything is changed.
async fn whole<T: Send + 'static>(
    change: impl Future<Output = S3Result<T>> + Send + 'static,
) -> S3Result<S3Response<T>> {
    tokio::spawn(change).await.map_err(S3Error::internal_error)?.map(S3Response::new)
}

impl<D: Disk> Objects<D> {
    /// Creates a server over a vault.
    pub fn new(vault: Vault<D>) -> Objects<D> {
        Objects { vault: Arc::new(vault) }
    }

    async fn with<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Vault<D>) -> Result<T, Fault> + Send + 'static,
    ) -> S3Result<T> {
        let vault = self.vault.clone();
        blocking(move || act(&vault)).await
    }

    async fn get(self, req: S3Request<GetObjectInput>) -> S3Result<GetObjectOutput> {
        let input = req.input;
        let conditions = Conditions {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        let (bucket, key, asked) = (input.bucket, input.key, input.range);
        let (opened, first, range) = self
            .with(move |vault| {
                let opened = open(vault, &bucket, &key)?;
                let modified_ns = opened.stat.modified_ns;
                conditions.check_read(&opened.about.e_tag, modified_ns, Fault::NotModified)?;
                let bytes = opened.stat.bytes;
                let range = match asked.map(|range| range.check(bytes)) {
                    None => 0..bytes,
                    // The nested error is the response of S3.
                    Some(Err(error)) => return Ok(Err(S3Error::from(error))),
                    Some(Ok(range)) => range,
                };
                let count = (range.end - range.start).min(PIECE_BYTES as u64);
                let first = disk::read_exact(&opened.file, range.start, count as usize)?;
                Ok(Ok((opened, first, range)))
            })
            .await??;
        let Opened { file, stat, about } = opened;
        let rest = range.start + first.len() as u64..range.end;
        let is_whole = range == (0..stat.bytes);
        let sum = |sum: Option<String>| sum.filter(|_| is_whole);
        let content_range = asked.is_some().then(|| {
            format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), stat.bytes)
        });
        Ok(GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            body: Some(give(file, first, rest)),
            content_length: i64::try_from(range.end - range.start).ok(),
            content_range,
            last_modified: Some(timestamp(stat.modified_ns)),
            e_tag: Some(strong(&about.e_tag)),
            expires: about.expires(),
            metadata: about.user_metadata,
            cache_control: input.response_cache_control.or(about.cache_control),
            content_disposition: input.response_content_disposition.or(about.content_disposition),
            content_encoding: input.response_content_encoding.or(about.content_encoding),
            content_language: input.response_content_language.or(about.content_language),
            content_type: input.response_content_type.or(about.content_type),
            website_redirect_location: about.website_redirect_location,
            checksum_crc32: sum(about.checksum_crc32),
            checksum_crc32c: sum(about.checksum_crc32c),
            checksum_crc64nvme: sum(about.checksum_crc64nvme),
            checksum_sha1: sum(about.checksum_sha1),
            checksum_sha256: sum(about.checksum_sha256),
            ..GetObjectOutput::default()
        })
    }

    async fn head(self, req: S3Request<HeadObjectInput>) -> S3Result<HeadObjectOutput> {
        let input = req.input;
        let conditions = Conditions {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        let (bucket, key) = (input.bucket, input.key);
        let Opened { stat, about, .. } = self
            .with(move |vault| {
                let opened = open(vault, &bucket, &key)?;
                let modified_ns = opened.stat.modified_ns;
                conditions.check_read(&opened.about.e_tag, modified_ns, Fault::NotModified)?;
                Ok(opened)
            })
            .await?;
        Ok(HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(stat.bytes).ok(),
            last_modified: Some(timestamp(stat.modified_ns)),
            e_tag: Some(strong(&about.e_tag)),
            expires: about.expires(),
            metadata: about.user_metadata,
            cache_control: about.cache_control,
            content_disposition: about.content_disposition,
            content_encoding: about.content_encoding,
            content_language: about.content_language,
            content_type: about.content_type,
            website_redirect_location: about.website_redirect_location,
            checksum_crc32: about.checksum_crc32,
            checksum_crc32c: about.checksum_crc32c,
            checksum_crc64nvme: about.checksum_crc64nvme,
            checksum_sha1: about.checksum_sha1,
            checksum_sha256: about.checksum_sha256,
            ..HeadObjectOutput::default()
        })
    }

    async fn put(self, req: S3Request<PutObjectInput>) -> S3Result<PutObjectOutput> {
        let (mut input, trailer) = (req.input, req.trailing_headers);
        let known = ["STANDARD", "REDUCED_REDUNDANCY"];
        if input.storage_class.as_ref().is_some_and(|class| !known.contains(&class.as_str())) {
            return Err(s3s::s3_error!(InvalidStorageClass));
        }
        let mut expected = expected!(input);
        let about = about!(input);
        let conditions = Conditions {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            ..Conditions::default()
        };
        let (bucket, key) = (input.bucket, input.key);
        let (early, own) = ((bucket.clone(), key.clone()), conditions.clone());
        // This check avoids the transfer of a body that would be refused.
        self.with(move |vault| match open_for_change(vault, &early.0, &early.1, &own) {
            Err(Fault::NoKey) => own.check_change(None),
            checked => checked,
        })
        .await?;
        let taken = take(&self.vault, input.body, &expected).await?;
        expected.add_trailer(trailer.as_ref());
        let version = self
            .with(move |vault| {
                let (e_tag, sums) = taken.sums.finish(&expected)?;
                let mut about = About { e_tag, ..about };
                about.set_checksum(&sums);
                let condition = |now: Option<&Version>| {
                    conditions.check_change(e_tag_now(vault, &bucket, &key, now)?.as_deref())
                };
                vault.commit(&bucket, &key, taken.draft, about, &condition)
            })
            .await?;
        let about = version.about;
        Ok(PutObjectOutput {
            e_tag: Some(strong(&about.e_tag)),
            checksum_crc32: about.checksum_crc32,
            checksum_crc32c: about.checksum_crc32c,
            checksum_crc64nvme: about.checksum_crc64nvme,
            checksum_sha1: about.checksum_sha1,
            checksum_sha256: about.checksum_sha256,
            ..PutObjectOutput::default()
        })
    }

    async fn copy(self, req: S3Request<CopyObjectInput>) -> S3Result<CopyObjectOutput> {
        let mut input = req.input;
        let conditions = Conditions {
            if_match: input.copy_source_if_match.take(),
            if_none_match: input.copy_source_if_none_match.take(),
            if_modified_since: input.copy_source_if_modified_since.take(),
            if_unmodified_since: input.copy_source_if_unmodified_since.take(),
        };
        let new = about!(input);
        let replaces = MetadataDirective::REPLACE;
        let replaces = input.metadata_directive.is_some_and(|asked| asked.as_str() == replaces);
        let (from_bucket, from_key) = source(input.copy_source)?;
        let (bucket, key) = (input.bucket, input.key);
        let version = self
            .with(move |vault| {
                vault.check_bucket(&bucket)?;
                let from = open(vault, &from_bucket, &from_key)?;
                let modified_ns = from.stat.modified_ns;
                conditions.check_read(&from.about.e_tag, modified_ns, Fault::Precondition)?;
                let mut draft = vault.draft()?;
                body::copy(&from.file, 0..from.stat.bytes, &mut draft.file)?;
                let about = if replaces { new.with_sums_of(&from.about) } else { from.about };
                vault.commit(&bucket, &key, draft, about, &|_| Ok(()))
            })
            .await?;
        let result = CopyObjectResult {
            e_tag: Some(strong(&version.about.e_tag)),
            last_modified: Some(timestamp(version.stat.modified_ns)),
            ..CopyObjectResult::default()
        };
        Ok(CopyObjectOutput { copy_object_result: Some(result), ..CopyObjectOutput::default() })
    }

    async fn list(
        self,
        input: ListObjectsV2Input,
        after: Option<String>,
    ) -> S3Result<ListObjectsV2Output> {
        let entries_max = usize::try_from(input.max_keys.unwrap_or(i32::MAX)).unwrap_or(0);
        let entries_max = entries_max.min(ENTRIES_MAX);
        let (bucket, delimiter) = (input.bucket.clone(), input.delimiter.clone());
        let prefix = input.prefix.clone().unwrap_or_default();
        let (page, details) = self
            .with(move |vault| {
                let keys = vault.keys(&bucket, &prefix)?;
                let after = after.as_deref();
                let page = list::page(keys, &prefix, delimiter.as_deref(), after, entries_max);
                let mut details = Vec::with_capacity(page.entries.len());
                for entry in &page.entries {
                    details.push(match entry {
                        Entry::Key(key) => vault.listed(&bucket, key)?,
                        Entry::Prefix(_) => None,
                    });
                }
                Ok((page, details))
            })
            .await?;
        let is_url = input.encoding_type.as_ref().is_some_and(|e| e.as_str() == EncodingType::URL);
        let said = |name: &str| if is_url { list::url(name) } else { name.to_owned() };
        let (mut contents, mut prefixes) = (Vec::new(), Vec::new());
        for (entry, detail) in page.entries.iter().zip(details) {
            match (entry, detail) {
                (Entry::Prefix(name), _) => {
                    prefixes.push(CommonPrefix { prefix: Some(said(name)) });
                }
                (Entry::Key(name), Some((stat, about))) => contents.push(Object {
                    key: Some(said(name)),
                    last_modified: Some(timestamp(stat.modified_ns)),
                    size: i64::try_from(stat.bytes).ok(),
                    e_tag: about.filter(|a| !a.e_tag.is_empty()).map(|a| strong(&a.e_tag)),
                    storage_class: Some(ObjectStorageClass::from_static(
                        ObjectStorageClass::STANDARD,
                    )),
                    ..Object::default()
                }),
                // The object was removed meanwhile.
                (Entry::Key(_), None) => {}
            }
        }
        let last = page.entries.last().filter(|_| page.is_truncated);
        Ok(ListObjectsV2Output {
            key_count: i32::try_from(contents.len() + prefixes.len()).ok(),
            max_keys: i32::try_from(entries_max).ok(),
            is_truncated: Some(page.is_truncated),
            contents: (!contents.is_empty()).then_some(contents),
            common_prefixes: (!prefixes.is_empty()).then_some(prefixes),
            continuation_token: input.continuation_token,
            next_continuation_token: last.map(|entry| entry.name().to_owned()),
            delimiter: input.delimiter.as_deref().map(said),
            encoding_type: input.encoding_type,
            name: Some(input.bucket),
            prefix: input.prefix.as_deref().map(said),
            start_after: input.start_after.as_deref().map(said),
            ..ListObjectsV2Output::default()
        })
    }

    async fn list_v2(self, req: S3Request<ListObjectsV2Input>) -> S3Result<ListObjectsV2Output> {
        let wrong = || S3Error::from(Fault::Argument("continuation-token is invalid".to_owned()));
        let token = req.input.continuation_token.as_deref();
        let token = token.map(|token| list::untoken(token).ok_or_else(wrong)).transpose()?;
        let after = token.max(req.input.start_after.clone());
        let mut output = self.list(req.input, after).await?;
        output.next_continuation_token = output.next_continuation_token.map(|l| list::token(&l));
        Ok(output)
    }

    async fn list_v1(self, req: S3Request<ListObjectsInput>) -> S3Result<ListObjectsOutput> {
        let input = req.input;
        let marker = input.marker.clone();
        let v2 = ListObjectsV2Input {
            bucket: input.bucket,
            delimiter: input.delimiter,
            encoding_type: input.encoding_type,
            max_keys: input.max_keys,
            prefix: input.prefix,
            start_after: input.marker,
            ..ListObjectsV2Input::default()
        };
        let output = self.list(v2, marker).await?;
        let is_url = output.encoding_type.is_some();
        let said = |name: String| if is_url { list::url(&name) } else { name };
        // Without a delimiter, clients continue after the last key.
        let next = output.next_continuation_token.filter(|_| output.delimiter.is_some());
        Ok(ListObjectsOutput {
            contents: output.contents,
            common_prefixes: output.common_prefixes,
            delimiter: output.delimiter,
            encoding_type: output.encoding_type,
            name: output.name,
            prefix: output.prefix,
            marker: output.start_after,
            max_keys: output.max_keys,
            is_truncated: output.is_truncated,
            next_marker: next.map(said),
            ..ListObjectsOutput::default()
        })
    }

    async fn begin(
        self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<CreateMultipartUploadOutput> {
        let mut input = req.input;
        let about = about!(input);
        let (bucket, key) = (input.bucket.clone(), input.key.clone());
        let id = self.with(move |vault| vault.begin_upload(&bucket, &key, about)).await?;
        Ok(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            ..CreateMultipartUploadOutput::default()
        })
    }

    async fn part(self, req: S3Request<UploadPartInput>) -> S3Result<UploadPartOutput> {
        let (mut input, trailer) = (req.input, req.trailing_headers);
        let mut expected = expected!(input);
        let (number, upload) = (input.part_number, (input.bucket, input.key, input.upload_id));
        let own = upload.clone();
        self.with(move |vault| vault.check_part(&own.0, &own.1, &own.2, number)).await?;
        let taken = take(&self.vault, input.body, &expected).await?;
        expected.add_trailer(trailer.as_ref());
        let (e_tag, sums) = self
            .with(move |vault| {
                let (e_tag, sums) = taken.sums.finish(&expected)?;
                let upload = (upload.0.as_str(), upload.1.as_str(), upload.2.as_str());
                vault.add_part(upload, number, taken.draft, &e_tag)?;
                Ok((e_tag, sums))
            })
            .await?;
        Ok(UploadPartOutput {
            e_tag: Some(ETag::Strong(e_tag)),
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            ..UploadPartOutput::default()
        })
    }

    async fn part_copy(
        self,
        req: S3Request<UploadPartCopyInput>,
    ) -> S3Result<UploadPartCopyOutput> {
        let input = req.input;
        let conditions = Conditions {
            if_match: input.copy_source_if_match,
            if_none_match: input.copy_source_if_none_match,
            if_modified_since: input.copy_source_if_modified_since,
            if_unmodified_since: input.copy_source_if_unmodified_since,
        };
        let (from_bucket, from_key) = source(input.copy_source)?;
        let (number, asked) = (input.part_number, input.copy_source_range);
        let upload = (input.bucket, input.key, input.upload_id);
        let (e_tag, modified_ns) = self
            .with(move |vault| {
                let upload = (upload.0.as_str(), upload.1.as_str(), upload.2.as_str());
                vault.check_part(upload.0, upload.1, upload.2, number)?;
                let from = open(vault, &from_bucket, &from_key)?;
                let modified_ns = from.stat.modified_ns;
                conditions.check_read(&from.about.e_tag, modified_ns, Fault::Precondition)?;
                let range = copied_range(asked.as_deref(), from.stat.bytes)?;
                let mut draft = vault.draft()?;
                let e_tag = body::copy(&from.file, range, &mut draft.file)?;
                let modified_ns = draft.file.stat()?.modified_ns;
                vault.add_part(upload, number, draft, &e_tag)?;
                Ok((e_tag, modified_ns))
            })
            .await?;
        let result = CopyPartResult {
            e_tag: Some(ETag::Strong(e_tag)),
            last_modified: Some(timestamp(modified_ns)),
            ..CopyPartResult::default()
        };
        let copy_part_result = Some(result);
        Ok(UploadPartCopyOutput { copy_part_result, ..UploadPartCopyOutput::default() })
    }

    async fn parts(self, req: S3Request<ListPartsInput>) -> S3Result<ListPartsOutput> {
        let input = req.input;
        let own = (input.bucket.clone(), input.key.clone(), input.upload_id.clone());
        let mut parts = self.with(move |vault| vault.parts(&own.0, &own.1, &own.2)).await?;
        let after = input.part_number_marker.unwrap_or(0);
        let count_max =
            input.max_parts.map_or(ENTRIES_MAX, |max| usize::try_from(max).unwrap_or(0));
        let count_max = count_max.min(ENTRIES_MAX);
        parts.retain(|part| part.number > after);
        let is_truncated = parts.len() > count_max;
        parts.truncate(count_max);
        let last = parts.last().map(|part| part.number);
        let part = |part: crate::uploads::Part| Part {
            e_tag: Some(ETag::Strong(part.e_tag)),
            last_modified: Some(timestamp(part.stat.modified_ns)),
            part_number: Some(part.number),
            size: i64::try_from(part.stat.bytes).ok(),
            ..Part::default()
        };
        Ok(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            is_truncated: Some(is_truncated),
            max_parts: i32::try_from(count_max).ok(),
            part_number_marker: input.part_number_marker,
            next_part_number_marker: last.filter(|_| is_truncated),
            parts: Some(parts.into_iter().map(part).collect()),
            ..ListPartsOutput::default()
        })
    }

    async fn complete(
        self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<CompleteMultipartUploadOutput> {
        let input = req.input;
        let parts = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        if parts.is_empty() {
            return Err(s3s::s3_error!(MalformedXML, "You must specify at least one part"));
        }
        let asked = parts.into_iter().map(|part| {
            let e_tag = part.e_tag.map(|e_tag| e_tag.value().to_owned());
            (part.part_number.unwrap_or(0), e_tag)
        });
        let asked: Vec<_> = asked.collect();
        let conditions = Conditions {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            ..Conditions::default()
        };
        let (bucket, key, id) = (input.bucket.clone(), input.key.clone(), input.upload_id);
        let version = self
            .with(move |vault| {
                let condition = |now: Option<&Version>| {
                    conditions.check_change(e_tag_now(vault, &bucket, &key, now)?.as_deref())
                };
                vault.complete((&bucket, &key, &id), &asked, &condition)
            })
            .await?;
        Ok(CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(strong(&version.about.e_tag)),
            ..CompleteMultipartUploadOutput::default()
        })
    }

    async fn abort(
        self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<AbortMultipartUploadOutput> {
        let (bucket, key, id) = (req.input.bucket, req.input.key, req.input.upload_id);
        self.with(move |vault| vault.abort(&bucket, &key, &id)).await?;
        Ok(AbortMultipartUploadOutput::default())
    }

    async fn delete(self, req: S3Request<DeleteObjectInput>) -> S3Result<DeleteObjectOutput> {
        let (bucket, key) = (req.input.bucket, req.input.key);
        self.with(move |vault| vault.delete(&bucket, &key)).await?;
        Ok(DeleteObjectOutput::default())
    }

    async fn delete_all(self, req: S3Request<DeleteObjectsInput>) -> S3Result<DeleteObjectsOutput> {
        let (bucket, delete) = (req.input.bucket, req.input.delete);
        let is_quiet = delete.quiet.unwrap_or(false);
        let (deleted, errors) = self
            .with(move |vault| {
                vault.check_bucket(&bucket)?;
                let (mut deleted, mut errors) = (Vec::new(), Vec::new());
                for object in delete.objects {
                    let (key, version_id) = (Some(object.key.clone()), object.version_id);
                    match vault.delete(&bucket, &object.key).map_err(S3Error::from) {
                        Ok(()) => {
                            let object = DeletedObject { key, version_id, ..Default::default() };
                            deleted.push(object);
                        }
                        Err(error) => errors.push(Error {
                            code: Some(error.code().as_str().to_owned()),
                            message: error.message().map(str::to_owned),
                            key,
                            version_id,
                        }),
                    }
                }
                Ok((deleted, errors))
            })
            .await?;
        Ok(DeleteObjectsOutput {
            deleted: Some(deleted).filter(|_| !is_quiet),
            errors: (!errors.is_empty()).then_some(errors),
            ..DeleteObjectsOutput::default()
        })
    }

    async fn create_a_bucket(
        self,
        req: S3Request<CreateBucketInput>,
    ) -> S3Result<CreateBucketOutput> {
        let location = Some(format!("/{}", req.input.bucket));
        self.with(move |vault| vault.create_bucket(&req.input.bucket)).await?;
        Ok(CreateBucketOutput { location })
    }

    async fn delete_a_bucket(
        self,
        req: S3Request<DeleteBucketInput>,
    ) -> S3Result<DeleteBucketOutput> {
        self.with(move |vault| vault.delete_bucket(&req.input.bucket)).await?;
        Ok(DeleteBucketOutput::default())
    }

    async fn buckets(self, _: S3Request<ListBucketsInput>) -> S3Result<ListBucketsOutput> {
        let found = self.with(|vault| Ok(vault.all_buckets()?)).await?;
        let bucket = |(name, stat): (String, Stat)| Bucket {
            name: Some(name),
            creation_date: Some(timestamp(stat.modified_ns)),
            ..Bucket::default()
        };
        let buckets = Some(found.into_iter().map(bucket).collect());
        Ok(ListBucketsOutput { buckets, ..ListBucketsOutput::default() })
    }

    async fn location(
        self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<GetBucketLocationOutput> {
        self.with(move |vault| vault.check_bucket(&req.input.bucket)).await?;
        Ok(GetBucketLocationOutput::default())
    }

    async fn has_bucket(self, req: S3Request<HeadBucketInput>) -> S3Result<HeadBucketOutput> {
        self.with(move |vault| vault.check_bucket(&req.input.bucket)).await?;
        Ok(HeadBucketOutput::default())
    }
}

/// Checks a change, as far as possible before its body.
fn open_for_change<D: Disk>(
    vault: &Vault<D>,
    bucket: &str,
    key: &str,
    conditions: &Conditions,
) -> Result<(), Fault> {
    let found = vault.open_object(bucket, key)?;
    if conditions.if_match.is_none() && conditions.if_none_match.is_none() {
        return Ok(());
    }
    let e_tag = found.about.map(|about| about.e_tag).filter(|e_tag| !e_tag.is_empty());
    let e_tag = e_tag.map_or_else(|| md5_of(&found.file, found.stat.bytes), Ok)?;
    conditions.check_change(Some(&e_tag))
}

fn source(source: CopySource) -> Result<(String, String), Fault> {
    match source {
        CopySource::Bucket { bucket, key, .. } => Ok((bucket.into(), key.into())),
        CopySource::AccessPoint { .. } | CopySource::Outpost { .. } => {
            Err(Fault::Unsupported("there are no access points here; name the bucket".to_owned()))
        }
    }
}

/// Parses `bytes=FIRST-LAST`, the source range of a copied part.
fn copied_range(asked: Option<&str>, bytes: u64) -> Result<std::ops::Range<u64>, Fault> {
    let Some(asked) = asked else { return Ok(0..bytes) };
    let wrong =
        || Fault::Argument(format!("the range {asked:?} is not bytes=FIRST-LAST in {bytes}"));
    let (first, last) =
        asked.strip_prefix("bytes=").and_then(|r| r.split_once('-')).ok_or_else(wrong)?;
    let first: u64 = first.parse().map_err(|_| wrong())?;
    let last: u64 = last.parse().map_err(|_| wrong())?;
    if first > last || last >= bytes { Err(wrong()) } else { Ok(first..last + 1) }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = S3Result<S3Response<T>>> + Send + 'a>>;

macro_rules! operations {
    ($($name:ident: $input:ident => $output:ident by $own:ident,)*) => {
        impl<D: Disk> S3 for Objects<D> {
            $(fn $name<'a, 'b>(&'a self, req: S3Request<$input>) -> Answer<'b, $output>
            where
                'a: 'b,
                Self: 'b,
            {
                Box::pin(whole(self.clone().$own(req)))
            })*
        }
    };
}

operations! {
    abort_multipart_upload: AbortMultipartUploadInput => AbortMultipartUploadOutput by abort,
    complete_multipart_upload:
        CompleteMultipartUploadInput => CompleteMultipartUploadOutput by complete,
    copy_object: CopyObjectInput => CopyObjectOutput by copy,
    create_bucket: CreateBucketInput => CreateBucketOutput by create_a_bucket,
    create_multipart_upload: CreateMultipartUploadInput => CreateMultipartUploadOutput by begin,
    delete_bucket: DeleteBucketInput => DeleteBucketOutput by delete_a_bucket,
    delete_object: DeleteObjectInput => DeleteObjectOutput by delete,
    delete_objects: DeleteObjectsInput => DeleteObjectsOutput by delete_all,
    get_bucket_location: GetBucketLocationInput => GetBucketLocationOutput by location,
    get_object: GetObjectInput => GetObjectOutput by get,
    head_bucket: HeadBucketInput => HeadBucketOutput by has_bucket,
    head_object: HeadObjectInput => HeadObjectOutput by head,
    list_buckets: ListBucketsInput => ListBucketsOutput by buckets,
    list_objects: ListObjectsInput => ListObjectsOutput by list_v1,
    list_objects_v2: ListObjectsV2Input => ListObjectsV2Output by list_v2,
    list_parts: ListPartsInput => ListPartsOutput by parts,
    put_object: PutObjectInput => PutObjectOutput by put,
    upload_part: UploadPartInput => UploadPartOutput by part,
    upload_part_copy: UploadPartCopyInput => UploadPartCopyOutput by part_copy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_of_a_transfer_is_not_kept() {
        let own = |all: &str| own_encodings(all.to_owned());
        assert_eq!(own("aws-chunked"), None);
        assert_eq!(own("gzip,aws-chunked").as_deref(), Some("gzip"));
        assert_eq!(own("aws-chunked, gzip").as_deref(), Some("gzip"));
        assert_eq!(own("").as_deref(), None);
    }

    #[tokio::test]
    async fn a_change_goes_to_its_end_without_its_caller() {
        let (tell, told) = tokio::sync::oneshot::channel();
        let mut change = Box::pin(whole(async {
            tokio::task::yield_now().await;
            let _ = tell.send(());
            Ok(())
        }));
        let poll = |context: &mut std::task::Context<'_>| {
            std::task::Poll::Ready(change.as_mut().poll(context))
        };
        assert!(std::future::poll_fn(poll).await.is_pending());
        drop(change);
        told.await.expect("it was made");
    }

    #[test]
    fn ranges_of_copied_parts_are_within_their_source() {
        assert_eq!(copied_range(None, 5).unwrap(), 0..5);
        assert_eq!(copied_range(Some("bytes=1-4"), 5).unwrap(), 1..5);
        for wrong in ["bytes=0-5", "bytes=3-2", "bytes=-2", "0-1", "bytes=0-18446744073709551615"] {
            assert!(copied_range(Some(wrong), 5).is_err(), "{wrong}");
        }
    }
}
