"""S3's operations. Made by tests/tables.py; see `shape.py` for how to read it."""

OPERATIONS = {
    "AbortMultipartUpload": (
        "Bucket!:s Key!:s1 UploadId!:s RequestPayer:s ExpectedBucketOwner:s "
        "IfMatchInitiatedTime:t"
    ),
    "CompleteMultipartUpload": (
        "Bucket!:s Key!:s1 MultipartUpload:{CompletedMultipartUpload UploadId!:s ChecksumCRC32:s "
        "ChecksumCRC32C:s ChecksumCRC64NVME:s ChecksumSHA1:s ChecksumSHA256:s ChecksumSHA512:s "
        "ChecksumMD5:s ChecksumXXHASH64:s ChecksumXXHASH3:s ChecksumXXHASH128:s ChecksumType:s "
        "MpuObjectSize:i RequestPayer:s ExpectedBucketOwner:s IfMatch:s IfNoneMatch:s "
        "SSECustomerAlgorithm:s SSECustomerKey:s SSECustomerKeyMD5:s"
    ),
    "CopyObject": (
        "ACL:s Bucket!:s CacheControl:s ChecksumAlgorithm:s ContentDisposition:s "
        "ContentEncoding:s ContentLanguage:s ContentType:s CopySource!:s CopySourceIfMatch:s "
        "CopySourceIfModifiedSince:t CopySourceIfNoneMatch:s CopySourceIfUnmodifiedSince:t "
        "Expires:t GrantFullControl:s GrantRead:s GrantReadACP:s GrantWriteACP:s IfMatch:s "
        "IfNoneMatch:s Key!:s1 Metadata:m MetadataDirective:s TaggingDirective:s "
        "AnnotationDirective:s ServerSideEncryption:s StorageClass:s WebsiteRedirectLocation:s "
        "SSECustomerAlgorithm:s SSECustomerKey:s SSECustomerKeyMD5:s SSEKMSKeyId:s "
        "SSEKMSEncryptionContext:s BucketKeyEnabled:b CopySourceSSECustomerAlgorithm:s "
        "CopySourceSSECustomerKey:s CopySourceSSECustomerKeyMD5:s RequestPayer:s Tagging:s "
        "ObjectLockMode:s ObjectLockRetainUntilDate:t ObjectLockLegalHoldStatus:s "
        "ObjectLockEventHold:s ObjectLockEventHoldDurationDays:i "
        "ObjectLockEventHoldDurationYears:i ExpectedBucketOwner:s ExpectedSourceBucketOwner:s"
    ),
    "CreateBucket": (
        "ACL:s Bucket!:s CreateBucketConfiguration:{CreateBucketConfiguration GrantFullControl:s "
        "GrantRead:s GrantReadACP:s GrantWrite:s GrantWriteACP:s ObjectLockEnabledForBucket:b "
        "ObjectOwnership:s BucketNamespace:s"
    ),
    "CreateBucketMetadataConfiguration": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s MetadataConfiguration!:{MetadataConfiguration "
        "ExpectedBucketOwner:s"
    ),
    "CreateBucketMetadataTableConfiguration": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s "
        "MetadataTableConfiguration!:{MetadataTableConfiguration ExpectedBucketOwner:s"
    ),
    "CreateMultipartUpload": (
        "ACL:s Bucket!:s CacheControl:s ContentDisposition:s ContentEncoding:s ContentLanguage:s "
        "ContentType:s Expires:t GrantFullControl:s GrantRead:s GrantReadACP:s GrantWriteACP:s "
        "Key!:s1 Metadata:m ServerSideEncryption:s StorageClass:s WebsiteRedirectLocation:s "
        "SSECustomerAlgorithm:s SSECustomerKey:s SSECustomerKeyMD5:s SSEKMSKeyId:s "
        "SSEKMSEncryptionContext:s BucketKeyEnabled:b RequestPayer:s Tagging:s ObjectLockMode:s "
        "ObjectLockRetainUntilDate:t ObjectLockLegalHoldStatus:s ObjectLockEventHold:s "
        "ObjectLockEventHoldDurationDays:i ObjectLockEventHoldDurationYears:i "
        "ExpectedBucketOwner:s ChecksumAlgorithm:s ChecksumType:s"
    ),
    "DeleteBucket": "Bucket!:s ExpectedBucketOwner:s",
    "DeleteBucketAnalyticsConfiguration": "Bucket!:s Id!:s ExpectedBucketOwner:s",
    "DeleteBucketCors": "Bucket!:s ExpectedBucketOwner:s",
    "DeleteBucketEncryption": "Bucket!:s ExpectedBucketOwner:s",
    "DeleteBucketIntelligentTieringConfiguration": "Bucket!:s Id!:s ExpectedBucketOwner:s",
    "DeleteBucketInventoryConfiguration": "Bucket!:s Id!:s ExpectedBucketOwner:s",
    "DeleteBucketLifecycle": "Bucket!:s ExpectedBucketOwner:s",
    "DeleteBucketMetadataConfiguration": "Bucket!:s ExpectedBucketOwner:s",
    "DeleteBucketMetadataTableConfiguration": "Bucket!:s ExpectedBucketOwner:s",
    "DeleteBucketMetricsConfiguration": "Bucket!:s Id!:s ExpectedBucketOwner:s",
    "DeleteBucketOwnershipControls": "Bucket!:s ExpectedBucketOwner:s",
    "DeleteBucketPolicy": "Bucket!:s ExpectedBucketOwner:s",
    "DeleteBucketReplication": "Bucket!:s ExpectedBucketOwner:s",
    "DeleteBucketTagging": "Bucket!:s ExpectedBucketOwner:s",
    "DeleteBucketWebsite": "Bucket!:s ExpectedBucketOwner:s",
    "DeleteObject": (
        "Bucket!:s Key!:s1 MFA:s VersionId:s RequestPayer:s BypassGovernanceRetention:b "
        "ExpectedBucketOwner:s IfMatch:s IfMatchLastModifiedTime:t IfMatchSize:i"
    ),
    "DeleteObjectAnnotation": (
        "Bucket!:s Key!:s1 AnnotationName!:s VersionId:s RequestPayer:s ExpectedBucketOwner:s "
        "ObjectIfMatch:s"
    ),
    "DeleteObjectTagging": "Bucket!:s Key!:s1 VersionId:s ExpectedBucketOwner:s",
    "DeleteObjects": (
        "Bucket!:s Delete!:{Delete MFA:s RequestPayer:s BypassGovernanceRetention:b "
        "ExpectedBucketOwner:s ChecksumAlgorithm:s"
    ),
    "DeletePublicAccessBlock": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketAbac": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketAccelerateConfiguration": "Bucket!:s ExpectedBucketOwner:s RequestPayer:s",
    "GetBucketAcl": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketAnalyticsConfiguration": "Bucket!:s Id!:s ExpectedBucketOwner:s",
    "GetBucketCors": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketEncryption": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketIntelligentTieringConfiguration": "Bucket!:s Id!:s ExpectedBucketOwner:s",
    "GetBucketInventoryConfiguration": "Bucket!:s Id!:s ExpectedBucketOwner:s",
    "GetBucketLifecycle": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketLifecycleConfiguration": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketLocation": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketLogging": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketMetadataConfiguration": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketMetadataTableConfiguration": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketMetricsConfiguration": "Bucket!:s Id!:s ExpectedBucketOwner:s",
    "GetBucketNotification": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketNotificationConfiguration": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketOwnershipControls": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketPolicy": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketPolicyStatus": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketReplication": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketRequestPayment": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketTagging": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketVersioning": "Bucket!:s ExpectedBucketOwner:s",
    "GetBucketWebsite": "Bucket!:s ExpectedBucketOwner:s",
    "GetObject": (
        "Bucket!:s IfMatch:s IfModifiedSince:t IfNoneMatch:s IfUnmodifiedSince:t Key!:s1 Range:s "
        "ResponseCacheControl:s ResponseContentDisposition:s ResponseContentEncoding:s "
        "ResponseContentLanguage:s ResponseContentType:s ResponseExpires:t VersionId:s "
        "SSECustomerAlgorithm:s SSECustomerKey:s SSECustomerKeyMD5:s RequestPayer:s PartNumber:i "
        "ExpectedBucketOwner:s ChecksumMode:s"
    ),
    "GetObjectAcl": "Bucket!:s Key!:s1 VersionId:s RequestPayer:s ExpectedBucketOwner:s",
    "GetObjectAnnotation": (
        "Bucket!:s Key!:s1 AnnotationName!:s VersionId:s RequestPayer:s ExpectedBucketOwner:s "
        "ChecksumMode:s"
    ),
    "GetObjectAttributes": (
        "Bucket!:s Key!:s1 VersionId:s MaxParts:i PartNumberMarker:i SSECustomerAlgorithm:s "
        "SSECustomerKey:s SSECustomerKeyMD5:s RequestPayer:s ExpectedBucketOwner:s "
        "ObjectAttributes!:[s"
    ),
    "GetObjectLegalHold": "Bucket!:s Key!:s1 VersionId:s RequestPayer:s ExpectedBucketOwner:s",
    "GetObjectLockConfiguration": "Bucket!:s ExpectedBucketOwner:s",
    "GetObjectRetention": "Bucket!:s Key!:s1 VersionId:s RequestPayer:s ExpectedBucketOwner:s",
    "GetObjectTagging": "Bucket!:s Key!:s1 VersionId:s ExpectedBucketOwner:s RequestPayer:s",
    "GetObjectTorrent": "Bucket!:s Key!:s1 RequestPayer:s ExpectedBucketOwner:s",
    "GetPublicAccessBlock": "Bucket!:s ExpectedBucketOwner:s",
    "HeadBucket": "Bucket!:s ExpectedBucketOwner:s",
    "HeadObject": (
        "Bucket!:s IfMatch:s IfModifiedSince:t IfNoneMatch:s IfUnmodifiedSince:t Key!:s1 Range:s "
        "ResponseCacheControl:s ResponseContentDisposition:s ResponseContentEncoding:s "
        "ResponseContentLanguage:s ResponseContentType:s ResponseExpires:t VersionId:s "
        "SSECustomerAlgorithm:s SSECustomerKey:s SSECustomerKeyMD5:s RequestPayer:s PartNumber:i "
        "ExpectedBucketOwner:s ChecksumMode:s"
    ),
    "ListBucketAnalyticsConfigurations": "Bucket!:s ContinuationToken:s ExpectedBucketOwner:s",
    "ListBucketIntelligentTieringConfigurations": (
        "Bucket!:s ContinuationToken:s ExpectedBucketOwner:s"
    ),
    "ListBucketInventoryConfigurations": "Bucket!:s ContinuationToken:s ExpectedBucketOwner:s",
    "ListBucketMetricsConfigurations": "Bucket!:s ContinuationToken:s ExpectedBucketOwner:s",
    "ListBuckets": "MaxBuckets:i1 ContinuationToken:s Prefix:s BucketRegion:s",
    "ListDirectoryBuckets": "ContinuationToken:s MaxDirectoryBuckets:i",
    "ListMultipartUploads": (
        "Bucket!:s Delimiter:s EncodingType:s KeyMarker:s MaxUploads:i Prefix:s UploadIdMarker:s "
        "ExpectedBucketOwner:s RequestPayer:s"
    ),
    "ListObjectAnnotations": (
        "Bucket!:s Key!:s1 VersionId:s MaxAnnotationResults:i1 AnnotationPrefix:s "
        "ContinuationToken:s RequestPayer:s ExpectedBucketOwner:s"
    ),
    "ListObjectVersions": (
        "Bucket!:s Delimiter:s EncodingType:s KeyMarker:s MaxKeys:i Prefix:s VersionIdMarker:s "
        "ExpectedBucketOwner:s RequestPayer:s OptionalObjectAttributes:[s"
    ),
    "ListObjects": (
        "Bucket!:s Delimiter:s EncodingType:s Marker:s MaxKeys:i Prefix:s RequestPayer:s "
        "ExpectedBucketOwner:s OptionalObjectAttributes:[s"
    ),
    "ListObjectsV2": (
        "Bucket!:s Delimiter:s EncodingType:s MaxKeys:i Prefix:s ContinuationToken:s FetchOwner:b "
        "StartAfter:s RequestPayer:s ExpectedBucketOwner:s OptionalObjectAttributes:[s"
    ),
    "ListParts": (
        "Bucket!:s Key!:s1 MaxParts:i PartNumberMarker:i UploadId!:s RequestPayer:s "
        "ExpectedBucketOwner:s SSECustomerAlgorithm:s SSECustomerKey:s SSECustomerKeyMD5:s"
    ),
    "PutBucketAbac": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s ExpectedBucketOwner:s AbacStatus!:{AbacStatus"
    ),
    "PutBucketAccelerateConfiguration": (
        "Bucket!:s AccelerateConfiguration!:{AccelerateConfiguration ExpectedBucketOwner:s "
        "ChecksumAlgorithm:s"
    ),
    "PutBucketAcl": (
        "ACL:s AccessControlPolicy:{AccessControlPolicy Bucket!:s ContentMD5:s "
        "ChecksumAlgorithm:s GrantFullControl:s GrantRead:s GrantReadACP:s GrantWrite:s "
        "GrantWriteACP:s ExpectedBucketOwner:s"
    ),
    "PutBucketAnalyticsConfiguration": (
        "Bucket!:s Id!:s AnalyticsConfiguration!:{AnalyticsConfiguration ExpectedBucketOwner:s"
    ),
    "PutBucketCors": (
        "Bucket!:s CORSConfiguration!:{CORSConfiguration ContentMD5:s ChecksumAlgorithm:s "
        "ExpectedBucketOwner:s"
    ),
    "PutBucketEncryption": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s "
        "ServerSideEncryptionConfiguration!:{ServerSideEncryptionConfiguration "
        "ExpectedBucketOwner:s"
    ),
    "PutBucketIntelligentTieringConfiguration": (
        "Bucket!:s Id!:s ExpectedBucketOwner:s "
        "IntelligentTieringConfiguration!:{IntelligentTieringConfiguration"
    ),
    "PutBucketInventoryConfiguration": (
        "Bucket!:s Id!:s InventoryConfiguration!:{InventoryConfiguration ExpectedBucketOwner:s"
    ),
    "PutBucketLifecycle": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s "
        "LifecycleConfiguration:{LifecycleConfiguration ExpectedBucketOwner:s"
    ),
    "PutBucketLifecycleConfiguration": (
        "Bucket!:s ChecksumAlgorithm:s LifecycleConfiguration:{BucketLifecycleConfiguration "
        "ExpectedBucketOwner:s TransitionDefaultMinimumObjectSize:s"
    ),
    "PutBucketLogging": (
        "Bucket!:s BucketLoggingStatus!:{BucketLoggingStatus ContentMD5:s ChecksumAlgorithm:s "
        "ExpectedBucketOwner:s"
    ),
    "PutBucketMetricsConfiguration": (
        "Bucket!:s Id!:s MetricsConfiguration!:{MetricsConfiguration ExpectedBucketOwner:s"
    ),
    "PutBucketNotification": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s "
        "NotificationConfiguration!:{NotificationConfigurationDeprecated ExpectedBucketOwner:s"
    ),
    "PutBucketNotificationConfiguration": (
        "Bucket!:s NotificationConfiguration!:{NotificationConfiguration ExpectedBucketOwner:s "
        "SkipDestinationValidation:b"
    ),
    "PutBucketOwnershipControls": (
        "Bucket!:s ContentMD5:s ExpectedBucketOwner:s OwnershipControls!:{OwnershipControls "
        "ChecksumAlgorithm:s"
    ),
    "PutBucketPolicy": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s ConfirmRemoveSelfBucketAccess:b Policy!:s "
        "ExpectedBucketOwner:s"
    ),
    "PutBucketReplication": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s "
        "ReplicationConfiguration!:{ReplicationConfiguration Token:s ExpectedBucketOwner:s"
    ),
    "PutBucketRequestPayment": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s "
        "RequestPaymentConfiguration!:{RequestPaymentConfiguration ExpectedBucketOwner:s"
    ),
    "PutBucketTagging": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s Tagging!:{Tagging ExpectedBucketOwner:s"
    ),
    "PutBucketVersioning": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s MFA:s "
        "VersioningConfiguration!:{VersioningConfiguration ExpectedBucketOwner:s"
    ),
    "PutBucketWebsite": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s WebsiteConfiguration!:{WebsiteConfiguration "
        "ExpectedBucketOwner:s"
    ),
    "PutObject": (
        "ACL:s Body:B Bucket!:s CacheControl:s ContentDisposition:s ContentEncoding:s "
        "ContentLanguage:s ContentLength:i ContentMD5:s ContentType:s ChecksumAlgorithm:s "
        "ChecksumCRC32:s ChecksumCRC32C:s ChecksumCRC64NVME:s ChecksumSHA1:s ChecksumSHA256:s "
        "ChecksumSHA512:s ChecksumMD5:s ChecksumXXHASH64:s ChecksumXXHASH3:s ChecksumXXHASH128:s "
        "Expires:t IfMatch:s IfNoneMatch:s GrantFullControl:s GrantRead:s GrantReadACP:s "
        "GrantWriteACP:s Key!:s1 WriteOffsetBytes:i Metadata:m ServerSideEncryption:s "
        "StorageClass:s WebsiteRedirectLocation:s SSECustomerAlgorithm:s SSECustomerKey:s "
        "SSECustomerKeyMD5:s SSEKMSKeyId:s SSEKMSEncryptionContext:s BucketKeyEnabled:b "
        "RequestPayer:s Tagging:s ObjectLockMode:s ObjectLockRetainUntilDate:t "
        "ObjectLockLegalHoldStatus:s ObjectLockEventHold:s ObjectLockEventHoldDurationDays:i "
        "ObjectLockEventHoldDurationYears:i ExpectedBucketOwner:s"
    ),
    "PutObjectAcl": (
        "ACL:s AccessControlPolicy:{AccessControlPolicy Bucket!:s ContentMD5:s "
        "ChecksumAlgorithm:s GrantFullControl:s GrantRead:s GrantReadACP:s GrantWrite:s "
        "GrantWriteACP:s Key!:s1 RequestPayer:s VersionId:s ExpectedBucketOwner:s"
    ),
    "PutObjectAnnotation": (
        "Bucket!:s Key!:s1 VersionId:s AnnotationName!:s AnnotationPayload!:B ObjectIfMatch:s "
        "ChecksumAlgorithm:s ChecksumCRC32:s ChecksumCRC32C:s ChecksumCRC64NVME:s ChecksumSHA1:s "
        "ChecksumSHA256:s ChecksumSHA512:s ChecksumMD5:s ChecksumXXHASH64:s ChecksumXXHASH3:s "
        "ChecksumXXHASH128:s ContentMD5:s RequestPayer:s ExpectedBucketOwner:s"
    ),
    "PutObjectLegalHold": (
        "Bucket!:s Key!:s1 LegalHold:{ObjectLockLegalHold RequestPayer:s VersionId:s ContentMD5:s "
        "ChecksumAlgorithm:s ExpectedBucketOwner:s"
    ),
    "PutObjectLockConfiguration": (
        "Bucket!:s ObjectLockConfiguration:{ObjectLockConfiguration RequestPayer:s Token:s "
        "ContentMD5:s ChecksumAlgorithm:s ExpectedBucketOwner:s"
    ),
    "PutObjectRetention": (
        "Bucket!:s Key!:s1 Retention:{ObjectLockRetention RequestPayer:s VersionId:s "
        "BypassGovernanceRetention:b ContentMD5:s ChecksumAlgorithm:s ExpectedBucketOwner:s"
    ),
    "PutObjectTagging": (
        "Bucket!:s Key!:s1 VersionId:s ContentMD5:s ChecksumAlgorithm:s Tagging!:{Tagging "
        "ExpectedBucketOwner:s RequestPayer:s"
    ),
    "PutPublicAccessBlock": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s "
        "PublicAccessBlockConfiguration!:{PublicAccessBlockConfiguration ExpectedBucketOwner:s"
    ),
    "RenameObject": (
        "Bucket!:s Key!:s1 RenameSource!:s DestinationIfMatch:s DestinationIfNoneMatch:s "
        "DestinationIfModifiedSince:t DestinationIfUnmodifiedSince:t SourceIfMatch:s "
        "SourceIfNoneMatch:s SourceIfModifiedSince:t SourceIfUnmodifiedSince:t ClientToken:s"
    ),
    "RestoreObject": (
        "Bucket!:s Key!:s1 VersionId:s RestoreRequest:{RestoreRequest RequestPayer:s "
        "ChecksumAlgorithm:s ExpectedBucketOwner:s"
    ),
    "SelectObjectContent": (
        "Bucket!:s Key!:s1 SSECustomerAlgorithm:s SSECustomerKey:s SSECustomerKeyMD5:s "
        "Expression!:s ExpressionType!:s RequestProgress:{RequestProgress "
        "InputSerialization!:{InputSerialization OutputSerialization!:{OutputSerialization "
        "ScanRange:{ScanRange ExpectedBucketOwner:s"
    ),
    "UpdateBucketMetadataAnnotationTableConfiguration": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s "
        "AnnotationTableConfiguration!:{AnnotationTableConfigurationUpdates ExpectedBucketOwner:s"
    ),
    "UpdateBucketMetadataInventoryTableConfiguration": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s "
        "InventoryTableConfiguration!:{InventoryTableConfigurationUpdates ExpectedBucketOwner:s"
    ),
    "UpdateBucketMetadataJournalTableConfiguration": (
        "Bucket!:s ContentMD5:s ChecksumAlgorithm:s "
        "JournalTableConfiguration!:{JournalTableConfigurationUpdates ExpectedBucketOwner:s"
    ),
    "UploadPart": (
        "Body:B Bucket!:s ContentLength:i ContentMD5:s ChecksumAlgorithm:s ChecksumCRC32:s "
        "ChecksumCRC32C:s ChecksumCRC64NVME:s ChecksumSHA1:s ChecksumSHA256:s ChecksumSHA512:s "
        "ChecksumMD5:s ChecksumXXHASH64:s ChecksumXXHASH3:s ChecksumXXHASH128:s Key!:s1 "
        "PartNumber!:i UploadId!:s SSECustomerAlgorithm:s SSECustomerKey:s SSECustomerKeyMD5:s "
        "RequestPayer:s ExpectedBucketOwner:s"
    ),
    "UploadPartCopy": (
        "Bucket!:s CopySource!:s CopySourceIfMatch:s CopySourceIfModifiedSince:t "
        "CopySourceIfNoneMatch:s CopySourceIfUnmodifiedSince:t CopySourceRange:s Key!:s1 "
        "PartNumber!:i UploadId!:s SSECustomerAlgorithm:s SSECustomerKey:s SSECustomerKeyMD5:s "
        "CopySourceSSECustomerAlgorithm:s CopySourceSSECustomerKey:s "
        "CopySourceSSECustomerKeyMD5:s RequestPayer:s ExpectedBucketOwner:s "
        "ExpectedSourceBucketOwner:s"
    ),
}
STRUCTURES = {
    "AbacStatus": "Status:s",
    "AbortIncompleteMultipartUpload": "DaysAfterInitiation:i",
    "AccelerateConfiguration": "Status:s",
    "AccessControlPolicy": "Grants:[{Grant Owner:{Owner",
    "AccessControlTranslation": "Owner!:s",
    "AnalyticsAndOperator": "Prefix:s Tags:[{Tag",
    "AnalyticsConfiguration": (
        "Id!:s Filter:{AnalyticsFilter StorageClassAnalysis!:{StorageClassAnalysis"
    ),
    "AnalyticsExportDestination": "S3BucketDestination!:{AnalyticsS3BucketDestination",
    "AnalyticsFilter": "Prefix:s Tag:{Tag And:{AnalyticsAndOperator",
    "AnalyticsS3BucketDestination": "Format!:s BucketAccountId:s Bucket!:s Prefix:s",
    "AnnotationTableConfiguration": (
        "ConfigurationState!:s EncryptionConfiguration:{MetadataTableEncryptionConfiguration "
        "Role:s"
    ),
    "AnnotationTableConfigurationUpdates": (
        "ConfigurationState!:s EncryptionConfiguration:{MetadataTableEncryptionConfiguration "
        "Role:s"
    ),
    "BlockedEncryptionTypes": "EncryptionType:[s",
    "BucketInfo": "DataRedundancy:s Type:s",
    "BucketLifecycleConfiguration": "Rules!:[{LifecycleRule",
    "BucketLoggingStatus": "LoggingEnabled:{LoggingEnabled",
    "CORSConfiguration": "CORSRules!:[{CORSRule",
    "CORSRule": (
        "ID:s AllowedHeaders:[s AllowedMethods!:[s AllowedOrigins!:[s ExposeHeaders:[s "
        "MaxAgeSeconds:i"
    ),
    "CSVInput": (
        "FileHeaderInfo:s Comments:s QuoteEscapeCharacter:s RecordDelimiter:s FieldDelimiter:s "
        "QuoteCharacter:s AllowQuotedRecordDelimiter:b"
    ),
    "CSVOutput": (
        "QuoteFields:s QuoteEscapeCharacter:s RecordDelimiter:s FieldDelimiter:s QuoteCharacter:s"
    ),
    "CloudFunctionConfiguration": "Id:s Event:s Events:[s CloudFunction:s InvocationRole:s",
    "CompletedMultipartUpload": "Parts:[{CompletedPart",
    "CompletedPart": (
        "ETag:s ChecksumCRC32:s ChecksumCRC32C:s ChecksumCRC64NVME:s ChecksumSHA1:s "
        "ChecksumSHA256:s ChecksumSHA512:s ChecksumMD5:s ChecksumXXHASH64:s ChecksumXXHASH3:s "
        "ChecksumXXHASH128:s PartNumber:i"
    ),
    "Condition": "HttpErrorCodeReturnedEquals:s KeyPrefixEquals:s",
    "CreateBucketConfiguration": (
        "LocationConstraint:s Location:{LocationInfo Bucket:{BucketInfo Tags:[{Tag"
    ),
    "DefaultRetention": "Mode:s Days:i Years:i DefaultEventHold:{EventHoldDuration",
    "Delete": "Objects!:[{ObjectIdentifier Quiet:b",
    "DeleteMarkerReplication": "Status:s",
    "Destination": (
        "Bucket!:s Account:s StorageClass:s AccessControlTranslation:{AccessControlTranslation "
        "EncryptionConfiguration:{EncryptionConfiguration ReplicationTime:{ReplicationTime "
        "Metrics:{Metrics"
    ),
    "Encryption": "EncryptionType!:s KMSKeyId:s KMSContext:s",
    "EncryptionConfiguration": "ReplicaKmsKeyID:s",
    "ErrorDocument": "Key!:s1",
    "EventBridgeConfiguration": "",
    "EventHoldDuration": "Days:i Years:i",
    "ExistingObjectReplication": "Status!:s",
    "FilterRule": "Name:s Value:s",
    "GlacierJobParameters": "Tier!:s",
    "Grant": "Grantee:{Grantee Permission:s",
    "Grantee": "DisplayName:s EmailAddress:s ID:s Type!:s URI:s",
    "IndexDocument": "Suffix!:s",
    "InputSerialization": (
        "CSV:{CSVInput CompressionType:s JSON:{JSONInput Parquet:{ParquetInput"
    ),
    "IntelligentTieringAndOperator": "Prefix:s Tags:[{Tag",
    "IntelligentTieringConfiguration": (
        "Id!:s Filter:{IntelligentTieringFilter Status!:s Tierings!:[{Tiering"
    ),
    "IntelligentTieringFilter": "Prefix:s Tag:{Tag And:{IntelligentTieringAndOperator",
    "InventoryConfiguration": (
        "Destination!:{InventoryDestination IsEnabled!:b Filter:{InventoryFilter Id!:s "
        "IncludedObjectVersions!:s OptionalFields:[s Schedule!:{InventorySchedule"
    ),
    "InventoryDestination": "S3BucketDestination!:{InventoryS3BucketDestination",
    "InventoryEncryption": "SSES3:{SSES3 SSEKMS:{SSEKMS",
    "InventoryFilter": "Prefix!:s",
    "InventoryS3BucketDestination": (
        "AccountId:s Bucket!:s Format!:s Prefix:s Encryption:{InventoryEncryption"
    ),
    "InventorySchedule": "Frequency!:s",
    "InventoryTableConfiguration": (
        "ConfigurationState!:s EncryptionConfiguration:{MetadataTableEncryptionConfiguration"
    ),
    "InventoryTableConfigurationUpdates": (
        "ConfigurationState!:s EncryptionConfiguration:{MetadataTableEncryptionConfiguration"
    ),
    "JSONInput": "Type:s",
    "JSONOutput": "RecordDelimiter:s",
    "JournalTableConfiguration": (
        "RecordExpiration!:{RecordExpiration "
        "EncryptionConfiguration:{MetadataTableEncryptionConfiguration"
    ),
    "JournalTableConfigurationUpdates": "RecordExpiration!:{RecordExpiration",
    "LambdaFunctionConfiguration": (
        "Id:s LambdaFunctionArn!:s Events!:[s Filter:{NotificationConfigurationFilter"
    ),
    "LifecycleConfiguration": "Rules!:[{Rule",
    "LifecycleExpiration": "Date:t Days:i ExpiredObjectDeleteMarker:b",
    "LifecycleRule": (
        "Expiration:{LifecycleExpiration ID:s Prefix:s Filter:{LifecycleRuleFilter Status!:s "
        "Transitions:[{Transition NoncurrentVersionTransitions:[{NoncurrentVersionTransition "
        "NoncurrentVersionExpiration:{NoncurrentVersionExpiration "
        "AbortIncompleteMultipartUpload:{AbortIncompleteMultipartUpload"
    ),
    "LifecycleRuleAndOperator": (
        "Prefix:s Tags:[{Tag ObjectSizeGreaterThan:i ObjectSizeLessThan:i"
    ),
    "LifecycleRuleFilter": (
        "Prefix:s Tag:{Tag ObjectSizeGreaterThan:i ObjectSizeLessThan:i "
        "And:{LifecycleRuleAndOperator"
    ),
    "LocationInfo": "Type:s Name:s",
    "LoggingEnabled": (
        "TargetBucket!:s TargetGrants:[{TargetGrant TargetPrefix!:s "
        "TargetObjectKeyFormat:{TargetObjectKeyFormat"
    ),
    "MetadataConfiguration": (
        "JournalTableConfiguration!:{JournalTableConfiguration "
        "InventoryTableConfiguration:{InventoryTableConfiguration "
        "AnnotationTableConfiguration:{AnnotationTableConfiguration"
    ),
    "MetadataEntry": "Name:s Value:s",
    "MetadataTableConfiguration": "S3TablesDestination!:{S3TablesDestination",
    "MetadataTableEncryptionConfiguration": "SseAlgorithm!:s KmsKeyArn:s",
    "Metrics": "Status!:s EventThreshold:{ReplicationTimeValue",
    "MetricsAndOperator": "Prefix:s Tags:[{Tag AccessPointArn:s",
    "MetricsConfiguration": "Id!:s Filter:{MetricsFilter",
    "MetricsFilter": "Prefix:s Tag:{Tag AccessPointArn:s And:{MetricsAndOperator",
    "NoncurrentVersionExpiration": "NoncurrentDays:i NewerNoncurrentVersions:i",
    "NoncurrentVersionTransition": "NoncurrentDays:i StorageClass:s NewerNoncurrentVersions:i",
    "NotificationConfiguration": (
        "TopicConfigurations:[{TopicConfiguration QueueConfigurations:[{QueueConfiguration "
        "LambdaFunctionConfigurations:[{LambdaFunctionConfiguration "
        "EventBridgeConfiguration:{EventBridgeConfiguration"
    ),
    "NotificationConfigurationDeprecated": (
        "TopicConfiguration:{TopicConfigurationDeprecated "
        "QueueConfiguration:{QueueConfigurationDeprecated "
        "CloudFunctionConfiguration:{CloudFunctionConfiguration"
    ),
    "NotificationConfigurationFilter": "Key:{S3KeyFilter",
    "ObjectIdentifier": "Key!:s1 VersionId:s ETag:s LastModifiedTime:t Size:i",
    "ObjectLockConfiguration": "ObjectLockEnabled:s Rule:{ObjectLockRule",
    "ObjectLockLegalHold": "Status:s",
    "ObjectLockRetention": (
        "Mode:s RetainUntilDate:t EventHold:s EventHoldDuration:{EventHoldDuration"
    ),
    "ObjectLockRule": "DefaultRetention:{DefaultRetention",
    "OutputLocation": "S3:{S3Location",
    "OutputSerialization": "CSV:{CSVOutput JSON:{JSONOutput",
    "Owner": "DisplayName:s ID:s",
    "OwnershipControls": "Rules!:[{OwnershipControlsRule",
    "OwnershipControlsRule": "ObjectOwnership!:s",
    "ParquetInput": "",
    "PartitionedPrefix": "PartitionDateSource:s",
    "PublicAccessBlockConfiguration": (
        "BlockPublicAcls:b IgnorePublicAcls:b BlockPublicPolicy:b RestrictPublicBuckets:b"
    ),
    "QueueConfiguration": "Id:s QueueArn!:s Events!:[s Filter:{NotificationConfigurationFilter",
    "QueueConfigurationDeprecated": "Id:s Event:s Events:[s Queue:s",
    "RecordExpiration": "Expiration!:s Days:i",
    "Redirect": (
        "HostName:s HttpRedirectCode:s Protocol:s ReplaceKeyPrefixWith:s ReplaceKeyWith:s"
    ),
    "RedirectAllRequestsTo": "HostName!:s Protocol:s",
    "ReplicaModifications": "Status!:s",
    "ReplicationConfiguration": "Role!:s Rules!:[{ReplicationRule",
    "ReplicationRule": (
        "ID:s Priority:i Prefix:s Filter:{ReplicationRuleFilter Status!:s "
        "SourceSelectionCriteria:{SourceSelectionCriteria "
        "ExistingObjectReplication:{ExistingObjectReplication Destination!:{Destination "
        "DeleteMarkerReplication:{DeleteMarkerReplication"
    ),
    "ReplicationRuleAndOperator": "Prefix:s Tags:[{Tag",
    "ReplicationRuleFilter": "Prefix:s Tag:{Tag And:{ReplicationRuleAndOperator",
    "ReplicationTime": "Status!:s Time!:{ReplicationTimeValue",
    "ReplicationTimeValue": "Minutes:i",
    "RequestPaymentConfiguration": "Payer!:s",
    "RequestProgress": "Enabled:b",
    "RestoreRequest": (
        "Days:i GlacierJobParameters:{GlacierJobParameters Type:s Tier:s Description:s "
        "SelectParameters:{SelectParameters OutputLocation:{OutputLocation"
    ),
    "RoutingRule": "Condition:{Condition Redirect!:{Redirect",
    "Rule": (
        "Expiration:{LifecycleExpiration ID:s Prefix!:s Status!:s Transition:{Transition "
        "NoncurrentVersionTransition:{NoncurrentVersionTransition "
        "NoncurrentVersionExpiration:{NoncurrentVersionExpiration "
        "AbortIncompleteMultipartUpload:{AbortIncompleteMultipartUpload"
    ),
    "S3KeyFilter": "FilterRules:[{FilterRule",
    "S3Location": (
        "BucketName!:s Prefix!:s Encryption:{Encryption CannedACL:s AccessControlList:[{Grant "
        "Tagging:{Tagging UserMetadata:[{MetadataEntry StorageClass:s"
    ),
    "S3TablesDestination": "TableBucketArn!:s TableName!:s",
    "SSEKMS": "KeyId!:s",
    "SSES3": "",
    "ScanRange": "Start:i End:i",
    "SelectParameters": (
        "InputSerialization!:{InputSerialization ExpressionType!:s Expression!:s "
        "OutputSerialization!:{OutputSerialization"
    ),
    "ServerSideEncryptionByDefault": "SSEAlgorithm!:s KMSMasterKeyID:s",
    "ServerSideEncryptionConfiguration": "Rules!:[{ServerSideEncryptionRule",
    "ServerSideEncryptionRule": (
        "ApplyServerSideEncryptionByDefault:{ServerSideEncryptionByDefault BucketKeyEnabled:b "
        "BlockedEncryptionTypes:{BlockedEncryptionTypes"
    ),
    "SimplePrefix": "",
    "SourceSelectionCriteria": (
        "SseKmsEncryptedObjects:{SseKmsEncryptedObjects "
        "ReplicaModifications:{ReplicaModifications"
    ),
    "SseKmsEncryptedObjects": "Status!:s",
    "StorageClassAnalysis": "DataExport:{StorageClassAnalysisDataExport",
    "StorageClassAnalysisDataExport": (
        "OutputSchemaVersion!:s Destination!:{AnalyticsExportDestination"
    ),
    "Tag": "Key!:s1 Value!:s",
    "Tagging": "TagSet!:[{Tag",
    "TargetGrant": "Grantee:{Grantee Permission:s",
    "TargetObjectKeyFormat": "SimplePrefix:{SimplePrefix PartitionedPrefix:{PartitionedPrefix",
    "Tiering": "Days!:i AccessTier!:s",
    "TopicConfiguration": "Id:s TopicArn!:s Events!:[s Filter:{NotificationConfigurationFilter",
    "TopicConfigurationDeprecated": "Id:s Events:[s Event:s Topic:s",
    "Transition": "Date:t Days:i StorageClass:s",
    "VersioningConfiguration": "MFADelete:s Status:s",
    "WebsiteConfiguration": (
        "ErrorDocument:{ErrorDocument IndexDocument:{IndexDocument "
        "RedirectAllRequestsTo:{RedirectAllRequestsTo RoutingRules:[{RoutingRule"
    ),
}
ERRORS = """
    AccessDenied AnnotationLimitExceeded AnnotationNameTooLong BucketAlreadyExists
    BucketAlreadyOwnedByYou EncryptionTypeMismatch IdempotencyParameterMismatch
    InvalidAnnotationName InvalidObjectState InvalidPrefix InvalidRequest InvalidWriteOffset
    NoSuchAnnotation NoSuchBucket NoSuchKey NoSuchUpload ObjectAlreadyInActiveTierError
    ObjectNotInActiveTierError TooManyParts UnsupportedMediaType
""".split()
