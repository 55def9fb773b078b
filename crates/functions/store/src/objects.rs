//! The supported operations of S3, over a [`Vault`].
//!
//! A change that has begun is completed even if its caller disconnects.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use hyper::header::{CONTENT_TYPE, HeaderValue};
use s3s::checksum::ChecksumHasher;
use s3s::dto::*;
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::about::{About, Version};
use crate::body::{self, Expected, PIECE_BYTES, blocking, give, md5_of, take};
use crate::checksums::Algorithm;
use crate::conditions::{Conditions, Removal, strong, timestamp};
use crate::disk::{self, Disk, Stat};
use crate::event::{Creation, Origin};
use crate::fault::Fault;
use crate::labels;
use crate::list::ENTRIES_MAX;
use crate::offered::offered;
use crate::vault::{Cause, OpenObject, Vault};
use crate::versions::NULL;

/// The S3 server over objects that are files.
pub struct Objects<D> {
    /// The objects.
    pub vault: Arc<Vault<D>>,
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
            storage_class: labels::class($input.storage_class.as_ref())?,
            tags: labels::from_header($input.tagging.as_deref())?,
            ..About::default()
        }
    };
}

pub(crate) use about;

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

pub(crate) use expected;

/// The owner of all buckets and objects.
pub fn owner() -> Owner {
    Owner { display_name: Some("unlade".to_owned()), id: Some("unlade".to_owned()) }
}

/// Removes the encoding of the transfer, which is not part of the object: S3 does not store it.
pub fn own_encodings(all: String) -> Option<String> {
    let own = all.split(',').map(str::trim).filter(|one| !one.is_empty() && *one != "aws-chunked");
    let own = own.collect::<Vec<_>>().join(", ");
    (!own.is_empty()).then_some(own)
}

/// An open object, with the values for a list or head response.
pub struct Opened<F> {
    /// Its file.
    pub file: F,
    /// The attributes of the file.
    pub stat: Stat,
    /// The metadata, with an ETag.
    pub about: About,
    /// The id of the version, in a bucket with versions.
    pub id: Option<String>,
}

impl<F> Opened<F> {
    fn check(&self, conditions: &Conditions) -> Result<(), Fault> {
        let (e_tag, modified_ns) = (self.about.e_tag.clone(), self.stat.modified_ns);
        let known = Fault::NotModified { e_tag, modified_ns, id: self.id.clone() };
        conditions.check_read(&self.about.e_tag, modified_ns, known)
    }
}

/// Opens a version of an object, or the newest one.
pub fn open<D: Disk>(
    vault: &Vault<D>,
    (bucket, key, version): (&str, &str, Option<&str>),
) -> Result<Opened<D::File>, Fault> {
    let OpenObject { file, stat, about, id } = vault.open_object(bucket, key, version)?;
    let mut about = about.unwrap_or_default();
    if about.e_tag.is_empty() {
        about.e_tag = md5_of(&file, stat.bytes)?;
    }
    Ok(Opened { file, stat, about, id })
}

fn parts_count(about: &About) -> Option<i32> {
    i32::try_from(about.parts.len()).ok().filter(|count| *count > 0)
}

/// The range of a part. An object that was not uploaded in parts is one part.
fn part_range<F>(opened: &Opened<F>, part: Option<i32>) -> Result<std::ops::Range<u64>, Fault> {
    let whole = 0..opened.stat.bytes;
    match part {
        None => Ok(whole),
        Some(1) if opened.about.parts.is_empty() => Ok(whole),
        Some(part) => {
            let found = usize::try_from(part).ok().and_then(|part| opened.about.part(part));
            found.filter(|range| range.end <= opened.stat.bytes).ok_or(Fault::NoPart(part))
        }
    }
}

/// The ETag of the object that a change replaces. For a file of the operator it is the MD5.
pub fn e_tag_now<D: Disk>(
    vault: &Vault<D>,
    bucket: &str,
    key: &str,
    version: Option<&Version>,
) -> Result<Option<String>, Fault> {
    match version {
        Some(version) if version.about.e_tag.is_empty() => {
            Ok(Some(open(vault, (bucket, key, None))?.about.e_tag))
        }
        version => Ok(version.map(|version| version.about.e_tag.clone())),
    }
}

/// The result of an operation: its output, or a response that has more header fields.
trait Outcome<T>: Send + 'static {
    fn response(self) -> S3Response<T>;
}

impl<T: Send + 'static> Outcome<T> for T {
    fn response(self) -> S3Response<T> {
        S3Response::new(self)
    }
}

