//! Operations on one object.

use super::schema::*;

/// Conditions of a request (RFC 9110 §13.1).
const CONDITIONS: &[Field] = &[
    header("IfMatch", "If-Match"),
    header("IfNoneMatch", "If-None-Match"),
    of(Kind::HttpDate, header("IfModifiedSince", "If-Modified-Since")),
    of(Kind::HttpDate, header("IfUnmodifiedSince", "If-Unmodified-Since")),
];

/// The object, and the part of it.
const WHICH: &[Field] = &[
    header("Range", "Range"),
    query("VersionId", "versionId"),
    of(Kind::Integer, query("PartNumber", "partNumber")),
    header("ChecksumMode", "x-amz-checksum-mode"),
];

/// Header fields of the response that the request overrides.
const OVERRIDES: &[Field] = &[
    query("ResponseCacheControl", "response-cache-control"),
    query("ResponseContentDisposition", "response-content-disposition"),
    query("ResponseContentEncoding", "response-content-encoding"),
    query("ResponseContentLanguage", "response-content-language"),
    query("ResponseContentType", "response-content-type"),
    of(Kind::HttpDate, query("ResponseExpires", "response-expires")),
];

/// Metadata stored with an object.
pub(super) const DESCRIPTION: &[Field] = &[
    header("ACL", "x-amz-acl"),
    header("CacheControl", "Cache-Control"),
    header("ContentDisposition", "Content-Disposition"),
    header("ContentEncoding", "Content-Encoding"),
    header("ContentLanguage", "Content-Language"),
    header("ContentType", "Content-Type"),
    of(Kind::HttpDate, header("Expires", "Expires")),
    header("GrantFullControl", "x-amz-grant-full-control"),
    header("GrantRead", "x-amz-grant-read"),
    header("GrantReadACP", "x-amz-grant-read-acp"),
    header("GrantWriteACP", "x-amz-grant-write-acp"),
    field("Metadata", Place::Headers("x-amz-meta-"), Kind::Text),
    header("StorageClass", "x-amz-storage-class"),
    header("WebsiteRedirectLocation", "x-amz-website-redirect-location"),
    header("Tagging", "x-amz-tagging"),
    header("ObjectLockMode", "x-amz-object-lock-mode"),
    of(Kind::Timestamp, header("ObjectLockRetainUntilDate", "x-amz-object-lock-retain-until-date")),
    header("ObjectLockLegalHoldStatus", "x-amz-object-lock-legal-hold"),
    header("ObjectLockEventHold", "x-amz-object-lock-event-hold"),
    of(
        Kind::Integer,
        header("ObjectLockEventHoldDurationDays", "x-amz-object-lock-event-hold-duration-days"),
    ),
    of(
        Kind::Integer,
        header("ObjectLockEventHoldDurationYears", "x-amz-object-lock-event-hold-duration-years"),
    ),
    header("ServerSideEncryption", "x-amz-server-side-encryption"),
    header("SSEKMSKeyId", "x-amz-server-side-encryption-aws-kms-key-id"),
    header("SSEKMSEncryptionContext", "x-amz-server-side-encryption-context"),
    of(
        Kind::Boolean,
        header("BucketKeyEnabled", "x-amz-server-side-encryption-bucket-key-enabled"),
    ),
];

/// The source of a copy.
pub(super) const SOURCE: &[Field] = &[
    required(header("CopySource", "x-amz-copy-source")),
    header("CopySourceIfMatch", "x-amz-copy-source-if-match"),
    header("CopySourceIfNoneMatch", "x-amz-copy-source-if-none-match"),
    of(Kind::HttpDate, header("CopySourceIfModifiedSince", "x-amz-copy-source-if-modified-since")),
    of(
        Kind::HttpDate,
        header("CopySourceIfUnmodifiedSince", "x-amz-copy-source-if-unmodified-since"),
    ),
    header(
        "CopySourceSSECustomerAlgorithm",
        "x-amz-copy-source-server-side-encryption-customer-algorithm",
    ),
    of(
        Kind::Bytes,
        header("CopySourceSSECustomerKey", "x-amz-copy-source-server-side-encryption-customer-key"),
    ),
    header(
        "CopySourceSSECustomerKeyMD5",
        "x-amz-copy-source-server-side-encryption-customer-key-MD5",
    ),
    header("ExpectedSourceBucketOwner", "x-amz-source-expected-bucket-owner"),
];

