//! Structures of configurations. Made by guest/python/tests/rust_tables.py.

use super::super::*;

pub(super) const ABAC_STATUS: &[Member] = &[text("Status")];
pub(super) const ABORT_INCOMPLETE_MULTIPART_UPLOAD: &[Member] =
    &[leaf("DaysAfterInitiation", Kind::Integer)];
pub(super) const ACCELERATE_CONFIGURATION: &[Member] = &[text("Status")];
pub(super) const ACCESS_CONTROL_TRANSLATION: &[Member] = &[text("Owner")];
pub(super) const ANALYTICS_AND_OPERATOR: &[Member] =
    &[text("Prefix"), named("Tags", "Tag", Shape::Flat(&Shape::Structure(TAG)))];
pub(super) const ANALYTICS_CONFIGURATION: &[Member] = &[
    text("Id"),
    within("Filter", Shape::Structure(ANALYTICS_FILTER)),
    within("StorageClassAnalysis", Shape::Structure(STORAGE_CLASS_ANALYSIS)),
];
pub(super) const ANALYTICS_EXPORT_DESTINATION: &[Member] =
    &[within("S3BucketDestination", Shape::Structure(ANALYTICS_S3_BUCKET_DESTINATION))];
pub(super) const ANALYTICS_FILTER: &[Member] = &[
    text("Prefix"),
    within("Tag", Shape::Structure(TAG)),
    within("And", Shape::Structure(ANALYTICS_AND_OPERATOR)),
];
pub(super) const ANALYTICS_S3_BUCKET_DESTINATION: &[Member] =
    &[text("Format"), text("BucketAccountId"), text("Bucket"), text("Prefix")];
pub(super) const ANNOTATION_ENTRY: &[Member] = &[
    text("AnnotationName"),
    leaf("LastModified", Kind::Timestamp),
    text("ETag"),
    within("ChecksumAlgorithm", Shape::Flat(&TEXT)),
    leaf("Size", Kind::Integer),
    text("ReplicationStatus"),
];
pub(super) const ANNOTATION_TABLE_CONFIGURATION: &[Member] = &[
    text("ConfigurationState"),
    within("EncryptionConfiguration", Shape::Structure(METADATA_TABLE_ENCRYPTION_CONFIGURATION)),
    text("Role"),
];
pub(super) const ANNOTATION_TABLE_CONFIGURATION_RESULT: &[Member] = &[
    text("ConfigurationState"),
    text("TableStatus"),
    within("Error", Shape::Structure(ERROR_DETAILS)),
    text("TableName"),
    text("TableArn"),
    text("Role"),
];
pub(super) const ANNOTATION_TABLE_CONFIGURATION_UPDATES: &[Member] = &[
    text("ConfigurationState"),
    within("EncryptionConfiguration", Shape::Structure(METADATA_TABLE_ENCRYPTION_CONFIGURATION)),
    text("Role"),
];
pub(super) const BLOCKED_ENCRYPTION_TYPES: &[Member] =
    &[within("EncryptionType", Shape::Flat(&TEXT))];
pub(super) const BUCKET: &[Member] =
    &[text("Name"), leaf("CreationDate", Kind::Timestamp), text("BucketRegion"), text("BucketArn")];
pub(super) const BUCKET_LIFECYCLE_CONFIGURATION: &[Member] =
    &[named("Rules", "Rule", Shape::Flat(&Shape::Structure(LIFECYCLE_RULE)))];
pub(super) const BUCKET_LOGGING_STATUS: &[Member] =
    &[within("LoggingEnabled", Shape::Structure(LOGGING_ENABLED))];
pub(super) const CORS_CONFIGURATION: &[Member] =
    &[named("CORSRules", "CORSRule", Shape::Flat(&Shape::Structure(CORS_RULE)))];
