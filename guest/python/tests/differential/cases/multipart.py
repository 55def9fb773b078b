"""Multipart uploads by hand, and copies."""

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
