//! The operations of multipart uploads.

use s3s::checksum::ChecksumHasher;
use s3s::dto::*;
use s3s::{S3Request, S3Result};

use crate::about::{About, Version};
use crate::body::{self, Expected, take};
use crate::checksums::Parted;
use crate::conditions::{Conditions, strong, timestamp};
use crate::disk::{Disk, DiskFile as _};
use crate::event::Creation;
use crate::fault::Fault;
use crate::labels;
use crate::list::ENTRIES_MAX;
use crate::objects::{
    Objects, about, cause, e_tag_now, expected, open, own_encodings, owner, source,
};
use crate::uploads::AskedPart;
use crate::versions::NULL;

impl<D: Disk> Objects<D> {
    pub(crate) async fn begin(
        self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<CreateMultipartUploadOutput> {
        let mut input = req.input;
        let about = about!(input);
        let algorithm = input.checksum_algorithm.as_ref().map(ChecksumAlgorithm::as_str);
        let kind = input.checksum_type.as_ref().map(ChecksumType::as_str);
        let parted = Parted::asked(algorithm, kind)?;
        let (bucket, key) = (input.bucket.clone(), input.key.clone());
        let id = self.with(move |vault| vault.begin_upload(&bucket, &key, about, parted)).await?;
        Ok(CreateMultipartUploadOutput {
            checksum_algorithm: input.checksum_algorithm,
            checksum_type: parted.map(|parted| ChecksumType::from_static(parted.kind())),
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            ..CreateMultipartUploadOutput::default()
        })
    }

    pub(crate) async fn part(self, req: S3Request<UploadPartInput>) -> S3Result<UploadPartOutput> {
        let (mut input, trailer) = (req.input, req.trailing_headers);
        let mut expected = expected!(input);
        let (number, upload) = (input.part_number, (input.bucket, input.key, input.upload_id));
        let own = upload.clone();
        let parted =
            self.with(move |vault| vault.check_part((&own.0, &own.1, &own.2), number)).await?;
        if let Some(parted) = parted {
            let own = || ChecksumAlgorithm::from_static(parted.algorithm.name());
            expected.algorithm.get_or_insert_with(own);
        }
        let taken = take(&self.vault, input.body, &expected).await?;
        expected.add_trailer(trailer.as_ref());
        let (e_tag, sums) = self
            .with(move |vault| {
                let (e_tag, sums) = taken.sums.finish(&expected)?;
                let upload = (upload.0.as_str(), upload.1.as_str(), upload.2.as_str());
                vault.add_part(upload, number, taken.draft, &e_tag, &sums)?;
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

    pub(crate) async fn part_copy(
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
        let from = source(input.copy_source)?;
        let (number, asked) = (input.part_number, input.copy_source_range);
        let upload = (input.bucket, input.key, input.upload_id);
        let (e_tag, modified_ns, from_id) = self
            .with(move |vault| {
                let upload = (upload.0.as_str(), upload.1.as_str(), upload.2.as_str());
                let parted = vault.check_part(upload, number)?;
                let from = open(vault, from.as_deref())?;
                let modified_ns = from.stat.modified_ns;
                conditions.check_read(&from.about.e_tag, modified_ns, Fault::Precondition)?;
                let range = copied_range(asked.as_deref(), from.stat.bytes)?;
                let mut draft = vault.draft()?;
                let mut hasher = ChecksumHasher::default();
                if let Some(parted) = parted {
                    parted.algorithm.start(&mut hasher);
                }
                let e_tag = body::copy(&from.file, range, &mut draft.file, &mut hasher)?;
                let modified_ns = draft.file.stat()?.modified_ns;
                vault.add_part(upload, number, draft, &e_tag, &hasher.finalize())?;
                Ok((e_tag, modified_ns, from.id))
            })
            .await?;
        let result = CopyPartResult {
            e_tag: Some(ETag::Strong(e_tag)),
            last_modified: Some(timestamp(modified_ns)),
            ..CopyPartResult::default()
        };
        let copy_part_result = Some(result);
        Ok(UploadPartCopyOutput {
            copy_part_result,
            copy_source_version_id: from_id,
            ..UploadPartCopyOutput::default()
        })
    }

    pub(crate) async fn parts(self, req: S3Request<ListPartsInput>) -> S3Result<ListPartsOutput> {
        let input = req.input;
        let own = (input.bucket.clone(), input.key.clone(), input.upload_id.clone());
        let (mut parts, parted) =
            self.with(move |vault| vault.parts(&own.0, &own.1, &own.2)).await?;
        let after = input.part_number_marker.unwrap_or(0);
        let count_max =
            input.max_parts.map_or(ENTRIES_MAX, |max| usize::try_from(max).unwrap_or(0));
        let count_max = count_max.min(ENTRIES_MAX);
        parts.retain(|part| part.number > after);
        let is_truncated = parts.len() > count_max;
        parts.truncate(count_max);
        let last = parts.last().map(|part| part.number);
        let sums = |part: &crate::uploads::Part| {
            let (parted, sum) = (parted?, part.checksum.clone()?);
            Some(parted.algorithm.only(sum))
        };
        let part = |part: crate::uploads::Part| {
            let sums = sums(&part).unwrap_or_default();
            Part {
                checksum_crc32: sums.checksum_crc32,
                checksum_crc32c: sums.checksum_crc32c,
                checksum_crc64nvme: sums.checksum_crc64nvme,
                checksum_sha1: sums.checksum_sha1,
                checksum_sha256: sums.checksum_sha256,
                e_tag: Some(ETag::Strong(part.e_tag)),
                last_modified: Some(timestamp(part.stat.modified_ns)),
                part_number: Some(part.number),
                size: i64::try_from(part.stat.bytes).ok(),
            }
        };
        Ok(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            checksum_algorithm: parted
                .map(|parted| ChecksumAlgorithm::from_static(parted.algorithm.name())),
            checksum_type: parted.map(|parted| ChecksumType::from_static(parted.kind())),
            owner: Some(owner()),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            is_truncated: Some(is_truncated),
            max_parts: i32::try_from(count_max).ok(),
            part_number_marker: input.part_number_marker,
            next_part_number_marker: last.filter(|_| is_truncated),
            parts: Some(parts.into_iter().map(part).collect()),
            ..ListPartsOutput::default()
        })
    }

    pub(crate) async fn complete(
        self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<CompleteMultipartUploadOutput> {
        let cause = cause(&req, Creation::Multipart);
        let input = req.input;
        let parts = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        if parts.is_empty() {
            return Err(s3s::s3_error!(MalformedXML, "You must specify at least one part"));
        }
        let asked = parts.into_iter().map(|part| AskedPart {
            number: part.part_number.unwrap_or(0),
            e_tag: part.e_tag.map(|e_tag| e_tag.value().to_owned()),
            checksum: Checksum {
                checksum_crc32: part.checksum_crc32,
                checksum_crc32c: part.checksum_crc32c,
                checksum_crc64nvme: part.checksum_crc64nvme,
                checksum_sha1: part.checksum_sha1,
                checksum_sha256: part.checksum_sha256,
                ..Checksum::default()
            },
        });
        let asked: Vec<_> = asked.collect();
        let due = Checksum {
            checksum_crc32: input.checksum_crc32,
            checksum_crc32c: input.checksum_crc32c,
            checksum_crc64nvme: input.checksum_crc64nvme,
            checksum_sha1: input.checksum_sha1,
            checksum_sha256: input.checksum_sha256,
            ..Checksum::default()
        };
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
                vault.complete((&bucket, &key, &id), &asked, &due, &condition, &cause)
            })
            .await?;
        let sums = version.about.checksum();
        Ok(CompleteMultipartUploadOutput {
            checksum_crc32: sums.checksum_crc32,
            checksum_crc32c: sums.checksum_crc32c,
            checksum_crc64nvme: sums.checksum_crc64nvme,
            checksum_sha1: sums.checksum_sha1,
            checksum_sha256: sums.checksum_sha256,
            checksum_type: sums.checksum_type,
            location: Some(format!("/{}/{}", input.bucket, input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(strong(&version.about.e_tag)),
            version_id: version.id.filter(|id| id != NULL),
            ..CompleteMultipartUploadOutput::default()
        })
    }

    pub(crate) async fn abort(
        self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<AbortMultipartUploadOutput> {
        let (bucket, key, id) = (req.input.bucket, req.input.key, req.input.upload_id);
        self.with(move |vault| vault.abort(&bucket, &key, &id)).await?;
        Ok(AbortMultipartUploadOutput::default())
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
    match (first > last, last >= bytes) {
        (true, _) => Err(wrong()),
        (false, true) => Err(Fault::Range),
        (false, false) => Ok(first..last + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_copied_parts_are_within_their_source() {
        assert_eq!(copied_range(None, 5).unwrap(), 0..5);
        assert_eq!(copied_range(Some("bytes=1-4"), 5).unwrap(), 1..5);
        for wrong in ["bytes=0-5", "bytes=3-2", "bytes=-2", "0-1", "bytes=0-18446744073709551615"] {
            assert!(copied_range(Some(wrong), 5).is_err(), "{wrong}");
        }
    }
}