pub(super) const CORS_RULE: &[Member] = &[
    text("ID"),
    named("AllowedHeaders", "AllowedHeader", Shape::Flat(&TEXT)),
    named("AllowedMethods", "AllowedMethod", Shape::Flat(&TEXT)),
    named("AllowedOrigins", "AllowedOrigin", Shape::Flat(&TEXT)),
    named("ExposeHeaders", "ExposeHeader", Shape::Flat(&TEXT)),
    leaf("MaxAgeSeconds", Kind::Integer),
];
pub(super) const CSV_INPUT: &[Member] = &[
    text("FileHeaderInfo"),
    text("Comments"),
    text("QuoteEscapeCharacter"),
    text("RecordDelimiter"),
    text("FieldDelimiter"),
    text("QuoteCharacter"),
    leaf("AllowQuotedRecordDelimiter", Kind::Boolean),
];
pub(super) const CSV_OUTPUT: &[Member] = &[
    text("QuoteFields"),
    text("QuoteEscapeCharacter"),
    text("RecordDelimiter"),
    text("FieldDelimiter"),
    text("QuoteCharacter"),
];
pub(super) const CLOUD_FUNCTION_CONFIGURATION: &[Member] = &[
    text("Id"),
    text("Event"),
    named("Events", "Event", Shape::Flat(&TEXT)),
    text("CloudFunction"),
    text("InvocationRole"),
];
pub(super) const CONDITION: &[Member] =
    &[text("HttpErrorCodeReturnedEquals"), text("KeyPrefixEquals")];
pub(super) const DEFAULT_RETENTION: &[Member] = &[
    text("Mode"),
    leaf("Days", Kind::Integer),
    leaf("Years", Kind::Integer),
    within("DefaultEventHold", Shape::Structure(EVENT_HOLD_DURATION)),
];
pub(super) const DELETE_MARKER_REPLICATION: &[Member] = &[text("Status")];
pub(super) const DESTINATION: &[Member] = &[
    text("Bucket"),
    text("Account"),
    text("StorageClass"),
    within("AccessControlTranslation", Shape::Structure(ACCESS_CONTROL_TRANSLATION)),
    within("EncryptionConfiguration", Shape::Structure(ENCRYPTION_CONFIGURATION)),
    within("ReplicationTime", Shape::Structure(REPLICATION_TIME)),
    within("Metrics", Shape::Structure(METRICS)),
];
pub(super) const DESTINATION_RESULT: &[Member] =
    &[text("TableBucketType"), text("TableBucketArn"), text("TableNamespace")];
pub(super) const ENCRYPTION: &[Member] =
    &[text("EncryptionType"), text("KMSKeyId"), text("KMSContext")];
pub(super) const ENCRYPTION_CONFIGURATION: &[Member] = &[text("ReplicaKmsKeyID")];
pub(super) const ERROR_DETAILS: &[Member] = &[text("ErrorCode"), text("ErrorMessage")];
pub(super) const ERROR_DOCUMENT: &[Member] = &[text("Key")];
pub(super) const EVENT_BRIDGE_CONFIGURATION: &[Member] = &[];
pub(super) const EVENT_HOLD_DURATION: &[Member] =
    &[leaf("Days", Kind::Integer), leaf("Years", Kind::Integer)];
pub(super) const EXISTING_OBJECT_REPLICATION: &[Member] = &[text("Status")];
pub(super) const FILTER_RULE: &[Member] = &[text("Name"), text("Value")];
pub(super) const GET_BUCKET_METADATA_CONFIGURATION_RESULT: &[Member] =
    &[within("MetadataConfigurationResult", Shape::Structure(METADATA_CONFIGURATION_RESULT))];
pub(super) const GET_BUCKET_METADATA_TABLE_CONFIGURATION_RESULT: &[Member] = &[
    within(
        "MetadataTableConfigurationResult",
        Shape::Structure(METADATA_TABLE_CONFIGURATION_RESULT),
    ),
    text("Status"),
    within("Error", Shape::Structure(ERROR_DETAILS)),
];
pub(super) const GLACIER_JOB_PARAMETERS: &[Member] = &[text("Tier")];
pub(super) const GRANT: &[Member] =
    &[within("Grantee", Shape::Structure(GRANTEE)), text("Permission")];
