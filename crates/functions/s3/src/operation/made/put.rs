//! Operations that set configurations. Made by guest/python/tests/rust_tables.py.

use super::super::*;
use super::shapes;

pub(in crate::operation) const TABLE: &[Operation] = &[
    Operation {
        name: "PutBucketAbac",
        action: "s3:PutBucketAbac",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("abac", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field(
                    "AbacStatus",
                    Place::Xml("AbacStatus", shapes::ABAC_STATUS),
                    Kind::Text,
                )),
            ],
        ],
        ..BASE
    },
    Operation {
        name: "PutBucketAccelerateConfiguration",
        action: "s3:PutAccelerateConfiguration",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("accelerate", "")],
        input: &[
            COMMON,
            &[
                required(field(
                    "AccelerateConfiguration",
                    Place::Xml("AccelerateConfiguration", shapes::ACCELERATE_CONFIGURATION),
                    Kind::Text,
                )),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
            ],
        ],
        ..BASE
    },
    Operation {
        name: "PutBucketAnalyticsConfiguration",
        action: "s3:PutAnalyticsConfiguration",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("analytics", "")],
        input: &[
            COMMON,
            &[
                required(query("Id", "id")),
                required(field(
                    "AnalyticsConfiguration",
                    Place::Xml("AnalyticsConfiguration", shapes::ANALYTICS_CONFIGURATION),
                    Kind::Text,
                )),
            ],
        ],
        ..BASE
    },
    Operation {
        name: "PutBucketCors",
        action: "s3:PutBucketCORS",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("cors", "")],
        input: &[
            COMMON,
            &[
                required(field(
                    "CORSConfiguration",
                    Place::Xml("CORSConfiguration", shapes::CORS_CONFIGURATION),
                    Kind::Text,
                )),
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "PutBucketEncryption",
        action: "s3:PutEncryptionConfiguration",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("encryption", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field(
                    "ServerSideEncryptionConfiguration",
                    Place::Xml(
                        "ServerSideEncryptionConfiguration",
                        shapes::SERVER_SIDE_ENCRYPTION_CONFIGURATION,
                    ),
                    Kind::Text,
                )),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "PutBucketIntelligentTieringConfiguration",
        action: "s3:PutIntelligentTieringConfiguration",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("intelligent-tiering", "")],
        input: &[
            COMMON,
            &[
                required(query("Id", "id")),
                required(field(
                    "IntelligentTieringConfiguration",
                    Place::Xml(
                        "IntelligentTieringConfiguration",
                        shapes::INTELLIGENT_TIERING_CONFIGURATION,
                    ),
                    Kind::Text,
                )),
            ],
        ],
        ..BASE
    },
    Operation {
        name: "PutBucketInventoryConfiguration",
        action: "s3:PutInventoryConfiguration",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("inventory", "")],
        input: &[
            COMMON,
            &[
                required(query("Id", "id")),
                required(field(
                    "InventoryConfiguration",
                    Place::Xml("InventoryConfiguration", shapes::INVENTORY_CONFIGURATION),
                    Kind::Text,
                )),
            ],
        ],
        ..BASE
    },
    Operation {
        name: "PutBucketLifecycle",
        action: "s3:PutLifecycleConfiguration",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("lifecycle", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                field(
                    "LifecycleConfiguration",
                    Place::Xml("LifecycleConfiguration", shapes::LIFECYCLE_CONFIGURATION),
                    Kind::Text,
                ),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "PutBucketLifecycleConfiguration",
        action: "s3:PutLifecycleConfiguration",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("lifecycle", "")],
        input: &[
            COMMON,
            &[
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                field(
                    "LifecycleConfiguration",
                    Place::Xml("LifecycleConfiguration", shapes::BUCKET_LIFECYCLE_CONFIGURATION),
                    Kind::Text,
                ),
                header(
                    "TransitionDefaultMinimumObjectSize",
                    "x-amz-transition-default-minimum-object-size",
                ),
            ],
        ],
        digest: Digest::Crc32,
        found: &[&[found(
            "TransitionDefaultMinimumObjectSize",
            "x-amz-transition-default-minimum-object-size",
        )]],
        ..BASE
    },
    Operation {
        name: "PutBucketLogging",
        action: "s3:PutBucketLogging",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("logging", "")],
        input: &[
            COMMON,
            &[
                required(field(
                    "BucketLoggingStatus",
                    Place::Xml("BucketLoggingStatus", shapes::BUCKET_LOGGING_STATUS),
                    Kind::Text,
                )),
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "PutBucketMetricsConfiguration",
        action: "s3:PutMetricsConfiguration",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("metrics", "")],
        input: &[
            COMMON,
            &[
                required(query("Id", "id")),
                required(field(
                    "MetricsConfiguration",
                    Place::Xml("MetricsConfiguration", shapes::METRICS_CONFIGURATION),
                    Kind::Text,
                )),
            ],
        ],
        ..BASE
    },
    Operation {
        name: "PutBucketNotification",
        action: "s3:PutBucketNotification",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("notification", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field(
                    "NotificationConfiguration",
                    Place::Xml(
                        "NotificationConfiguration",
                        shapes::NOTIFICATION_CONFIGURATION_DEPRECATED,
                    ),
                    Kind::Text,
                )),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "PutBucketNotificationConfiguration",
        action: "s3:PutBucketNotification",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("notification", "")],
        input: &[
            COMMON,
            &[
                required(field(
                    "NotificationConfiguration",
                    Place::Xml("NotificationConfiguration", shapes::NOTIFICATION_CONFIGURATION),
                    Kind::Text,
                )),
                of(
                    Kind::Boolean,
                    header("SkipDestinationValidation", "x-amz-skip-destination-validation"),
                ),
            ],
        ],
        ..BASE
    },
    Operation {
        name: "PutBucketOwnershipControls",
        action: "s3:PutBucketOwnershipControls",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("ownershipControls", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                required(field(
                    "OwnershipControls",
                    Place::Xml("OwnershipControls", shapes::OWNERSHIP_CONTROLS),
                    Kind::Text,
                )),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "PutBucketPolicy",
        action: "s3:PutBucketPolicy",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("policy", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                of(
                    Kind::Boolean,
                    header(
                        "ConfirmRemoveSelfBucketAccess",
                        "x-amz-confirm-remove-self-bucket-access",
                    ),
                ),
                required(field("Policy", Place::Text, Kind::Text)),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "PutBucketReplication",
        action: "s3:PutReplicationConfiguration",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("replication", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field(
                    "ReplicationConfiguration",
                    Place::Xml("ReplicationConfiguration", shapes::REPLICATION_CONFIGURATION),
                    Kind::Text,
                )),
                header("Token", "x-amz-bucket-object-lock-token"),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "PutBucketRequestPayment",
        action: "s3:PutBucketRequestPayment",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("requestPayment", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field(
                    "RequestPaymentConfiguration",
                    Place::Xml(
                        "RequestPaymentConfiguration",
                        shapes::REQUEST_PAYMENT_CONFIGURATION,
                    ),
                    Kind::Text,
                )),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "PutBucketWebsite",
        action: "s3:PutBucketWebsite",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("website", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field(
                    "WebsiteConfiguration",
                    Place::Xml("WebsiteConfiguration", shapes::WEBSITE_CONFIGURATION),
                    Kind::Text,
                )),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "PutObjectAnnotation",
        action: "s3:PutObjectAnnotation",
        method: Method::Put,
        target: Target::Object,
        effect: Effect::ChangeObject,
        query: &[("annotation", "")],
        input: &[
            COMMON,
            &[
                query("VersionId", "versionId"),
                required(query("AnnotationName", "annotationName")),
                header("ObjectIfMatch", "x-amz-object-if-match"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                header("ChecksumCRC32", "x-amz-checksum-crc32"),
                header("ChecksumCRC32C", "x-amz-checksum-crc32c"),
                header("ChecksumCRC64NVME", "x-amz-checksum-crc64nvme"),
                header("ChecksumSHA1", "x-amz-checksum-sha1"),
                header("ChecksumSHA256", "x-amz-checksum-sha256"),
                header("ChecksumSHA512", "x-amz-checksum-sha512"),
                header("ChecksumMD5", "x-amz-checksum-md5"),
                header("ChecksumXXHASH64", "x-amz-checksum-xxhash64"),
                header("ChecksumXXHASH3", "x-amz-checksum-xxhash3"),
                header("ChecksumXXHASH128", "x-amz-checksum-xxhash128"),
                header("ContentMD5", "Content-MD5"),
            ],
        ],
        has_body: true,
        digest: Digest::Crc32,
        found: &[&[
            found("ObjectVersionId", "x-amz-object-version-id"),
            found("ETag", "etag"),
            found("ChecksumCRC32", "x-amz-checksum-crc32"),
            found("ChecksumCRC32C", "x-amz-checksum-crc32c"),
            found("ChecksumCRC64NVME", "x-amz-checksum-crc64nvme"),
            found("ChecksumSHA1", "x-amz-checksum-sha1"),
            found("ChecksumSHA256", "x-amz-checksum-sha256"),
            found("ChecksumSHA512", "x-amz-checksum-sha512"),
            found("ChecksumMD5", "x-amz-checksum-md5"),
            found("ChecksumXXHASH64", "x-amz-checksum-xxhash64"),
            found("ChecksumXXHASH3", "x-amz-checksum-xxhash3"),
            found("ChecksumXXHASH128", "x-amz-checksum-xxhash128"),
            found("ChecksumType", "x-amz-checksum-type"),
            found("ServerSideEncryption", "x-amz-server-side-encryption"),
            found("RequestCharged", "x-amz-request-charged"),
        ]],
        output: Output::Xml(&[text("Key"), text("AnnotationName")]),
        ..BASE
    },
    Operation {
        name: "PutObjectLegalHold",
        action: "s3:PutObjectLegalHold",
        method: Method::Put,
        target: Target::Object,
        effect: Effect::ChangeObject,
        query: &[("legal-hold", "")],
        input: &[
            COMMON,
            &[
                field(
                    "LegalHold",
                    Place::Xml("LegalHold", shapes::OBJECT_LOCK_LEGAL_HOLD),
                    Kind::Text,
                ),
                query("VersionId", "versionId"),
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
            ],
        ],
        digest: Digest::Crc32,
        found: &[&[found("RequestCharged", "x-amz-request-charged")]],
        ..BASE
    },
    Operation {
        name: "PutObjectLockConfiguration",
        action: "s3:PutBucketObjectLockConfiguration",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("object-lock", "")],
        input: &[
            COMMON,
            &[
                field(
                    "ObjectLockConfiguration",
                    Place::Xml("ObjectLockConfiguration", shapes::OBJECT_LOCK_CONFIGURATION),
                    Kind::Text,
                ),
                header("Token", "x-amz-bucket-object-lock-token"),
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
            ],
        ],
        digest: Digest::Crc32,
        found: &[&[found("RequestCharged", "x-amz-request-charged")]],
        ..BASE
    },
    Operation {
        name: "PutObjectRetention",
        action: "s3:PutObjectRetention",
        method: Method::Put,
        target: Target::Object,
        effect: Effect::ChangeObject,
        query: &[("retention", "")],
        input: &[
            COMMON,
            &[
                field(
                    "Retention",
                    Place::Xml("Retention", shapes::OBJECT_LOCK_RETENTION),
                    Kind::Text,
                ),
                query("VersionId", "versionId"),
                of(
                    Kind::Boolean,
                    header("BypassGovernanceRetention", "x-amz-bypass-governance-retention"),
                ),
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
            ],
        ],
        digest: Digest::Crc32,
        found: &[&[found("RequestCharged", "x-amz-request-charged")]],
        ..BASE
    },
    Operation {
        name: "PutPublicAccessBlock",
        action: "s3:PutBucketPublicAccessBlock",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("publicAccessBlock", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field(
                    "PublicAccessBlockConfiguration",
                    Place::Xml(
                        "PublicAccessBlockConfiguration",
                        shapes::PUBLIC_ACCESS_BLOCK_CONFIGURATION,
                    ),
                    Kind::Text,
                )),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "UpdateBucketMetadataAnnotationTableConfiguration",
        action: "s3:UpdateBucketMetadataAnnotationTableConfiguration",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("metadataAnnotationTable", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field(
                    "AnnotationTableConfiguration",
                    Place::Xml(
                        "AnnotationTableConfiguration",
                        shapes::ANNOTATION_TABLE_CONFIGURATION_UPDATES,
                    ),
                    Kind::Text,
                )),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "UpdateBucketMetadataInventoryTableConfiguration",
        action: "s3:UpdateBucketMetadataInventoryTableConfiguration",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("metadataInventoryTable", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field(
                    "InventoryTableConfiguration",
                    Place::Xml(
                        "InventoryTableConfiguration",
                        shapes::INVENTORY_TABLE_CONFIGURATION_UPDATES,
                    ),
                    Kind::Text,
                )),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
    Operation {
        name: "UpdateBucketMetadataJournalTableConfiguration",
        action: "s3:UpdateBucketMetadataJournalTableConfiguration",
        method: Method::Put,
        effect: Effect::ChangeBucket,
        query: &[("metadataJournalTable", "")],
        input: &[
            COMMON,
            &[
                header("ContentMD5", "Content-MD5"),
                header("ChecksumAlgorithm", "x-amz-sdk-checksum-algorithm"),
                required(field(
                    "JournalTableConfiguration",
                    Place::Xml(
                        "JournalTableConfiguration",
                        shapes::JOURNAL_TABLE_CONFIGURATION_UPDATES,
                    ),
                    Kind::Text,
                )),
            ],
        ],
        digest: Digest::Crc32,
        ..BASE
    },
];
