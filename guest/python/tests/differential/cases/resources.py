"""The resource interface."""

import io
import os

from registry import case

from .objects import sample_bytes


def resource(t):
    """A resource, with a bucket that exists."""
    found = t.boto3.resource("s3", region_name="us-east-1")
    t.bucket
    return found, found.Bucket(t.bucket)


@case()
def buckets(t):
    s3 = t.boto3.resource("s3", region_name="us-east-1")
    t.see("created", repr(s3.create_bucket(Bucket="bucket-a")))
    t.see("by itself", s3.Bucket("bucket-b").create())
    t.see("all", [bucket.name for bucket in s3.buckets.all()])
    t.see("limit", [bucket.name for bucket in s3.buckets.limit(1)])
    t.see("repr", [repr(s3), repr(s3.buckets), repr(s3.buckets.all())])
    t.see("date", s3.Bucket("bucket-a").creation_date is not None)
    t.see("none", s3.Bucket("bucket-none").creation_date)
    t.attempt("delete", s3.Bucket("bucket-a").delete)
    t.attempt("again", s3.Bucket("bucket-a").delete)


ATTRIBUTES = [
    "content_length",
    "content_type",
    "e_tag",
    "metadata",
    "cache_control",
    "storage_class",
    "version_id",
    "parts_count",
    "expires",
    "delete_marker",
    "content_encoding",
    "checksum_crc32",
    "server_side_encryption",
    "website_redirect_location",
    "accept_ranges",
    "missing_meta",
]


@case(*ATTRIBUTES)
def attributes(t, name):
    s3, bucket = resource(t)
    bucket.put_object(Key="k", Body=b"hello", Metadata={"a": "b"}, CacheControl="x")
    t.attempt(name, getattr, s3.Object(t.bucket, "k"), name)
    t.attempt("none", getattr, s3.Object(t.bucket, "none"), name)


@case()
def put_get_delete(t):
    s3, bucket = resource(t)
    thing = s3.Object(t.bucket, "ü k")
    t.see("repr", repr(thing))
    t.attempt("put", thing.put, Body=b"hello", ContentType="text/x")
    t.see("type", thing.content_type)
    t.see("get", thing.get()["Body"].read())
    t.attempt("range", lambda: thing.get(Range="bytes=1-2")["Body"].read())
    t.see("made", repr(bucket.put_object(Key="other", Body=b"x")))
    t.attempt("copy", s3.Object(t.bucket, "c").copy_from, CopySource=t.bucket + "/other")
    t.attempt("delete", thing.delete)
    t.attempt("gone", thing.get)
    t.attempt("load", thing.load)
    t.attempt("reload", thing.reload)


@case()
def collections(t):
    s3, bucket = resource(t)
    for key in ("a/1", "a/2", "b/1", "c"):
        bucket.put_object(Key=key, Body=key.encode())
    t.see("all", [item.key for item in bucket.objects.all()])
    t.see("filter", [item.key for item in bucket.objects.filter(Prefix="a/")])
    t.see("limit", [item.key for item in bucket.objects.limit(2)])
    t.see("sizes", [[item.size, item.e_tag, item.storage_class] for item in bucket.objects.all()])
    t.see("page", [[item.key for item in page] for page in bucket.objects.page_size(3).pages()])
    both = bucket.objects.filter(Prefix="a/").limit(1)
    t.see("both", [item.key for item in both])
    t.see("again", [item.key for item in both.all()])
    t.see("reprs", [repr(bucket.objects), repr(bucket.objects.all())])
    t.see("summary", repr(next(iter(bucket.objects.all()))))
    t.see("object", repr(next(iter(bucket.objects.all())).Object()))
    t.see("get", next(iter(bucket.objects.all())).get()["Body"].read())
    t.attempt("not iterable", iter, bucket.objects)


@case({}, {"Prefix": "a/"}, {"Prefix": "none"})
def batch_deletion(t, given):
    s3, bucket = resource(t)
    for key in ("a/1", "a/2", "b/ü"):
        bucket.put_object(Key=key, Body=b"x")
    t.attempt("delete", bucket.objects.filter(**given).delete)
    t.see("left", [item.key for item in bucket.objects.all()])