pub(super) const GRANTEE: &[Member] = &[
    text("DisplayName"),
    text("EmailAddress"),
    text("ID"),
    named("Type", "xsi:type", Shape::XsiType),
    text("URI"),
];
pub(super) const INDEX_DOCUMENT: &[Member] = &[text("Suffix")];
pub(super) const INPUT_SERIALIZATION: &[Member] = &[
    within("CSV", Shape::Structure(CSV_INPUT)),
    text("CompressionType"),
    within("JSON", Shape::Structure(JSON_INPUT)),
    within("Parquet", Shape::Structure(PARQUET_INPUT)),
];
pub(super) const INTELLIGENT_TIERING_AND_OPERATOR: &[Member] =
    &[text("Prefix"), named("Tags", "Tag", Shape::Flat(&Shape::Structure(TAG)))];
pub(super) const INTELLIGENT_TIERING_CONFIGURATION: &[Member] = &[
    text("Id"),
    within("Filter", Shape::Structure(INTELLIGENT_TIERING_FILTER)),
    text("Status"),
    named("Tierings", "Tiering", Shape::Flat(&Shape::Structure(TIERING))),
];
pub(super) const INTELLIGENT_TIERING_FILTER: &[Member] = &[
    text("Prefix"),
    within("Tag", Shape::Structure(TAG)),
    within("And", Shape::Structure(INTELLIGENT_TIERING_AND_OPERATOR)),
];
pub(super) const INVENTORY_CONFIGURATION: &[Member] = &[
    within("Destination", Shape::Structure(INVENTORY_DESTINATION)),
    leaf("IsEnabled", Kind::Boolean),
    within("Filter", Shape::Structure(INVENTORY_FILTER)),
    text("Id"),
    text("IncludedObjectVersions"),
    within("OptionalFields", Shape::List("Field", &TEXT)),
    within("Schedule", Shape::Structure(INVENTORY_SCHEDULE)),
];
pub(super) const INVENTORY_DESTINATION: &[Member] =
    &[within("S3BucketDestination", Shape::Structure(INVENTORY_S3_BUCKET_DESTINATION))];
pub(super) const INVENTORY_ENCRYPTION: &[Member] = &[
    named("SSES3", "SSE-S3", Shape::Structure(SSES3)),
    named("SSEKMS", "SSE-KMS", Shape::Structure(SSEKMS)),
];
pub(super) const INVENTORY_FILTER: &[Member] = &[text("Prefix")];
pub(super) const INVENTORY_S3_BUCKET_DESTINATION: &[Member] = &[
    text("AccountId"),
    text("Bucket"),
    text("Format"),
    text("Prefix"),
    within("Encryption", Shape::Structure(INVENTORY_ENCRYPTION)),
];
pub(super) const INVENTORY_SCHEDULE: &[Member] = &[text("Frequency")];
pub(super) const INVENTORY_TABLE_CONFIGURATION: &[Member] = &[
    text("ConfigurationState"),
    within("EncryptionConfiguration", Shape::Structure(METADATA_TABLE_ENCRYPTION_CONFIGURATION)),
];
pub(super) const INVENTORY_TABLE_CONFIGURATION_RESULT: &[Member] = &[
    text("ConfigurationState"),
    text("TableStatus"),
    within("Error", Shape::Structure(ERROR_DETAILS)),
    text("TableName"),
    text("TableArn"),
];
pub(super) const INVENTORY_TABLE_CONFIGURATION_UPDATES: &[Member] = &[
    text("ConfigurationState"),
    within("EncryptionConfiguration", Shape::Structure(METADATA_TABLE_ENCRYPTION_CONFIGURATION)),
];
pub(super) const JSON_INPUT: &[Member] = &[text("Type")];
pub(super) const JSON_OUTPUT: &[Member] = &[text("RecordDelimiter")];
pub(super) const JOURNAL_TABLE_CONFIGURATION: &[Member] = &[
    within("RecordExpiration", Shape::Structure(RECORD_EXPIRATION)),
    within("EncryptionConfiguration", Shape::Structure(METADATA_TABLE_ENCRYPTION_CONFIGURATION)),
];
pub(super) const JOURNAL_TABLE_CONFIGURATION_RESULT: &[Member] = &[
    text("TableStatus"),
    within("Error", Shape::Structure(ERROR_DETAILS)),
    text("TableName"),
    text("TableArn"),
    within("RecordExpiration", Shape::Structure(RECORD_EXPIRATION)),
];
pub(super) const JOURNAL_TABLE_CONFIGURATION_UPDATES: &[Member] =
    &[within("RecordExpiration", Shape::Structure(RECORD_EXPIRATION))];
