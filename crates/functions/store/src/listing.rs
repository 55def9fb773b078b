//! The operations of lists: objects, versions, uploads.

use s3s::dto::*;
use s3s::{S3Error, S3Request, S3Result};

use crate::about::About;
use crate::conditions::{strong, timestamp};
use crate::disk::{Disk, Stat};
use crate::fault::Fault;
use crate::labels::STANDARD;
use crate::list::{self, Asked, ENTRIES_MAX, Entry, Keys, Page};
use crate::objects::{Objects, owner};
use crate::uploads::Begun;
use crate::vault::Vault;
use crate::versions::Listed;

/// Names in a response, encoded if the request asks for it.
#[derive(Clone, Copy)]
struct Said {
    is_url: bool,
}

impl Said {
    fn new(encoding: Option<&EncodingType>) -> Said {
        Said { is_url: encoding.is_some_and(|e| e.as_str() == EncodingType::URL) }
    }

    fn name(self, name: &str) -> String {
        if self.is_url { list::url(name) } else { name.to_owned() }
    }

    fn optional(self, name: Option<&str>) -> Option<String> {
        name.map(|name| self.name(name))
    }

    fn delimiter(self, delimiter: Option<&str>) -> Option<String> {
        self.optional(delimiter.filter(|delimiter| !delimiter.is_empty()))
    }

    fn prefix(self, name: &str) -> CommonPrefix {
        CommonPrefix { prefix: Some(self.name(name)) }
    }
}

fn entries_max(asked: Option<i32>) -> Result<usize, Fault> {
    let max = usize::try_from(asked.unwrap_or(i32::MAX))
        .map_err(|_| Fault::Argument("the maximum of a page is not negative".to_owned()))?;
    Ok(max.min(ENTRIES_MAX))
}

fn count(entries: usize) -> Option<i32> {
    i32::try_from(entries).ok()
}

fn class(about: Option<&About>) -> String {
    about.map_or_else(|| STANDARD.to_owned(), About::listed_class)
}

type Detail = (Stat, Option<About>);

fn objects_page<D: Disk>(
    vault: &Vault<D>,
    bucket: &str,
    asked: &Asked<'_>,
) -> Result<Page<Detail>, Fault> {
    vault.check_bucket(bucket)?;
    let state = vault.versioning(bucket)?;
    let mut keys = Keys::new(vault, bucket, state);
    let mut seek = |bound: &[u8]| Ok(keys.seek(bound)?);
    let mut see = |key: &str| Ok(vault.listed(bucket, key, state)?.into_iter().collect());
    list::page(asked, &mut seek, &mut see)
}

/// A page of versions begins after a version of `asked.after`, or after that key.
fn versions_page<D: Disk>(
    vault: &Vault<D>,
    bucket: &str,
    mut asked: Asked<'_>,
    version: Option<&str>,
) -> Result<Page<Listed>, Fault> {
    vault.check_bucket(bucket)?;
    let state = vault.versioning(bucket)?;
    let mut keys = Keys::new(vault, bucket, state);
    let within = version.and(asked.after);
    asked.after = asked.after.filter(|_| version.is_none());
    let mut seek = |bound: &[u8]| {
        let floor = within.unwrap_or_default().as_bytes();
        Ok(keys.seek(bound.max(floor))?)
    };
    let mut see = |key: &str| {
        let mut found = vault.listed_versions(bucket, key, state)?;
        let Some(version) = version.filter(|_| within == Some(key)) else { return Ok(found) };
        match found.iter().position(|one| one.id == version) {
            Some(at) => drop(found.drain(..=at)),
            // It was removed after the page before.
            None => found.retain(|one| one.is_behind(version)),
        }
        Ok(found)
    };
    list::page(&asked, &mut seek, &mut see)
}

