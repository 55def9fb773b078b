//! Operations that make and remove configurations. Made by guest/python/tests/rust_tables.py.

use super::super::*;
use super::shapes;

pub(in crate::operation) const TABLE: &[Operation] = &[
    Operation {
        name: "CreateBucketMetadataConfiguration",
        action: "s3:CreateBucketMetadataTableConfiguration",
        method: Method::Post,
        effect: Effect::ChangeBucket,
        query: &[("metadataConfiguration", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field(
                    "MetadataConfiguration",
                    Place::Xml("MetadataConfiguration", shapes::METADATA_CONFIGURATION),
                    Kind::Text,
                )),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "CreateBucketMetadataTableConfiguration",
        action: "s3:CreateBucketMetadataTableConfiguration",
        method: Method::Post,
        effect: Effect::ChangeBucket,
        query: &[("metadataTable", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field(
                    "MetadataTableConfiguration",
                    Place::Xml("MetadataTableConfiguration", shapes::METADATA_TABLE_CONFIGURATION),
                    Kind::Text,
                )),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "DeleteBucketAnalyticsConfiguration",
        action: "s3:PutAnalyticsConfiguration",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("analytics", "")],
        input: &[COMMON, &[required(query("Id", "id"))]],
        ..BASE
    },
    Operation {
        name: "DeleteBucketCors",
        action: "s3:PutBucketCORS",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("cors", "")],
        input: &[COMMON],
        ..BASE
    },
    Operation {
        name: "DeleteBucketEncryption",
        action: "s3:PutEncryptionConfiguration",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("encryption", "")],
        input: &[COMMON],
        ..BASE
    },
    Operation {
        name: "DeleteBucketIntelligentTieringConfiguration",
        action: "s3:PutIntelligentTieringConfiguration",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("intelligent-tiering", "")],
        input: &[COMMON, &[required(query("Id", "id"))]],
        ..BASE
    },
    Operation {
        name: "DeleteBucketInventoryConfiguration",
        action: "s3:PutInventoryConfiguration",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("inventory", "")],
        input: &[COMMON, &[required(query("Id", "id"))]],
        ..BASE
    },
    Operation {
        name: "DeleteBucketLifecycle",
        action: "s3:PutLifecycleConfiguration",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("lifecycle", "")],
        input: &[COMMON],
        ..BASE
    },
    Operation {
        name: "DeleteBucketMetadataConfiguration",
        action: "s3:DeleteBucketMetadataTableConfiguration",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("metadataConfiguration", "")],
        input: &[COMMON],
        ..BASE
    },
    Operation {
        name: "DeleteBucketMetadataTableConfiguration",
        action: "s3:DeleteBucketMetadataTableConfiguration",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("metadataTable", "")],
        input: &[COMMON],
        ..BASE
    },
    Operation {
        name: "DeleteBucketMetricsConfiguration",
        action: "s3:PutMetricsConfiguration",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("metrics", "")],
        input: &[COMMON, &[required(query("Id", "id"))]],
        ..BASE
    },
    Operation {
        name: "DeleteBucketOwnershipControls",
        action: "s3:PutBucketOwnershipControls",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("ownershipControls", "")],
        input: &[COMMON],
        ..BASE
    },
    Operation {
        name: "DeleteBucketPolicy",
        action: "s3:DeleteBucketPolicy",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("policy", "")],
        input: &[COMMON],
        ..BASE
    },
    Operation {
        name: "DeleteBucketReplication",
        action: "s3:PutReplicationConfiguration",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("replication", "")],
        input: &[COMMON],
        ..BASE
    },
    Operation {
        name: "DeleteBucketWebsite",
        action: "s3:DeleteBucketWebsite",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("website", "")],
        input: &[COMMON],
        ..BASE
    },
    Operation {
        name: "DeleteObjectAnnotation",
        action: "s3:DeleteObjectAnnotation",
        method: Method::Delete,
        target: Target::Object,
        effect: Effect::ChangeObject,
        query: &[("annotation", "")],
        input: &[
            COMMON,
            &[
                required(query("AnnotationName", "annotationName")),
                query("VersionId", "versionId"),
                header("ObjectIfMatch", "x-amz-object-if-match"),
            ],
        ],
        found: &[&[
            found("ObjectVersionId", "x-amz-object-version-id"),
            found("RequestCharged", "x-amz-request-charged"),
        ]],
        ..BASE
    },
    Operation {
        name: "DeletePublicAccessBlock",
        action: "s3:PutBucketPublicAccessBlock",
        method: Method::Delete,
        effect: Effect::ChangeBucket,
        query: &[("publicAccessBlock", "")],
        input: &[COMMON],
        ..BASE
    },
    Operation {
        name: "RestoreObject",
        action: "s3:RestoreObject",
        method: Method::Post,
        target: Target::Object,
        effect: Effect::ChangeObject,
        query: &[("restore", "")],
        input: &[
            COMMON,
            &[
                query("VersionId", "versionId"),
                field(
                    "RestoreRequest",
                    Place::Xml("RestoreRequest", shapes::RESTORE_REQUEST),
                    Kind::Text,
                ),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
            ],
        ],
        found: &[&[
            found("RequestCharged", "x-amz-request-charged"),
            found("RestoreOutputPath", "x-amz-restore-output-path"),
        ]],
        ..BASE
    },
];
