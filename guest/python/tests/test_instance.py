"""The runtime, the zygote and the finder, as processes."""

import json
import os
import socket
import subprocess
import sys

import pytest
from instances import HERE, PACKAGE, Served, environment, run_guest

APP = """
import boto3, logging, os, random
s3 = boto3.client("s3")
STARTED = os.getpid()

def echo(event, context):
    print("hello from", context.function_name)
    return {"event": event, "id": context.aws_request_id, "memory": context.memory_limit_in_mb,
            "left": context.get_remaining_time_in_millis() > 0, "pid": os.getpid(),
            "started": STARTED, "dice": random.random()}

def objects(event, context):
    s3.put_object(Bucket="bucket", Key="out", Body=b"x" * event["size"])
    return len(s3.get_object(Bucket="bucket", Key="out")["Body"].read())

def fails(event, context):
    raise KeyError("no luck")

def missing(event, context):
    s3.get_object(Bucket="bucket", Key="none")

def large(event, context):
    print(event.get("say", ""))
    return "y" * event["size"]

def odd(event, context):
    return {1, 2}

def leaves(event, context):
    raise SystemExit(3)

def told(event, context):
    given = context.client_context
    if given is None:
        return [None, os.environ["_X_AMZN_TRACE_ID"]]
    client = given.client
    names = ["installation_id", "app_title", "app_version_name", "app_version_code",
             "app_package_name"]
    client = client and [getattr(client, name) for name in names]
    return [client, given.custom, given.env, os.environ["_X_AMZN_TRACE_ID"]]

def logs(event, context):
    logging.getLogger().setLevel("INFO")
    logging.getLogger("app").info("said %s", event)
"""
HEAD = {"handler": "app.echo", "function": "f", "deadline_ms": 1 << 45, "memory_mib": 256}


def invoke(session, handler, event, number=[0], **more):
    """One invocation: the head of its reply, and its result."""
    number[0] += 1
    head = dict(HEAD, id="r-%d" % number[0], handler=handler, **more)
    session.invoke(head, json.dumps(event).encode())
    found = session.replies.get(timeout=30)
    assert found is not None, session.log
    assert found[0]["id"] == head["id"] and found[0]["result_bytes"] == len(found[1])
    return found[0], json.loads(found[1])