pub(super) const LAMBDA_FUNCTION_CONFIGURATION: &[Member] = &[
    text("Id"),
    named("LambdaFunctionArn", "CloudFunction", TEXT),
    named("Events", "Event", Shape::Flat(&TEXT)),
    within("Filter", Shape::Structure(NOTIFICATION_CONFIGURATION_FILTER)),
];
pub(super) const LIFECYCLE_CONFIGURATION: &[Member] =
    &[named("Rules", "Rule", Shape::Flat(&Shape::Structure(RULE)))];
pub(super) const LIFECYCLE_EXPIRATION: &[Member] = &[
    leaf("Date", Kind::Timestamp),
    leaf("Days", Kind::Integer),
    leaf("ExpiredObjectDeleteMarker", Kind::Boolean),
];
pub(super) const LIFECYCLE_RULE: &[Member] = &[
    within("Expiration", Shape::Structure(LIFECYCLE_EXPIRATION)),
    text("ID"),
    text("Prefix"),
    within("Filter", Shape::Structure(LIFECYCLE_RULE_FILTER)),
    text("Status"),
    named("Transitions", "Transition", Shape::Flat(&Shape::Structure(TRANSITION))),
    named(
        "NoncurrentVersionTransitions",
        "NoncurrentVersionTransition",
        Shape::Flat(&Shape::Structure(NONCURRENT_VERSION_TRANSITION)),
    ),
    within("NoncurrentVersionExpiration", Shape::Structure(NONCURRENT_VERSION_EXPIRATION)),
    within("AbortIncompleteMultipartUpload", Shape::Structure(ABORT_INCOMPLETE_MULTIPART_UPLOAD)),
];
pub(super) const LIFECYCLE_RULE_AND_OPERATOR: &[Member] = &[
    text("Prefix"),
    named("Tags", "Tag", Shape::Flat(&Shape::Structure(TAG))),
    leaf("ObjectSizeGreaterThan", Kind::Integer),
    leaf("ObjectSizeLessThan", Kind::Integer),
];
pub(super) const LIFECYCLE_RULE_FILTER: &[Member] = &[
    text("Prefix"),
    within("Tag", Shape::Structure(TAG)),
    leaf("ObjectSizeGreaterThan", Kind::Integer),
    leaf("ObjectSizeLessThan", Kind::Integer),
    within("And", Shape::Structure(LIFECYCLE_RULE_AND_OPERATOR)),
];
pub(super) const LOGGING_ENABLED: &[Member] = &[
    text("TargetBucket"),
    within("TargetGrants", Shape::List("Grant", &Shape::Structure(TARGET_GRANT))),
    text("TargetPrefix"),
    within("TargetObjectKeyFormat", Shape::Structure(TARGET_OBJECT_KEY_FORMAT)),
];
pub(super) const METADATA_CONFIGURATION: &[Member] = &[
    within("JournalTableConfiguration", Shape::Structure(JOURNAL_TABLE_CONFIGURATION)),
    within("InventoryTableConfiguration", Shape::Structure(INVENTORY_TABLE_CONFIGURATION)),
    within("AnnotationTableConfiguration", Shape::Structure(ANNOTATION_TABLE_CONFIGURATION)),
];
pub(super) const METADATA_CONFIGURATION_RESULT: &[Member] = &[
    within("DestinationResult", Shape::Structure(DESTINATION_RESULT)),
    within("JournalTableConfigurationResult", Shape::Structure(JOURNAL_TABLE_CONFIGURATION_RESULT)),
    within(
        "InventoryTableConfigurationResult",
        Shape::Structure(INVENTORY_TABLE_CONFIGURATION_RESULT),
    ),
    within(
        "AnnotationTableConfigurationResult",
        Shape::Structure(ANNOTATION_TABLE_CONFIGURATION_RESULT),
    ),
];
pub(super) const METADATA_ENTRY: &[Member] = &[text("Name"), text("Value")];
pub(super) const METADATA_TABLE_CONFIGURATION: &[Member] =
    &[within("S3TablesDestination", Shape::Structure(S3_TABLES_DESTINATION))];
