//! The operations on buckets, and the region that a bucket was created for.
//!
//! There is one store, and so one place: a region is a label of a bucket, in `.unlade/locations/BUCKET`.
//! A bucket without one is of `us-east-1`, where a bucket may be created again by its owner.

use std::io;
use std::path::PathBuf;

use s3s::dto::*;
use s3s::{S3Request, S3Result};

use crate::about::Versioning;
use crate::conditions::timestamp;
use crate::disk::{self, Disk, Stat, there};
use crate::fault::Fault;
use crate::list::{token, untoken};
use crate::objects::{Objects, owner};
use crate::vault::{SMALL_BYTES_MAX, Vault};

/// The region that a bucket has without a label.
pub const FIRST_REGION: &str = "us-east-1";

impl<D: Disk> Vault<D> {
    fn location_path(&self, bucket: &str) -> PathBuf {
        self.own("locations").join(bucket)
    }

    /// The region of a bucket, if it is another one than the first.
    ///
    /// # Errors
    /// The system call failed.
    pub fn location(&self, bucket: &str) -> io::Result<Option<String>> {
        let text = there(disk::read(&*self.disk, &self.location_path(bucket), SMALL_BYTES_MAX))?;
        text.map(|text| String::from_utf8(text).map_err(io::Error::other)).transpose()
    }

    /// Sets the region of a bucket that does not exist yet, durably.
    ///
    /// # Errors
    /// The system call failed.
    pub fn set_location(&self, bucket: &str, region: Option<&str>) -> io::Result<()> {
        let path = self.location_path(bucket);
        match region {
            Some(region) => self.write(&path, region.as_bytes()),
            None => match (there(self.disk.remove_file(&path))?, path.parent()) {
                (Some(()), Some(dir)) => self.disk.sync_dir(dir),
                _ => Ok(()),
            },
        }
    }
}

impl<D: Disk> Objects<D> {
    pub(crate) async fn versioning(
        self,
        req: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<GetBucketVersioningOutput> {
        let state = self.with(move |vault| {
            vault.check_bucket(&req.input.bucket)?;
            Ok(vault.versioning(&req.input.bucket)?)
        });
        let status = match state.await? {
            Versioning::Off => None,
            Versioning::Enabled => Some(BucketVersioningStatus::ENABLED),
            Versioning::Suspended => Some(BucketVersioningStatus::SUSPENDED),
        };
        let status = status.map(BucketVersioningStatus::from_static);
        Ok(GetBucketVersioningOutput { status, ..GetBucketVersioningOutput::default() })
    }

    pub(crate) async fn set_versioning(
        self,
        req: S3Request<PutBucketVersioningInput>,
    ) -> S3Result<PutBucketVersioningOutput> {
        let input = req.input;
        let status = input.versioning_configuration.status;
        let state = match status.as_ref().map(BucketVersioningStatus::as_str) {
            Some(BucketVersioningStatus::ENABLED) => Versioning::Enabled,
            Some(BucketVersioningStatus::SUSPENDED) => Versioning::Suspended,
            _ => return Err(s3s::s3_error!(MalformedXML, "the status is Enabled or Suspended")),
        };
        self.with(move |vault| vault.set_versioning(&input.bucket, state)).await?;
        Ok(PutBucketVersioningOutput::default())
    }

    pub(crate) async fn create_a_bucket(
        self,
        req: S3Request<CreateBucketInput>,
    ) -> S3Result<CreateBucketOutput> {
        let input = req.input;
        let answer = Some(format!("/{}", input.bucket));
        let asked = input.create_bucket_configuration.and_then(|all| all.location_constraint);
        let asked = asked.map(|asked| asked.as_str().to_owned());
        let asked = asked.filter(|asked| !matches!(asked.as_str(), "" | FIRST_REGION));
        self.with(move |vault| vault.create_bucket(&input.bucket, asked.as_deref())).await?;
        Ok(CreateBucketOutput { location: answer })
    }

    pub(crate) async fn delete_a_bucket(
        self,
        req: S3Request<DeleteBucketInput>,
    ) -> S3Result<DeleteBucketOutput> {
        self.with(move |vault| vault.delete_bucket(&req.input.bucket)).await?;
        Ok(DeleteBucketOutput::default())
    }

    pub(crate) async fn buckets(
        self,
        req: S3Request<ListBucketsInput>,
    ) -> S3Result<ListBucketsOutput> {
        let input = req.input;
        let wrong = || Fault::Argument("continuation-token is invalid".to_owned());
        let after = input.continuation_token.as_deref();
        let after = after.map(|token| untoken(token).ok_or_else(wrong)).transpose()?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let mut found = self.with(|vault| Ok(vault.all_buckets()?)).await?;
        found.retain(|(name, _)| {
            name.starts_with(&prefix) && after.as_ref().is_none_or(|after| name > after)
        });
        let count_max =
            input.max_buckets.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(0));
        let is_truncated = found.len() > count_max;
        found.truncate(count_max);
        let last = found.last().filter(|_| is_truncated);
        let continuation_token = last.map(|(name, _)| token(name));
        let bucket = |(name, stat): (String, Stat)| Bucket {
            name: Some(name),
            creation_date: Some(timestamp(stat.modified_ns)),
            ..Bucket::default()
        };
        let buckets = Some(found.into_iter().map(bucket).collect());
        let (owner, prefix) = (Some(owner()), input.prefix);
        Ok(ListBucketsOutput { buckets, continuation_token, owner, prefix })
    }

    pub(crate) async fn location(
        self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<GetBucketLocationOutput> {
        let found = self.with(move |vault| {
            vault.check_bucket(&req.input.bucket)?;
            Ok(vault.location(&req.input.bucket)?)
        });
        let location_constraint = found.await?.map(BucketLocationConstraint::from);
        Ok(GetBucketLocationOutput { location_constraint })
    }

    pub(crate) async fn has_bucket(
        self,
        req: S3Request<HeadBucketInput>,
    ) -> S3Result<HeadBucketOutput> {
        self.with(move |vault| vault.check_bucket(&req.input.bucket)).await?;
        Ok(HeadBucketOutput::default())
    }
}
