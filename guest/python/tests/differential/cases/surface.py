"""Sessions, configuration, presigned URLs, threads: what else functions touch."""

import io

from registry import case

from .objects import sample_bytes


@case()
def sessions(t):
    session = t.boto3.session.Session(region_name="eu-central-1")
    t.see("region", session.region_name)
    t.see("client", session.client("s3").meta.region_name)
    t.see("other", session.client("s3", region_name="us-west-2").meta.region_name)
    t.see("same", t.boto3.Session is t.boto3.session.Session)
    t.see("repr", repr(session))
    t.boto3.setup_default_session(region_name="ap-south-1")
    t.see("default", t.boto3.client("s3").meta.region_name)
    t.boto3.setup_default_session(region_name="us-east-1")
    t.see("resource", session.resource("s3").meta.client.meta.region_name)


@case()
def client_of(t):
    client = t.boto3.client("s3", region_name="us-east-1")
    t.see("class", type(client).__name__)
    t.see(
        "meta",
        [client.meta.region_name, client.meta.partition, client.meta.service_model.service_name],
    )
    t.see("endpoint", client.meta.endpoint_url.startswith("http://127.0.0.1"))
    t.see("mapping", client.meta.method_to_api_mapping["list_objects_v2"])
    t.see("id", str(client.meta.service_model.service_id))
    t.see("same", t.boto3.client("s3") is t.boto3.client("s3"))
    t.attempt("close", client.close)


@case()
def methods(t):
    """Every method of the service."""
    t.see("names", sorted(name for name in dir(t.s3) if name[0] != "_"))


@case(True, False)
def unsigned(t, public):
    """Without a signature there is what is public, and nothing else."""
    from botocore import UNSIGNED
    from botocore.config import Config

    t.put("k", b"hello", ACL="public-read" if public else "private")
    client = t.boto3.client(
        "s3", region_name="us-east-1", config=Config(signature_version=UNSIGNED)
    )
    t.attempt("get", lambda: client.get_object(Bucket=t.bucket, Key="k")["Body"].read())
    t.attempt("put", client.put_object, Bucket=t.bucket, Key="other", Body=b"x")


@case()
def unchecked_parameters(t):
    from botocore.config import Config

    config = Config(parameter_validation=False)
    client = t.boto3.client("s3", region_name="us-east-1", config=config)
    t.attempt("make", client.create_bucket, Bucket="unchecked", CreateBucketConfiguration=None)
    t.attempt("put", client.put_object, Bucket="unchecked", Key="k", Body=b"x", Metadata=None)
    t.attempt("get", client.head_object, Bucket="unchecked", Key="k")


@case()
def modules_unimported(t):
    """What is there after a client was made, without being imported."""
    t.see("made", type(t.s3).__name__)
    t.see("config", t.boto3.s3.transfer.TransferConfig(max_concurrency=3).max_request_concurrency)


@case()
def configs(t):
    from botocore.config import Config

    config = Config(
        region_name="eu-west-1",
        retries={"max_attempts": 3, "mode": "standard"},
        read_timeout=5,
        connect_timeout=5,
        max_pool_connections=50,
        s3={"addressing_style": "path"},
        signature_version="s3v4",
    )
    client = t.boto3.client("s3", config=config)
    t.see("region", client.meta.region_name)
    t.see("own", [config.read_timeout, config.max_pool_connections, config.s3])
    t.see("merged", config.merge(Config(read_timeout=9)).read_timeout)
    t.attempt("unknown", Config, nonsense=1)
    t.see("client's", [client.meta.config.read_timeout, client.meta.config.region_name])
    t.see("works", client.list_buckets()["Buckets"])


@case()
def modules(t):
    import boto3
    import boto3.exceptions
    import boto3.session
    import botocore
    import botocore.client
    import botocore.config
    import botocore.exceptions
    import botocore.response
    from boto3.s3.transfer import S3Transfer, TransferConfig
    from botocore import UNSIGNED

    t.see("versions", [len(boto3.__version__.split(".")), len(botocore.__version__.split("."))])
    t.see("config", botocore.client.Config is botocore.config.Config)
    t.see("body", botocore.response.StreamingBody.__name__)
    t.see("base", isinstance(t.s3, botocore.client.BaseClient))
    t.see("errors", [boto3.exceptions.S3UploadFailedError.__mro__[1].__name__])
    t.see("names", [S3Transfer.__name__, TransferConfig.__name__, UNSIGNED is not None])


def signer(t):
    """A client whose URLs have Version 4: stock clients of old regions use Version 2 otherwise."""
    from botocore.config import Config

    return t.boto3.client(
        "s3", region_name="us-east-1", config=Config(signature_version="s3v4")
    )