pub(super) const METADATA_TABLE_CONFIGURATION_RESULT: &[Member] =
    &[within("S3TablesDestinationResult", Shape::Structure(S3_TABLES_DESTINATION_RESULT))];
pub(super) const METADATA_TABLE_ENCRYPTION_CONFIGURATION: &[Member] =
    &[text("SseAlgorithm"), text("KmsKeyArn")];
pub(super) const METRICS: &[Member] =
    &[text("Status"), within("EventThreshold", Shape::Structure(REPLICATION_TIME_VALUE))];
pub(super) const METRICS_AND_OPERATOR: &[Member] = &[
    text("Prefix"),
    named("Tags", "Tag", Shape::Flat(&Shape::Structure(TAG))),
    text("AccessPointArn"),
];
pub(super) const METRICS_CONFIGURATION: &[Member] =
    &[text("Id"), within("Filter", Shape::Structure(METRICS_FILTER))];
pub(super) const METRICS_FILTER: &[Member] = &[
    text("Prefix"),
    within("Tag", Shape::Structure(TAG)),
    text("AccessPointArn"),
    within("And", Shape::Structure(METRICS_AND_OPERATOR)),
];
pub(super) const NONCURRENT_VERSION_EXPIRATION: &[Member] =
    &[leaf("NoncurrentDays", Kind::Integer), leaf("NewerNoncurrentVersions", Kind::Integer)];
pub(super) const NONCURRENT_VERSION_TRANSITION: &[Member] = &[
    leaf("NoncurrentDays", Kind::Integer),
    text("StorageClass"),
    leaf("NewerNoncurrentVersions", Kind::Integer),
];
pub(super) const NOTIFICATION_CONFIGURATION: &[Member] = &[
    named(
        "TopicConfigurations",
        "TopicConfiguration",
        Shape::Flat(&Shape::Structure(TOPIC_CONFIGURATION)),
    ),
    named(
        "QueueConfigurations",
        "QueueConfiguration",
        Shape::Flat(&Shape::Structure(QUEUE_CONFIGURATION)),
    ),
    named(
        "LambdaFunctionConfigurations",
        "CloudFunctionConfiguration",
        Shape::Flat(&Shape::Structure(LAMBDA_FUNCTION_CONFIGURATION)),
    ),
    within("EventBridgeConfiguration", Shape::Structure(EVENT_BRIDGE_CONFIGURATION)),
];
pub(super) const NOTIFICATION_CONFIGURATION_DEPRECATED: &[Member] = &[
    within("TopicConfiguration", Shape::Structure(TOPIC_CONFIGURATION_DEPRECATED)),
    within("QueueConfiguration", Shape::Structure(QUEUE_CONFIGURATION_DEPRECATED)),
    within("CloudFunctionConfiguration", Shape::Structure(CLOUD_FUNCTION_CONFIGURATION)),
];
pub(super) const NOTIFICATION_CONFIGURATION_FILTER: &[Member] =
    &[named("Key", "S3Key", Shape::Structure(S3_KEY_FILTER))];