impl<D: Disk> Objects<D> {
    async fn list(
        self,
        input: ListObjectsV2Input,
        after: Option<String>,
    ) -> S3Result<ListObjectsV2Output> {
        let entries_max = entries_max(input.max_keys)?;
        let (bucket, delimiter) = (input.bucket.clone(), input.delimiter.clone());
        let prefix = input.prefix.clone().unwrap_or_default();
        let page = self
            .with(move |vault| {
                let (delimiter, after) = (delimiter.as_deref(), after.as_deref());
                let asked = Asked { prefix: &prefix, delimiter, after, entries_max };
                objects_page(vault, &bucket, &asked)
            })
            .await?;
        let said = Said::new(input.encoding_type.as_ref());
        let last = page.entries.last().filter(|_| page.is_truncated);
        let last = last.map(|entry| entry.name().to_owned());
        let (mut contents, mut prefixes) = (Vec::new(), Vec::new());
        let has_owner = input.fetch_owner.unwrap_or(false);
        for entry in page.entries {
            match entry {
                Entry::Prefix(name) => prefixes.push(said.prefix(&name)),
                Entry::Key(name, (stat, about)) => contents.push(Object {
                    key: Some(said.name(&name)),
                    last_modified: Some(timestamp(stat.modified_ns)),
                    size: i64::try_from(stat.bytes).ok(),
                    storage_class: Some(ObjectStorageClass::from(class(about.as_ref()))),
                    e_tag: about.filter(|a| !a.e_tag.is_empty()).map(|a| strong(&a.e_tag)),
                    owner: has_owner.then(owner),
                    ..Object::default()
                }),
            }
        }
        Ok(ListObjectsV2Output {
            key_count: count(contents.len() + prefixes.len()),
            max_keys: count(entries_max),
            is_truncated: Some(page.is_truncated),
            contents: (!contents.is_empty()).then_some(contents),
            common_prefixes: (!prefixes.is_empty()).then_some(prefixes),
            continuation_token: input.continuation_token,
            next_continuation_token: last,
            delimiter: said.delimiter(input.delimiter.as_deref()),
            encoding_type: input.encoding_type,
            name: Some(input.bucket),
            prefix: Some(said.name(&input.prefix.unwrap_or_default())),
            start_after: said.optional(input.start_after.as_deref()),
            ..ListObjectsV2Output::default()
        })
    }