/// Metadata in a response to GET and HEAD.
const OBJECT: &[ResponseHeader] = &[
    response_header_as(Kind::Boolean, "DeleteMarker", "x-amz-delete-marker"),
    response_header("AcceptRanges", "accept-ranges"),
    response_header("Expiration", "x-amz-expiration"),
    response_header("Restore", "x-amz-restore"),
    response_header_as(Kind::HttpDate, "LastModified", "last-modified"),
    response_header_as(Kind::Integer, "ContentLength", "content-length"),
    response_header("ETag", "etag"),
    response_header_as(Kind::Integer, "MissingMeta", "x-amz-missing-meta"),
    response_header("VersionId", "x-amz-version-id"),
    response_header("CacheControl", "cache-control"),
    response_header("ContentDisposition", "content-disposition"),
    response_header("ContentEncoding", "content-encoding"),
    response_header("ContentLanguage", "content-language"),
    response_header("ContentRange", "content-range"),
    response_header("ContentType", "content-type"),
    response_header_as(Kind::HttpDate, "Expires", "expires"),
    response_header("ExpiresString", "expires"),
    response_header("WebsiteRedirectLocation", "x-amz-website-redirect-location"),
    response_header("Metadata", "x-amz-meta-*"),
    response_header("StorageClass", "x-amz-storage-class"),
    response_header("ReplicationStatus", "x-amz-replication-status"),
    response_header_as(Kind::Integer, "PartsCount", "x-amz-mp-parts-count"),
    response_header_as(Kind::Integer, "TagCount", "x-amz-tagging-count"),
    response_header("ObjectLockMode", "x-amz-object-lock-mode"),
    response_header_as(
        Kind::Timestamp,
        "ObjectLockRetainUntilDate",
        "x-amz-object-lock-retain-until-date",
    ),
    response_header("ObjectLockLegalHoldStatus", "x-amz-object-lock-legal-hold"),
    response_header("ObjectLockEventHold", "x-amz-object-lock-event-hold"),
    response_header_as(
        Kind::Integer,
        "ObjectLockEventHoldDurationDays",
        "x-amz-object-lock-event-hold-duration-days",
    ),
    response_header_as(
        Kind::Integer,
        "ObjectLockEventHoldDurationYears",
        "x-amz-object-lock-event-hold-duration-years",
    ),
];

const HEAD_ONLY: &[ResponseHeader] = &[response_header("ArchiveStatus", "x-amz-archive-status")];

const WRITTEN: &[ResponseHeader] = &[
    response_header("Expiration", "x-amz-expiration"),
    response_header("ETag", "etag"),
    response_header("VersionId", "x-amz-version-id"),
    response_header_as(Kind::Integer, "Size", "x-amz-object-size"),
];

const PUT: &[Field] = &[
    header("IfMatch", "If-Match"),
    header("IfNoneMatch", "If-None-Match"),
    of(Kind::Integer, header("WriteOffsetBytes", "x-amz-write-offset-bytes")),
    field("ContentLength", Place::Nowhere, Kind::Integer),
];

/// The new object in a response to a copy.
pub(super) const COPIED: &[Member] = &[
    text("ETag"),
    leaf("LastModified", Kind::Timestamp),
    text("ChecksumType"),
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
];

/// A tag of an object or bucket.
pub(super) const TAG: Shape = Shape::Structure(&[text("Key"), text("Value")]);
/// Tags of an object or bucket.
pub(super) const TAGS: &[Member] = &[within("TagSet", Shape::List("Tag", &TAG))];

const GRANTEE: &[Member] = &[
    text("DisplayName"),
    text("EmailAddress"),
    text("ID"),
    named("Type", "", Shape::XsiType),
    text("URI"),
];
const GRANT: Shape =
    Shape::Structure(&[within("Grantee", Shape::Structure(GRANTEE)), text("Permission")]);