pub(super) const OBJECT_LOCK_CONFIGURATION: &[Member] =
    &[text("ObjectLockEnabled"), within("Rule", Shape::Structure(OBJECT_LOCK_RULE))];
pub(super) const OBJECT_LOCK_LEGAL_HOLD: &[Member] = &[text("Status")];
pub(super) const OBJECT_LOCK_RETENTION: &[Member] = &[
    text("Mode"),
    leaf("RetainUntilDate", Kind::Timestamp),
    text("EventHold"),
    within("EventHoldDuration", Shape::Structure(EVENT_HOLD_DURATION)),
];
pub(super) const OBJECT_LOCK_RULE: &[Member] =
    &[within("DefaultRetention", Shape::Structure(DEFAULT_RETENTION))];
pub(super) const OUTPUT_LOCATION: &[Member] = &[within("S3", Shape::Structure(S3_LOCATION))];
pub(super) const OUTPUT_SERIALIZATION: &[Member] =
    &[within("CSV", Shape::Structure(CSV_OUTPUT)), within("JSON", Shape::Structure(JSON_OUTPUT))];
pub(super) const OWNERSHIP_CONTROLS: &[Member] =
    &[named("Rules", "Rule", Shape::Flat(&Shape::Structure(OWNERSHIP_CONTROLS_RULE)))];
pub(super) const OWNERSHIP_CONTROLS_RULE: &[Member] = &[text("ObjectOwnership")];
pub(super) const PARQUET_INPUT: &[Member] = &[];
pub(super) const PARTITIONED_PREFIX: &[Member] = &[text("PartitionDateSource")];
pub(super) const POLICY_STATUS: &[Member] = &[leaf("IsPublic", Kind::Boolean)];
pub(super) const PUBLIC_ACCESS_BLOCK_CONFIGURATION: &[Member] = &[
    leaf("BlockPublicAcls", Kind::Boolean),
    leaf("IgnorePublicAcls", Kind::Boolean),
    leaf("BlockPublicPolicy", Kind::Boolean),
    leaf("RestrictPublicBuckets", Kind::Boolean),
];
pub(super) const QUEUE_CONFIGURATION: &[Member] = &[
    text("Id"),
    named("QueueArn", "Queue", TEXT),
    named("Events", "Event", Shape::Flat(&TEXT)),
    within("Filter", Shape::Structure(NOTIFICATION_CONFIGURATION_FILTER)),
];
pub(super) const QUEUE_CONFIGURATION_DEPRECATED: &[Member] =
    &[text("Id"), text("Event"), named("Events", "Event", Shape::Flat(&TEXT)), text("Queue")];
pub(super) const RECORD_EXPIRATION: &[Member] = &[text("Expiration"), leaf("Days", Kind::Integer)];
pub(super) const REDIRECT: &[Member] = &[
    text("HostName"),
    text("HttpRedirectCode"),
    text("Protocol"),
    text("ReplaceKeyPrefixWith"),
    text("ReplaceKeyWith"),
];
pub(super) const REDIRECT_ALL_REQUESTS_TO: &[Member] = &[text("HostName"), text("Protocol")];
pub(super) const REPLICA_MODIFICATIONS: &[Member] = &[text("Status")];
pub(super) const REPLICATION_CONFIGURATION: &[Member] =
    &[text("Role"), named("Rules", "Rule", Shape::Flat(&Shape::Structure(REPLICATION_RULE)))];
