"""Retries: against a store that fails as its keys say (`faulty.py`)."""

from registry import case

ONCE = ["503x1", "500x1", "502x1", "504x1", "429x1", "throttledx1", "timeoutx1", "plainx1"]
OFTEN = ["503x2", "500x3", "hangx1", "hangx2"]
NEVER = ["deniedx9", "skewedx9"]


@case(*ONCE, *OFTEN, *NEVER)
def reading(t, key):
    t.attempt("get", read, t, key)


def read(t, key):
    """What a GET gives."""
    found = t.s3.get_object(Bucket=t.bucket, Key=key)
    return found.pop("Body").read(), found


@case(*ONCE, *OFTEN, *NEVER)
def writing(t, key):
    t.attempt("put", t.put, key, b"hello")
    t.attempt("get", t.s3.head_object, Bucket=t.bucket, Key="other")


@case("503x1", "hangx1", "500x9")
def other_operations(t, key):
    for method in ("head_object", "delete_object"):
        t.attempt(method, getattr(t.s3, method), Bucket=t.bucket, Key=key)


@case("503x9", "500x9", "throttledx9", "timeoutx9", "plainx9")
def giving_up(t, key):
    """As often as is allowed, and no more."""
    t.attempt("get", t.s3.get_object, Bucket=t.bucket, Key=key)


@case("get_object", "head_object")
def giving_up_without_an_answer(t, method):
    """Who was asked is said in other words: the function has no connection of its own."""
    try:
        getattr(t.s3, method)(Bucket=t.bucket, Key="hangx9")
    except Exception as error:
        t.see("kind", [kind.__name__ for kind in type(error).__mro__])


@case(100_000)
def large_bodies(t, size):
    data = bytes(range(256)) * (size // 256)
    t.put("503x2", data)
    t.see("came back", read(t, "503x2")[0] == data)


ENDS = ["mid503x1", "mid503x2", "mid500x3", "midhangx1", "midhangx2", "middeniedx9"]


@case(*ONCE, *OFTEN, *NEVER, *ENDS)
def writing_much(t, key):
    """Bodies that the host does not keep: the function sends them again.

    From where they began: botocore sends a file from its start then, wherever it stood.
    """
    data = bytes(range(256)) * (9 * 4096)
    t.attempt("put", t.put, key, data)
    t.attempt("head", t.s3.head_object, Bucket=t.bucket, Key="other")


@case("503x2", "hangx1", *ENDS)
def writing_a_file(t, key):
    import io

    file = io.BytesIO(bytes(range(256)) * (9 * 4096))
    t.attempt("put", t.put, key, file)
    t.see("closed", file.closed)
    t.attempt("get", lambda: len(read(t, key)[0]))


@case("503x2", *ENDS)
def parts(t, key):
    t.attempt(
        "part",
        t.s3.upload_part,
        Bucket=t.bucket,
        Key=key,
        UploadId="u",
        PartNumber=1,
        Body=b"0123456789" * 600_000,
    )


@case("upload", "download")
def in_transfers(t, way):
    import io

    data = b"0123456789" * 1000
    if way == "upload":
        t.attempt("up", t.s3.upload_fileobj, io.BytesIO(data), t.bucket, "503x2")
        return
    t.put("plain", data)
    out = io.BytesIO()
    t.attempt("down", t.s3.download_fileobj, t.bucket, "plain", out)
    t.see("data", out.getvalue() == data)