@case()
def batch_deletion_of_all(t):
    s3, bucket = resource(t)
    bucket.put_object(Key="k", Body=b"x")
    t.attempt("delete", bucket.objects.delete)
    t.attempt("none", bucket.objects.all().delete)
    t.attempt("by hand", bucket.delete_objects, Delete={"Objects": [{"Key": "k"}]})


@case()
def versions(t):
    s3, bucket = resource(t)
    versioning = s3.BucketVersioning(t.bucket)
    t.see("status", versioning.status)
    t.attempt("enable", versioning.enable)
    t.see("status", versioning.status)
    t.see("status", bucket.Versioning().status)
    bucket.put_object(Key="k", Body=b"one")
    bucket.put_object(Key="k", Body=b"two!")
    s3.Object(t.bucket, "k").delete()
    found = list(bucket.object_versions.filter(Prefix="k"))
    t.see("versions", [[type(v).__name__, v.object_key, v.is_latest, v.size] for v in found])
    t.attempt("suspend", versioning.suspend)
    t.attempt("delete", lambda: len(bucket.object_versions.delete()))
    t.see("left", [v.object_key for v in bucket.object_versions.all()])


@case()
def multipart(t):
    s3, bucket = resource(t)
    upload = s3.Object(t.bucket, "m").initiate_multipart_upload(ContentType="text/x")
    t.see("upload", [type(upload).__name__, upload.bucket_name, upload.object_key])
    part = upload.Part(1)
    t.see("part", [type(part).__name__, part.part_number])
    tag = part.upload(Body=sample_bytes(1000))["ETag"]
    t.see("parts", [[p.part_number, p.size, p.e_tag] for p in upload.parts.all()])
    t.see("uploads", [u.object_key for u in bucket.multipart_uploads.all()])
    made = upload.complete(MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tag}]})
    t.see("made", repr(made))
    other = s3.Object(t.bucket, "n").initiate_multipart_upload()
    t.attempt("abort", other.abort)
    t.see("object", repr(other.Object()))


@case("upload_file", "download_file", "upload_fileobj", "download_fileobj", "copy")
def transfers(t, method):
    s3, bucket = resource(t)
    thing = s3.Object(t.bucket, "k")
    path = os.path.join(t.folder, "f")
    with open(path, "wb") as file:
        file.write(b"hello")
    thing.put(Body=b"there")
    source = {"Bucket": t.bucket, "Key": "k"}
    out = io.BytesIO()
    if method == "upload_file":
        t.attempt("object", thing.upload_file, path)
        t.attempt("bucket", bucket.upload_file, path, "b", ExtraArgs={"ContentType": "x/y"})
    elif method == "download_file":
        t.attempt("object", thing.download_file, path)
        t.attempt("bucket", bucket.download_file, "k", Filename=path)
        with open(path, "rb") as file:
            t.see("bytes", file.read())
    elif method == "upload_fileobj":
        t.attempt("object", thing.upload_fileobj, io.BytesIO(b"a"))
        t.attempt("bucket", bucket.upload_fileobj, io.BytesIO(b"b"), Key="b")
    elif method == "download_fileobj":
        t.attempt("object", thing.download_fileobj, out)
        t.attempt("bucket", bucket.download_fileobj, "k", out)
        t.see("bytes", out.getvalue())
    else:
        t.attempt("object", s3.Object(t.bucket, "c").copy, source)
        t.attempt("bucket", bucket.copy, source, "d")
    t.see("keys", [[item.key, item.size] for item in bucket.objects.all()])


@case(
    "Acl",
    "Cors",
    "Lifecycle",
    "LifecycleConfiguration",
    "Logging",
    "Notification",
    "Policy",
    "RequestPayment",
    "Tagging",
    "Versioning",
    "Website",
)
def sub_resources(t, name):
    s3, bucket = resource(t)
    found = getattr(bucket, name)()
    t.see("repr", repr(found))
    t.see("back", repr(found.Bucket()))
    t.attempt("load", found.load)
    t.see("same", repr(getattr(s3, "Bucket" + name)(t.bucket)))


