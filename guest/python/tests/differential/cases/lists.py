"""Listings, paginators and waiters."""

from registry import case

KEYS = ["a", "a/1", "a/2", "a/b/3", "b/1", "b/2", "c", "d e/f", "ü/ä", "z+z"]
V2 = [
    {},
    {"Prefix": "a"},
    {"Prefix": "a/"},
    {"Prefix": "none"},
    {"Prefix": "ü"},
    {"Prefix": ""},
    {"Delimiter": "/"},
    {"Delimiter": "/", "Prefix": "a/"},
    {"Delimiter": "1"},
    {"MaxKeys": 3},
    {"MaxKeys": 0},
    {"MaxKeys": 1, "Delimiter": "/"},
    {"StartAfter": "b"},
    {"StartAfter": "zz"},
    {"FetchOwner": True},
    {"EncodingType": "url"},
    {"EncodingType": "url", "Prefix": "d e"},
    {"EncodingType": "url", "Delimiter": "/"},
    {"MaxKeys": 1000},
    {"Prefix": "z+"},
]
V1 = [
    {},
    {"Prefix": "a"},
    {"Prefix": "none"},
    {"Delimiter": "/"},
    {"Delimiter": "/", "Prefix": "a/"},
    {"MaxKeys": 3},
    {"MaxKeys": 2, "Delimiter": "/"},
    {"Marker": "b/1"},
    {"Marker": "ü"},
    {"EncodingType": "url"},
    {"Prefix": "ü"},
]


def fill(t, keys=KEYS):
    """Objects with these keys; where objects are files none is another one's directory."""
    for key in keys:
        if t.keeps_files and key == "a":
            key = "a."
        t.put(key, key.encode())


@case(*V2)
def version_2(t, given):
    fill(t)
    t.attempt("list", t.s3.list_objects_v2, Bucket=t.bucket, **given)


@case(*V1)
def version_1(t, given):
    fill(t)
    t.attempt("list", t.s3.list_objects, Bucket=t.bucket, **given)


@case()
def empty(t):
    for method in (
        t.s3.list_objects,
        t.s3.list_objects_v2,
        t.s3.list_object_versions,
        t.s3.list_multipart_uploads,
    ):
        t.attempt("empty", method, Bucket=t.bucket)


@case()
def by_hand(t):
    fill(t)
    token, pages = None, []
    while True:
        extra = {"ContinuationToken": token} if token else {}
        page = t.s3.list_objects_v2(Bucket=t.bucket, MaxKeys=3, **extra)
        pages.append([item["Key"] for item in page["Contents"]])
        if not page["IsTruncated"]:
            break
        token = page["NextContinuationToken"]
    t.see("pages", pages)


@case()
def buckets(t):
    t.see("none", t.s3.list_buckets())
    for name in ("bucket-b", "bucket-a", "bucket-c"):
        t.s3.create_bucket(Bucket=name)
    t.attempt("some", t.s3.list_buckets)
    t.attempt("prefix", t.s3.list_buckets, Prefix="bucket-a")
    t.attempt("few", t.s3.list_buckets, MaxBuckets=2)


@case({}, {"Prefix": "a"}, {"Delimiter": "/"}, {"MaxKeys": 2}, {"EncodingType": "url"})
def versions(t, given):
    t.s3.put_bucket_versioning(Bucket=t.bucket, VersioningConfiguration={"Status": "Enabled"})
    fill(t)
    t.put("a", b"again")
    t.attempt("delete", t.s3.delete_object, Bucket=t.bucket, Key="c")
    t.attempt("versions", t.s3.list_object_versions, Bucket=t.bucket, **given)


def names(pages):
    """What is in pages."""
    return [
        [
            [item["Key"] for item in page.get("Contents") or []],
            [item["Prefix"] for item in page.get("CommonPrefixes") or []],
            page.get("KeyCount"),
        ]
        for page in pages
    ]


PAGES = [
    {},
    {"PageSize": 1},
    {"PageSize": 3},
    {"PageSize": 100},
    {"MaxItems": 1},
    {"MaxItems": 4},
    {"MaxItems": 4, "PageSize": 3},
    {"MaxItems": 6, "PageSize": 3},
    {"MaxItems": 100},
    {"MaxItems": "5", "PageSize": "2"},
    {"MaxItems": 0},
]


@case(
    *[(operation, config) for operation in ("list_objects", "list_objects_v2") for config in PAGES]
)
def paginating(t, operation, config):
    fill(t)

    def run():
        pages = t.s3.get_paginator(operation).paginate(Bucket=t.bucket, PaginationConfig=config)
        found = names(pages)
        return [found, pages.resume_token is None]

    t.attempt("pages", run)
    found = t.s3.get_paginator(operation).paginate(Bucket=t.bucket, PaginationConfig=config)
    t.attempt("full", found.build_full_result)


