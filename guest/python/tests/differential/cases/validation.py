"""Parameters that are refused before anything is sent."""

import datetime
import io

from registry import case

B = {"Bucket": "bucket"}
K = {"Bucket": "bucket", "Key": "key"}
WRONG = [
    ("get_object", {}),
    ("get_object", B),
    ("get_object", {"Key": "k"}),
    ("get_object", dict(K, Nonsense=1)),
    ("get_object", dict(K, bucket="b")),
    ("get_object", {"Bucket": "bucket", "Key": ""}),
    ("get_object", {"Bucket": "bucket", "Key": 5}),
    ("get_object", {"Bucket": "bucket", "Key": None}),
    ("get_object", {"Bucket": "bucket", "Key": b"key"}),
    ("get_object", {"Bucket": "", "Key": "k"}),
    ("get_object", {"Bucket": "bad bucket", "Key": "k"}),
    ("get_object", {"Bucket": "ümlaut", "Key": "k"}),
    ("get_object", {"Bucket": "a/b", "Key": "k"}),
    ("get_object", {"Bucket": "x" * 256, "Key": "k"}),
    ("get_object", {"Bucket": "arn:aws:s3:nonsense", "Key": "k"}),
    ("get_object", dict(K, Range=5)),
    ("get_object", dict(K, PartNumber="1")),
    ("get_object", dict(K, PartNumber=1.5)),
    ("get_object", dict(K, IfModifiedSince="never")),
    ("get_object", dict(K, IfModifiedSince=[])),
    ("get_object", dict(K, VersionId=7)),
    ("put_object", dict(K, Body=5)),
    ("put_object", dict(K, Body=[b"x"])),
    ("put_object", dict(K, Body={"a": 1})),
    ("put_object", dict(K, ContentLength="5")),
    ("put_object", dict(K, Metadata={"a": 5})),
    ("put_object", dict(K, Metadata="a=b")),
    ("put_object", dict(K, BucketKeyEnabled="yes")),
    ("put_object", dict(K, Expires=object)),
    ("put_object", dict(K, ACL=["private"])),
    ("put_object", dict(B, Body=b"x")),
    ("head_object", B),
    ("delete_object", B),
    ("delete_objects", B),
    ("delete_objects", dict(B, Delete={})),
    ("delete_objects", dict(B, Delete={"Objects": {}})),
    ("delete_objects", dict(B, Delete={"Objects": [{}]})),
    ("delete_objects", dict(B, Delete={"Objects": [{"Key": ""}]})),
    ("delete_objects", dict(B, Delete={"Objects": ["k"]})),
    ("delete_objects", dict(B, Delete={"Objects": [{"Key": "a"}, {"Kay": "b"}]})),
    ("delete_objects", dict(B, Delete={"Objects": [{"Key": "a"}], "Quiet": 1})),
    ("delete_objects", dict(B, Delete=[{"Key": "a"}])),
    ("copy_object", K),
    ("copy_object", dict(K, CopySource=5)),
    ("copy_object", dict(K, CopySource={"Bucket": "b"})),
    ("copy_object", dict(K, CopySource={"Key": "b"})),
    ("list_objects_v2", {}),
    ("list_objects_v2", dict(B, MaxKeys="10")),
    ("list_objects_v2", dict(B, FetchOwner="true")),
    ("list_objects_v2", dict(B, Marker="a")),
    ("list_objects", dict(B, ContinuationToken="a")),
    ("create_bucket", {}),
    ("create_bucket", dict(B, CreateBucketConfiguration="eu-west-1")),
    ("create_bucket", dict(B, CreateBucketConfiguration={"Location": "eu-west-1"})),
    ("list_buckets", {"Bucket": "b"}),
    ("upload_part", K),
    ("upload_part", dict(K, UploadId="u")),
    ("upload_part", dict(K, UploadId="u", PartNumber="1")),
    (
        "complete_multipart_upload",
        dict(K, UploadId="u", MultipartUpload={"Parts": [{"Etag": "x"}]}),
    ),
    ("complete_multipart_upload", dict(K, UploadId="u", MultipartUpload={"Parts": 5})),
    ("complete_multipart_upload", dict(K, UploadId="u", MultipartUpload=[])),
    ("put_object_tagging", dict(K, Tagging={"TagSet": [{"Key": "a"}]})),
    ("put_object_tagging", dict(K, Tagging={"TagSet": [{"Key": "a", "Value": 5}]})),
    ("put_object_tagging", dict(K, Tagging={})),
    ("put_object_tagging", K),
    ("put_bucket_versioning", dict(B, VersioningConfiguration={"Status": 1})),
    ("put_bucket_lifecycle_configuration", dict(B, LifecycleConfiguration={"Rules": [{}]})),
    ("put_bucket_cors", dict(B, CORSConfiguration={"CORSRules": [{"AllowedMethods": "GET"}]})),
    ("put_bucket_notification_configuration", B),
    ("get_object_attributes", K),
    ("get_object_attributes", dict(K, ObjectAttributes="ETag")),
    ("put_bucket_website", dict(B, WebsiteConfiguration={"IndexDocument": {}})),
]


@case(*WRONG)
def refused(t, method, given):
    t.attempt(method, getattr(t.s3, method), **given)


@case("get_object", "list_buckets", "upload_part_copy")
def positional(t, method):
    t.attempt(method, getattr(t.s3, method), "bucket")


@case()
def what_is_taken(t):
    """Types that are not the named ones, and go all the same."""
    t.put("k", b"hello")

    class Text(str):
        pass

    t.attempt("str", lambda: t.s3.get_object(Bucket=Text(t.bucket), Key=Text("k"))["Body"].read())
    t.attempt("bool", t.s3.list_objects_v2, Bucket=t.bucket, MaxKeys=True)
    t.attempt("tuple", t.s3.delete_objects, Bucket=t.bucket, Delete={"Objects": ({"Key": "k"},)})
    t.attempt(
        "date",
        t.s3.get_object,
        Bucket=t.bucket,
        Key="k",
        IfModifiedSince=datetime.datetime(2020, 1, 1),
    )
    t.attempt("file", t.put, "f", io.BytesIO(b"x"))


@case()
def unknown_method(t):
    t.attempt("method", lambda: t.s3.get_objects)
    t.attempt("paginator", t.s3.get_paginator, "get_object")
    t.attempt("no such paginator", t.s3.get_paginator, "nonsense")
    t.attempt("waiter", t.s3.get_waiter, "nonsense")


@case()
def does_not_change_what_it_is_given(t):
    t.bucket
    given = {
        "Bucket": t.bucket,
        "Key": "k",
        "Body": b"x",
        "Metadata": {"a": "b"},
        "SSECustomerKey": "0" * 32,
        "SSECustomerAlgorithm": "AES256",
    }
    before = {k: (dict(v) if isinstance(v, dict) else v) for k, v in given.items()}
    t.attempt("put", t.s3.put_object, **given)
    t.see("same", given == before)
    source = {"Bucket": t.bucket, "Key": "ü k"}
    t.attempt("copy", t.s3.copy_object, Bucket=t.bucket, Key="c", CopySource=source)
    t.see("source", source)