    pub(crate) async fn list_v2(
        self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<ListObjectsV2Output> {
        let wrong = || S3Error::from(Fault::Argument("continuation-token is invalid".to_owned()));
        let token = req.input.continuation_token.as_deref();
        let token = token.map(|token| list::untoken(token).ok_or_else(wrong)).transpose()?;
        // Clients may repeat `start-after` behind the first page, even with another value.
        let after = token.or_else(|| req.input.start_after.clone());
        let mut output = self.list(req.input, after).await?;
        output.next_continuation_token = output.next_continuation_token.map(|l| list::token(&l));
        Ok(output)
    }

    pub(crate) async fn list_v1(
        self,
        req: S3Request<ListObjectsInput>,
    ) -> S3Result<ListObjectsOutput> {
        let input = req.input;
        let marker = input.marker.clone().unwrap_or_default();
        let said = Said::new(input.encoding_type.as_ref());
        let v2 = ListObjectsV2Input {
            bucket: input.bucket,
            delimiter: input.delimiter,
            encoding_type: input.encoding_type,
            fetch_owner: Some(true),
            max_keys: input.max_keys,
            prefix: input.prefix,
            ..ListObjectsV2Input::default()
        };
        let output = self.list(v2, input.marker).await?;
        // Without a delimiter, clients continue after the last key.
        let next = output.next_continuation_token.filter(|_| output.delimiter.is_some());
        Ok(ListObjectsOutput {
            contents: output.contents,
            common_prefixes: output.common_prefixes,
            delimiter: output.delimiter,
            encoding_type: output.encoding_type,
            name: output.name,
            prefix: output.prefix,
            marker: Some(said.name(&marker)),
            max_keys: output.max_keys,
            is_truncated: output.is_truncated,
            next_marker: said.optional(next.as_deref()),
            ..ListObjectsOutput::default()
        })
    }

    pub(crate) async fn list_versions(
        self,
        req: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<ListObjectVersionsOutput> {
        let input = req.input;
        let entries_max = entries_max(input.max_keys)?;
        let (bucket, delimiter) = (input.bucket.clone(), input.delimiter.clone());
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = input.key_marker.clone().filter(|key| !key.is_empty());
        let version = input.version_id_marker.clone().filter(|id| !id.is_empty());
        if version.is_some() && after.is_none() {
            let why = "A version-id marker cannot be specified without a key marker.";
            return Err(Fault::Argument(why.to_owned()).into());
        }
        let page = self
            .with(move |vault| {
                let (delimiter, after) = (delimiter.as_deref(), after.as_deref());
                let asked = Asked { prefix: &prefix, delimiter, after, entries_max };
                versions_page(vault, &bucket, asked, version.as_deref())
            })
            .await?;
        let said = Said::new(input.encoding_type.as_ref());
        let next = page.entries.last().filter(|_| page.is_truncated).map(|entry| match entry {
            Entry::Prefix(name) => (said.name(name), None),
            Entry::Key(name, one) => (said.name(name), Some(one.id.clone())),
        });
        let (next_key, next_id) = next.unzip();
        let (mut versions, mut markers, mut prefixes) = (Vec::new(), Vec::new(), Vec::new());
        for entry in page.entries {
            let (name, one) = match entry {
                Entry::Prefix(name) => {
                    prefixes.push(said.prefix(&name));
                    continue;
                }
                Entry::Key(name, one) => (name, one),
            };
            let (key, is_latest) = (Some(said.name(&name)), Some(one.is_latest));
            let (last_modified, owner) = (Some(timestamp(one.modified_ns)), Some(owner()));
            let version_id = Some(one.id);
            match one.object {
                None => markers.push(DeleteMarkerEntry {
                    is_latest,
                    key,
                    last_modified,
                    owner,
                    version_id,
                }),
                Some((stat, about)) => versions.push(ObjectVersion {
                    storage_class: Some(ObjectVersionStorageClass::from(class(about.as_ref()))),
                    e_tag: about.filter(|a| !a.e_tag.is_empty()).map(|a| strong(&a.e_tag)),
                    is_latest,
                    key,
                    last_modified,
                    owner,
                    size: i64::try_from(stat.bytes).ok(),
                    version_id,
                    ..ObjectVersion::default()
                }),
            }
        }
        Ok(ListObjectVersionsOutput {
            common_prefixes: (!prefixes.is_empty()).then_some(prefixes),
            delete_markers: (!markers.is_empty()).then_some(markers),
            delimiter: said.delimiter(input.delimiter.as_deref()),
            encoding_type: input.encoding_type,
            is_truncated: Some(page.is_truncated),
            key_marker: Some(said.name(&input.key_marker.unwrap_or_default())),
            max_keys: count(entries_max),
            name: Some(input.bucket),
            next_key_marker: next_key,
            next_version_id_marker: next_id.flatten(),
            prefix: Some(said.name(&input.prefix.unwrap_or_default())),
            version_id_marker: input.version_id_marker,
            versions: (!versions.is_empty()).then_some(versions),
            ..ListObjectVersionsOutput::default()
        })
    }

    pub(crate) async fn list_uploads(
        self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<ListMultipartUploadsOutput> {
        let input = req.input;
        let entries_max = entries_max(input.max_uploads)?;
        let bucket = input.bucket.clone();
        let begun = self.with(move |vault| vault.uploads(&bucket)).await?;
        let said = Said::new(input.encoding_type.as_ref());
        let prefix = input.prefix.unwrap_or_default();
        let key_marker = input.key_marker.unwrap_or_default();
        let asked = Asked {
            prefix: &prefix,
            delimiter: input.delimiter.as_deref(),
            after: Some(key_marker.as_str()).filter(|key| !key.is_empty()),
            entries_max,
        };
        let page = uploads_page(&begun, asked, input.upload_id_marker.as_deref());
        let next = page.entries.last().filter(|_| page.is_truncated).map(|entry| match entry {
            Entry::Prefix(name) => (said.name(name), None),
            Entry::Key(name, one) => (said.name(name), Some(one.id.clone())),
        });
        let (next_key, next_id) = next.unzip();
        let (mut uploads, mut prefixes) = (Vec::new(), Vec::new());
        for entry in &page.entries {
            match entry {
                Entry::Prefix(name) => prefixes.push(said.prefix(name)),
                Entry::Key(name, one) => uploads.push(MultipartUpload {
                    initiated: Some(timestamp(one.begun_ns)),
                    key: Some(said.name(name)),
                    owner: Some(owner()),
                    storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
                    upload_id: Some(one.id.clone()),
                    ..MultipartUpload::default()
                }),
            }
        }
        Ok(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            common_prefixes: (!prefixes.is_empty()).then_some(prefixes),
            delimiter: said.delimiter(input.delimiter.as_deref()),
            encoding_type: input.encoding_type,
            is_truncated: Some(page.is_truncated),
            key_marker: Some(said.name(&key_marker)),
            max_uploads: count(entries_max),
            next_key_marker: next_key,
            next_upload_id_marker: next_id.flatten(),
            prefix: Some(said.name(&prefix)),
            upload_id_marker: input.upload_id_marker,
            uploads: (!uploads.is_empty()).then_some(uploads),
            ..ListMultipartUploadsOutput::default()
        })
    }
}

/// A page of uploads, which are sorted by key; it begins after an upload of `asked.after`, or after
/// that key.
fn uploads_page<'a>(
    begun: &'a [Begun],
    mut asked: Asked<'_>,
    upload: Option<&str>,
) -> Page<&'a Begun> {
    let upload = upload.filter(|id| !id.is_empty());
    let within = upload.and(asked.after);
    asked.after = asked.after.filter(|_| upload.is_none());
    let floor = within.unwrap_or_default().as_bytes();
    let mut seek = |bound: &[u8]| {
        let bound = bound.max(floor);
        let at = begun.partition_point(|one| one.key.as_bytes() < bound);
        Ok::<_, std::convert::Infallible>(begun.get(at).map(|one| one.key.clone()))
    };
    let mut see = |key: &str| {
        let mut found: Vec<&Begun> = begun.iter().filter(|one| one.key == key).collect();
        let at = found.iter().position(|one| Some(one.id.as_str()) == upload);
        if let (true, Some(at)) = (within == Some(key), at) {
            found.drain(..=at);
        }
        Ok(found)
    };
    let Ok(page) = list::page(&asked, &mut seek, &mut see);
    page
}