pub(super) const REPLICATION_RULE: &[Member] = &[
    text("ID"),
    leaf("Priority", Kind::Integer),
    text("Prefix"),
    within("Filter", Shape::Structure(REPLICATION_RULE_FILTER)),
    text("Status"),
    within("SourceSelectionCriteria", Shape::Structure(SOURCE_SELECTION_CRITERIA)),
    within("ExistingObjectReplication", Shape::Structure(EXISTING_OBJECT_REPLICATION)),
    within("Destination", Shape::Structure(DESTINATION)),
    within("DeleteMarkerReplication", Shape::Structure(DELETE_MARKER_REPLICATION)),
];
pub(super) const REPLICATION_RULE_AND_OPERATOR: &[Member] =
    &[text("Prefix"), named("Tags", "Tag", Shape::Flat(&Shape::Structure(TAG)))];
pub(super) const REPLICATION_RULE_FILTER: &[Member] = &[
    text("Prefix"),
    within("Tag", Shape::Structure(TAG)),
    within("And", Shape::Structure(REPLICATION_RULE_AND_OPERATOR)),
];
pub(super) const REPLICATION_TIME: &[Member] =
    &[text("Status"), within("Time", Shape::Structure(REPLICATION_TIME_VALUE))];
pub(super) const REPLICATION_TIME_VALUE: &[Member] = &[leaf("Minutes", Kind::Integer)];
pub(super) const REQUEST_PAYMENT_CONFIGURATION: &[Member] = &[text("Payer")];
pub(super) const RESTORE_REQUEST: &[Member] = &[
    leaf("Days", Kind::Integer),
    within("GlacierJobParameters", Shape::Structure(GLACIER_JOB_PARAMETERS)),
    text("Type"),
    text("Tier"),
    text("Description"),
    within("SelectParameters", Shape::Structure(SELECT_PARAMETERS)),
    within("OutputLocation", Shape::Structure(OUTPUT_LOCATION)),
];
pub(super) const ROUTING_RULE: &[Member] = &[
    within("Condition", Shape::Structure(CONDITION)),
    within("Redirect", Shape::Structure(REDIRECT)),
];
pub(super) const RULE: &[Member] = &[
    within("Expiration", Shape::Structure(LIFECYCLE_EXPIRATION)),
    text("ID"),
    text("Prefix"),
    text("Status"),
    within("Transition", Shape::Structure(TRANSITION)),
    within("NoncurrentVersionTransition", Shape::Structure(NONCURRENT_VERSION_TRANSITION)),
    within("NoncurrentVersionExpiration", Shape::Structure(NONCURRENT_VERSION_EXPIRATION)),
    within("AbortIncompleteMultipartUpload", Shape::Structure(ABORT_INCOMPLETE_MULTIPART_UPLOAD)),
];
pub(super) const S3_KEY_FILTER: &[Member] =
    &[named("FilterRules", "FilterRule", Shape::Flat(&Shape::Structure(FILTER_RULE)))];
pub(super) const S3_LOCATION: &[Member] = &[
    text("BucketName"),
    text("Prefix"),
    within("Encryption", Shape::Structure(ENCRYPTION)),
    text("CannedACL"),
    within("AccessControlList", Shape::List("Grant", &Shape::Structure(GRANT))),
    within("Tagging", Shape::Structure(TAGGING)),
    within("UserMetadata", Shape::List("MetadataEntry", &Shape::Structure(METADATA_ENTRY))),
    text("StorageClass"),
];
pub(super) const S3_TABLES_DESTINATION: &[Member] = &[text("TableBucketArn"), text("TableName")];
pub(super) const S3_TABLES_DESTINATION_RESULT: &[Member] =
    &[text("TableBucketArn"), text("TableName"), text("TableArn"), text("TableNamespace")];
