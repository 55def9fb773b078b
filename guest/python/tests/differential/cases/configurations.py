"""Tags, ACLs, attributes and locks of objects, configurations of buckets.

A new operation on one of these gets its case here, and a row in `MISSING_KEY` or `MISSING_BUCKET`
of `conditions.py`.
"""

from registry import case


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
