"""Conditional requests, and errors of the service."""

import datetime

from registry import case

PAST = datetime.datetime(2001, 1, 1, tzinfo=datetime.timezone.utc)
FUTURE = datetime.datetime(2100, 1, 1, tzinfo=datetime.timezone.utc)
ETAG = '"5d41402abc4b2a76b9719d911017c592"'
READ = [
    {"IfMatch": ETAG},
    {"IfMatch": ETAG.strip('"')},
    {"IfMatch": '"no"'},
    {"IfMatch": "*"},
    {"IfNoneMatch": ETAG},
    {"IfNoneMatch": '"no"'},
    {"IfNoneMatch": "*"},
    {"IfModifiedSince": PAST},
    {"IfModifiedSince": FUTURE},
    {"IfUnmodifiedSince": PAST},
    {"IfUnmodifiedSince": FUTURE},
    {"IfMatch": ETAG, "IfUnmodifiedSince": PAST},
    {"IfNoneMatch": ETAG, "IfModifiedSince": PAST},
]


@case(*READ)
def reading(t, given):
    t.put("k", b"hello")
    t.attempt("get", t.s3.get_object, Bucket=t.bucket, Key="k", **given)
    t.attempt("head", t.s3.head_object, Bucket=t.bucket, Key="k", **given)


@case({"IfNoneMatch": "*"}, {"IfMatch": ETAG}, {"IfMatch": '"no"'})
def writing(t, given):
    t.bucket
    t.attempt("new", t.put, "k", b"hello", **given)
    t.put("k", b"hello")
    t.attempt("old", t.put, "k", b"hello", **given)


COPY = [
    {"CopySourceIfMatch": ETAG},
    {"CopySourceIfMatch": '"no"'},
    {"CopySourceIfNoneMatch": ETAG},
    {"CopySourceIfNoneMatch": '"no"'},
    {"CopySourceIfModifiedSince": PAST},
    {"CopySourceIfUnmodifiedSince": FUTURE},
]


@case(*COPY)
def copying(t, given):
    t.put("k", b"hello")
    source = {"Bucket": t.bucket, "Key": "k"}
    t.attempt("copy", t.s3.copy_object, Bucket=t.bucket, Key="c", CopySource=source, **given)


MISSING_KEY = [
    ("get_object", {}),
    ("head_object", {}),
    ("delete_object", {}),
    ("get_object_acl", {}),
    ("get_object_tagging", {}),
    ("put_object_tagging", {"Tagging": {"TagSet": []}}),
    ("delete_object_tagging", {}),
    ("get_object_attributes", {"ObjectAttributes": ["ETag"]}),
    ("list_parts", {"UploadId": "none"}),
    ("abort_multipart_upload", {"UploadId": "none"}),
    ("complete_multipart_upload", {"UploadId": "none"}),
    ("upload_part", {"UploadId": "none", "PartNumber": 1, "Body": b"x"}),
    ("get_object_retention", {}),
    ("get_object_legal_hold", {}),
    ("put_object_acl", {"ACL": "private"}),
    ("restore_object", {}),
]


@case(*MISSING_KEY)
def no_such_key(t, method, given):
    t.attempt(method, getattr(t.s3, method), Bucket=t.bucket, Key="none", **given)


MISSING_BUCKET = [
    ("get_object", {"Key": "k"}),
    ("head_object", {"Key": "k"}),
    ("put_object", {"Key": "k"}),
    ("delete_object", {"Key": "k"}),
    ("list_objects", {}),
    ("list_objects_v2", {}),
    ("list_object_versions", {}),
    ("head_bucket", {}),
    ("delete_bucket", {}),
    ("get_bucket_location", {}),
    ("get_bucket_acl", {}),
    ("get_bucket_tagging", {}),
    ("list_multipart_uploads", {}),
    ("create_multipart_upload", {"Key": "k"}),
    ("delete_objects", {"Delete": {"Objects": [{"Key": "k"}]}}),
    ("get_bucket_versioning", {}),
    ("get_bucket_policy", {}),
    ("get_bucket_cors", {}),
    ("get_bucket_lifecycle_configuration", {}),
    ("get_bucket_website", {}),
    ("get_bucket_encryption", {}),
    ("get_bucket_logging", {}),
    ("copy_object", {"Key": "k", "CopySource": "nope/k"}),
    ("get_public_access_block", {}),
    ("get_bucket_notification_configuration", {}),
]