@pytest.fixture
def instance(store, tmp_path):
    """A runtime in a process of its own."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "broken.py").write_text("def handler(:\n")
    (tmp_path / "raises.py").write_text("import nothing_like_it\n")
    served = Served(store)
    descriptor = served.guest_end.fileno()
    process = subprocess.Popen(
        [sys.executable, "-m", "unlade_guest.runtime"],
        pass_fds=[descriptor],
        cwd=tmp_path,
        env=environment(UNLADE_CHANNEL_FD=str(descriptor), LAMBDA_TASK_ROOT=str(tmp_path)),
        stdout=subprocess.DEVNULL,
    )
    assert served.session.greeted.wait(30)
    yield served.session
    served.close()
    assert process.wait(30) == 0


def test_a_handler_answers(instance, store):
    head, result = invoke(instance, "app.echo", {"a": "ü"})
    assert head["status"] == "done" and head["log_tail"] == "hello from f\n"
    assert result["event"] == {"a": "ü"} and result["memory"] == "256" and result["left"]
    assert invoke(instance, "app.objects", {"size": 700_000})[1] == 700_000
    assert store.objects["out"] == b"x" * 700_000


def test_a_handler_gets_what_its_caller_gave_beside_the_event(instance):
    trace = "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=1"
    client = {"installation_id": "i", "app_title": "t\u00fc", "app_version_code": "7"}
    given = {"client": client, "custom": {"a": [1]}, "env": {"locale": "de"}, "services": {}}
    text = json.dumps(given)
    result = invoke(instance, "app.told", 1, trace=trace, client_context=text)[1]
    due = ["i", "t\u00fc", None, "7", None]
    assert result == [due, {"a": [1]}, {"locale": "de"}, trace]
    # The next invocation has nothing of it.
    assert invoke(instance, "app.told", 1)[1] == [None, ""]
    for text, due in [
        ("{}", [None, None, None, ""]),
        ('{"client": null, "custom": 5}', [None, 5, None, ""]),
        ('{"client": "x"}', [[None] * 5, None, None, ""]),
    ]:
        assert invoke(instance, "app.told", 1, client_context=text)[1] == due


@pytest.mark.parametrize(
    "handler, kind, text",
    [
        ("app.fails", "KeyError", "'no luck'"),
        ("app.missing", "NoSuchKey", "(NoSuchKey) when calling the GetObject operation: none"),
        ("app.odd", "Runtime.MarshalError", "Object of type set is not JSON serializable"),
        ("app.leaves", "Runtime.ExitError", "exit(3)"),
        ("app.none", "Runtime.HandlerNotFound", "Handler 'none' missing on module 'app'"),
        ("none.handler", "Runtime.ImportModuleError", "No module named 'none'"),
        ("raises.handler", "Runtime.ImportModuleError", "nothing_like_it"),
        ("broken.handler", "Runtime.UserCodeSyntaxError", "Syntax error in module 'broken'"),
        ("nodot", "Runtime.MalformedHandlerName", "Bad handler 'nodot'"),
    ],
)
def test_errors_have_lambdas_shape(instance, handler, kind, text):
    head, result = invoke(instance, handler, {})
    assert head["status"] == "error" and "[ERROR] " + kind in head["log_tail"]
    assert result["errorType"] == kind and text in result["errorMessage"]
    assert isinstance(result["stackTrace"], list)
    if handler == "app.fails":
        assert "in fails" in result["stackTrace"][-1] and len(result["stackTrace"]) == 1
    assert invoke(instance, "app.echo", {})[0]["status"] == "done"


def test_large_events_and_results(instance):
    event = {"text": "z" * 900_000}
    assert invoke(instance, "app.echo", event)[1]["event"] == event
    for size in (32_700, 45_000, 49_000, 70_000, 3_000_000):
        # What is printed takes six bytes for each, too.
        for say in ("", "\0" * 5000):
            head, result = invoke(instance, "app.large", {"size": size, "say": say})
            assert len(result) == size and len(head["log_tail"]) in (1, 4096)
    head, result = invoke(instance, "app.large", {"size": 7 << 20})
    assert head["status"] == "error" and result["errorType"] == "Function.ResponseSizeTooLarge"


def test_log_records_carry_the_request(instance):
    head, _ = invoke(instance, "app.logs", 5)
    assert head["log_tail"].startswith("[INFO]\t") and "\tsaid 5\n" in head["log_tail"]
    assert head["id"] in head["log_tail"]


def test_the_zygote_forks_instances(store, tmp_path):
    (tmp_path / "app.py").write_text(APP)
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.settimeout(30)
    command = [sys.executable, "-m", "unlade_guest.zygote", "--control", str(other.fileno())]
    zygote = subprocess.Popen(
        command + ["--handler", "app.echo"],
        pass_fds=[other.fileno()],
        cwd=tmp_path,
        env=environment(LAMBDA_TASK_ROOT=str(tmp_path)),
        stdout=subprocess.DEVNULL,
    )
    other.close()
    assert json.loads(own.recv(4096)) == {"ready": True}
    results, all_ = [], []
    for number in range(3):
        served = Served(store)
        all_.append(served)
        request = json.dumps({"fork": "i%d" % number, "environment": {"N": str(number)}})
        socket.send_fds(own, [request.encode()], [served.guest_end.fileno()])
        said = json.loads(own.recv(4096))
        assert said["forked"] == "i%d" % number
        served.guest_end.close()
        assert served.session.greeted.wait(30)
        results.append(invoke(served.session, "app.echo", {})[1])
        assert results[-1]["pid"] == said["pid"] and results[-1]["started"] == zygote.pid
    assert len({result["dice"] for result in results}) == 3
    assert invoke(all_[1].session, "app.objects", {"size": 100})[1] == 100
    own.send(b'{"fork": "without"}')
    assert "no channel" in json.loads(own.recv(4096))["error"]
    for served in all_:
        served.close()
    ended = {json.loads(own.recv(4096))["exited"] for _ in all_}
    assert ended == {result["pid"] for result in results}
    own.close()
    assert zygote.wait(30) == 0


def test_a_vendored_boto3_is_not_used(served, tmp_path):
    (tmp_path / "boto3").mkdir()
    (tmp_path / "boto3" / "__init__.py").write_text("raise RuntimeError('vendored')")
    code = "import sys; sys.path.insert(0, '.'); import boto3; print(boto3.__file__)"
    assert "synthetic" in run_guest(served, code, cwd=tmp_path)


def test_the_pth_file_works_in_an_isolated_interpreter(served, tmp_path):
    import venv

    venv.create(tmp_path / "v", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "v" / "lib").glob("python*/site-packages")
    with open(os.path.join(PACKAGE, "unlade_guest.pth")) as file:
        (site / "unlade_guest.pth").write_text(PACKAGE + "\n" + file.read())
    descriptor = served.guest_end.fileno()
    code = "import boto3; boto3.client('s3').put_object(Bucket='bucket', Key='k', Body=b'x')"
    done = subprocess.run(
        [str(tmp_path / "v" / "bin" / "python"), "-I", "-c", code],
        pass_fds=[descriptor],
        env=environment(UNLADE_CHANNEL_FD=str(descriptor)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert served.session.service.objects["k"] == b"x"


def test_other_services_are_carried_by_the_real_boto3(served):
    code = """