/// An access control list.
pub(super) const ACL: &[Member] =
    &[within("Owner", OWNER), named("Grants", "AccessControlList", Shape::List("Grant", &GRANT))];
/// The header fields that set an ACL.
pub(super) const ACL_FIELDS: &[Field] = &[
    header("ACL", "x-amz-acl"),
    header("GrantFullControl", "x-amz-grant-full-control"),
    header("GrantRead", "x-amz-grant-read"),
    header("GrantReadACP", "x-amz-grant-read-acp"),
    header("GrantWrite", "x-amz-grant-write"),
    header("GrantWriteACP", "x-amz-grant-write-acp"),
    header("ContentMD5", "Content-MD5"),
    header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
    field("AccessControlPolicy", Place::Xml("AccessControlPolicy", ACL), Kind::Text),
];

const VERSION: &[Field] = &[query("VersionId", "versionId")];
const SUMMED_PART: Shape = Shape::Structure(&[
    leaf("PartNumber", Kind::Integer),
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
const PARTS_OF: &[Member] = &[
    named("TotalPartsCount", "PartsCount", Shape::Leaf(Kind::Integer)),
    leaf("PartNumberMarker", Kind::Integer),
    leaf("NextPartNumberMarker", Kind::Integer),
    leaf("MaxParts", Kind::Integer),
    leaf("IsTruncated", Kind::Boolean),
    named("Parts", "Part", Shape::Flat(&SUMMED_PART)),
];
const CHECKSUM_MEMBERS: &[Member] = &[
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
];

pub(super) const TABLE: &[Operation] = &[
    Operation {
        name: "GetObject",
        action: "s3:GetObject",
        target: Target::Object,
        effect: Effect::ReadObject,
        input: &[COMMON, CUSTOMER_KEY, CONDITIONS, WHICH, OVERRIDES],
        response_headers: &[OBJECT, ENCRYPTED, CHECKSUMS, CHARGED],
        output: Output::Object,
        ..BASE
    },
    Operation {
        name: "HeadObject",
        action: "s3:GetObject",
        method: Method::Head,
        target: Target::Object,
        effect: Effect::ReadObject,
        input: &[COMMON, CUSTOMER_KEY, CONDITIONS, WHICH, OVERRIDES],
        response_headers: &[OBJECT, HEAD_ONLY, ENCRYPTED, CHECKSUMS, CHARGED],
        ..BASE
    },
    Operation {
        name: "PutObject",
        action: "s3:PutObject",
        method: Method::Put,
        target: Target::Object,
        effect: Effect::ChangeObject,
        input: &[COMMON, CUSTOMER_KEY, DESCRIPTION, DIGESTS, SUMS, PUT],
        has_body: true,
        digest: Digest::Crc32,
        response_headers: &[WRITTEN, ENCRYPTED, CHECKSUMS, CHARGED],
        ..BASE
    },
    Operation {
        name: "DeleteObject",
        action: "s3:DeleteObject",
        method: Method::Delete,
        target: Target::Object,
        effect: Effect::ChangeObject,
        input: &[
            COMMON,
            VERSION,
            &[
                header("MFA", "x-amz-mfa"),
                of(
                    Kind::Boolean,
                    header("BypassGovernanceRetention", "x-amz-bypass-governance-retention"),
                ),
                header("IfMatch", "If-Match"),
                of(
                    Kind::HttpDate,
                    header("IfMatchLastModifiedTime", "x-amz-if-match-last-modified-time"),
                ),
                of(Kind::Integer, header("IfMatchSize", "x-amz-if-match-size")),
            ],
        ],
        response_headers: &[
            &[
                response_header_as(Kind::Boolean, "DeleteMarker", "x-amz-delete-marker"),
                response_header("VersionId", "x-amz-version-id"),
            ],
            CHARGED,
        ],
        ..BASE
    },
    Operation {
        name: "CopyObject",
        action: "s3:PutObject",
        method: Method::Put,
        target: Target::Object,
        effect: Effect::ChangeObject,
        input: &[
            COMMON,
            CUSTOMER_KEY,
            DESCRIPTION,
            SOURCE,
            &[
                header("ChecksumAlgorithm", "x-amz-checksum-algorithm"),
                header("MetadataDirective", "x-amz-metadata-directive"),
                header("TaggingDirective", "x-amz-tagging-directive"),
                header("AnnotationDirective", "x-amz-object-annotation-directive"),
                header("IfMatch", "If-Match"),
                header("IfNoneMatch", "If-None-Match"),
            ],
        ],
        response_headers: &[
            &[
                response_header("Expiration", "x-amz-expiration"),
                response_header("CopySourceVersionId", "x-amz-copy-source-version-id"),
                response_header("VersionId", "x-amz-version-id"),
            ],
            ENCRYPTED,
            CHARGED,
        ],
        output: Output::Xml(&[named("CopyObjectResult", "", Shape::Structure(COPIED))]),
        may_fail_late: true,
        ..BASE
    },
    Operation {
        name: "GetObjectAttributes",
        action: "s3:GetObjectAttributes",
        target: Target::Object,
        effect: Effect::ReadObject,
        query: &[("attributes", "")],
        input: &[
            COMMON,
            CUSTOMER_KEY,
            VERSION,
            &[
                of(Kind::Integer, header("MaxParts", "x-amz-max-parts")),
                of(Kind::Integer, header("PartNumberMarker", "x-amz-part-number-marker")),
                required(of(Kind::Names, header("ObjectAttributes", "x-amz-object-attributes"))),
            ],
        ],
        response_headers: &[
            &[
                response_header_as(Kind::Boolean, "DeleteMarker", "x-amz-delete-marker"),
                response_header_as(Kind::HttpDate, "LastModified", "last-modified"),
                response_header("VersionId", "x-amz-version-id"),
            ],
            CHARGED,
        ],
        output: Output::Xml(&[
            text("ETag"),
            within("Checksum", Shape::Structure(CHECKSUM_MEMBERS)),
            within("ObjectParts", Shape::Structure(PARTS_OF)),
            text("StorageClass"),
            leaf("ObjectSize", Kind::Integer),
        ]),
        ..BASE
    },
    Operation {
        name: "GetObjectTagging",
        action: "s3:GetObjectTagging",
        target: Target::Object,
        effect: Effect::ReadObject,
        query: &[("tagging", "")],
        input: &[COMMON, VERSION],
        response_headers: &[&[response_header("VersionId", "x-amz-version-id")]],
        output: Output::Xml(TAGS),
        ..BASE
    },
    Operation {
        name: "PutObjectTagging",
        action: "s3:PutObjectTagging",
        method: Method::Put,
        target: Target::Object,
        effect: Effect::ChangeObject,
        query: &[("tagging", "")],
        input: &[
            COMMON,
            VERSION,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field("Tagging", Place::Xml("Tagging", TAGS), Kind::Text)),
            ],
        ],
        digest: Digest::Crc32,
        response_headers: &[&[response_header("VersionId", "x-amz-version-id")]],
        ..BASE
    },
    Operation {
        name: "DeleteObjectTagging",
        action: "s3:DeleteObjectTagging",
        method: Method::Delete,
        target: Target::Object,
        effect: Effect::ChangeObject,
        query: &[("tagging", "")],
        input: &[COMMON, VERSION],
        response_headers: &[&[response_header("VersionId", "x-amz-version-id")]],
        ..BASE
    },
    Operation {
        name: "GetObjectAcl",
        action: "s3:GetObjectAcl",
        target: Target::Object,
        effect: Effect::ReadObject,
        query: &[("acl", "")],
        input: &[COMMON, VERSION],
        response_headers: &[CHARGED],
        output: Output::Xml(ACL),
        ..BASE
    },
    Operation {
        name: "PutObjectAcl",
        action: "s3:PutObjectAcl",
        method: Method::Put,
        target: Target::Object,
        effect: Effect::ChangeObject,
        query: &[("acl", "")],
        input: &[COMMON, VERSION, ACL_FIELDS],
        digest: Digest::Crc32,
        response_headers: &[CHARGED],
        ..BASE
    },
];