@case()
def configuring(t):
    s3, bucket = resource(t)
    tagging = bucket.Tagging()
    t.attempt("none", lambda: tagging.tag_set)
    t.attempt("put", tagging.put, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    t.attempt("some", lambda: tagging.tag_set)
    t.attempt("delete", tagging.delete)
    t.attempt("acl", lambda: bucket.Acl().grants)
    t.attempt("owner", lambda: s3.ObjectAcl(t.bucket, "none").owner)
    cors = {"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]}
    t.attempt("cors", bucket.Cors().put, CORSConfiguration=cors)
    t.attempt("rules", lambda: bucket.Cors().cors_rules)


@case()
def waiting(t):
    s3, bucket = resource(t)
    fast = {"Delay": 0, "MaxAttempts": 1}
    bucket.put_object(Key="k", Body=b"x")
    t.attempt("bucket", bucket.wait_until_exists)
    t.attempt("object", s3.Object(t.bucket, "k").wait_until_exists)
    t.attempt("none", s3.Object(t.bucket, "n").wait_until_exists, WaiterConfig=fast)
    t.attempt("gone", s3.Bucket("there-is-no-such-bucket").wait_until_not_exists)


@case()
def identity(t):
    s3, bucket = resource(t)
    t.see("equal", s3.Bucket("a-b") == s3.Bucket("a-b"))
    t.see("not", s3.Bucket("a-b") == s3.Bucket("a-c"))
    t.see("kinds", s3.Bucket("a-b") == s3.BucketAcl("a-b"))
    t.see("hash", len({s3.Bucket("a-b"), s3.Bucket("a-b"), s3.Object("a-b", "k")}))
    t.attempt("nothing", s3.Bucket)
    t.attempt("none", s3.Bucket, None)
    t.attempt("half", s3.Object, "a-b")
    t.attempt("unknown", s3.Bucket, nonsense="x")
    t.see("named", repr(s3.Object(bucket_name="a-b", key="k")))
    t.attempt("attribute", lambda: bucket.nonsense)
    t.attempt("read only", setattr, bucket, "name", "x")
    t.see("bucket of", repr(s3.Object("a-b", "k").Bucket()))
    t.see("version", repr(s3.Object("a-b", "k").Version("v")))
    t.see("subs", [s3.get_available_subresources(), bucket.get_available_subresources()])
    t.see("meta", [s3.meta.service_name, bucket.meta.identifiers])
    t.see("client", type(s3.meta.client).__name__)
    t.see("members", sorted(n for n in dir(s3.Object("a-b", "k")) if n[0] != "_"))


@case(
    "Bucket",
    "Object",
    "ObjectSummary",
    "ObjectVersion",
    "MultipartUpload",
    "BucketAcl",
    "BucketPolicy",
    "BucketWebsite",
    "MultipartUploadPart",
)
def members(t, name):
    s3, bucket = resource(t)
    number = {
        "Bucket": 1,
        "Object": 2,
        "ObjectSummary": 2,
        "ObjectVersion": 3,
        "MultipartUpload": 3,
        "MultipartUploadPart": 4,
    }.get(name, 1)
    thing = getattr(s3, name)(*["a-b", "k", "1", "2"][:number])
    t.see("members", sorted(n for n in dir(thing) if n[0] != "_"))
    t.see("repr", repr(thing))


@case()
def summary(t):
    s3, bucket = resource(t)
    bucket.put_object(Key="k", Body=b"hello", ContentType="text/x")
    thing = s3.ObjectSummary(t.bucket, "k")
    t.see("size", thing.size)
    t.see("tag", thing.e_tag)
    t.attempt("get", lambda: thing.get()["ContentType"])
    t.attempt("copy", s3.ObjectSummary(t.bucket, "c").copy_from, CopySource=t.bucket + "/k")
    t.attempt("delete", thing.delete)
    t.attempt("gone", lambda: s3.ObjectSummary(t.bucket, "none").size)
