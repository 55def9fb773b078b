"""Objects: bodies of every size and kind, keys, metadata."""

import hashlib
import io
import os

from registry import case

SIZES = [
    0,
    1,
    5,
    1023,
    4095,
    4096,
    4097,
    65535,
    65536,
    65537,
    262144,
    262145,
    1048576,
    1048577,
    4194304,
    5242883,
]
KEYS = [
    "plain",
    "with space",
    "a/b/c",
    "/leading",
    "trailing/",
    "//double",
    "plus+and=equals",
    "a&b?c#d",
    "percent%20",
    "percent%",
    "quote'\"s",
    "tilde~",
    "semi;colon,comma",
    "back\\slash",
    "a:b@c",
    "ünïcödé",
    "日本語/キー",
    "emoji-😀",
    "ключ",
    "مفتاح",
    "e\u0301 combining",
    "dot.",
    "...",
    "x" * 1024,
    "<xml>&amp;",
    "new\tTab",
    "star*",
    "(paren)",
    "[bracket]",
    "{brace}",
    "pipe|",
    "^caret`",
    "$dollar!",
]
METADATA = [
    {},
    {"a": "b"},
    {"Mixed-Case": "Value"},
    {"a": ""},
    {"a": "x" * 1500},
    {"a": "1", "b": "2"},
    {"with-dash": "semi;colon"},
    {"spaces": "a  b"},
    {"a": " padded "},
]
HEADERS = [
    {"ContentType": "text/plain"},
    {"ContentType": "application/json; charset=utf-8"},
    {"CacheControl": "max-age=3600"},
    {"ContentDisposition": 'attachment; filename="x.txt"'},
    {"ContentEncoding": "gzip"},
    {"ContentLanguage": "de, en"},
    {"StorageClass": "STANDARD_IA"},
    {"WebsiteRedirectLocation": "/elsewhere"},
    {"Tagging": "a=b&c=d"},
    {"ACL": "public-read"},
    {"ServerSideEncryption": "AES256"},
    {"ChecksumAlgorithm": "SHA256"},
    {"ChecksumAlgorithm": "SHA1"},
    {"ChecksumAlgorithm": "CRC32"},
    {"ContentMD5": "XUFAKrxLKna5cZ2REBfFkg=="},
    {"Expires": "2030-01-02T03:04:05Z"},
]


