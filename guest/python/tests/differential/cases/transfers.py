"""Managed transfers."""

import io
import os

from registry import case

from .objects import sample_bytes

MB = 1024 * 1024
SIZES = [0, 1, 70_000, 8 * MB - 1, 8 * MB, 8 * MB + 1, 17 * MB]


def file_of(t, size):
    """A file of a size."""
    path = os.path.join(t.folder, "up")
    with open(path, "wb") as file:
        file.write(sample_bytes(size))
    return path


def head(t, key="k"):
    """What is there of a key."""
    t.attempt("head", t.s3.head_object, Bucket=t.bucket, Key=key)


@case(*SIZES)
def file_up_and_down(t, size):
    seen = []
    path = file_of(t, size)
    t.attempt("up", t.s3.upload_file, path, t.bucket, "k", Callback=seen.append)
    t.see("progress", sum(seen))
    head(t)
    down = os.path.join(t.folder, "down")
    seen.clear()
    t.attempt("down", t.s3.download_file, t.bucket, "k", down, Callback=seen.append)
    t.see("progress", sum(seen))
    with open(down, "rb") as file:
        t.see("bytes", file.read())
    t.see("files", sorted(os.listdir(t.folder)))


@case(*SIZES)
def object_up_and_down(t, size):
    seen = []
    t.attempt(
        "up", t.s3.upload_fileobj, io.BytesIO(sample_bytes(size)), t.bucket, "k", Callback=seen.append
    )
    t.see("progress", sum(seen))
    head(t)
    out = io.BytesIO()
    seen.clear()
    t.attempt("down", t.s3.download_fileobj, t.bucket, "k", out, Callback=seen.append)
    t.see("progress", sum(seen))
    t.see("bytes", out.getvalue())


class OnlyReads:
    """A file that cannot go back."""

    def __init__(self, data):
        self._inner = io.BytesIO(data)

    def read(self, size=-1):
        return self._inner.read(size)


@case(0, 1, 100_000, 8 * MB, 9 * MB)
def unseekable(t, size):
    seen = []
    t.attempt(
        "up", t.s3.upload_fileobj, OnlyReads(sample_bytes(size)), t.bucket, "k", Callback=seen.append
    )
    t.see("progress", sum(seen))
    head(t)


CONFIGS = [
    {"multipart_threshold": 1},
    {"multipart_threshold": 6 * MB, "multipart_chunksize": 5 * MB},
    {"multipart_chunksize": 2 * MB, "multipart_threshold": 6 * MB},
    {"use_threads": False},
    {"max_concurrency": 1, "multipart_threshold": 6 * MB},
    {"max_concurrency": 3},
    {"io_chunksize": 1000},
    {"multipart_threshold": 100 * MB},
]


@case(*CONFIGS)
def configured(t, given):
    from boto3.s3.transfer import TransferConfig

    config = TransferConfig(**given)
    size = 11 * MB + 5
    t.attempt("up", t.s3.upload_file, file_of(t, size), t.bucket, "k", Config=config)
    head(t)
    out = io.BytesIO()
    t.attempt("down", t.s3.download_fileobj, t.bucket, "k", out, Config=config)
    t.see("bytes", out.getvalue())


@case({"multipart_threshold": 0}, {"max_concurrency": -1}, {"io_chunksize": 0}, {"nonsense": 1})
def configured_wrongly(t, given):
    from boto3.s3.transfer import TransferConfig

    t.attempt("config", TransferConfig, **given)


@case()
def configuration(t):
    from boto3.s3.transfer import TransferConfig

    config = TransferConfig()
    names = (
        "multipart_threshold",
        "max_concurrency",
        "multipart_chunksize",
        "io_chunksize",
        "num_download_attempts",
        "max_io_queue",
        "use_threads",
        "max_bandwidth",
        "max_request_concurrency",
        "max_io_queue_size",
        "preferred_transfer_client",
    )
    for name in names:
        t.see(name, getattr(config, name))
    config.max_concurrency = 3
    t.see("alias", config.max_request_concurrency)


EXTRA = [
    {"ContentType": "text/x"},
    {"Metadata": {"a": "b"}},
    {"ACL": "public-read"},
    {"CacheControl": "no-cache"},
    {"Tagging": "a=b"},
    {"StorageClass": "STANDARD_IA"},
    {"ChecksumAlgorithm": "SHA256"},
    {"ServerSideEncryption": "AES256"},
    {"ContentEncoding": "gzip", "ContentDisposition": "inline"},
    {"Nonsense": 1},
    {"Body": b"x"},
    {"ContentType": 5},
]