@case(
    ("list_objects_v2", {"Delimiter": "/"}),
    ("list_objects_v2", {"Prefix": "a"}),
    ("list_objects_v2", {"Delimiter": "/", "Prefix": "a/"}),
    ("list_objects", {"Delimiter": "/"}),
    ("list_objects_v2", {"Prefix": "nothing"}),
)
def paginating_parts(t, operation, given):
    fill(t)
    paginator = t.s3.get_paginator(operation)
    config = {"PageSize": 2}
    t.attempt(
        "pages",
        lambda: names(paginator.paginate(Bucket=t.bucket, PaginationConfig=config, **given)),
    )
    t.attempt("full", paginator.paginate(Bucket=t.bucket, **given).build_full_result)


@case(1, 2, 3, 5, 7)
def resuming(t, size):
    fill(t)
    paginator = t.s3.get_paginator("list_objects_v2")
    token, rounds = None, []
    for _ in range(20):
        config = {"MaxItems": size, "PageSize": 3, "StartingToken": token}
        pages = paginator.paginate(Bucket=t.bucket, PaginationConfig=config)
        rounds.append(names(pages))
        token = pages.resume_token
        if token is None:
            break
    t.see("rounds", rounds)


@case("nonsense", "bm9uc2Vuc2U=", "a___b___3")
def bad_tokens(t, token):
    fill(t, ["a"])
    config = {"StartingToken": token}
    pages = t.s3.get_paginator("list_objects").paginate(Bucket=t.bucket, PaginationConfig=config)
    t.attempt("pages", lambda: names(pages))


SEARCHES = [
    "Contents[].Key",
    "Contents[].[Key, Size]",
    "Contents[].{K: Key, S: Size}",
    "Contents[0].Key",
    "Contents[-1].Key",
    "Contents",
    "Contents[?Size > `2`].Key",
    "Contents[?Size > `2`][]",
    "Contents[?Key == 'c'].Size | [0]",
    "Contents[?starts_with(Key, 'a')].Key",
    "KeyCount",
    "Contents[?contains(Key, '/')].Key",
    "CommonPrefixes[].Prefix",
    "Contents[*].Size",
    "length(Contents)",
    "Contents[?Size >= `1` && Size < `3`].Key",
    "[Contents[0].Key, Name]",
    "Contents[?ends_with(Key, '1') || Key == 'c'].Key",
    "Contents[?!starts_with(Key, 'a')].Key",
    "Contents[].Owner.ID",
    "Nothing",
    "Contents[?Size == `1`] | [].Key",
]


@case(*SEARCHES)
def searching(t, expression):
    fill(t)
    pages = t.s3.get_paginator("list_objects_v2").paginate(
        Bucket=t.bucket, PaginationConfig={"PageSize": 4}
    )
    t.attempt("found", lambda: list(pages.search(expression)))


@case()
def other_paginators(t):
    from .objects import sample_bytes

    t.put("k")
    upload = t.s3.create_multipart_upload(Bucket=t.bucket, Key="m")["UploadId"]
    for number in (1, 2, 3):
        t.s3.upload_part(
            Bucket=t.bucket, Key="m", UploadId=upload, PartNumber=number, Body=sample_bytes(100)
        )
    for name, extra in (
        ("list_parts", {"Key": "m", "UploadId": upload}),
        ("list_multipart_uploads", {}),
        ("list_object_versions", {}),
    ):
        pages = t.s3.get_paginator(name).paginate(Bucket=t.bucket, **extra)
        t.attempt(name, pages.build_full_result)
    t.attempt("list_buckets", t.s3.get_paginator("list_buckets").paginate().build_full_result)


@case()
def properties(t):
    for name in ("list_objects", "list_objects_v2", "list_parts", "get_object", "list_buckets"):
        t.attempt(name, t.s3.can_paginate, name)
    pages = t.s3.get_paginator("list_objects_v2").paginate(Bucket=t.bucket)
    t.see("keys", [key.expression for key in pages.result_keys])
    t.see("iters", [list(items) for items in pages.result_key_iters()])
    t.see("rest", pages.non_aggregate_part)
    t.see("waiters", t.s3.waiter_names)


FAST = {"Delay": 0, "MaxAttempts": 2}


@case("object_exists", "object_not_exists", "bucket_exists", "bucket_not_exists")
def waiting(t, name):
    waiter = t.s3.get_waiter(name)
    t.see("waiter", [waiter.name, waiter.config.delay, waiter.config.max_attempts])
    extra = {"Key": "k"} if name.startswith("object") else {}
    t.put("k")
    t.attempt("there", waiter.wait, Bucket=t.bucket, WaiterConfig=FAST, **extra)
    gone = {"Key": "none"} if extra else {}
    where = t.bucket if extra else "there-is-no-such-bucket"
    t.attempt("not there", waiter.wait, Bucket=where, WaiterConfig=FAST, **gone)
    t.attempt("wrong", waiter.wait, WaiterConfig=FAST)


@case()
def waiting_for_what_comes(t):
    import threading
    import time

    t.bucket

    def later():
        time.sleep(0.3)
        t.put("late")

    thread = threading.Thread(target=later)
    thread.start()
    waiter = t.s3.get_waiter("object_exists")
    config = {"Delay": 0.1, "MaxAttempts": 100}
    t.attempt("came", waiter.wait, Bucket=t.bucket, Key="late", WaiterConfig=config)
    thread.join()
