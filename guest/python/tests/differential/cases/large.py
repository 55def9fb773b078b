"""Bodies that the host does not hold: they go to the store while they are sent."""

import base64
import hashlib
import io
import os

from registry import case

from .objects import sample_bytes

MB = 1024 * 1024
ENORMOUS = 300 * MB + 12_345
PATTERN = bytes(range(251)) * 4177  # 1 MiB and a little; no power of two divides it


class Made(io.RawIOBase):
    """A file whose bytes are made when they are read; it is never in memory."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.at = 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=0):
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def readinto(self, target):
        start = self.at % len(PATTERN)
        data = PATTERN[start : start + min(len(target), self.size - self.at)]
        target[: len(data)] = data
        self.at += len(data)
        return len(data)


def made(size):
    """The whole of it."""
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


def look(t, key="k"):
    """What became of it."""
    t.see("head", t.s3.head_object(Bucket=t.bucket, Key=key))
    digest = hashlib.sha256()
    for chunk in t.s3.get_object(Bucket=t.bucket, Key=key)["Body"].iter_chunks(MB):
        digest.update(chunk)
    t.see("sha256", digest.hexdigest())


@case()
def more_than_a_host_holds(t):
    t.see("put", t.put("k", Made(ENORMOUS)))
    t.see("head", t.s3.head_object(Bucket=t.bucket, Key="k"))
    for start in (0, 256 * MB - 10, ENORMOUS - 50):
        found = t.s3.get_object(Bucket=t.bucket, Key="k", Range="bytes=%d-%d" % (start, start + 60))
        t.see("at %d" % start, found["Body"].read())


@case(MB - 1, MB, MB + 1, 8 * MB - 1, 8 * MB, 8 * MB + 1, 9 * MB + 70_000)
def sizes(t, size):
    t.see("put", t.put("k", made(size)))
    look(t)


@case("file", "offset", "made", "memory", "bytearray", "text")
def kinds(t, kind):
    data = made(10 * MB + 3)
    if kind == "memory":
        body = io.BytesIO(data)
    elif kind == "bytearray":
        body = bytearray(data)
    elif kind == "text":
        body = "käse" * (2 * MB)
    elif kind == "made":
        body = Made(len(data))
    else:
        with open(os.path.join(t.folder, "f"), "wb") as file:
            file.write(data)
        body = open(os.path.join(t.folder, "f"), "rb")
        if kind == "offset":
            body.seek(1_234_567)
    t.see("put", t.put("k", body))
    if hasattr(body, "tell"):
        t.see("closed", body.closed)
    look(t)


@case("CRC32", "SHA1", "SHA256")
def algorithms(t, name):
    data = made(9 * MB)
    t.see("put", t.put("k", data, ChecksumAlgorithm=name))
    found = t.s3.get_object(Bucket=t.bucket, Key="k", ChecksumMode="ENABLED")
    t.see("sum", [value for key, value in sorted(found.items()) if key.startswith("Checksum")])
    t.see("body", found["Body"].read())


def sum_of(data, digest="md5"):
    """As header fields have it."""
    return base64.b64encode(hashlib.new(digest, data).digest()).decode()


@case("ContentMD5", "ChecksumSHA256", "ChecksumSHA1")
def computed_ahead(t, name):
    data = made(9 * MB)
    digest = name.replace("Content", "").replace("Checksum", "").lower()
    t.attempt("put", t.put, "k", data, **{name: sum_of(data, digest)})
    look(t)


@case(
    {"ContentEncoding": "gzip"},
    {"ContentType": "text/plain", "Metadata": {"who": "me"}, "CacheControl": "no-store"},
    {"ContentLength": 9 * MB},
    {"IfNoneMatch": "*"},
)
def parameters(t, more):
    data = made(9 * MB)
    t.attempt("put", t.put, "k", io.BytesIO(data), **more)
    t.attempt("again", t.put, "k", data, **more)
    look(t)


@case(MB, 9 * MB)
def no_bucket(t, size):
    t.attempt("put", t.s3.put_object, Bucket="no-such-bucket", Key="k", Body=made(size))


@case("bytes", "file", "ContentMD5", "SHA256")
def parts(t, how):
    data = made(11 * MB)
    upload = t.s3.create_multipart_upload(Bucket=t.bucket, Key="k")["UploadId"]
    found = []
    for number, piece in enumerate((data[: 6 * MB], data[6 * MB :]), 1):
        more = {}
        if how == "ContentMD5":
            more["ContentMD5"] = sum_of(piece)
        elif how == "SHA256":
            more["ChecksumAlgorithm"] = "SHA256"
        body = io.BytesIO(piece) if how == "file" else piece
        part = dict(Bucket=t.bucket, Key="k", UploadId=upload, PartNumber=number)
        said = t.see("part", t.s3.upload_part(Body=body, **part, **more))
        found.append({"PartNumber": number, "ETag": said["ETag"]})
    t.attempt(
        "no upload",
        t.s3.upload_part,
        Bucket=t.bucket,
        Key="k",
        UploadId="none",
        PartNumber=1,
        Body=sample_bytes(2 * MB),
    )
    t.s3.complete_multipart_upload(
        Bucket=t.bucket, Key="k", UploadId=upload, MultipartUpload={"Parts": found}
    )
    look(t)


@case()
def threads(t):
    """Several at once share the slots."""
    from concurrent.futures import ThreadPoolExecutor

    def put(number):
        return t.s3.put_object(Bucket=t.bucket, Key=str(number), Body=Made(9 * MB + number))

    t.see("bucket", t.bucket)
    with ThreadPoolExecutor(6) as pool:
        t.see("put", list(pool.map(put, range(6))))
    for number in range(6):
        look(t, str(number))