def sample_bytes(size):
    """The same bytes everywhere."""
    block = hashlib.sha256(str(size).encode()).digest()
    return (block * (size // 32 + 1))[:size]


@case(*[(size, kind) for size in SIZES for kind in ("bytes", "file")])
def round_trip(t, size, kind):
    data = sample_bytes(size)
    body = io.BytesIO(data) if kind == "file" else data
    t.see("put", t.put("k", body))
    found = t.see("get", t.s3.get_object(Bucket=t.bucket, Key="k"))
    t.see("body", found["Body"].read())
    t.see("head", t.s3.head_object(Bucket=t.bucket, Key="k"))


@case("bytearray", "str", "unicode", "real-file", "offset", "none", "unseekable")
def kinds_of_body(t, kind):
    if kind == "bytearray":
        body = bytearray(b"abc" * 3000)
    elif kind == "str":
        body = "text"
    elif kind == "unicode":
        body = "käse😀"
    elif kind == "real-file":
        with open(os.path.join(t.folder, "f"), "wb") as file:
            file.write(sample_bytes(100_000))
        body = open(os.path.join(t.folder, "f"), "rb")
    elif kind == "offset":
        body = io.BytesIO(b"0123456789")
        body.seek(4)
    elif kind == "none":
        t.attempt("put", t.s3.put_object, Bucket=t.bucket, Key="k")
        t.see("body", t.s3.get_object(Bucket=t.bucket, Key="k")["Body"].read())
        return
    else:
        body = Unseekable(b"no way back" * 1000)
        t.attempt("put", lambda: t.put("k", body)["ResponseMetadata"]["HTTPStatusCode"])
        return
    t.attempt("put", t.put, "k", body)
    t.see("body", t.s3.get_object(Bucket=t.bucket, Key="k")["Body"].read())


class Unseekable:
    """A file that only reads."""

    def __init__(self, data):
        self._inner = io.BytesIO(data)

    def read(self, size=-1):
        return self._inner.read(size)

    def tell(self):
        return self._inner.tell()

    def seek(self, offset, whence=0):
        return self._inner.seek(offset, whence)


@case(*KEYS)
def keys(t, key):
    t.attempt("put", t.put, key, b"body of " + key.encode())
    t.attempt("get", lambda: t.s3.get_object(Bucket=t.bucket, Key=key)["Body"].read())
    t.attempt("head", t.s3.head_object, Bucket=t.bucket, Key=key)
    t.attempt("list", t.s3.list_objects_v2, Bucket=t.bucket)
    t.attempt("list v1", t.s3.list_objects, Bucket=t.bucket)
    t.attempt(
        "copy",
        t.s3.copy_object,
        Bucket=t.bucket,
        Key="copy",
        CopySource={"Bucket": t.bucket, "Key": key},
    )
    t.attempt("delete", t.s3.delete_object, Bucket=t.bucket, Key=key)


@case(*METADATA)
def metadata(t, given):
    t.attempt("put", t.put, "k", Metadata=given)
    t.see("head", t.s3.head_object(Bucket=t.bucket, Key="k"))
    t.see("get", t.s3.get_object(Bucket=t.bucket, Key="k")["Metadata"])


@case({"ä": "b"}, {"a": "ü"}, {"a": 1}, {1: "a"}, [("a", "b")], "a")
def metadata_that_is_refused(t, given):
    t.bucket
    t.attempt("put", t.put, "k", Metadata=given)


@case(*HEADERS)
def headers(t, given):
    t.attempt("put", t.put, "k", b"hello", **given)
    t.attempt("head", t.s3.head_object, Bucket=t.bucket, Key="k")
    t.attempt("get", t.s3.get_object, Bucket=t.bucket, Key="k")


@case(
    {"ResponseContentType": "text/x"},
    {"ResponseCacheControl": "no-store"},
    {"ResponseContentDisposition": "inline"},
    {"ResponseContentEncoding": "br"},
    {"ResponseContentLanguage": "fr"},
    {"ResponseExpires": "2031-01-01T00:00:00Z"},
)
def response_overrides(t, given):
    t.put("k", b"hello")
    t.attempt("get", t.s3.get_object, Bucket=t.bucket, Key="k", **given)


@case("0" * 32, b"1" * 32)
def customer_keys(t, key):
    extra = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}
    t.attempt("put", t.put, "k", b"hello", **extra)
    t.attempt("get", t.s3.get_object, Bucket=t.bucket, Key="k", **extra)
    t.attempt("without", t.s3.get_object, Bucket=t.bucket, Key="k")


@case()
def overwriting(t):
    for body in (b"one", b"", b"three" * 30000):
        t.see("put", t.put("k", body))
        t.see("get", t.s3.get_object(Bucket=t.bucket, Key="k")["Body"].read())


@case(1, 2, 999, 1000, 1001)
def deleting_many(t, number):
    t.bucket
    objects = [{"Key": "k%d" % index} for index in range(number)]
    for index in range(min(number, 5)):
        t.put("k%d" % index)
    t.attempt("delete", t.s3.delete_objects, Bucket=t.bucket, Delete={"Objects": objects})
    t.see("left", t.s3.list_objects_v2(Bucket=t.bucket).get("KeyCount"))


@case()
def deleting_many_of_long_names(t):
    names = [("%03d/" % index).ljust(200, "n") for index in range(1000)]
    for name in names[:3]:
        t.attempt("put", t.put, name)  # it may be too long for a store's own files
    objects = [{"Key": name} for name in names]
    t.attempt("delete", t.s3.delete_objects, Bucket=t.bucket, Delete={"Objects": objects})
    t.see("left", t.s3.list_objects_v2(Bucket=t.bucket).get("KeyCount"))


@case({"Quiet": True}, {"Quiet": False})
def deleting_quietly(t, given):
    t.put("a")
    t.put("ü b")
    keys_ = [{"Key": "a"}, {"Key": "ü b"}, {"Key": "none"}]
    t.attempt("delete", t.s3.delete_objects, Bucket=t.bucket, Delete=dict(given, Objects=keys_))


@case()
def naive_and_odd_instants(t):
    import datetime

    zone = datetime.timezone(datetime.timedelta(hours=2))
    for value in (
        datetime.datetime(2030, 1, 2, 3, 4, 5),
        datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=zone),
        1893553445,
        "2030-01-02",
        "2030-01-02 03:04:05+02:00",
        "Wed, 02 Jan 2030 03:04:05 GMT",
        "1893553445",
    ):
        t.attempt("put", t.put, "k", Expires=value)
        t.attempt("head", lambda: t.s3.head_object(Bucket=t.bucket, Key="k").get("Expires"))
