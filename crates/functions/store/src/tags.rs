//! Tags of objects and buckets, and the storage class, which is a label here.
//!
//! The tags of an object are in its metadata, which one rename replaces. Those of a bucket are in
//! `.unlade/tags/BUCKET`.

use std::io;
use std::path::PathBuf;

use s3s::dto::*;
use s3s::{S3Request, S3Result};

use crate::about::{About, Tags};
use crate::disk::{self, Disk, DiskFile as _, there};
use crate::fault::Fault;
use crate::labels::{BUCKET_TAGS_MAX, OBJECT_TAGS_MAX, STANDARD, set, told};
use crate::objects::Objects;
use crate::vault::{SMALL_BYTES_MAX, Vault};
use crate::versions::NULL;

impl About {
    /// The storage class for a list.
    pub fn listed_class(&self) -> String {
        self.storage_class.clone().unwrap_or_else(|| STANDARD.to_owned())
    }

    /// The storage class for a response's header field, which `STANDARD` does not have.
    pub fn class(&self) -> Option<StorageClass> {
        self.storage_class.clone().map(StorageClass::from)
    }

    /// The number of tags for a response's header field.
    pub fn tag_count(&self) -> Option<i32> {
        i32::try_from(self.tags.len()).ok().filter(|count| *count > 0)
    }
}

impl<D: Disk> Vault<D> {
    fn tags_path(&self, bucket: &str) -> PathBuf {
        self.own("tags").join(bucket)
    }

    /// Replaces the tags of a version, or of the newest one, durably. Returns the id of the version,
    /// in a bucket with versions.
    ///
    /// # Errors
    /// The object does not exist, it is a delete marker, or the system call failed.
    pub fn set_tags(
        &self,
        bucket: &str,
        key: &str,
        asked: Option<&str>,
        tags: Tags,
    ) -> Result<Option<String>, Fault> {
        let _shared = self.shared();
        self.check(bucket, key)?;
        let _own = self.lock(bucket, key);
        let found = self.open_object(bucket, key, asked)?;
        let about = About { tags, ..found.about.unwrap_or_default() };
        self.replace_about(bucket, key, found.id.as_deref(), &found.file.stat()?, &about)?;
        Ok(found.id)
    }

    /// The tags of a bucket, if it has any.
    ///
    /// # Errors
    /// The bucket does not exist, or the system call failed.
    pub fn bucket_tags(&self, bucket: &str) -> Result<Option<Tags>, Fault> {
        self.check_bucket(bucket)?;
        let text = there(disk::read(&*self.disk, &self.tags_path(bucket), SMALL_BYTES_MAX))?;
        let parse = |text: Vec<u8>| serde_json::from_slice(&text).map_err(io::Error::other);
        Ok(text.map(parse).transpose()?)
    }

    /// Replaces the tags of a bucket, durably.
    ///
    /// # Errors
    /// The bucket does not exist, or the system call failed.
    pub fn set_bucket_tags(&self, bucket: &str, tags: &Tags) -> Result<(), Fault> {
        let _alone = self.alone();
        self.check_bucket(bucket)?;
        let text = serde_json::to_vec(tags).map_err(io::Error::other)?;
        Ok(self.write(&self.tags_path(bucket), &text)?)
    }

    /// Removes the tags of a bucket, durably. The caller has the lock of buckets.
    ///
    /// # Errors
    /// The system call failed.
    pub fn remove_bucket_tags(&self, bucket: &str) -> io::Result<()> {
        let path = self.tags_path(bucket);
        match (there(self.disk.remove_file(&path))?, path.parent()) {
            (Some(()), Some(dir)) => self.disk.sync_dir(dir),
            _ => Ok(()),
        }
    }
}

impl<D: Disk> Objects<D> {
    pub(crate) async fn tags(
        self,
        req: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<GetObjectTaggingOutput> {
        let (bucket, key, version) = (req.input.bucket, req.input.key, req.input.version_id);
        let found =
            self.with(move |vault| vault.open_object(&bucket, &key, version.as_deref())).await?;
        let tags = found.about.unwrap_or_default().tags;
        Ok(GetObjectTaggingOutput { tag_set: set(tags), version_id: said(found.id) })
    }

    pub(crate) async fn set_tags(
        self,
        req: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<PutObjectTaggingOutput> {
        let input = req.input;
        let tags = told(input.tagging.tag_set, OBJECT_TAGS_MAX)?;
        let version_id = self.retag((input.bucket, input.key, input.version_id), tags).await?;
        Ok(PutObjectTaggingOutput { version_id })
    }

    pub(crate) async fn remove_tags(
        self,
        req: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<DeleteObjectTaggingOutput> {
        let input = req.input;
        let none = Tags::new();
        let version_id = self.retag((input.bucket, input.key, input.version_id), none).await?;
        Ok(DeleteObjectTaggingOutput { version_id })
    }

    async fn retag(
        self,
        (bucket, key, version): (String, String, Option<String>),
        tags: Tags,
    ) -> S3Result<Option<String>> {
        let change =
            move |vault: &Vault<D>| vault.set_tags(&bucket, &key, version.as_deref(), tags);
        Ok(said(self.with(change).await?))
    }

    pub(crate) async fn bucket_tags(
        self,
        req: S3Request<GetBucketTaggingInput>,
    ) -> S3Result<GetBucketTaggingOutput> {
        let found = self.with(move |vault| vault.bucket_tags(&req.input.bucket)).await?;
        let tag_set = set(found.ok_or(Fault::NoTags)?);
        Ok(GetBucketTaggingOutput { tag_set })
    }

    pub(crate) async fn set_bucket_tags(
        self,
        req: S3Request<PutBucketTaggingInput>,
    ) -> S3Result<PutBucketTaggingOutput> {
        let tags = told(req.input.tagging.tag_set, BUCKET_TAGS_MAX)?;
        self.with(move |vault| vault.set_bucket_tags(&req.input.bucket, &tags)).await?;
        Ok(PutBucketTaggingOutput::default())
    }

    pub(crate) async fn remove_bucket_tags(
        self,
        req: S3Request<DeleteBucketTaggingInput>,
    ) -> S3Result<DeleteBucketTaggingOutput> {
        self.with(move |vault| {
            let _alone = vault.alone();
            vault.check_bucket(&req.input.bucket)?;
            Ok(vault.remove_bucket_tags(&req.input.bucket)?)
        })
        .await?;
        Ok(DeleteBucketTaggingOutput::default())
    }
}

/// The id of a version for a response; that of one without an id of its own is not sent.
fn said(id: Option<String>) -> Option<String> {
    id.filter(|id| id != NULL)
}
