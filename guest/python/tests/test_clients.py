"""Clients that a function makes: of which store they are, and by which library."""

import pytest

from instances import run_guest

OTHER = "http://other.example:9000"
ADVICE = '`mode = "stock"` in function.toml'
REFUSED = """
import boto3, os
try:
    %s
except Exception as error:
    print(type(error).__name__, error.code, error)
"""
MAKE = {
    "client": "boto3.client('s3', endpoint_url='%s', aws_access_key_id='k')" % OTHER,
    "resource": "boto3.resource('s3', endpoint_url='%s')" % OTHER,
    "session": "boto3.Session(profile_name='p').client('s3', endpoint_url='%s')" % OTHER,
    "session's resource": "boto3.session.Session().resource('s3', endpoint_url='%s')" % OTHER,
    "dynamodb": "boto3.client('dynamodb', 'eu-west-1', endpoint_url='%s')" % OTHER,
    "dynamodb's resource": "boto3.resource('dynamodb', 'eu-west-1', endpoint_url='%s')" % OTHER,
    "botocore": "__import__('botocore.session').session.get_session().create_client("
    "'s3', region_name='eu-west-1', endpoint_url='%s')" % OTHER,
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_a_client_of_another_store_is_refused_and_not_misdirected(served, store, make):
    said = run_guest(served, REFUSED % (make + ".meta"))
    assert said.startswith("HostError ForeignEndpoint") and OTHER in said and ADVICE in said
    assert store.calls == []


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize(
    "make",
    [
        "boto3.client('s3')",
        "boto3.resource('s3')",
        "__import__('botocore.session').session.get_session().create_client('s3', 'eu-west-1')",
    ],
)
def test_a_variable_that_names_another_store_is_not_ignored(served, name, make):
    said = run_guest(served, "import os; os.environ[%r] = %r\n" % (name, OTHER) + REFUSED % make)
    assert said.startswith("HostError ForeignEndpoint") and OTHER in said and ADVICE in said


FILE = """
[default]
region = eu-west-1
[profile plain]
endpoint_url = http://other.example:9000
[profile parts]
services = two
[services two]
dynamodb =
  endpoint_url = http://third.example
s3 =
  endpoint_url = http://other.example:9000
[profile ignoring]
ignore_configured_endpoint_urls = true
endpoint_url = http://other.example:9000
"""


@pytest.mark.parametrize(
    "profile, refused",
    [("default", False), ("plain", True), ("parts", True), ("ignoring", False), ("none", False)],
)
def test_a_profile_that_names_another_store_is_not_ignored(served, tmp_path, profile, refused):
    (tmp_path / "config").write_text(FILE)
    more = dict(AWS_CONFIG_FILE=str(tmp_path / "config"))
    said = run_guest(
        served, REFUSED % ("boto3.Session(profile_name=%r).client('s3')" % profile), **more
    )
    assert (OTHER in said) == refused, said
    said = run_guest(served, REFUSED % "boto3.client('s3')", AWS_PROFILE=profile, **more)
    assert (OTHER in said) == refused, said


def test_the_own_store_and_aws_may_be_named(served, store):
    code = """
import boto3
from botocore.config import Config
for endpoint in ("http://store.example:80/", "http://STORE.example",
                 "https://s3.amazonaws.com", "https://s3.eu-west-1.amazonaws.com"):
    client = boto3.client("s3", endpoint_url=endpoint)
    client.put_object(Bucket="b", Key=endpoint, Body=b"x")
    assert client.meta.endpoint_url == endpoint
for other in ("http://store.example:81", "https://store.example", "http://store.example/path", 7,
              "http://amazonaws.com.example", "http://[::1", "store.example", ""):
    try:
        boto3.client("s3", endpoint_url=other)
    except Exception as error:
        assert error.code == "ForeignEndpoint", error
    else:
        raise AssertionError(other)
import os
os.environ["AWS_ENDPOINT_URL"] = "http://other.example"
boto3.client("s3", config=Config(ignore_configured_endpoint_urls=True))
os.environ["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "true"
boto3.client("s3")
del os.environ["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"], os.environ["AWS_ENDPOINT_URL"]
import botocore.session
real = botocore.session.get_session()
real.create_client("s3", region_name="eu-west-1", endpoint_url="http://store.example")
real.create_client("s3", region_name="cn-north-1")
real.create_client("dynamodb", region_name="us-gov-west-1")
"""
    run_guest(served, code, UNLADE_STORE_ENDPOINT="http://store.example")
    assert len(store.objects) == 4


VERSIONS = """
import boto3, botocore.session
from botocore import UNSIGNED
from botocore.config import Config
for make in (boto3.client, botocore.session.get_session().create_client):
    for version in %s:
        config = Config() if version is None else Config(signature_version=version)
        client = make("s3", region_name="us-east-1", config=config)
        for sign in (
            lambda: client.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"}),
            lambda: client.generate_presigned_post("b", "k"),
        ):
            try:
                sign()
            except Exception as error:
                assert type(error).__name__ == "HostError", error
"""


def test_the_host_hears_every_version_of_a_presigned_signature(served, store):
    """It refuses those that it does not make: none becomes another one, nor a URL without any."""
    run_guest(served, VERSIONS % "('s3', 's3v4', 's3-query', 'v4', UNSIGNED)")
    each = ["s3", "s3", "s3v4", "s3v4", "s3-query", "s3-query", "v4", "v4", "unsigned", "unsigned"]
    assert [asked["SignatureVersion"] for _, _, asked in store.calls] == each * 2
    names = ["GeneratePresignedUrl", "GeneratePresignedPost"]
    assert [operation for _, operation, _ in store.calls] == names * 10


def test_a_client_without_a_version_gets_version_4(served, store):
    run_guest(served, VERSIONS % "(None,)")
    asked = [asked.get("SignatureVersion", "s3v4") for _, _, asked in store.calls]
    assert asked == ["s3v4"] * 4


TRANSFERS = """
import boto3
from boto3.s3.transfer import S3Transfer, TransferConfig
from s3transfer.manager import TransferManager
early = [S3Transfer, TransferManager]
s3 = boto3.client("s3")
import botocore.session
real = botocore.session.get_session().create_client("s3", region_name="us-east-1")
import boto3.s3.transfer, s3transfer, s3transfer.manager
late = [boto3.s3.transfer.S3Transfer, s3transfer.S3Transfer, s3transfer.manager.TransferManager]
assert "synthetic" not in boto3.s3.transfer.__file__
with open("file", "wb") as file:
    file.write(b"bytes")
for name, client in (("ours", s3), ("real", real)):
    for number, kind in enumerate(early + late):
        key = "%s-%d" % (name, number)
        if kind.__name__ == "S3Transfer":
            kind(client, TransferConfig(max_concurrency=2)).upload_file("file", "b", key)
        else:
            with kind(client) as manager:
                manager.upload("file", "b", key).result()
boto3.s3.transfer.S3Transfer(manager=late[2](s3)).upload_file("file", "b", "by-manager")
config = boto3.s3.transfer.TransferConfig()
boto3.s3.transfer.create_transfer_manager(s3, config).upload("file", "b", "made").result()
s3.upload_file("file", "b", "config", Config=config)

class Own(late[2]):
    pass

Own(real).shutdown()
try:
    Own(s3)
except NotImplementedError as error:
    print(error)
"""


def test_transfers_do_not_depend_on_what_was_imported_before(served, store, tmp_path):
    said = run_guest(served, TRANSFERS, cwd=tmp_path)
    assert "Own is derived from TransferManager" in said and ADVICE in said
    expected = {"%s-%d" % (name, number) for name in ("ours", "real") for number in range(5)}
    assert set(store.objects) == expected | {"by-manager", "made", "config"}
    assert set(store.objects.values()) == {b"bytes"}


def test_an_asynchronous_client_is_refused_when_it_is_made(served, store):
    """As aiobotocore derives its session: its clients' calls are awaited."""
    code = """
import asyncio, botocore.session

class AioSession(botocore.session.Session):
    def create_client(self, *args, **kwargs):
        return self._create_client(*args, **kwargs)

    async def _create_client(self, *args, **kwargs):
        return super().create_client(*args, **kwargs)

try:
    asyncio.run(AioSession().create_client("s3", region_name="eu-west-1"))
except Exception as error:
    print(type(error).__name__, error)
"""
    said = run_guest(served, code)
    assert said.startswith("HostError") and "asynchronous" in said and ADVICE in said
    assert store.calls == []


def test_an_asynchronous_client_of_aiobotocore_is_refused(served):
    pytest.importorskip("aiobotocore", reason="aiobotocore is not installed")
    code = """
from aiobotocore.session import get_session
try:
    get_session().create_client("s3", region_name="eu-west-1")
except Exception as error:
    print(type(error).__name__, error)
"""
    assert run_guest(served, code).startswith("HostError")


def test_what_is_not_carried_names_the_line_of_the_manifest(served):
    code = REFUSED % "boto3.client('s3').list_multipart_uploads(Bucket='b')"
    said = run_guest(served, code)
    assert said.startswith("HostError Unsupported") and ADVICE in said
    # Of other services the host says what to do: it is not always the manifest.
    code = REFUSED % "boto3.client('sqs', region_name='eu-west-1').list_queues()"
    said = run_guest(served, code)
    assert said.startswith("HostError Unsupported") and "not here" in said
    assert "outside the function" not in said