@case(*MISSING_BUCKET)
def no_such_bucket(t, method, given):
    t.attempt(method, getattr(t.s3, method), Bucket="there-is-no-such-bucket", **given)


@case(
    "get_bucket_policy",
    "get_bucket_cors",
    "get_bucket_lifecycle_configuration",
    "get_bucket_website",
    "get_bucket_encryption",
    "get_bucket_tagging",
    "get_bucket_replication",
    "get_bucket_ownership_controls",
    "get_public_access_block",
    "get_object_lock_configuration",
)
def no_such_configuration(t, method):
    t.attempt(method, getattr(t.s3, method), Bucket=t.bucket)


@case()
def catching(t):
    from botocore.exceptions import BotoCoreError, ClientError

    import botocore.exceptions

    t.see("same", botocore.exceptions.ClientError is t.s3.exceptions.ClientError is ClientError)
    for kind in (t.s3.exceptions.NoSuchKey, ClientError, Exception, t.s3.exceptions.ClientError):
        try:
            t.s3.get_object(Bucket=t.bucket, Key="none")
        except kind as error:
            t.see(kind.__name__, error)
    t.see("not botocore's", issubclass(t.s3.exceptions.NoSuchKey, BotoCoreError))
    client = t.boto3.resource("s3").meta.client
    t.see("classes", client.exceptions.NoSuchKey.__name__)


@case()
def pickling(t):
    import pickle

    for call in (
        lambda: t.s3.get_object(Bucket=t.bucket, Key="none"),
        lambda: t.s3.get_object(Bucket="x"),
    ):
        try:
            call()
        except Exception as error:
            t.see("pickled", pickle.loads(pickle.dumps(error)))


@case()
def from_code(t):
    for code in ("NoSuchKey", "NoSuchBucket", "BucketAlreadyExists", "Nothing", "404", None):
        t.see(str(code), t.s3.exceptions.from_code(code).__name__)
    t.attempt("none", lambda: t.s3.exceptions.Missing)
    t.see("own", isinstance(t.s3.exceptions.NoSuchUpload({"Error": {}}, "X"), Exception))


@case()
def raising_by_hand(t):
    from botocore.exceptions import (
        ClientError,
        EndpointConnectionError,
        NoCredentialsError,
        NoRegionError,
        ParamValidationError,
        PartialCredentialsError,
        ReadTimeoutError,
        WaiterError,
    )

    for make in (
        lambda: ClientError({"Error": {"Code": "C", "Message": "M"}}, "Op"),
        lambda: ClientError({}, "Op"),
        lambda: ClientError(
            {"ResponseMetadata": {"MaxAttemptsReached": True, "RetryAttempts": 4}}, "Op"
        ),
        lambda: EndpointConnectionError(endpoint_url="http://x"),
        lambda: ParamValidationError(report="r"),
        lambda: WaiterError(name="n", reason="r", last_response={}),
    ):
        error = make()
        t.see(
            "error", [type(error).__name__, str(error), [k.__name__ for k in type(error).__mro__]]
        )
    for kind in (NoCredentialsError, NoRegionError, PartialCredentialsError, ReadTimeoutError):
        t.see("kind", kind.__name__)


@case()
def bucket_that_exists(t):
    t.bucket
    t.attempt("again", t.s3.create_bucket, Bucket=t.bucket)
    other = t.boto3.client("s3", region_name="eu-west-1")
    where = {"LocationConstraint": "eu-west-1"}
    t.attempt("elsewhere", other.create_bucket, Bucket=t.bucket, CreateBucketConfiguration=where)
    t.put("k")
    t.attempt("not empty", t.s3.delete_bucket, Bucket=t.bucket)
