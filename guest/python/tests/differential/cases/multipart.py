"""Multipart uploads by hand, copies, and what buckets and objects have besides."""

from registry import case

from .objects import sample_bytes

PART = 5 * 1024 * 1024


def begin(t, key="m", **kwargs):
    """An upload."""
    return t.see("create", t.s3.create_multipart_upload(Bucket=t.bucket, Key=key, **kwargs))[
        "UploadId"
    ]


def part(t, upload, number, data, key="m", **kwargs):
    """A part of it."""
    found = t.s3.upload_part(
        Bucket=t.bucket, Key=key, UploadId=upload, PartNumber=number, Body=data, **kwargs
    )
    t.see("part", found)
    return {"PartNumber": number, "ETag": found["ETag"]}


@case(1, 2, 3)
def whole(t, number):
    upload = begin(t)
    parts = [part(t, upload, index, sample_bytes(PART + index)) for index in range(1, number + 1)]
    t.attempt("list", t.s3.list_parts, Bucket=t.bucket, Key="m", UploadId=upload)
    t.attempt("uploads", t.s3.list_multipart_uploads, Bucket=t.bucket)
    t.attempt(
        "complete",
        t.s3.complete_multipart_upload,
        Bucket=t.bucket,
        Key="m",
        UploadId=upload,
        MultipartUpload={"Parts": parts},
    )
    t.see("body", t.s3.get_object(Bucket=t.bucket, Key="m")["Body"].read())
    t.attempt("head", t.s3.head_object, Bucket=t.bucket, Key="m")
    t.attempt("part of it", t.s3.get_object, Bucket=t.bucket, Key="m", PartNumber=1)


@case()
def more_than_100_mb(t):
    upload = begin(t)
    size = 15 * 1024 * 1024
    parts = [part(t, upload, index, sample_bytes(size + index)) for index in range(1, 8)]
    t.attempt(
        "complete",
        t.s3.complete_multipart_upload,
        Bucket=t.bucket,
        Key="m",
        UploadId=upload,
        MultipartUpload={"Parts": parts},
    )
    body = t.s3.get_object(Bucket=t.bucket, Key="m")["Body"]
    import hashlib

    digest = hashlib.sha256()
    for chunk in body.iter_chunks(1 << 20):
        digest.update(chunk)
    t.see("sha256", digest.hexdigest())


@case()
def aborted(t):
    upload = begin(t)
    part(t, upload, 1, b"x")
    t.attempt("abort", t.s3.abort_multipart_upload, Bucket=t.bucket, Key="m", UploadId=upload)
    t.attempt("again", t.s3.abort_multipart_upload, Bucket=t.bucket, Key="m", UploadId=upload)
    t.attempt("list", t.s3.list_multipart_uploads, Bucket=t.bucket)


@case("small", "order", "etag", "missing", "empty")
def completed_wrongly(t, how):
    upload = begin(t)
    one = part(t, upload, 1, b"x" if how == "small" else sample_bytes(PART))
    two = part(t, upload, 2, b"y")
    parts = [one, two]
    if how == "order":
        parts = [two, one]
    elif how == "etag":
        parts = [dict(one, ETag='"no"')]
    elif how == "missing":
        parts = [one, {"PartNumber": 9, "ETag": one["ETag"]}]
    elif how == "empty":
        parts = []
    t.attempt(
        "complete",
        t.s3.complete_multipart_upload,
        Bucket=t.bucket,
        Key="m",
        UploadId=upload,
        MultipartUpload={"Parts": parts},
    )


@case(
    {"ContentType": "text/x"},
    {"Metadata": {"a": "b"}},
    {"ChecksumAlgorithm": "SHA256"},
    {"Tagging": "a=b"},
    {"StorageClass": "STANDARD_IA"},
)
def with_headers(t, given):
    upload = begin(t, **given)
    extra = {k: v for k, v in given.items() if k == "ChecksumAlgorithm"}
    parts = [part(t, upload, 1, sample_bytes(1000), **extra)]
    t.attempt(
        "complete",
        t.s3.complete_multipart_upload,
        Bucket=t.bucket,
        Key="m",
        UploadId=upload,
        MultipartUpload={"Parts": parts},
    )
    t.attempt("head", t.s3.head_object, Bucket=t.bucket, Key="m")


