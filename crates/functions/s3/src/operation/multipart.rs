//! Multipart uploads.

use super::objects::{COPIED, DESCRIPTION, SOURCE};
use super::schema::*;

const UPLOAD: &[Field] = &[required(query("UploadId", "uploadId"))];
const PART_NUMBER: &[Field] = &[required(of(Kind::Integer, query("PartNumber", "partNumber")))];

const PART: Shape = Shape::Structure(&[
    text("ETag"),
    text("ChecksumCRC32"),
    text("ChecksumCRC32C"),
    text("ChecksumCRC64NVME"),
    text("ChecksumSHA1"),
    text("ChecksumSHA256"),
    text("ChecksumSHA512"),
    text("ChecksumMD5"),
    text("ChecksumXXHASH64"),
    text("ChecksumXXHASH3"),
    text("ChecksumXXHASH128"),
    leaf("PartNumber", Kind::Integer),
]);
const PARTS: &[Member] = &[named("Parts", "Part", Shape::Flat(&PART))];
const LISTED_PART: Shape = Shape::Structure(&[
    leaf("PartNumber", Kind::Integer),
    leaf("LastModified", Kind::Timestamp),
    text("ETag"),
    leaf("Size", Kind::Integer),
    text("ChecksumCRC32"),
    text("ChecksumCRC32C"),
    text("ChecksumCRC64NVME"),
    text("ChecksumSHA1"),
    text("ChecksumSHA256"),
    text("ChecksumSHA512"),
    text("ChecksumMD5"),
    text("ChecksumXXHASH64"),
    text("ChecksumXXHASH3"),
    text("ChecksumXXHASH128"),
]);
const LISTED_UPLOAD: Shape = Shape::Structure(&[
    text("UploadId"),
    text("Key"),
    text("VersionId"),
    leaf("Initiated", Kind::Timestamp),
    text("StorageClass"),
    within("Owner", OWNER),
    within("Initiator", OWNER),
    text("ChecksumAlgorithm"),
    text("ChecksumType"),
]);
const PREFIX: Shape = Shape::Structure(&[text("Prefix")]);
const VERSION: &[ResponseHeader] = &[response_header("VersionId", "x-amz-version-id")];
const ABORTED: &[ResponseHeader] = &[
    response_header_as(Kind::HttpDate, "AbortDate", "x-amz-abort-date"),
    response_header("AbortRuleId", "x-amz-abort-rule-id"),
];

