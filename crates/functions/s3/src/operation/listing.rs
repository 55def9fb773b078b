//! Lists of objects, and deletes of many.

use super::schema::*;

const PAGE: &[Field] = &[
    query("Delimiter", "delimiter"),
    query("EncodingType", "encoding-type"),
    of(Kind::Integer, query("MaxKeys", "max-keys")),
    query("Prefix", "prefix"),
    of(Kind::Names, header("OptionalObjectAttributes", "x-amz-optional-object-attributes")),
];

const PREFIX: Shape = Shape::Structure(&[text("Prefix")]);
const RESTORED: Shape = Shape::Structure(&[
    leaf("IsRestoreInProgress", Kind::Boolean),
    leaf("RestoreExpiryDate", Kind::Timestamp),
]);
const OBJECT: Shape = Shape::Structure(&[
    text("Key"),
    leaf("LastModified", Kind::Timestamp),
    text("ETag"),
    within("ChecksumAlgorithm", Shape::Flat(&TEXT)),
    text("ChecksumType"),
    leaf("Size", Kind::Integer),
    text("StorageClass"),
    within("Owner", OWNER),
    within("RestoreStatus", RESTORED),
]);
const VERSION: Shape = Shape::Structure(&[
    text("ETag"),
    within("ChecksumAlgorithm", Shape::Flat(&TEXT)),
    text("ChecksumType"),
    leaf("Size", Kind::Integer),
    text("StorageClass"),
    text("Key"),
    text("VersionId"),
    leaf("IsLatest", Kind::Boolean),
    leaf("LastModified", Kind::Timestamp),
    within("Owner", OWNER),
    within("RestoreStatus", RESTORED),
]);
const MARKER: Shape = Shape::Structure(&[
    within("Owner", OWNER),
    text("Key"),
    text("VersionId"),
    leaf("IsLatest", Kind::Boolean),
    leaf("LastModified", Kind::Timestamp),
]);
const DELETED: Shape = Shape::Structure(&[
    text("Key"),
    text("VersionId"),
    leaf("DeleteMarker", Kind::Boolean),
    text("DeleteMarkerVersionId"),
]);
const NOT_DELETED: Shape =
    Shape::Structure(&[text("Key"), text("VersionId"), text("Code"), text("Message")]);
const TO_DELETE: Shape = Shape::Structure(&[
    text("Key"),
    text("VersionId"),
    text("ETag"),
    leaf("LastModifiedTime", Kind::HttpDate),
    leaf("Size", Kind::Integer),
]);
const DELETE: &[Member] =
    &[named("Objects", "Object", Shape::Flat(&TO_DELETE)), leaf("Quiet", Kind::Boolean)];

pub(super) const TABLE: &[Operation] = &[
    Operation {
        name: "ListObjectsV2",
        action: "s3:ListBucket",
        query: &[("list-type", "2")],
        input: &[
            COMMON,
            PAGE,
            &[
                query("ContinuationToken", "continuation-token"),
                of(Kind::Boolean, query("FetchOwner", "fetch-owner")),
                query("StartAfter", "start-after"),
            ],
        ],
        response_headers: &[CHARGED],
        output: Output::Xml(&[
            leaf("IsTruncated", Kind::Boolean),
            within("Contents", Shape::Flat(&OBJECT)),
            text("Name"),
            text("Prefix"),
            text("Delimiter"),
            leaf("MaxKeys", Kind::Integer),
            within("CommonPrefixes", Shape::Flat(&PREFIX)),
            text("EncodingType"),
            leaf("KeyCount", Kind::Integer),
            text("ContinuationToken"),
            text("NextContinuationToken"),
            text("StartAfter"),
        ]),
        encoded: &["Delimiter", "Prefix", "StartAfter", "Contents.Key", "CommonPrefixes.Prefix"],
        ..BASE
    },
    Operation {
        name: "ListObjects",
        action: "s3:ListBucket",
        input: &[COMMON, PAGE, &[query("Marker", "marker")]],
        response_headers: &[CHARGED],
        output: Output::Xml(&[
            leaf("IsTruncated", Kind::Boolean),
            text("Marker"),
            text("NextMarker"),
            within("Contents", Shape::Flat(&OBJECT)),
            text("Name"),
            text("Prefix"),
            text("Delimiter"),
            leaf("MaxKeys", Kind::Integer),
            within("CommonPrefixes", Shape::Flat(&PREFIX)),
            text("EncodingType"),
        ]),
        // Not its prefix: SDKs return that unchanged.
        encoded: &["Delimiter", "Marker", "NextMarker", "Contents.Key", "CommonPrefixes.Prefix"],
        ..BASE
    },
    Operation {
        name: "ListObjectVersions",
        action: "s3:ListBucketVersions",
        query: &[("versions", "")],
        input: &[
            COMMON,
            PAGE,
            &[query("KeyMarker", "key-marker"), query("VersionIdMarker", "version-id-marker")],
        ],
        response_headers: &[CHARGED],
        output: Output::Xml(&[
            leaf("IsTruncated", Kind::Boolean),
            text("KeyMarker"),
            text("VersionIdMarker"),
            text("NextKeyMarker"),
            text("NextVersionIdMarker"),
            named("Versions", "Version", Shape::Flat(&VERSION)),
            named("DeleteMarkers", "DeleteMarker", Shape::Flat(&MARKER)),
            text("Name"),
            text("Prefix"),
            text("Delimiter"),
            leaf("MaxKeys", Kind::Integer),
            within("CommonPrefixes", Shape::Flat(&PREFIX)),
            text("EncodingType"),
        ]),
        encoded: &[
            "KeyMarker",
            "NextKeyMarker",
            "Prefix",
            "Delimiter",
            "Versions.Key",
            "DeleteMarkers.Key",
            "CommonPrefixes.Prefix",
        ],
        ..BASE
    },
    Operation {
        name: "DeleteObjects",
        action: "s3:DeleteObject",
        method: Method::Post,
        effect: Effect::ChangeBucket,
        query: &[("delete", "")],
        input: &[
            COMMON,
            &[
                header("MFA", "x-amz-mfa"),
                of(
                    Kind::Boolean,
                    header("BypassGovernanceRetention", "x-amz-bypass-governance-retention"),
                ),
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field("Delete", Place::Xml("Delete", DELETE), Kind::Text)),
            ],
        ],
        digest: Digest::Crc32,
        response_headers: &[CHARGED],
        output: Output::Xml(&[
            within("Deleted", Shape::Flat(&DELETED)),
            named("Errors", "Error", Shape::Flat(&NOT_DELETED)),
        ]),
        may_fail_late: true,
        ..BASE
    },
];