@case(*[(extra, size) for extra in EXTRA for size in (100, 9 * MB)])
def with_extra(t, extra, size):
    t.bucket
    t.attempt("up", t.s3.upload_fileobj, io.BytesIO(sample_bytes(size)), t.bucket, "k", ExtraArgs=extra)
    head(t)


@case("no-bucket", "no-file", "no-key", "directory", "no-such-folder", "bad-name", "no-read")
def wrongly(t, how):
    t.bucket
    path = file_of(t, 10)
    if how == "no-bucket":
        t.attempt("file", t.s3.upload_file, path, "there-is-no-such-bucket", "k")
        t.attempt("object", t.s3.upload_fileobj, io.BytesIO(b"x"), "there-is-no-such-bucket", "k")
        t.attempt(
            "large", t.s3.upload_fileobj, io.BytesIO(sample_bytes(9 * MB)), "there-is-no-such-bucket", "k"
        )
    elif how == "no-file":
        t.attempt("up", t.s3.upload_file, os.path.join(t.folder, "none"), t.bucket, "k")
    elif how == "no-key":
        t.attempt("file", t.s3.download_file, t.bucket, "none", os.path.join(t.folder, "x"))
        t.attempt("object", t.s3.download_fileobj, t.bucket, "none", io.BytesIO())
        t.attempt("bucket", t.s3.download_fileobj, "there-is-no-such-bucket", "k", io.BytesIO())
    elif how == "directory":
        t.attempt("up", t.s3.upload_file, t.folder, t.bucket, "k")
    elif how == "no-such-folder":
        t.put("k")
        error = None
        try:
            t.s3.download_file(t.bucket, "k", os.path.join(t.folder, "no", "such"))
        except OSError as found:
            error = [type(found).__name__, found.errno]
        t.see("down", error)
    elif how == "bad-name":
        t.attempt("up", t.s3.upload_file, 5, t.bucket, "k")
        t.attempt("down", t.s3.download_file, t.bucket, "k", None)
    else:
        t.attempt("up", t.s3.upload_fileobj, 5, t.bucket, "k")
        t.attempt("down", t.s3.download_fileobj, t.bucket, "k", 5)
    t.see("files", sorted(os.listdir(t.folder)))
    t.see("uploads", t.s3.list_multipart_uploads(Bucket=t.bucket).get("Uploads"))


@case(100, 9 * MB)
def copied(t, size):
    seen = []
    t.put("k", sample_bytes(size), Metadata={"a": "b"}, ContentType="text/x")
    source = {"Bucket": t.bucket, "Key": "k"}
    t.attempt("copy", t.s3.copy, source, t.bucket, "c", Callback=seen.append)
    t.see("progress", sum(seen))
    head(t, "c")
    t.attempt("none", t.s3.copy, {"Bucket": t.bucket, "Key": "none"}, t.bucket, "c")
    t.attempt("extra", t.s3.copy, source, t.bucket, "c", ExtraArgs={"Nonsense": 1})
    t.attempt("other", t.s3.copy, source, t.bucket, "d", SourceClient=t.boto3.client("s3"))


@case()
def path_objects(t):
    import pathlib

    path = pathlib.Path(file_of(t, 100))
    t.attempt("up", t.s3.upload_file, path, t.bucket, "k")
    t.attempt("down", t.s3.download_file, t.bucket, "k", path.with_name("other"))
    t.see("files", sorted(os.listdir(t.folder)))


@case()
def by_object(t):
    from boto3.s3.transfer import S3Transfer

    path = file_of(t, 1000)
    t.bucket
    transfer = S3Transfer(t.s3)
    t.attempt("up", transfer.upload_file, path, t.bucket, "k", extra_args={"ContentType": "a/b"})
    t.attempt("down", transfer.download_file, t.bucket, "k", path + "2")
    t.attempt("none", S3Transfer)
    t.see("args", [len(S3Transfer.ALLOWED_UPLOAD_ARGS), len(S3Transfer.ALLOWED_DOWNLOAD_ARGS)])
    head(t)


@case()
def to_real_files(t):
    t.put("k", sample_bytes(300_000))
    path = os.path.join(t.folder, "out")
    with open(path, "wb") as file:
        t.attempt("down", t.s3.download_fileobj, t.bucket, "k", file)
    with open(path, "rb") as file:
        t.see("bytes", file.read())
    with open(path, "rb") as file:
        file.seek(1000)
        t.attempt("up", t.s3.upload_fileobj, file, t.bucket, "rest")
    head(t, "rest")


@case()
def callback_that_raises(t):
    def callback(number):
        raise ValueError("stop")

    t.bucket
    t.attempt("up", t.s3.upload_fileobj, io.BytesIO(sample_bytes(1000)), t.bucket, "k", Callback=callback)