pub(super) const TABLE: &[Operation] = &[
    Operation {
        name: "CreateMultipartUpload",
        action: "s3:PutObject",
        method: Method::Post,
        target: Target::Object,
        effect: Effect::ChangeObject,
        query: &[("uploads", "")],
        input: &[
            COMMON,
            CUSTOMER_KEY,
            DESCRIPTION,
            &[
                header("ChecksumAlgorithm", "x-amz-checksum-algorithm"),
                header("ChecksumType", "x-amz-checksum-type"),
            ],
        ],
        response_headers: &[
            ABORTED,
            VERSION,
            ENCRYPTED,
            CHARGED,
            &[
                response_header("ChecksumAlgorithm", "x-amz-checksum-algorithm"),
                response_header("ChecksumType", "x-amz-checksum-type"),
            ],
        ],
        output: Output::Xml(&[text("Bucket"), text("Key"), text("UploadId")]),
        ..BASE
    },
    Operation {
        name: "UploadPart",
        action: "s3:PutObject",
        method: Method::Put,
        target: Target::Object,
        effect: Effect::ChangeObject,
        input: &[
            COMMON,
            CUSTOMER_KEY,
            UPLOAD,
            PART_NUMBER,
            DIGESTS,
            SUMS,
            &[field("ContentLength", Place::Nowhere, Kind::Integer)],
        ],
        has_body: true,
        digest: Digest::Crc32,
        response_headers: &[
            &[response_header("ETag", "etag")],
            VERSION,
            ENCRYPTED,
            CHECKSUMS,
            CHARGED,
        ],
        ..BASE
    },
    Operation {
        name: "UploadPartCopy",
        action: "s3:PutObject",
        method: Method::Put,
        target: Target::Object,
        effect: Effect::ChangeObject,
        input: &[
            COMMON,
            CUSTOMER_KEY,
            SOURCE,
            UPLOAD,
            PART_NUMBER,
            &[header("CopySourceRange", "x-amz-copy-source-range")],
        ],
        response_headers: &[
            &[response_header("CopySourceVersionId", "x-amz-copy-source-version-id")],
            VERSION,
            ENCRYPTED,
            CHARGED,
        ],
        output: Output::Xml(&[named("CopyPartResult", "", Shape::Structure(COPIED))]),
        may_fail_late: true,
        ..BASE
    },
    Operation {
        name: "CompleteMultipartUpload",
        action: "s3:PutObject",
        method: Method::Post,
        target: Target::Object,
        effect: Effect::ChangeObject,
        input: &[
            COMMON,
            CUSTOMER_KEY,
            UPLOAD,
            SUMS,
            &[
                field("MultipartUpload", Place::Xml("CompleteMultipartUpload", PARTS), Kind::Text),
                header("ChecksumType", "x-amz-checksum-type"),
                of(Kind::Integer, header("MpuObjectSize", "x-amz-mp-object-size")),
                header("IfMatch", "If-Match"),
                header("IfNoneMatch", "If-None-Match"),
            ],
        ],
        response_headers: &[
            &[
                response_header("Expiration", "x-amz-expiration"),
                response_header("VersionId", "x-amz-version-id"),
            ],
            ENCRYPTED,
            CHARGED,
        ],
        output: Output::Xml(&[
            text("Location"),
            text("Bucket"),
            text("Key"),
            text("ETag"),
            text("ChecksumCRC32"),
            text("ChecksumCRC32C"),
            text("ChecksumCRC64NVME"),
            text("ChecksumSHA1"),
            text("ChecksumSHA256"),
            text("ChecksumSHA512"),
            text("ChecksumMD5"),
            text("ChecksumXXHASH64"),
            text("ChecksumXXHASH3"),
            text("ChecksumXXHASH128"),
            text("ChecksumType"),
        ]),
        may_fail_late: true,
        ..BASE
    },
    Operation {
        name: "AbortMultipartUpload",
        action: "s3:AbortMultipartUpload",
        method: Method::Delete,
        target: Target::Object,
        effect: Effect::ChangeObject,
        input: &[
            COMMON,
            UPLOAD,
            &[of(Kind::HttpDate, header("IfMatchInitiatedTime", "x-amz-if-match-initiated-time"))],
        ],
        response_headers: &[VERSION, CHARGED],
        ..BASE
    },
    Operation {
        name: "ListParts",
        action: "s3:ListMultipartUploadParts",
        target: Target::Object,
        effect: Effect::ReadObject,
        input: &[
            COMMON,
            CUSTOMER_KEY,
            UPLOAD,
            &[
                of(Kind::Integer, query("MaxParts", "max-parts")),
                of(Kind::Integer, query("PartNumberMarker", "part-number-marker")),
            ],
        ],
        response_headers: &[ABORTED, VERSION, CHARGED],
        output: Output::Xml(&[
            text("Bucket"),
            text("Key"),
            text("UploadId"),
            leaf("PartNumberMarker", Kind::Integer),
            leaf("NextPartNumberMarker", Kind::Integer),
            leaf("MaxParts", Kind::Integer),
            leaf("IsTruncated", Kind::Boolean),
            named("Parts", "Part", Shape::Flat(&LISTED_PART)),
            within("Initiator", OWNER),
            within("Owner", OWNER),
            text("StorageClass"),
            text("ChecksumAlgorithm"),
            text("ChecksumType"),
        ]),
        ..BASE
    },
    Operation {
        name: "ListMultipartUploads",
        action: "s3:ListBucketMultipartUploads",
        query: &[("uploads", "")],
        input: &[
            COMMON,
            &[
                query("Delimiter", "delimiter"),
                query("EncodingType", "encoding-type"),
                query("KeyMarker", "key-marker"),
                of(Kind::Integer, query("MaxUploads", "max-uploads")),
                query("Prefix", "prefix"),
                query("UploadIdMarker", "upload-id-marker"),
            ],
        ],
        response_headers: &[CHARGED],
        output: Output::Xml(&[
            text("Bucket"),
            text("KeyMarker"),
            text("UploadIdMarker"),
            text("NextKeyMarker"),
            text("Prefix"),
            text("Delimiter"),
            text("NextUploadIdMarker"),
            leaf("MaxUploads", Kind::Integer),
            leaf("IsTruncated", Kind::Boolean),
            named("Uploads", "Upload", Shape::Flat(&LISTED_UPLOAD)),
            within("CommonPrefixes", Shape::Flat(&PREFIX)),
            text("EncodingType"),
        ]),
        ..BASE
    },
];
