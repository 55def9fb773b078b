"""S3's resources. Made by tests/tables.py; see `resource.py` for how to read it."""

RESOURCES = {
    "ServiceResource": {
        "identifiers": "",
        "actions": {
            "CreateBucket": "CreateBucket;;Bucket;Name=$Bucket",
        },
        "has": {
            "Bucket": ";;Bucket;Name=?",
        },
        "hasMany": {
            "Buckets": "ListBuckets;;Bucket;Name=#Buckets[].Name;Buckets[]",
        },
    },
    "Bucket": {
        "identifiers": "Name",
        "attributes": "Name CreationDate BucketRegion BucketArn",
        "actions": {
            "Create": "CreateBucket;Bucket=Name",
            "Delete": "DeleteBucket;Bucket=Name",
            "DeleteObjects": "DeleteObjects;Bucket=Name",
            "PutObject": "PutObject;Bucket=Name;Object;BucketName=Name Key=$Key",
        },
        "has": {
            "Acl": ";;BucketAcl;BucketName=Name",
            "Cors": ";;BucketCors;BucketName=Name",
            "Lifecycle": ";;BucketLifecycle;BucketName=Name",
            "LifecycleConfiguration": ";;BucketLifecycleConfiguration;BucketName=Name",
            "Logging": ";;BucketLogging;BucketName=Name",
            "Notification": ";;BucketNotification;BucketName=Name",
            "Object": ";;Object;BucketName=Name Key=?",
            "Policy": ";;BucketPolicy;BucketName=Name",
            "RequestPayment": ";;BucketRequestPayment;BucketName=Name",
            "Tagging": ";;BucketTagging;BucketName=Name",
            "Versioning": ";;BucketVersioning;BucketName=Name",
            "Website": ";;BucketWebsite;BucketName=Name",
        },
        "hasMany": {
            "MultipartUploads": (
                "ListMultipartUploads;Bucket=Name;MultipartUpload;BucketName=Name "
                "ObjectKey=#Uploads[].Key Id=#Uploads[].UploadId;Uploads[]"
            ),
            "ObjectVersions": (
                "ListObjectVersions;Bucket=Name;ObjectVersion;BucketName=Name "
                "ObjectKey=#[Versions,DeleteMarkers]|[].Key "
                "Id=#[Versions,DeleteMarkers]|[].VersionId;[Versions,DeleteMarkers]|[]"
            ),
            "Objects": (
                "ListObjects;Bucket=Name;ObjectSummary;BucketName=Name "
                "Key=#Contents[].Key;Contents[]"
            ),
        },
        "waiters": {
            "Exists": "BucketExists;Bucket=Name",
            "NotExists": "BucketNotExists;Bucket=Name",
        },
    },
    "BucketAcl": {
        "identifiers": "BucketName",
        "attributes": "Owner Grants",
        "load": "GetBucketAcl;Bucket=BucketName;;;@",
        "actions": {
            "Put": "PutBucketAcl;Bucket=BucketName",
        },
        "has": {
            "Bucket": ";;Bucket;Name=BucketName",
        },
    },
    "BucketCors": {
        "identifiers": "BucketName",
        "attributes": "CORSRules",
        "load": "GetBucketCors;Bucket=BucketName;;;@",
        "actions": {
            "Delete": "DeleteBucketCors;Bucket=BucketName",
            "Put": "PutBucketCors;Bucket=BucketName",
        },
        "has": {
            "Bucket": ";;Bucket;Name=BucketName",
        },
    },
    "BucketLifecycle": {
        "identifiers": "BucketName",
        "attributes": "Rules",
        "load": "GetBucketLifecycle;Bucket=BucketName;;;@",
        "actions": {
            "Delete": "DeleteBucketLifecycle;Bucket=BucketName",
            "Put": "PutBucketLifecycle;Bucket=BucketName",
        },
        "has": {
            "Bucket": ";;Bucket;Name=BucketName",
        },
    },
    "BucketLifecycleConfiguration": {
        "identifiers": "BucketName",
        "attributes": "Rules TransitionDefaultMinimumObjectSize",
        "load": "GetBucketLifecycleConfiguration;Bucket=BucketName;;;@",
        "actions": {
            "Delete": "DeleteBucketLifecycle;Bucket=BucketName",
            "Put": "PutBucketLifecycleConfiguration;Bucket=BucketName",
        },
        "has": {
            "Bucket": ";;Bucket;Name=BucketName",
        },
    },
    "BucketLogging": {
        "identifiers": "BucketName",
        "attributes": "LoggingEnabled",
        "load": "GetBucketLogging;Bucket=BucketName;;;@",
        "actions": {
            "Put": "PutBucketLogging;Bucket=BucketName",
        },
        "has": {
            "Bucket": ";;Bucket;Name=BucketName",
        },
    },
    "BucketNotification": {
        "identifiers": "BucketName",
        "attributes": (
            "TopicConfigurations QueueConfigurations LambdaFunctionConfigurations "
            "EventBridgeConfiguration"
        ),
        "load": "GetBucketNotificationConfiguration;Bucket=BucketName;;;@",
        "actions": {
            "Put": "PutBucketNotificationConfiguration;Bucket=BucketName",
        },
        "has": {
            "Bucket": ";;Bucket;Name=BucketName",
        },
    },
    "BucketPolicy": {
        "identifiers": "BucketName",
        "attributes": "Policy",
        "load": "GetBucketPolicy;Bucket=BucketName;;;@",
        "actions": {
            "Delete": "DeleteBucketPolicy;Bucket=BucketName",
            "Put": "PutBucketPolicy;Bucket=BucketName",
        },
        "has": {
            "Bucket": ";;Bucket;Name=BucketName",
        },
    },
    "BucketRequestPayment": {
        "identifiers": "BucketName",
        "attributes": "Payer",
        "load": "GetBucketRequestPayment;Bucket=BucketName;;;@",
        "actions": {
            "Put": "PutBucketRequestPayment;Bucket=BucketName",
        },
        "has": {
            "Bucket": ";;Bucket;Name=BucketName",
        },
    },
    "BucketTagging": {
        "identifiers": "BucketName",
        "attributes": "TagSet",
        "load": "GetBucketTagging;Bucket=BucketName;;;@",
        "actions": {
            "Delete": "DeleteBucketTagging;Bucket=BucketName",
            "Put": "PutBucketTagging;Bucket=BucketName",
        },
        "has": {
            "Bucket": ";;Bucket;Name=BucketName",
        },
    },
    "BucketVersioning": {
        "identifiers": "BucketName",
        "attributes": "Status MFADelete",
        "load": "GetBucketVersioning;Bucket=BucketName;;;@",
        "actions": {
            "Enable": (
                "PutBucketVersioning;Bucket=BucketName "
                "VersioningConfiguration.Status='Enabled"
            ),
            "Put": "PutBucketVersioning;Bucket=BucketName",
            "Suspend": (
                "PutBucketVersioning;Bucket=BucketName "
                "VersioningConfiguration.Status='Suspended"
            ),
        },
        "has": {
            "Bucket": ";;Bucket;Name=BucketName",
        },
    },
    "BucketWebsite": {
        "identifiers": "BucketName",
        "attributes": (
            "RedirectAllRequestsTo IndexDocument ErrorDocument RoutingRules"
        ),
        "load": "GetBucketWebsite;Bucket=BucketName;;;@",
        "actions": {
            "Delete": "DeleteBucketWebsite;Bucket=BucketName",
            "Put": "PutBucketWebsite;Bucket=BucketName",
        },
        "has": {
            "Bucket": ";;Bucket;Name=BucketName",
        },
    },
    "MultipartUpload": {
        "identifiers": "BucketName ObjectKey Id",
        "attributes": (
            "UploadId Key Initiated StorageClass Owner Initiator ChecksumAlgorithm "
            "ChecksumType VersionId"
        ),
        "actions": {
            "Abort": (
                "AbortMultipartUpload;Bucket=BucketName Key=ObjectKey UploadId=Id"
            ),
            "Complete": (
                "CompleteMultipartUpload;Bucket=BucketName Key=ObjectKey "
                "UploadId=Id;Object;BucketName=BucketName Key=ObjectKey"
            ),
        },
        "has": {
            "Object": ";;Object;BucketName=BucketName Key=ObjectKey",
            "Part": (
                ";;MultipartUploadPart;BucketName=BucketName ObjectKey=ObjectKey "
                "MultipartUploadId=Id PartNumber=?"
            ),
        },
        "hasMany": {
            "Parts": (
                "ListParts;Bucket=BucketName Key=ObjectKey "
                "UploadId=Id;MultipartUploadPart;BucketName=$Bucket ObjectKey=$Key "
                "MultipartUploadId=$UploadId PartNumber=#Parts[].PartNumber;Parts[]"
            ),
        },
    },
    "MultipartUploadPart": {
        "identifiers": "BucketName ObjectKey MultipartUploadId PartNumber",
        "attributes": (
            "LastModified ETag Size ChecksumCRC32 ChecksumCRC32C ChecksumCRC64NVME "
            "ChecksumSHA1 ChecksumSHA256 ChecksumSHA512 ChecksumMD5 ChecksumXXHASH64 "
            "ChecksumXXHASH3 ChecksumXXHASH128"
        ),
        "member_PartNumber": "PartNumber",
        "actions": {
            "CopyFrom": (
                "UploadPartCopy;Bucket=BucketName Key=ObjectKey "
                "UploadId=MultipartUploadId PartNumber=PartNumber"
            ),
            "Upload": (
                "UploadPart;Bucket=BucketName Key=ObjectKey UploadId=MultipartUploadId "
                "PartNumber=PartNumber"
            ),
        },
        "has": {
            "MultipartUpload": (
                ";;MultipartUpload;BucketName=BucketName ObjectKey=ObjectKey "
                "Id=MultipartUploadId"
            ),
        },
    },
    "Object": {
        "identifiers": "BucketName Key",
        "attributes": (
            "DeleteMarker AcceptRanges Expiration Restore ArchiveStatus LastModified "
            "ContentLength ChecksumCRC32 ChecksumCRC32C ChecksumCRC64NVME ChecksumSHA1 "
            "ChecksumSHA256 ChecksumSHA512 ChecksumMD5 ChecksumXXHASH64 ChecksumXXHASH3 "
            "ChecksumXXHASH128 ChecksumType ETag MissingMeta VersionId CacheControl "
            "ContentDisposition ContentEncoding ContentLanguage ContentType ContentRange "
            "Expires WebsiteRedirectLocation ServerSideEncryption Metadata "
            "SSECustomerAlgorithm SSECustomerKeyMD5 SSEKMSKeyId BucketKeyEnabled "
            "StorageClass RequestCharged ReplicationStatus PartsCount TagCount "
            "ObjectLockMode ObjectLockRetainUntilDate ObjectLockLegalHoldStatus "
            "ObjectLockEventHold ObjectLockEventHoldDurationDays "
            "ObjectLockEventHoldDurationYears"
        ),
        "load": "HeadObject;Bucket=BucketName Key=Key;;;@",
        "actions": {
            "CopyFrom": "CopyObject;Bucket=BucketName Key=Key",
            "Delete": "DeleteObject;Bucket=BucketName Key=Key",
            "Get": "GetObject;Bucket=BucketName Key=Key",
            "InitiateMultipartUpload": (
                "CreateMultipartUpload;Bucket=BucketName "
                "Key=Key;MultipartUpload;BucketName=BucketName ObjectKey=Key Id=#UploadId"
            ),
            "Put": "PutObject;Bucket=BucketName Key=Key",
            "RestoreObject": "RestoreObject;Bucket=BucketName Key=Key",
        },
        "batchActions": {
            "Delete": "DeleteObjects;Bucket=BucketName Delete.Objects[].Key=Key",
        },
        "has": {
            "Acl": ";;ObjectAcl;BucketName=BucketName ObjectKey=Key",
            "Bucket": ";;Bucket;Name=BucketName",
            "MultipartUpload": (
                ";;MultipartUpload;BucketName=BucketName ObjectKey=Key Id=?"
            ),
            "Version": ";;ObjectVersion;BucketName=BucketName ObjectKey=Key Id=?",
        },
        "waiters": {
            "Exists": "ObjectExists;Bucket=BucketName Key=Key",
            "NotExists": "ObjectNotExists;Bucket=BucketName Key=Key",
        },
    },
    "ObjectAcl": {
        "identifiers": "BucketName ObjectKey",
        "attributes": "Owner Grants RequestCharged",
        "load": "GetObjectAcl;Bucket=BucketName Key=ObjectKey;;;@",
        "actions": {
            "Put": "PutObjectAcl;Bucket=BucketName Key=ObjectKey",
        },
        "has": {
            "Object": ";;Object;BucketName=BucketName Key=ObjectKey",
        },
    },
    "ObjectSummary": {
        "identifiers": "BucketName Key",
        "attributes": (
            "Key LastModified ETag ChecksumAlgorithm ChecksumType Size StorageClass Owner "
            "RestoreStatus"
        ),
        "actions": {
            "CopyFrom": "CopyObject;Bucket=BucketName Key=Key",
            "Delete": "DeleteObject;Bucket=BucketName Key=Key",
            "Get": "GetObject;Bucket=BucketName Key=Key",
            "InitiateMultipartUpload": (
                "CreateMultipartUpload;Bucket=BucketName "
                "Key=Key;MultipartUpload;BucketName=BucketName ObjectKey=Key Id=#UploadId"
            ),
            "Put": "PutObject;Bucket=BucketName Key=Key",
            "RestoreObject": "RestoreObject;Bucket=BucketName Key=Key",
        },
        "batchActions": {
            "Delete": "DeleteObjects;Bucket=BucketName Delete.Objects[].Key=Key",
        },
        "has": {
            "Acl": ";;ObjectAcl;BucketName=BucketName ObjectKey=Key",
            "Bucket": ";;Bucket;Name=BucketName",
            "MultipartUpload": (
                ";;MultipartUpload;BucketName=BucketName ObjectKey=Key Id=?"
            ),
            "Object": ";;Object;BucketName=BucketName Key=Key",
            "Version": ";;ObjectVersion;BucketName=BucketName ObjectKey=Key Id=?",
        },
        "waiters": {
            "Exists": "ObjectExists;Bucket=BucketName Key=Key",
            "NotExists": "ObjectNotExists;Bucket=BucketName Key=Key",
        },
    },
    "ObjectVersion": {
        "identifiers": "BucketName ObjectKey Id",
        "attributes": (
            "ETag ChecksumAlgorithm ChecksumType Size StorageClass Key VersionId IsLatest "
            "LastModified Owner RestoreStatus"
        ),
        "actions": {
            "Delete": "DeleteObject;Bucket=BucketName Key=ObjectKey VersionId=Id",
            "Get": "GetObject;Bucket=BucketName Key=ObjectKey VersionId=Id",
            "Head": "HeadObject;Bucket=BucketName Key=ObjectKey VersionId=Id",
        },
        "batchActions": {
            "Delete": (
                "DeleteObjects;Bucket=BucketName Delete.Objects[*].Key=ObjectKey "
                "Delete.Objects[*].VersionId=Id"
            ),
        },
        "has": {
            "Object": ";;Object;BucketName=BucketName Key=ObjectKey",
        },
    },
}
