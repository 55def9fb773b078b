//! Operations that read configurations. Made by guest/python/tests/rust_tables.py.

use super::super::*;
use super::shapes;

pub(in crate::operation) const TABLE: &[Operation] = &[
    Operation {
        name: "GetBucketAbac",
        action: "s3:GetBucketAbac",
        query: &[("abac", "")],
        input: &[COMMON],
        output: Output::Xml(&[named("AbacStatus", "", Shape::Structure(shapes::ABAC_STATUS))]),
        ..BASE
    },
    Operation {
        name: "GetBucketAccelerateConfiguration",
        action: "s3:GetAccelerateConfiguration",
        query: &[("accelerate", "")],
        input: &[COMMON],
        found: &[&[found("RequestCharged", "x-amz-request-charged")]],
        output: Output::Xml(&[text("Status")]),
        ..BASE
    },
    Operation {
        name: "GetBucketAnalyticsConfiguration",
        action: "s3:GetAnalyticsConfiguration",
        query: &[("analytics", "")],
        input: &[COMMON, &[required(query("Id", "id"))]],
        output: Output::Xml(&[named(
            "AnalyticsConfiguration",
            "",
            Shape::Structure(shapes::ANALYTICS_CONFIGURATION),
        )]),
        ..BASE
    },
    Operation {
        name: "GetBucketCors",
        action: "s3:GetBucketCORS",
        query: &[("cors", "")],
        input: &[COMMON],
        output: Output::Xml(&[named(
            "CORSRules",
            "CORSRule",
            Shape::Flat(&Shape::Structure(shapes::CORS_RULE)),
        )]),
        ..BASE
    },
    Operation {
        name: "GetBucketEncryption",
        action: "s3:GetEncryptionConfiguration",
        query: &[("encryption", "")],
        input: &[COMMON],
        output: Output::Xml(&[named(
            "ServerSideEncryptionConfiguration",
            "",
            Shape::Structure(shapes::SERVER_SIDE_ENCRYPTION_CONFIGURATION),
        )]),
        ..BASE
    },
    Operation {
        name: "GetBucketIntelligentTieringConfiguration",
        action: "s3:GetIntelligentTieringConfiguration",
        query: &[("intelligent-tiering", "")],
        input: &[COMMON, &[required(query("Id", "id"))]],
        output: Output::Xml(&[named(
            "IntelligentTieringConfiguration",
            "",
            Shape::Structure(shapes::INTELLIGENT_TIERING_CONFIGURATION),
        )]),
        ..BASE
    },
    Operation {
        name: "GetBucketInventoryConfiguration",
        action: "s3:GetInventoryConfiguration",
        query: &[("inventory", "")],
        input: &[COMMON, &[required(query("Id", "id"))]],
        output: Output::Xml(&[named(
            "InventoryConfiguration",
            "",
            Shape::Structure(shapes::INVENTORY_CONFIGURATION),
        )]),
        ..BASE
    },
    Operation {
        name: "GetBucketLifecycle",
        action: "s3:GetLifecycleConfiguration",
        query: &[("lifecycle", "")],
        input: &[COMMON],
        output: Output::Xml(&[named(
            "Rules",
            "Rule",
            Shape::Flat(&Shape::Structure(shapes::RULE)),
        )]),
        ..BASE
    },
    Operation {
        name: "GetBucketLifecycleConfiguration",
        action: "s3:GetLifecycleConfiguration",
        query: &[("lifecycle", "")],
        input: &[COMMON],
        found: &[&[found(
            "TransitionDefaultMinimumObjectSize",
            "x-amz-transition-default-minimum-object-size",
        )]],
        output: Output::Xml(&[named(
            "Rules",
            "Rule",
            Shape::Flat(&Shape::Structure(shapes::LIFECYCLE_RULE)),
        )]),
        ..BASE
    },
    Operation {
        name: "GetBucketLogging",
        action: "s3:GetBucketLogging",
        query: &[("logging", "")],
        input: &[COMMON],
        output: Output::Xml(&[within("LoggingEnabled", Shape::Structure(shapes::LOGGING_ENABLED))]),
        ..BASE
    },
    Operation {
        name: "GetBucketMetadataConfiguration",
        action: "s3:GetBucketMetadataTableConfiguration",
        query: &[("metadataConfiguration", "")],
        input: &[COMMON],
        output: Output::Xml(&[named(
            "GetBucketMetadataConfigurationResult",
            "",
            Shape::Structure(shapes::GET_BUCKET_METADATA_CONFIGURATION_RESULT),
        )]),
        ..BASE
    },
    Operation {
        name: "GetBucketMetadataTableConfiguration",
        action: "s3:GetBucketMetadataTableConfiguration",
        query: &[("metadataTable", "")],
        input: &[COMMON],
        output: Output::Xml(&[named(
            "GetBucketMetadataTableConfigurationResult",
            "",
            Shape::Structure(shapes::GET_BUCKET_METADATA_TABLE_CONFIGURATION_RESULT),
        )]),
        ..BASE
    },
    Operation {
        name: "GetBucketMetricsConfiguration",
        action: "s3:GetMetricsConfiguration",
        query: &[("metrics", "")],
        input: &[COMMON, &[required(query("Id", "id"))]],
        output: Output::Xml(&[named(
            "MetricsConfiguration",
            "",
            Shape::Structure(shapes::METRICS_CONFIGURATION),
        )]),
        ..BASE
    },
    Operation {
        name: "GetBucketNotification",
        action: "s3:GetBucketNotification",
        query: &[("notification", "")],
        input: &[COMMON],
        output: Output::Xml(&[
            within("TopicConfiguration", Shape::Structure(shapes::TOPIC_CONFIGURATION_DEPRECATED)),
            within("QueueConfiguration", Shape::Structure(shapes::QUEUE_CONFIGURATION_DEPRECATED)),
            within(
                "CloudFunctionConfiguration",
                Shape::Structure(shapes::CLOUD_FUNCTION_CONFIGURATION),
            ),
        ]),
        ..BASE
    },
    Operation {
        name: "GetBucketNotificationConfiguration",
        action: "s3:GetBucketNotification",
        query: &[("notification", "")],
        input: &[COMMON],
        output: Output::Xml(&[
            named(
                "TopicConfigurations",
                "TopicConfiguration",
                Shape::Flat(&Shape::Structure(shapes::TOPIC_CONFIGURATION)),
            ),
            named(
                "QueueConfigurations",
                "QueueConfiguration",
                Shape::Flat(&Shape::Structure(shapes::QUEUE_CONFIGURATION)),
            ),
            named(
                "LambdaFunctionConfigurations",
                "CloudFunctionConfiguration",
                Shape::Flat(&Shape::Structure(shapes::LAMBDA_FUNCTION_CONFIGURATION)),
            ),
            within(
                "EventBridgeConfiguration",
                Shape::Structure(shapes::EVENT_BRIDGE_CONFIGURATION),
            ),
        ]),
        ..BASE
    },
    Operation {
        name: "GetBucketOwnershipControls",
        action: "s3:GetBucketOwnershipControls",
        query: &[("ownershipControls", "")],
        input: &[COMMON],
        output: Output::Xml(&[named(
            "OwnershipControls",
            "",
            Shape::Structure(shapes::OWNERSHIP_CONTROLS),
        )]),
        ..BASE
    },
    Operation {
        name: "GetBucketPolicy",
        action: "s3:GetBucketPolicy",
        query: &[("policy", "")],
        input: &[COMMON],
        output: Output::Raw("Policy"),
        ..BASE
    },
    Operation {
        name: "GetBucketPolicyStatus",
        action: "s3:GetBucketPolicyStatus",
        query: &[("policyStatus", "")],
        input: &[COMMON],
        output: Output::Xml(&[named("PolicyStatus", "", Shape::Structure(shapes::POLICY_STATUS))]),
        ..BASE
    },
    Operation {
        name: "GetBucketReplication",
        action: "s3:GetReplicationConfiguration",
        query: &[("replication", "")],
        input: &[COMMON],
        output: Output::Xml(&[named(
            "ReplicationConfiguration",
            "",
            Shape::Structure(shapes::REPLICATION_CONFIGURATION),
        )]),
        ..BASE
    },
    Operation {
        name: "GetBucketRequestPayment",
        action: "s3:GetBucketRequestPayment",
        query: &[("requestPayment", "")],
        input: &[COMMON],
        output: Output::Xml(&[text("Payer")]),
        ..BASE
    },
    Operation {
        name: "GetBucketWebsite",
        action: "s3:GetBucketWebsite",
        query: &[("website", "")],
        input: &[COMMON],
        output: Output::Xml(&[
            within("RedirectAllRequestsTo", Shape::Structure(shapes::REDIRECT_ALL_REQUESTS_TO)),
            within("IndexDocument", Shape::Structure(shapes::INDEX_DOCUMENT)),
            within("ErrorDocument", Shape::Structure(shapes::ERROR_DOCUMENT)),
            within(
                "RoutingRules",
                Shape::List("RoutingRule", &Shape::Structure(shapes::ROUTING_RULE)),
            ),
        ]),
        ..BASE
    },
    Operation {
        name: "GetObjectAnnotation",
        action: "s3:GetObjectAnnotation",
        target: Target::Object,
        effect: Effect::ReadObject,
        query: &[("annotation", "")],
        input: &[
            COMMON,
            &[
                required(query("AnnotationName", "annotationName")),
                query("VersionId", "versionId"),
                header("ChecksumMode", "x-amz-checksum-mode"),
            ],
        ],
        found: &[&[
            found("ObjectVersionId", "x-amz-object-version-id"),
            found_as(Kind::HttpDate, "LastModified", "last-modified"),
            found_as(Kind::Integer, "ContentLength", "content-length"),
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
            found("ReplicationStatus", "x-amz-replication-status"),
        ]],
        output: Output::Object,
        ..BASE
    },
    Operation {
        name: "GetObjectLegalHold",
        action: "s3:GetObjectLegalHold",
        target: Target::Object,
        effect: Effect::ReadObject,
        query: &[("legal-hold", "")],
        input: &[COMMON, &[query("VersionId", "versionId")]],
        output: Output::Xml(&[named(
            "LegalHold",
            "",
            Shape::Structure(shapes::OBJECT_LOCK_LEGAL_HOLD),
        )]),
        ..BASE
    },
    Operation {
        name: "GetObjectLockConfiguration",
        action: "s3:GetBucketObjectLockConfiguration",
        query: &[("object-lock", "")],
        input: &[COMMON],
        output: Output::Xml(&[named(
            "ObjectLockConfiguration",
            "",
            Shape::Structure(shapes::OBJECT_LOCK_CONFIGURATION),
        )]),
        ..BASE
    },
    Operation {
        name: "GetObjectRetention",
        action: "s3:GetObjectRetention",
        target: Target::Object,
        effect: Effect::ReadObject,
        query: &[("retention", "")],
        input: &[COMMON, &[query("VersionId", "versionId")]],
        output: Output::Xml(&[named(
            "Retention",
            "",
            Shape::Structure(shapes::OBJECT_LOCK_RETENTION),
        )]),
        ..BASE
    },
    Operation {
        name: "GetObjectTorrent",
        action: "s3:GetObjectTorrent",
        target: Target::Object,
        effect: Effect::ReadObject,
        query: &[("torrent", "")],
        input: &[COMMON],
        found: &[&[found("RequestCharged", "x-amz-request-charged")]],
        output: Output::Object,
        ..BASE
    },
    Operation {
        name: "GetPublicAccessBlock",
        action: "s3:GetBucketPublicAccessBlock",
        query: &[("publicAccessBlock", "")],
        input: &[COMMON],
        output: Output::Xml(&[named(
            "PublicAccessBlockConfiguration",
            "",
            Shape::Structure(shapes::PUBLIC_ACCESS_BLOCK_CONFIGURATION),
        )]),
        ..BASE
    },
    Operation {
        name: "ListBucketAnalyticsConfigurations",
        action: "s3:GetAnalyticsConfiguration",
        query: &[("analytics", "")],
        input: &[COMMON, &[query("ContinuationToken", "continuation-token")]],
        output: Output::Xml(&[
            leaf("IsTruncated", Kind::Boolean),
            text("ContinuationToken"),
            text("NextContinuationToken"),
            named(
                "AnalyticsConfigurationList",
                "AnalyticsConfiguration",
                Shape::Flat(&Shape::Structure(shapes::ANALYTICS_CONFIGURATION)),
            ),
        ]),
        ..BASE
    },
    Operation {
        name: "ListBucketIntelligentTieringConfigurations",
        action: "s3:GetIntelligentTieringConfiguration",
        query: &[("intelligent-tiering", "")],
        input: &[COMMON, &[query("ContinuationToken", "continuation-token")]],
        output: Output::Xml(&[
            leaf("IsTruncated", Kind::Boolean),
            text("ContinuationToken"),
            text("NextContinuationToken"),
            named(
                "IntelligentTieringConfigurationList",
                "IntelligentTieringConfiguration",
                Shape::Flat(&Shape::Structure(shapes::INTELLIGENT_TIERING_CONFIGURATION)),
            ),
        ]),
        ..BASE
    },
    Operation {
        name: "ListBucketInventoryConfigurations",
        action: "s3:GetInventoryConfiguration",
        query: &[("inventory", "")],
        input: &[COMMON, &[query("ContinuationToken", "continuation-token")]],
        output: Output::Xml(&[
            text("ContinuationToken"),
            named(
                "InventoryConfigurationList",
                "InventoryConfiguration",
                Shape::Flat(&Shape::Structure(shapes::INVENTORY_CONFIGURATION)),
            ),
            leaf("IsTruncated", Kind::Boolean),
            text("NextContinuationToken"),
        ]),
        ..BASE
    },
    Operation {
        name: "ListBucketMetricsConfigurations",
        action: "s3:GetMetricsConfiguration",
        query: &[("metrics", "")],
        input: &[COMMON, &[query("ContinuationToken", "continuation-token")]],
        output: Output::Xml(&[
            leaf("IsTruncated", Kind::Boolean),
            text("ContinuationToken"),
            text("NextContinuationToken"),
            named(
                "MetricsConfigurationList",
                "MetricsConfiguration",
                Shape::Flat(&Shape::Structure(shapes::METRICS_CONFIGURATION)),
            ),
        ]),
        ..BASE
    },
    Operation {
        name: "ListDirectoryBuckets",
        action: "s3:ListAllMyDirectoryBuckets",
        target: Target::Service,
        input: &[
            COMMON,
            &[
                query("ContinuationToken", "continuation-token"),
                of(Kind::Integer, query("MaxDirectoryBuckets", "max-directory-buckets")),
            ],
        ],
        output: Output::Xml(&[
            within("Buckets", Shape::List("Bucket", &Shape::Structure(shapes::BUCKET))),
            text("ContinuationToken"),
        ]),
        ..BASE
    },
    Operation {
        name: "ListObjectAnnotations",
        action: "s3:ListObjectAnnotations",
        target: Target::Object,
        effect: Effect::ReadObject,
        query: &[("annotation", "")],
        input: &[
            COMMON,
            &[
                query("VersionId", "versionId"),
                of(Kind::Integer, query("MaxAnnotationResults", "max-annotation-results")),
                query("AnnotationPrefix", "annotation-prefix"),
                query("ContinuationToken", "continuation-token"),
            ],
        ],
        found: &[&[
            found("ObjectVersionId", "x-amz-object-version-id"),
            found("RequestCharged", "x-amz-request-charged"),
        ]],
        output: Output::Xml(&[
            within(
                "Annotations",
                Shape::List("AnnotationEntry", &Shape::Structure(shapes::ANNOTATION_ENTRY)),
            ),
            text("Bucket"),
            text("Key"),
            text("AnnotationPrefix"),
            leaf("MaxAnnotationResults", Kind::Integer),
            leaf("AnnotationCount", Kind::Integer),
            text("ContinuationToken"),
            text("NextContinuationToken"),
        ]),
        ..BASE
    },
];