@case(None, "bytes=0-999", "bytes=0-5242879", "bytes=5-10")
def part_copied(t, span):
    t.put("source ü", sample_bytes(PART + 5))
    upload = begin(t)
    extra = {"CopySourceRange": span} if span else {}
    t.attempt(
        "copy",
        t.s3.upload_part_copy,
        Bucket=t.bucket,
        Key="m",
        UploadId=upload,
        PartNumber=1,
        CopySource={"Bucket": t.bucket, "Key": "source ü"},
        **extra
    )
    t.attempt("parts", t.s3.list_parts, Bucket=t.bucket, Key="m", UploadId=upload)


SOURCES = [
    "{b}/k",
    "/{b}/k",
    {"Key": "k"},
    {"Key": "ü +&?%"},
    "{b}/ü +&%",
    {"Key": "none"},
    "{b}/none",
    "nobucket/k",
    "{b}",
    {"Key": "k", "VersionId": "null"},
]


@case(*SOURCES)
def copied(t, source):
    t.put("k", b"hello", Metadata={"a": "b"}, ContentType="text/x")
    t.put("ü +&?%", b"odd")
    t.put("ü +&%", b"odd")
    if isinstance(source, dict):
        source = dict(source, Bucket=t.bucket)
    else:
        source = source.format(b=t.bucket)
    t.attempt("copy", t.s3.copy_object, Bucket=t.bucket, Key="c", CopySource=source)
    t.attempt("head", t.s3.head_object, Bucket=t.bucket, Key="c")


@case(
    {"MetadataDirective": "REPLACE", "Metadata": {"x": "y"}},
    {"MetadataDirective": "COPY"},
    {"MetadataDirective": "REPLACE", "ContentType": "text/z"},
    {"StorageClass": "GLACIER"},
    {"TaggingDirective": "REPLACE", "Tagging": "a=b"},
    {"ACL": "public-read"},
)
def copied_with(t, given):
    t.put("k", b"hello", Metadata={"a": "b"}, Tagging="c=d")
    source = {"Bucket": t.bucket, "Key": "k"}
    t.attempt("copy", t.s3.copy_object, Bucket=t.bucket, Key="c", CopySource=source, **given)
    t.attempt("head", t.s3.head_object, Bucket=t.bucket, Key="c")
    t.attempt("tags", t.s3.get_object_tagging, Bucket=t.bucket, Key="c")


@case({}, {"Key": "ü"}, {"VersionId": "null"})
def tagging(t, given):
    key = given.get("Key", "k")
    t.put(key)
    extra = {k: v for k, v in given.items() if k != "Key"}
    tags = {"TagSet": [{"Key": "a", "Value": "1"}, {"Key": "ü", "Value": ""}]}
    t.attempt("put", t.s3.put_object_tagging, Bucket=t.bucket, Key=key, Tagging=tags, **extra)
    t.attempt("get", t.s3.get_object_tagging, Bucket=t.bucket, Key=key, **extra)
    t.attempt("count", lambda: t.s3.head_object(Bucket=t.bucket, Key=key).get("TagCount"))
    t.attempt("delete", t.s3.delete_object_tagging, Bucket=t.bucket, Key=key, **extra)
    t.attempt("none", t.s3.get_object_tagging, Bucket=t.bucket, Key=key, **extra)


@case("private", "public-read", "public-read-write", "authenticated-read", "nonsense")
def acl(t, name):
    t.put("k")
    t.attempt("put", t.s3.put_object_acl, Bucket=t.bucket, Key="k", ACL=name)
    t.attempt("get", t.s3.get_object_acl, Bucket=t.bucket, Key="k")
    t.attempt("bucket", t.s3.put_bucket_acl, Bucket=t.bucket, ACL=name)
    t.attempt("bucket's", t.s3.get_bucket_acl, Bucket=t.bucket)