pub(super) const SSEKMS: &[Member] = &[text("KeyId")];
pub(super) const SSES3: &[Member] = &[];
pub(super) const SELECT_PARAMETERS: &[Member] = &[
    within("InputSerialization", Shape::Structure(INPUT_SERIALIZATION)),
    text("ExpressionType"),
    text("Expression"),
    within("OutputSerialization", Shape::Structure(OUTPUT_SERIALIZATION)),
];
pub(super) const SERVER_SIDE_ENCRYPTION_BY_DEFAULT: &[Member] =
    &[text("SSEAlgorithm"), text("KMSMasterKeyID")];
pub(super) const SERVER_SIDE_ENCRYPTION_CONFIGURATION: &[Member] =
    &[named("Rules", "Rule", Shape::Flat(&Shape::Structure(SERVER_SIDE_ENCRYPTION_RULE)))];
pub(super) const SERVER_SIDE_ENCRYPTION_RULE: &[Member] = &[
    within(
        "ApplyServerSideEncryptionByDefault",
        Shape::Structure(SERVER_SIDE_ENCRYPTION_BY_DEFAULT),
    ),
    leaf("BucketKeyEnabled", Kind::Boolean),
    within("BlockedEncryptionTypes", Shape::Structure(BLOCKED_ENCRYPTION_TYPES)),
];
pub(super) const SIMPLE_PREFIX: &[Member] = &[];
pub(super) const SOURCE_SELECTION_CRITERIA: &[Member] = &[
    within("SseKmsEncryptedObjects", Shape::Structure(SSE_KMS_ENCRYPTED_OBJECTS)),
    within("ReplicaModifications", Shape::Structure(REPLICA_MODIFICATIONS)),
];
pub(super) const SSE_KMS_ENCRYPTED_OBJECTS: &[Member] = &[text("Status")];
pub(super) const STORAGE_CLASS_ANALYSIS: &[Member] =
    &[within("DataExport", Shape::Structure(STORAGE_CLASS_ANALYSIS_DATA_EXPORT))];
pub(super) const STORAGE_CLASS_ANALYSIS_DATA_EXPORT: &[Member] = &[
    text("OutputSchemaVersion"),
    within("Destination", Shape::Structure(ANALYTICS_EXPORT_DESTINATION)),
];
pub(super) const TAG: &[Member] = &[text("Key"), text("Value")];
pub(super) const TAGGING: &[Member] =
    &[within("TagSet", Shape::List("Tag", &Shape::Structure(TAG)))];
pub(super) const TARGET_GRANT: &[Member] =
    &[within("Grantee", Shape::Structure(GRANTEE)), text("Permission")];
pub(super) const TARGET_OBJECT_KEY_FORMAT: &[Member] = &[
    within("SimplePrefix", Shape::Structure(SIMPLE_PREFIX)),
    within("PartitionedPrefix", Shape::Structure(PARTITIONED_PREFIX)),
];
pub(super) const TIERING: &[Member] = &[leaf("Days", Kind::Integer), text("AccessTier")];
pub(super) const TOPIC_CONFIGURATION: &[Member] = &[
    text("Id"),
    named("TopicArn", "Topic", TEXT),
    named("Events", "Event", Shape::Flat(&TEXT)),
    within("Filter", Shape::Structure(NOTIFICATION_CONFIGURATION_FILTER)),
];
pub(super) const TOPIC_CONFIGURATION_DEPRECATED: &[Member] =
    &[text("Id"), named("Events", "Event", Shape::Flat(&TEXT)), text("Event"), text("Topic")];
pub(super) const TRANSITION: &[Member] =
    &[leaf("Date", Kind::Timestamp), leaf("Days", Kind::Integer), text("StorageClass")];
pub(super) const WEBSITE_CONFIGURATION: &[Member] = &[
    within("ErrorDocument", Shape::Structure(ERROR_DOCUMENT)),
    within("IndexDocument", Shape::Structure(INDEX_DOCUMENT)),
    within("RedirectAllRequestsTo", Shape::Structure(REDIRECT_ALL_REQUESTS_TO)),
    within("RoutingRules", Shape::List("RoutingRule", &Shape::Structure(ROUTING_RULE))),
];