impl<T: Send + 'static> Outcome<T> for S3Response<T> {
    fn response(self) -> S3Response<T> {
        self
    }
}

/// Runs a change to its end. An incomplete body is an error in it, before anything is changed.
async fn whole<T, O: Outcome<T>>(
    RequestId(id): RequestId,
    checked: Result<(), Fault>,
    change: impl Future<Output = S3Result<O>> + Send + 'static,
) -> S3Result<S3Response<T>> {
    let done = match checked {
        Ok(()) => tokio::spawn(change).await.unwrap_or_else(|e| Err(S3Error::internal_error(e))),
        Err(refused) => Err(refused.into()),
    };
    let field = HeaderValue::from_str(&id).map_err(S3Error::internal_error)?;
    match done {
        Ok(output) => {
            let mut response = output.response();
            response.headers.insert(HOST_ID, field.clone());
            response.headers.insert(REQUEST_ID, field);
            Ok(response)
        }
        Err(mut error) => {
            let mut fields = error.headers().cloned().unwrap_or_default();
            fields.insert(HOST_ID, field.clone());
            fields.insert(REQUEST_ID, field);
            // The library sends these fields in place of its own.
            if *error.code() != S3ErrorCode::NotModified {
                fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
            }
            error.set_headers(fields);
            error.set_request_id(id);
            Err(error)
        }
    }
}

/// The content type of an object whose writer gave none.
#[expect(clippy::unnecessary_wraps, reason = "a value for `or_else`")]
fn unknown_type() -> Option<String> {
    Some("binary/octet-stream".to_owned())
}

const TAG_COUNT: &str = "x-amz-tagging-count";
const REQUEST_ID: &str = "x-amz-request-id";
/// SDKs expect both fields or none.
const HOST_ID: &str = "x-amz-id-2";

/// The id of a request, which its change has in its event.
#[derive(Clone, Debug)]
pub struct RequestId(String);

/// The address of the sender of a request.
#[derive(Clone, Copy, Debug)]
pub struct Sender(pub IpAddr);

/// The request of a change, for its event.
pub fn origin<T>(req: &S3Request<T>) -> Origin {
    Origin {
        request_id: req.extensions.get().map_or_else(String::new, |RequestId(id)| id.clone()),
        source: req.extensions.get().map(|Sender(source)| *source),
        access_key: req.credentials.as_ref().map(|keys| keys.access_key.clone()),
    }
}

/// The creation of an object, for its event.
pub fn cause<T>(req: &S3Request<T>, by: Creation) -> Cause {
    Cause { by, origin: origin(req) }
}

/// The id of a request: unique in this process, and most probably in all.
fn request_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static FIRST: LazyLock<u64> =
        LazyLock::new(|| disk::nanoseconds(SystemTime::now()).unsigned_abs());
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:016X}", FIRST.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

impl<D: Disk> Objects<D> {
    /// Creates a server over a vault.
    pub fn new(vault: Vault<D>) -> Objects<D> {
        Objects { vault: Arc::new(vault) }
    }