@case("get_object", "put_object", "delete_object", "head_object", "list_objects_v2")
def presigned(t, method):
    from urllib.parse import urlsplit

    t.put("ü k", b"hello")
    given = {"Bucket": t.bucket}
    if method != "list_objects_v2":
        given["Key"] = "ü k"
    url = signer(t).generate_presigned_url(method, Params=given, ExpiresIn=60)
    t.see(
        "url", [urlsplit(url).path, sorted(p.split("=")[0] for p in urlsplit(url).query.split("&"))]
    )
    if method == "get_object":
        import urllib.request

        with urllib.request.urlopen(url) as found:
            t.see("bytes", found.read())


@case()
def presigned_wrongly(t):
    from urllib.parse import urlsplit

    t.attempt("method", t.s3.generate_presigned_url, "nonsense")
    t.attempt("parameters", t.s3.generate_presigned_url, "get_object", Params={"Bucket": "bucket"})
    t.attempt("unknown", t.s3.generate_presigned_url, "get_object", Params={"Nonsense": 1})
    url = urlsplit(signer(t).generate_presigned_url("list_buckets"))
    t.see("none", [url.path, sorted(part.split("=")[0] for part in url.query.split("&"))])


@case(
    {},
    {"ExpiresIn": 10},
    {"Fields": {"acl": "public-read"}, "Conditions": [{"acl": "public-read"}]},
)
def presigned_form(t, given):
    found = signer(t).generate_presigned_post(t.bucket, "k", **given)
    t.see("url", found["url"].split("/")[-1])
    t.see("fields", found["fields"])


@case(2, 8, 16)
def threads(t, number):
    import threading

    t.put("k", sample_bytes(200_000))
    results = [None] * number

    def work(index):
        key = "k%d" % index
        t.s3.put_object(Bucket=t.bucket, Key=key, Body=sample_bytes(1000 * index))
        total = 0
        for _ in range(3):
            total += len(t.s3.get_object(Bucket=t.bucket, Key="k")["Body"].read())
            total += t.s3.head_object(Bucket=t.bucket, Key=key)["ContentLength"]
        results[index] = total

    all_ = [threading.Thread(target=work, args=(index,)) for index in range(number)]
    for thread in all_:
        thread.start()
    for thread in all_:
        thread.join()
    t.see("results", results)


@case()
def executors(t):
    from concurrent.futures import ThreadPoolExecutor

    for index in range(20):
        t.put("k%02d" % index, sample_bytes(index * 5000))

    def get(index):
        return t.s3.get_object(Bucket=t.bucket, Key="k%02d" % index)["Body"].read()

    with ThreadPoolExecutor(8) as pool:
        t.see("bodies", list(pool.map(get, range(20))))

    def fail(index):
        try:
            t.s3.get_object(Bucket=t.bucket, Key="none%d" % index)
        except t.s3.exceptions.NoSuchKey as error:
            return error.response["Error"]

    with ThreadPoolExecutor(8) as pool:
        t.see("errors", list(pool.map(fail, range(20))))


@case()
def threads_in_transfers(t):
    from concurrent.futures import ThreadPoolExecutor

    t.bucket

    def go(index):
        t.s3.upload_fileobj(io.BytesIO(sample_bytes(9_000_000 + index)), t.bucket, "k%d" % index)
        out = io.BytesIO()
        t.s3.download_fileobj(t.bucket, "k%d" % index, out)
        return len(out.getvalue())

    with ThreadPoolExecutor(4) as pool:
        t.see("sizes", list(pool.map(go, range(6))))


@case()
def hooks(t):
    seen = []

    def before(params, **_):
        seen.append(sorted(params))
        params["Metadata"] = {"added": "yes"}

    client = t.boto3.client("s3")
    client.meta.events.register("before-parameter-build.s3.PutObject", before)
    client.put_object(Bucket=t.bucket, Key="k", Body=b"x")
    t.see("seen", seen)
    t.see("metadata", client.head_object(Bucket=t.bucket, Key="k")["Metadata"])
    client.meta.events.unregister("before-parameter-build.s3.PutObject", before)
    client.put_object(Bucket=t.bucket, Key="k", Body=b"x")
    t.see("seen", len(seen))


@case()
def patched(t):
    """How tests of functions replace calls."""
    from unittest import mock

    import botocore.client

    def fake(self, operation, parameters):
        return {"called": operation, "with": parameters}

    with mock.patch("botocore.client.BaseClient._make_api_call", new=fake):
        t.see("fake", t.boto3.client("s3").get_object(Bucket="b", Key="k"))
    client = t.boto3.client("s3")
    with mock.patch.object(client, "get_object", return_value=5):
        t.see("one", client.get_object(Bucket="b"))
    t.see("base", botocore.client.BaseClient.__name__)


@case()
def no_region(t):
    client = t.boto3.client("s3")
    t.see("works", client.list_buckets()["Buckets"])


@case()
def credentials_in_code(t):
    client = t.boto3.client(
        "s3",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        region_name="us-east-1",
        use_ssl=False,
        verify=False,
    )
    t.see("works", client.list_buckets()["ResponseMetadata"]["HTTPStatusCode"])
