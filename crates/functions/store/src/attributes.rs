//! Attributes of objects and buckets that are no data: `GetObjectAttributes`, and access control
//! lists, which all are those of the one owner.

use s3s::dto::*;
use s3s::{S3Request, S3Result};

use crate::about::PartAbout;
use crate::conditions::{strong, timestamp};
use crate::disk::Disk;
use crate::list::ENTRIES_MAX;
use crate::objects::{Objects, open, owner};

/// The owner has all rights.
fn grants() -> Vec<Grant> {
    let owner = owner();
    let grantee = Grantee {
        display_name: owner.display_name,
        email_address: None,
        id: owner.id,
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    let permission = Some(Permission::from_static(Permission::FULL_CONTROL));
    vec![Grant { grantee: Some(grantee), permission }]
}

impl<D: Disk> Objects<D> {
    pub(crate) async fn attributes(
        self,
        req: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<GetObjectAttributesOutput> {
        let input = req.input;
        let (bucket, key, version) = (input.bucket, input.key, input.version_id);
        let opened =
            self.with(move |vault| open(vault, (&bucket, &key, version.as_deref()))).await?;
        let (stat, about) = (opened.stat, opened.about);
        // One header field may name several.
        let asked = input.object_attributes.iter().flat_map(|one| one.as_str().split(','));
        let asked: Vec<&str> = asked.map(str::trim).collect();
        let is = |name: &str| asked.contains(&name);
        let after = input.part_number_marker.unwrap_or(0);
        let count_max = input.max_parts.and_then(|max| usize::try_from(max).ok());
        let count_max = count_max.unwrap_or(ENTRIES_MAX).min(ENTRIES_MAX);
        let parts = (is(ObjectAttributes::OBJECT_PARTS) && !about.parts.is_empty()).then(|| {
            let all: Vec<&PartAbout> = about.parts.iter().filter(|p| p.number > after).collect();
            let shown = &all[..all.len().min(count_max)];
            let part = |part: &&PartAbout| {
                let sum = part.checksum.clone();
                let sums = about.parted.zip(sum).map(|(parted, sum)| parted.algorithm.only(sum));
                let sums = sums.unwrap_or_default();
                ObjectPart {
                    checksum_crc32: sums.checksum_crc32,
                    checksum_crc32c: sums.checksum_crc32c,
                    checksum_crc64nvme: sums.checksum_crc64nvme,
                    checksum_sha1: sums.checksum_sha1,
                    checksum_sha256: sums.checksum_sha256,
                    part_number: Some(part.number),
                    size: i64::try_from(part.bytes).ok(),
                }
            };
            GetObjectAttributesParts {
                is_truncated: Some(shown.len() < all.len()),
                max_parts: i32::try_from(count_max).ok(),
                next_part_number_marker: shown.last().map(|part| part.number),
                part_number_marker: Some(after),
                parts: Some(shown.iter().map(part).collect()),
                total_parts_count: i32::try_from(about.parts.len()).ok(),
            }
        });
        let checksum = about.checksum();
        let has_checksum = is(ObjectAttributes::CHECKSUM) && checksum.checksum_type.is_some();
        Ok(GetObjectAttributesOutput {
            checksum: has_checksum.then_some(checksum),
            e_tag: is(ObjectAttributes::ETAG).then(|| strong(&about.e_tag)),
            last_modified: Some(timestamp(stat.modified_ns)),
            object_parts: parts,
            object_size: i64::try_from(stat.bytes)
                .ok()
                .filter(|_| is(ObjectAttributes::OBJECT_SIZE)),
            storage_class: is(ObjectAttributes::STORAGE_CLASS)
                .then(|| StorageClass::from(about.listed_class())),
            version_id: opened.id,
            ..GetObjectAttributesOutput::default()
        })
    }

    pub(crate) async fn bucket_acl(
        self,
        req: S3Request<GetBucketAclInput>,
    ) -> S3Result<GetBucketAclOutput> {
        self.with(move |vault| vault.check_bucket(&req.input.bucket)).await?;
        Ok(GetBucketAclOutput { grants: Some(grants()), owner: Some(owner()) })
    }

    pub(crate) async fn object_acl(
        self,
        req: S3Request<GetObjectAclInput>,
    ) -> S3Result<GetObjectAclOutput> {
        let (bucket, key, version) = (req.input.bucket, req.input.key, req.input.version_id);
        self.with(move |vault| vault.open_object(&bucket, &key, version.as_deref())).await?;
        Ok(GetObjectAclOutput {
            grants: Some(grants()),
            owner: Some(owner()),
            ..GetObjectAclOutput::default()
        })
    }
}