    /// Runs file system operations on a thread that may block.
    pub async fn with<T: Send + 'static>(
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
        let (version, part) = (input.version_id, input.part_number);
        let (opened, first, range) = self
            .with(move |vault| {
                let opened = open(vault, (&bucket, &key, version.as_deref()))?;
                opened.check(&conditions)?;
                let bytes = opened.stat.bytes;
                if asked.is_some() && part.is_some() {
                    let why = "Cannot specify both Range header and partNumber query parameter";
                    return Err(Fault::Argument(why.to_owned()));
                }
                let range = match asked.map(|range| range.check(bytes)) {
                    None => part_range(&opened, part)?,
                    // The nested error is the response of S3.
                    Some(Err(error)) => return Ok(Err(S3Error::from(error))),
                    Some(Ok(range)) => range,
                };
                let count = (range.end - range.start).min(PIECE_BYTES as u64);
                let first = disk::read_exact(&opened.file, range.start, count as usize)?;
                Ok(Ok((opened, first, range)))
            })
            .await??;
        let Opened { file, stat, about, id } = opened;
        let parts_count = part.and_then(|_| parts_count(&about));
        let is_whole = range == (0..stat.bytes);
        let sums = match part {
            Some(part) => about.checksum_of_part(part),
            None => about.checksum_if(is_whole),
        };
        let rest = range.start + first.len() as u64..range.end;
        let content_range = (asked.is_some() || part.is_some()).then(|| {
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
            storage_class: about.class(),
            tag_count: about.tag_count(),
            metadata: about.user_metadata,
            cache_control: input.response_cache_control.or(about.cache_control),
            content_disposition: input.response_content_disposition.or(about.content_disposition),
            content_encoding: input.response_content_encoding.or(about.content_encoding),
            content_language: input.response_content_language.or(about.content_language),
            content_type: input.response_content_type.or(about.content_type).or_else(unknown_type),
            website_redirect_location: about.website_redirect_location,
            version_id: id,
            parts_count,
            checksum_type: sums.checksum_type,
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            ..GetObjectOutput::default()
        })
    }

    async fn head(self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = req.input;
        let conditions = Conditions {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        let (bucket, key, version) = (input.bucket, input.key, input.version_id);
        let (asked, part) = (input.range, input.part_number);
        let (Opened { stat, about, id, .. }, range) = self
            .with(move |vault| {
                let opened = open(vault, (&bucket, &key, version.as_deref()))?;
                opened.check(&conditions)?;
                let range = match asked.map(|range| range.check(opened.stat.bytes)) {
                    None => part_range(&opened, part)?,
                    Some(Err(error)) => return Ok(Err(S3Error::from(error))),
                    Some(Ok(range)) => range,
                };
                Ok(Ok((opened, range)))
            })
            .await??;
        let content_range = (asked.is_some() || part.is_some()).then(|| {
            format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), stat.bytes)
        });
        let parts_count = part.and_then(|_| parts_count(&about));
        let is_asked =
            input.checksum_mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
        let sums = match part {
            Some(part) if is_asked => about.checksum_of_part(part),
            _ => about.checksum_if(is_asked),
        };
        let tag_count = about.tag_count();
        let mut response = S3Response::new(HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(range.end - range.start).ok(),
            content_range,
            parts_count,
            checksum_type: sums.checksum_type,
            last_modified: Some(timestamp(stat.modified_ns)),
            e_tag: Some(strong(&about.e_tag)),
            expires: about.expires(),
            storage_class: about.class(),
            metadata: about.user_metadata,
            cache_control: about.cache_control,
            content_disposition: about.content_disposition,
            content_encoding: about.content_encoding,
            content_language: about.content_language,
            content_type: about.content_type.or_else(unknown_type),
            website_redirect_location: about.website_redirect_location,
            version_id: id,
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            ..HeadObjectOutput::default()
        });
        if let Some(count) = tag_count {
            response.headers.insert(TAG_COUNT, HeaderValue::from(count));
        }
        Ok(response)
    }

    async fn put(self, req: S3Request<PutObjectInput>) -> S3Result<PutObjectOutput> {
        self.put_by(req, Creation::Put).await
    }

    /// Puts the object of a PUT or a form.
    pub(crate) async fn put_by(
        self,
        req: S3Request<PutObjectInput>,
        by: Creation,
    ) -> S3Result<PutObjectOutput> {
        let cause = cause(&req, by);
        let (mut input, trailer) = (req.input, req.trailing_headers);
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
            Err(Fault::NoKey | Fault::Deleted(_)) => own.check_change(None),
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
                vault.commit(&bucket, &key, taken.draft, about, &condition, &cause)
            })
            .await?;
        let sums = version.about.checksum();
        Ok(PutObjectOutput {
            e_tag: Some(strong(&version.about.e_tag)),
            version_id: version.id.filter(|id| id != NULL),
            checksum_type: sums.checksum_type,
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            ..PutObjectOutput::default()
        })
    }

    async fn copy(self, req: S3Request<CopyObjectInput>) -> S3Result<CopyObjectOutput> {
        let cause = cause(&req, Creation::Copy);
        let mut input = req.input;
        let conditions = Conditions {
            if_match: input.copy_source_if_match.take(),
            if_none_match: input.copy_source_if_none_match.take(),
            if_modified_since: input.copy_source_if_modified_since.take(),
            if_unmodified_since: input.copy_source_if_unmodified_since.take(),
        };
        let new = about!(input);
        let retags = TaggingDirective::REPLACE;
        let retags = input.tagging_directive.is_some_and(|asked| asked.as_str() == retags);
        let replaces = MetadataDirective::REPLACE;
        let replaces = input.metadata_directive.is_some_and(|asked| asked.as_str() == replaces);
        let algorithm = input.checksum_algorithm.as_ref().map(ChecksumAlgorithm::as_str);
        let algorithm = algorithm.map(Algorithm::parse).transpose()?;
        let from = source(input.copy_source)?;
        let (bucket, key) = (input.bucket, input.key);
        let is_same = from.as_deref() == (bucket.as_str(), key.as_str(), None);
        let changes =
            replaces || input.storage_class.is_some() || new.website_redirect_location.is_some();
        if is_same && !changes {
            return Err(Fault::Request(
                "This copy request is illegal because it is trying to copy an object to itself \
                 without changing the object's metadata, storage class, website redirect location \
                 or encryption attributes.",
            )
            .into());
        }
        let (version, from_id) = self
            .with(move |vault| {
                vault.check_bucket(&bucket)?;
                let from = open(vault, from.as_deref())?;
                let modified_ns = from.stat.modified_ns;
                conditions.check_read(&from.about.e_tag, modified_ns, Fault::Precondition)?;
                let mut draft = vault.draft()?;
                // A copy is one part: it has an ETag and checksums of its own.
                let mut hasher = ChecksumHasher::default();
                let old_sums = from.about.checksum();
                let has = |one: Algorithm| {
                    algorithm.map_or(one.of(&old_sums).is_some(), |asked| asked == one)
                };
                Algorithm::ALL
                    .into_iter()
                    .filter(|one| has(*one))
                    .for_each(|one| one.start(&mut hasher));
                let whole = 0..from.stat.bytes;
                let e_tag = body::copy(&from.file, whole, &mut draft.file, &mut hasher)?;
                let (class, old) = (new.storage_class.clone(), from.about);
                let tags = if retags { new.tags.clone() } else { old.tags.clone() };
                let about = if replaces { new } else { old };
                // Nor does it inherit the class.
                let mut about = About {
                    storage_class: class,
                    tags,
                    e_tag,
                    parted: None,
                    parts: Vec::new(),
                    ..about
                };
                about.set_checksum(&hasher.finalize());
                let made = vault.commit(&bucket, &key, draft, about, &|_| Ok(()), &cause)?;
                Ok((made, from.id))
            })
            .await?;
        let sums = version.about.checksum();
        let result = CopyObjectResult {
            e_tag: Some(strong(&version.about.e_tag)),
            last_modified: Some(timestamp(version.stat.modified_ns)),
            checksum_type: sums.checksum_type,
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
        };
        Ok(CopyObjectOutput {
            copy_object_result: Some(result),
            copy_source_version_id: from_id,
            version_id: version.id.filter(|id| id != NULL),
            ..CopyObjectOutput::default()
        })
    }

    async fn delete(self, req: S3Request<DeleteObjectInput>) -> S3Result<DeleteObjectOutput> {
        let origin = origin(&req);
        let input = req.input;
        let (bucket, key, version) = (input.bucket, input.key, input.version_id);
        let removal = Removal {
            if_match: input.if_match,
            modified: input.if_match_last_modified_time,
            bytes: input.if_match_size,
        };
        let deleted = self
            .with(move |vault| vault.delete(&bucket, &key, version.as_deref(), &removal, &origin))
            .await?;
        Ok(DeleteObjectOutput {
            delete_marker: deleted.is_marker.then_some(true),
            version_id: deleted.id,
            ..DeleteObjectOutput::default()
        })
    }

    async fn delete_all(self, req: S3Request<DeleteObjectsInput>) -> S3Result<DeleteObjectsOutput> {
        let origin = origin(&req);
        let (bucket, delete) = (req.input.bucket, req.input.delete);
        let is_quiet = delete.quiet.unwrap_or(false);
        if delete.objects.len() > ENTRIES_MAX {
            return Err(s3s::s3_error!(MalformedXML, "at most {ENTRIES_MAX} keys in a request"));
        }
        let (deleted, errors) = self
            .with(move |vault| {
                vault.check_bucket(&bucket)?;
                let (mut deleted, mut errors) = (Vec::new(), Vec::new());
                for object in delete.objects {
                    let (key, version_id) = (Some(object.key.clone()), object.version_id);
                    let removal = Removal {
                        if_match: object.e_tag.map(ETagCondition::ETag),
                        modified: object.last_modified_time,
                        bytes: object.size,
                    };
                    let version = version_id.as_deref();
                    let done = vault.delete(&bucket, &object.key, version, &removal, &origin);
                    match done.map_err(S3Error::from) {
                        Ok(done) => deleted.push(DeletedObject {
                            delete_marker: done.is_marker.then_some(true),
                            delete_marker_version_id: done.id.filter(|_| done.is_marker),
                            key,
                            version_id,
                        }),
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
}

/// Checks a change, as far as possible before its body.
fn open_for_change<D: Disk>(
    vault: &Vault<D>,
    bucket: &str,
    key: &str,
    conditions: &Conditions,
) -> Result<(), Fault> {
    let found = vault.open_object(bucket, key, None)?;
    if conditions.if_match.is_none() && conditions.if_none_match.is_none() {
        return Ok(());
    }
    let e_tag = found.about.map(|about| about.e_tag).filter(|e_tag| !e_tag.is_empty());
    let e_tag = e_tag.map_or_else(|| md5_of(&found.file, found.stat.bytes), Ok)?;
    conditions.check_change(Some(&e_tag))
}

/// The object that a copy reads.
pub struct Source {
    bucket: Box<str>,
    key: Box<str>,
    version: Option<Box<str>>,
}

impl Source {
    /// Its bucket, key and version.
    pub fn as_deref(&self) -> (&str, &str, Option<&str>) {
        (&self.bucket, &self.key, self.version.as_deref())
    }
}

/// The object that a copy reads.
pub fn source(source: CopySource) -> Result<Source, Fault> {
    match source {
        CopySource::Bucket { bucket, key, version_id } => {
            Ok(Source { bucket, key, version: version_id })
        }
        CopySource::AccessPoint { .. } | CopySource::Outpost { .. } => {
            Err(Fault::Unsupported("there are no access points here; name the bucket".to_owned()))
        }
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = S3Result<S3Response<T>>> + Send + 'a>>;

macro_rules! operations {
    ($($name:ident: $input:ident => $output:ident by $own:ident,)*) => {
        impl<D: Disk> S3 for Objects<D> {
            $(fn $name<'a, 'b>(&'a self, mut req: S3Request<$input>) -> Answer<'b, $output>
            where
                'a: 'b,
                Self: 'b,
            {
                let id = RequestId(request_id());
                req.extensions.insert(id.clone());
                Box::pin(whole(id, offered(&req.headers), self.clone().$own(req)))
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
    delete_bucket_tagging:
        DeleteBucketTaggingInput => DeleteBucketTaggingOutput by remove_bucket_tags,
    delete_bucket: DeleteBucketInput => DeleteBucketOutput by delete_a_bucket,
    delete_object: DeleteObjectInput => DeleteObjectOutput by delete,
    delete_object_tagging:
        DeleteObjectTaggingInput => DeleteObjectTaggingOutput by remove_tags,
    delete_objects: DeleteObjectsInput => DeleteObjectsOutput by delete_all,
    get_bucket_acl: GetBucketAclInput => GetBucketAclOutput by bucket_acl,
    get_bucket_tagging: GetBucketTaggingInput => GetBucketTaggingOutput by bucket_tags,
    get_bucket_versioning:
        GetBucketVersioningInput => GetBucketVersioningOutput by versioning,
    get_bucket_location: GetBucketLocationInput => GetBucketLocationOutput by location,
    get_bucket_notification_configuration: GetBucketNotificationConfigurationInput
        => GetBucketNotificationConfigurationOutput by configured_notifications,
    get_object_acl: GetObjectAclInput => GetObjectAclOutput by object_acl,
    get_object_attributes:
        GetObjectAttributesInput => GetObjectAttributesOutput by attributes,
    get_object_tagging: GetObjectTaggingInput => GetObjectTaggingOutput by tags,
    get_object: GetObjectInput => GetObjectOutput by get,
    head_bucket: HeadBucketInput => HeadBucketOutput by has_bucket,
    head_object: HeadObjectInput => HeadObjectOutput by head,
    list_buckets: ListBucketsInput => ListBucketsOutput by buckets,
    list_multipart_uploads:
        ListMultipartUploadsInput => ListMultipartUploadsOutput by list_uploads,
    list_object_versions:
        ListObjectVersionsInput => ListObjectVersionsOutput by list_versions,
    list_objects: ListObjectsInput => ListObjectsOutput by list_v1,
    list_objects_v2: ListObjectsV2Input => ListObjectsV2Output by list_v2,
    list_parts: ListPartsInput => ListPartsOutput by parts,
    put_bucket_notification_configuration: PutBucketNotificationConfigurationInput
        => PutBucketNotificationConfigurationOutput by configure_notifications,
    put_bucket_tagging: PutBucketTaggingInput => PutBucketTaggingOutput by set_bucket_tags,
    put_bucket_versioning:
        PutBucketVersioningInput => PutBucketVersioningOutput by set_versioning,
    put_object_tagging: PutObjectTaggingInput => PutObjectTaggingOutput by set_tags,
    post_object: PostObjectInput => PostObjectOutput by post,
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
        let id = RequestId(request_id());
        let mut change = Box::pin(whole::<(), ()>(id, Ok(()), async {
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
}
