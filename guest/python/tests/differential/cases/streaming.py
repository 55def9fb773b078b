"""How bodies are read."""

import io

from registry import case

from .objects import sample_bytes

RANGES = [
    "bytes=0-0",
    "bytes=0-9",
    "bytes=5-5",
    "bytes=10-",
    "bytes=-1",
    "bytes=-10",
    "bytes=0-99999",
    "bytes=99999-",
    "bytes=99999-200000",
    "bytes=0-200000",
    "bytes=-200000",
    "bytes=65535-65536",
    "bytes=1000-70000",
    "bytes=100000-",
    "bytes=100000-100001",
    "bytes=5-2",
    "bytes=-0",
    "bytes=",
    "nonsense",
    "bytes=0-1,3-4",
]


@case(*RANGES)
def ranges(t, text):
    t.put("k", sample_bytes(100_000))

    def get():
        found = t.s3.get_object(Bucket=t.bucket, Key="k", Range=text)
        body = found.pop("Body").read()
        return found, body

    t.attempt("get", get)
    t.attempt("head", t.s3.head_object, Bucket=t.bucket, Key="k", Range=text)


@case("bytes=0-5", "bytes=0-", "bytes=3-2")
def ranges_of_nothing(t, text):
    t.put("k", b"")
    t.attempt("get", t.s3.get_object, Bucket=t.bucket, Key="k", Range=text)


def body_of(t, size=300_000):
    """A body that has not been read."""
    t.put("k", sample_bytes(size))
    return t.s3.get_object(Bucket=t.bucket, Key="k")["Body"]


@case(1, 100, 1024, 65535, 65536, 65537, 100_000, 299_999, 300_000, 300_001)
def read_in_pieces(t, amount):
    body = body_of(t, 30_000 if amount == 1 else 300_000)
    lengths, whole = [], b""
    while True:
        data = body.read(amount)
        if not data:
            break
        lengths.append(len(data))
        whole += data
    t.see("lengths", [lengths[0], lengths[-1], len(lengths)])
    t.see("whole", whole)


@case()
def read_mixed(t):
    body = body_of(t)
    for amount in (0, 1, 10, 70_000, 3, None, 5, None):
        t.attempt("read %s" % amount, body.read, amount)
        t.attempt("tell", body.tell)


@case()
def read_after_close(t):
    body = body_of(t)
    t.see("read", body.read(10))
    t.see("close", body.close())
    t.attempt("again", lambda: len(body.read(10)))


@case(1, 10, 1024, 100_000)
def chunks(t, size):
    body = body_of(t, 5000 if size < 100 else 300_000)
    found = list(body.iter_chunks(size))
    t.see("chunks", [len(found), len(found[0]), len(found[-1]), b"".join(found)])


@case()
def chunks_by_default(t):
    found = list(body_of(t, 5000))
    t.see("chunks", [len(piece) for piece in found])


LINES = [
    b"a\nb\nc",
    b"a\nb\nc\n",
    b"",
    b"\n",
    b"\n\n\n",
    b"a\r\nb\r\nc",
    b"a\rb\rc",
    b"no end",
    b"x" * 5000 + b"\n" + b"y" * 5000,
    b"mixed\r\nends\nhere\r",
]


@case(*LINES)
def lines(t, data):
    t.put("k", data)
    for size in (1, 3, 1024):
        for keep in (False, True):
            body = t.s3.get_object(Bucket=t.bucket, Key="k")["Body"]
            t.see("lines", list(body.iter_lines(chunk_size=size, keepends=keep)))


@case(*LINES[:6])
def readlines(t, data):
    t.put("k", data)
    t.attempt("readlines", t.s3.get_object(Bucket=t.bucket, Key="k")["Body"].readlines)


@case(10, 1000, 300_000, 400_000)
def read_into(t, size):
    body = body_of(t)
    target = bytearray(size)
    t.see("number", body.readinto(target))
    t.see("bytes", target)
    t.see("rest", body.read())


@case()
def read_into_twice(t):
    body = body_of(t, 1000)
    target = bytearray(600)
    for _ in range(4):
        t.attempt("number", body.readinto, target)


@case()
def context_manager(t):
    with body_of(t) as inner:
        t.see("read", inner.read(100))
    with t.s3.get_object(Bucket=t.bucket, Key="k")["Body"] as inner:
        t.see("all", inner.read())


@case()
def buffered_readers(t):
    t.see("buffered", io.BufferedReader(body_of(t), 8192).read(20_000))
    text = io.TextIOWrapper(io.BytesIO(body_of(t, 100).read()), "latin-1").read()
    t.see("text", text)


@case()
def as_iterator(t):
    body = body_of(t, 3000)
    t.see("next", [len(next(body)), len(next(body)), len(next(body))])
    t.attempt("end", next, body)


@case()
def properties(t):
    body = body_of(t, 10)
    t.see("readable", body.readable())
    t.see("type", type(body).__name__)
    t.see("is io", isinstance(body, io.IOBase))
    t.see("closed", body.closed)
    t.see("rest", body.read())


@case()
def many_unread_bodies(t):
    t.put("k", sample_bytes(50_000))
    bodies = [t.s3.get_object(Bucket=t.bucket, Key="k")["Body"] for _ in range(100)]
    t.see("all", [len(body.read()) for body in bodies])


@case()
def abandoned_bodies(t):
    t.put("k", sample_bytes(2_000_000))
    for _ in range(30):
        t.s3.get_object(Bucket=t.bucket, Key="k")["Body"].read(10)
    t.see("still", t.s3.get_object(Bucket=t.bucket, Key="k")["Body"].read())


@case()
def to_json(t):
    import json

    t.put("k", json.dumps({"a": [1, 2, {"b": "ü"}]}).encode())
    t.see("json", json.load(t.s3.get_object(Bucket=t.bucket, Key="k")["Body"]))


@case()
def to_csv(t):
    import codecs
    import csv

    t.put("k", b"a,b\n1,2\n3,4\n")
    body = t.s3.get_object(Bucket=t.bucket, Key="k")["Body"]
    t.see("rows", list(csv.reader(codecs.getreader("utf-8")(body))))
    body = t.s3.get_object(Bucket=t.bucket, Key="k")["Body"]
    t.see("lines", list(csv.reader(line.decode() for line in body.iter_lines())))


@case()
def to_gzip(t):
    import gzip

    t.put("k", gzip.compress(sample_bytes(200_000)))
    body = t.s3.get_object(Bucket=t.bucket, Key="k")["Body"]
    t.see("plain", gzip.GzipFile(fileobj=body).read())


@case()
def to_zip(t):
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.txt", "hello")
    t.put("k", out.getvalue())
    data = t.s3.get_object(Bucket=t.bucket, Key="k")["Body"].read()
    t.see("names", zipfile.ZipFile(io.BytesIO(data)).namelist())


@case()
def body_as_upload(t):
    t.put("k", sample_bytes(400_000))
    body = t.s3.get_object(Bucket=t.bucket, Key="k")["Body"]
    t.attempt("fileobj", t.s3.upload_fileobj, body, t.bucket, "copy")
    t.see("copy", t.s3.get_object(Bucket=t.bucket, Key="copy")["Body"].read())