import boto3, botocore.exceptions
from botocore.exceptions import ClientError
from boto3.dynamodb.types import TypeDeserializer
from botocore.config import Config
early = Config(region_name="eu-west-1")
s3 = boto3.client("s3")
table = boto3.client("dynamodb", region_name="eu-west-1")
print(table.get_item(TableName="t", Key={"id": {"S": "a"}})["Item"])
from botocore.config import Config
for config in (early, Config(region_name="eu-west-1")):
    resource = boto3.resource("dynamodb", config=config)
    print(resource.Table("t").get_item(Key={"id": "a"})["Item"])
from botocore.exceptions import ClientError as Later
assert table.exceptions.ClientError is ClientError is Later is s3.exceptions.ClientError
assert issubclass(table.exceptions.ResourceNotFoundException, ClientError)
import boto3 as again
assert again is boto3 and type(boto3.client("s3")) is type(s3)
s3.put_object(Bucket="bucket", Key="k", Body=b"x")
try:
    boto3.client("sqs", region_name="eu-west-1").list_queues()
except botocore.exceptions.BotoCoreError as error:
    print(type(error).__name__, error)
"""
    out = run_guest(served, code)
    assert "{'id': {'S': 'a'}, 'n': {'N': '5'}}" in out
    assert "Decimal('5')" in out
    assert "HostError" in out and "Unsupported" in out
    assert served.session.service.objects["k"] == b"x"


def test_exceptions_are_the_same_before_and_after_the_real_boto3_is_loaded(served):
    code = """
import sys
import boto3
import boto3.exceptions as early
from s3transfer.exceptions import S3DownloadFailedError
boto3.client("dynamodb", region_name="eu-west-1")
import boto3.exceptions, s3transfer.exceptions
assert "synthetic" not in sys.modules["s3transfer.exceptions"].__file__
assert "synthetic" not in sys.modules["boto3.exceptions"].__file__
late = sys.modules["boto3.exceptions"]
for name in ("Boto3Error", "RetriesExceededError", "S3UploadFailedError", "ResourceNotExistsError"):
    assert getattr(late, name) is getattr(early, name) is getattr(boto3.exceptions, name)