CONFIGURATIONS = [
    ("versioning", "VersioningConfiguration", {"Status": "Enabled"}),
    ("versioning", "VersioningConfiguration", {"Status": "Suspended"}),
    ("tagging", "Tagging", {"TagSet": [{"Key": "a", "Value": "b"}]}),
    (
        "cors",
        "CORSConfiguration",
        {
            "CORSRules": [
                {"AllowedMethods": ["GET", "PUT"], "AllowedOrigins": ["*"], "MaxAgeSeconds": 5}
            ]
        },
    ),
    (
        "website",
        "WebsiteConfiguration",
        {"IndexDocument": {"Suffix": "i.html"}, "ErrorDocument": {"Key": "e.html"}},
    ),
    (
        "lifecycle_configuration",
        "LifecycleConfiguration",
        {
            "Rules": [
                {
                    "ID": "r",
                    "Status": "Enabled",
                    "Filter": {"Prefix": "a"},
                    "Expiration": {"Days": 3},
                }
            ]
        },
    ),
    (
        "encryption",
        "ServerSideEncryptionConfiguration",
        {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]},
    ),
    ("policy", "Policy", '{"Version": "2012-10-17", "Statement": []}'),
    (
        "ownership_controls",
        "OwnershipControls",
        {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
    ),
    ("notification_configuration", "NotificationConfiguration", {}),
    ("accelerate_configuration", "AccelerateConfiguration", {"Status": "Enabled"}),
    ("logging", "BucketLoggingStatus", {}),
    ("request_payment", "RequestPaymentConfiguration", {"Payer": "Requester"}),
]


@case(*CONFIGURATIONS)
def configuration(t, name, parameter, value):
    t.attempt("put", getattr(t.s3, "put_bucket_" + name), Bucket=t.bucket, **{parameter: value})
    t.attempt("get", getattr(t.s3, "get_bucket_" + name), Bucket=t.bucket)
    delete = getattr(t.s3, "delete_bucket_" + name.replace("_configuration", ""), None)
    if delete is not None:
        t.attempt("delete", delete, Bucket=t.bucket)


@case(None, "eu-west-1", "us-west-2", "nonsense")
def regions(t, region):
    client = t.boto3.client("s3", region_name="us-east-1" if region is None else "eu-west-1")
    extra = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region else {}
    t.attempt("create", client.create_bucket, Bucket="elsewhere", **extra)
    t.attempt("location", client.get_bucket_location, Bucket="elsewhere")
    t.attempt("head", client.head_bucket, Bucket="elsewhere")
    t.attempt("delete", client.delete_bucket, Bucket="elsewhere")


@case()
def versioned(t):
    t.s3.put_bucket_versioning(Bucket=t.bucket, VersioningConfiguration={"Status": "Enabled"})
    first = t.put("k", b"one")["VersionId"]
    t.mask(first)
    t.mask(t.put("k", b"two")["VersionId"])
    t.attempt(
        "old", lambda: t.s3.get_object(Bucket=t.bucket, Key="k", VersionId=first)["Body"].read()
    )
    t.attempt("head", t.s3.head_object, Bucket=t.bucket, Key="k", VersionId=first)
    t.attempt("delete", t.s3.delete_object, Bucket=t.bucket, Key="k")
    t.attempt("gone", t.s3.get_object, Bucket=t.bucket, Key="k")
    t.attempt(
        "still", lambda: t.s3.get_object(Bucket=t.bucket, Key="k", VersionId=first)["Body"].read()
    )
    t.attempt("no such", t.s3.get_object, Bucket=t.bucket, Key="k", VersionId="nonsense")
    t.attempt("delete it", t.s3.delete_object, Bucket=t.bucket, Key="k", VersionId=first)
    source = {"Bucket": t.bucket, "Key": "k", "VersionId": first}
    t.attempt("copy", t.s3.copy_object, Bucket=t.bucket, Key="c", CopySource=source)


@case(["ETag"], ["ObjectSize", "StorageClass"], ["Checksum"], ["ObjectParts"])
def attributes(t, names):
    t.put("k", b"hello")
    t.attempt("get", t.s3.get_object_attributes, Bucket=t.bucket, Key="k", ObjectAttributes=names)


@case()
def object_lock(t):
    import datetime

    t.s3.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    t.s3.put_object(Bucket="locked", Key="k", Body=b"x")
    until = datetime.datetime(2031, 1, 1, tzinfo=datetime.timezone.utc)
    t.attempt(
        "retention",
        t.s3.put_object_retention,
        Bucket="locked",
        Key="k",
        Retention={"Mode": "GOVERNANCE", "RetainUntilDate": until},
    )
    t.attempt("get", t.s3.get_object_retention, Bucket="locked", Key="k")
    t.attempt(
        "hold", t.s3.put_object_legal_hold, Bucket="locked", Key="k", LegalHold={"Status": "ON"}
    )
    t.attempt("get hold", t.s3.get_object_legal_hold, Bucket="locked", Key="k")
    t.attempt("configuration", t.s3.get_object_lock_configuration, Bucket="locked")
    t.attempt("head", t.s3.head_object, Bucket="locked", Key="k")