assert s3transfer.exceptions.S3DownloadFailedError is S3DownloadFailedError
assert boto3.session.Session is boto3.Session
print(len(vars(late)))
"""
    run_guest(served, code)


@pytest.mark.parametrize("without", ["", "sys.path = [p for p in sys.path if 'packages' not in p]"])
def test_modules_are_there_without_being_imported(served, without):
    code = """
import sys
%s
import boto3, botocore
print(boto3.exceptions.S3UploadFailedError.__name__, boto3.session.Session is boto3.Session)
print(boto3.resources.base.ServiceResource.__name__, boto3.s3.transfer.TransferConfig.__name__)
print(botocore.client.BaseClient.__name__, botocore.config.Config.__name__)
print(botocore.exceptions.ClientError.__name__, botocore.response.StreamingBody.__name__)
print(botocore.errorfactory.ClientError is botocore.exceptions.ClientError)
print("botocore.session" in sys.modules)
"""
    words = run_guest(served, code % without).split()
    assert words == (
        "S3UploadFailedError True ServiceResource TransferConfig BaseClient Config "
        "ClientError StreamingBody True False"
    ).split()


def test_every_session_of_the_real_botocore_is_cut(served):
    code = """
import botocore.session
client = botocore.session.get_session().create_client("s3", region_name="eu-west-1")
print(type(client).__mro__[1].__module__, client._make_api_call.__func__.__code__.co_filename)
client.put_object(Bucket="b", Key="k", Body=b"hello")
print(client.get_object(Bucket="b", Key="k")["Body"].read())
try:
    client.get_object(Bucket="b", Key="other")
except client.exceptions.NoSuchKey as error:
    print(error.response["Error"]["Key"])
try:
    client.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"})
except Exception as error:
    print(type(error).__name__)
"""
    lines = run_guest(served, code).splitlines()
    assert "unlade_guest" not in lines[0], "it is the real one"
    assert lines[1:] == ["b'hello'", "other", "HostError"], "its URLs are the host's, too"


@pytest.mark.parametrize("name", ["create_session", "update_object_encryption"])
def test_operations_that_no_host_carries_say_so(link, name):
    from unlade_guest.errors import HostError
    from unlade_guest.session import Session

    with pytest.raises(HostError) as raised:
        getattr(Session().client("s3"), name)(Bucket="b")
    assert raised.value.code == "Unsupported"


def test_without_the_real_boto3_it_is_said_what_to_do(served):
    code = """
import sys
sys.path = [p for p in sys.path if "site-packages" not in p]
import boto3
try:
    boto3.client("dynamodb")
except ImportError as error:
    print(error)
"""
    assert "Add boto3 to the package" in run_guest(served, code)


def test_little_is_imported():
    code = """
import sys
before = set(sys.modules)
import boto3
boto3.client("s3").get_object
print(sorted(set(sys.modules) - before))
"""
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import sys; sys.path.insert(0, %r)\nfrom unlade_guest import finder; finder.install()\n"
            % PACKAGE
            + code,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    names = done.stdout
    for heavy in ("'json'", "'re'", "'socket'", "'threading'", "'logging'", "'enum'", "'datetime'"):
        assert heavy not in names, names


def test_tables_are_those_of_the_pinned_botocore():
    done = subprocess.run(
        [sys.executable, os.path.join(HERE, "tables.py")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_channel_is_opened_again_by_its_path_only(tmp_path, monkeypatch):
    from unlade_guest import current
    from unlade_guest.channel import ChannelLost

    monkeypatch.delenv("UNLADE_CHANNEL_FD", raising=False)
    monkeypatch.delenv("UNLADE_CHANNEL_PATH", raising=False)
    assert current.reconnect() is None
    monkeypatch.setenv("UNLADE_CHANNEL_PATH", str(tmp_path / "none"))
    with pytest.raises(ChannelLost, match="no channel at"):
        current.reconnect()
