"""Services other than S3, with stock boto3 and through the worker: the same is seen."""

import json
import os
import subprocess
import sys

import hosts
import pytest
import service_cases
from service_hosts import configured

DIFFERENCES_SHOWN_MAX = 20
HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTED = [name for name in service_cases.CASES if name.startswith("scripted_")]
NAMES = [name for name in service_cases.CASES if name not in SCRIPTED]


def differences(one, other, path=""):
    """Where two JSON values differ."""
    if type(one) is not type(other):
        yield "%s: %.300r != %.300r" % (path, one, other)
    elif isinstance(one, dict):
        for key in sorted(set(one) | set(other)):
            if key not in one or key not in other:
                yield "%s.%s: only %s has it" % (path, key, "stock" if key in one else "the cut")
            else:
                yield from differences(one[key], other[key], "%s.%s" % (path, key))
    elif isinstance(one, list):
        if len(one) != len(other):
            yield "%s: %d and %d entries: %.300r %.300r" % (path, len(one), len(other), one, other)
        for at, (a, b) in enumerate(zip(one, other)):
            yield from differences(a, b, "%s[%d]" % (path, at))
    elif one != other:
        yield "%s: %.300r != %.300r" % (path, one, other)


def compare(bench, name):
    """Runs a case in both ways."""
    stock, cut = bench.see(name)
    for result in (stock, cut):
        if result.get("broken"):
            pytest.fail(result["broken"], pytrace=False)
    assert stock["seen"], "the case saw nothing"
    found = list(differences(stock["seen"], cut["seen"]))
    if found:
        pytest.fail("\n".join(found[:DIFFERENCES_SHOWN_MAX]), pytrace=False)


@pytest.mark.parametrize("name", NAMES)
def test_case(name, moto_services):
    compare(moto_services, name)


@pytest.mark.parametrize("name", SCRIPTED)
def test_case_with_a_server_that_fails(name, scripted_services):
    compare(scripted_services, name)


class Functions:
    """A worker for one server, and processes that run code with its channel."""

    def __init__(self, server, services, policy=hosts.EVERYTHING):
        more = configured(server.endpoint, services)
        self.worker = hosts.Worker("http://127.0.0.1:1", more=more, policy=policy)

    def run(self, code, **more):
        """The output of code, which has the stub's boto3; `more` is in its environment."""
        return self.run_at_once(code, more=more)[0]

    def run_at_once(self, *codes, more=()):
        """The outputs of codes, each in a process of its own."""
        env = hosts.environment()
        env.update(more)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            del env[name]
        env["PYTHONPATH"] = os.path.dirname(os.path.dirname(HERE))
        started = []
        for code in codes:
            code = "from unlade_guest import finder; finder.install()\n" + code
            with self.worker.channel() as own:
                process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    pass_fds=[own.fileno()],
                    env=dict(env, UNLADE_CHANNEL_FD=str(own.fileno())),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            started.append(process)
        try:
            ended = [process.communicate(timeout=100) for process in started]
        finally:
            for process in started:
                process.kill()
        for process, (_, said) in zip(started, ended):
            assert process.returncode == 0, said
        return [out for out, _ in ended]

    def close(self):
        """Ends the worker."""
        self.worker.close()


@pytest.fixture
def functions(scripted_services):
    """With all rights."""
    found = Functions(scripted_services.server, ["dynamodb"])
    yield found
    found.close()


@pytest.fixture
def denied(scripted_services):
    """With the rights of a function without a role."""
    statements = [{"effect": "allow", "actions": ["s3:*"], "resources": ["*"]}]
    policy = {"statements": statements}
    found = Functions(scripted_services.server, ["dynamodb", "lambda", "sns", "sqs"], policy)
    yield found
    found.close()


ACCOUNTS = """
import boto3
from botocore.exceptions import ClientError
region = dict(region_name="us-east-1")
role = "arn:aws:iam::111111111111:role/r"
sts = boto3.client("sts", **region)
keys = sts.assume_role(RoleArn=role, RoleSessionName="session")["Credentials"]
own = dict(aws_access_key_id=keys["AccessKeyId"], aws_secret_access_key=keys["SecretAccessKey"],
           aws_session_token=keys["SessionToken"])
for client in (boto3.client("sts", **own, **region), boto3.Session(**own).client("sts", **region)):
    print(client.get_caller_identity()["Account"])
print(boto3.Session(**own).get_credentials() is None)
sqs = boto3.client("sqs", **own, **region)
for name in ("work", "other"):
    try:
        print(sqs.create_queue(QueueName=name)["QueueUrl"].split("/")[-2])
    except ClientError as error:
        print(error.response["Error"]["Code"], "sqs:CreateQueue" in str(error))
"""


@pytest.fixture
def of_two_accounts(moto_services):
    """With a role that allows one queue by its name."""
    moto_services.server.reset()
    statements = [
        {"effect": "allow", "actions": ["sts:*"], "resources": ["*"]},
        {"effect": "allow", "actions": ["sqs:CreateQueue"], "resources": ["work"]},
    ]
    found = Functions(moto_services.server, ["sqs", "sts"], {"statements": statements})
    yield found
    found.close()


def test_the_role_is_asked_whatever_keys_sign(of_two_accounts):
    said = of_two_accounts.run(ACCOUNTS).splitlines()
    assert said[:4] == ["111111111111", "111111111111", "False", "111111111111"]
    assert said[4].endswith("True") and "AccessDenied" in said[4], said


def test_ignored_keys_are_those_of_the_host(of_two_accounts):
    said = of_two_accounts.run(ACCOUNTS, UNLADE_KEYS="ignore").splitlines()
    assert said[:4] == ["123456789012", "123456789012", "True", "123456789012"]


def test_keys_that_the_code_puts_into_the_environment_sign(of_two_accounts):
    code = ACCOUNTS.partition("for client")[0] + """
import os
os.environ.update(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
                      own.values()))
print(boto3.Session().client("sts", **region).get_caller_identity()["Account"])
print(sts.get_caller_identity()["Account"])
"""
    assert of_two_accounts.run(code).split() == ["111111111111", "123456789012"]


def test_keys_that_fit_no_header_field_are_refused_and_not_shown(of_two_accounts):
    code = """
import boto3
for key, secret in (("a b", "hidden"), ("a", "hidden\\r\\n"), ("k" * 129, "hidden"), ("a", "hidden\u00e9")):
    keys = dict(aws_access_key_id=key, aws_secret_access_key=secret)
    try:
        boto3.client("sts", region_name="us-east-1", **keys).get_caller_identity()
    except Exception as error:
        print(error.code, "access key" in str(error), "hidden" in str(error))
"""
    assert of_two_accounts.run(code).splitlines() == ["Invalid True False"] * 4


GET = """
found = boto3.client("dynamodb", "eu-west-1").get_item(TableName="t-0", Key={"id": {"S": "a"}})
assert found["Item"] == {"attempts": {"N": "%d"}}, found
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import boto3",
        "import botocore.session\nimport boto3",
        "from botocore.stub import Stubber\nimport boto3",
        "import boto3.dynamodb.conditions\nimport boto3\nboto3.client('s3')",
        "import s3transfer\nfrom botocore.config import Config\nimport boto3",
        "from botocore.awsrequest import AWSResponse\nimport boto3.session, boto3",
        "import botocore.httpsession, botocore.endpoint\nimport boto3",
    ],
)
def test_the_order_of_imports_does_not_matter(imports, functions, scripted_services):
    scripted_services.server.reset()
    # A session of botocore's own, too.
    code = (
        "from botocore.session import Session\n"
        "db = Session().create_client('dynamodb', region_name='eu-west-1')\n"
        "print(db.get_item(TableName='u-0', Key={'id': {'S': 'a'}})['Item'])\n"
    )
    said = functions.run_at_once(imports + GET % 1, imports + "\n" + code)
    assert said == ["", "{'attempts': {'N': '1'}}\n"]


TRY = """
import boto3
from botocore.exceptions import ClientError
try:
    boto3.client("%s", "eu-west-1").%s
except ClientError as error:
    print(type(error).__name__, error.response["Error"]["Code"])
    print(error.response["Error"]["Message"])
"""


@pytest.mark.parametrize(
    "service,call,code,action,resource",
    [
        ("dynamodb", "scan(TableName='t')", "AccessDeniedException", "dynamodb:Scan", "table/t"),
        ("sns", "list_topics()", "AccessDenied", "sns:ListTopics", "*"),
        (
            "sqs",
            "send_message(QueueUrl='http://h/1/q', MessageBody='a')",
            "AccessDeniedException",
            "sqs:SendMessage",
            "q",
        ),
        (
            "lambda",
            "invoke(FunctionName='f')",
            "AccessDeniedException",
            "lambda:InvokeFunction",
            "function:f",
        ),
    ],
)
def test_a_denied_call_names_the_lines_to_add(service, call, code, action, resource, denied):
    said = denied.run(TRY % (service, call)).splitlines()
    assert said[0] == "ClientError " + code or said[0].endswith(code), said
    at = said.index("[[role.statements]]")
    lines = said[at + 1 : at + 4]
    assert lines == [
        'effect = "allow"',
        'actions = ["%s"]' % action,
        'resources = ["%s"]' % resource,
    ]


def test_what_needs_credentials_in_the_function_says_so(functions):
    code = """
import boto3
db = boto3.client("dynamodb", "eu-west-1")
assert boto3.Session().get_credentials() is None
def tried(call, **given):
    try:
        call(**given)
    except Exception as error:
        print(type(error).__name__, error.code, error)
tried(db.generate_presigned_url, ClientMethod="list_tables")
tried(boto3.client("rds", "eu-west-1").generate_db_auth_token,
      DBHostname="h", Port=1, DBUsername="u")
tried(boto3.client("sqs", "eu-west-1").list_queues)
tried(boto3.client("stepfunctions", "eu-west-1").start_sync_execution, stateMachineArn="a")
"""
    presign, token, service, prefix = functions.run(code).splitlines()
    assert presign.startswith("HostError Unsupported") and "of dynamodb" in presign
    assert token.startswith("HostError Unsupported") and "of rds" in token
    assert service.startswith("HostError Unsupported")
    assert "[services.endpoint.sqs]" in service and "fn.toml" in service
    assert prefix.startswith("HostError Unsupported") and "sync-states" in prefix
    # Nothing of S3 in it.
    assert "multipart" not in presign + service


def test_a_request_that_a_hook_has_signed_is_refused(functions, scripted_services):
    scripted_services.server.reset()
    code = """
import boto3
from botocore.exceptions import BotoCoreError
db = boto3.client("dynamodb", "eu-west-1")
for name, value in (("Authorization", "AWS4-HMAC-SHA256 Credential=own"), ("Host", "evil.example"),
                    ("X-Amz-Date", "x")):
    def hook(request, **_):
        request.headers[name] = value
    db.meta.events.register("before-send.dynamodb", hook)
    try:
        db.get_item(TableName="t-0", Key={"id": {"S": "a"}})
    except BotoCoreError as error:
        print(error.code, error)
    db.meta.events.unregister("before-send.dynamodb", hook)
""" + GET % 1
    said = functions.run(code).splitlines()
    for line, name in zip(said, ("authorization", "host", "x-amz-date")):
        assert line.startswith("Invalid") and "the header field %s is the host's" % name in line
    assert len(said) == 3


def test_a_function_calls_others_through_its_gateway(tmp_path):
    """The driver of a map-reduce job, in vSwarm's manner: it invokes by `boto3.client("lambda")`."""
    program = hosts.binary()
    if program is None:
        pytest.skip("unlade is not built: cargo build, or UNLADE_BIN")
    if os.geteuid() != 0:
        pytest.skip("needs root: sandboxes")
    import botocore

    packages = os.path.dirname(os.path.dirname(botocore.__file__))
    config = tmp_path / "fn.toml"
    config.write_text(
        'listen = "127.0.0.1:0"\nstore_listen = "127.0.0.1:0"\nstate = "%s"\npython = "%s"\n'
        "packages = [%s]\n" % (tmp_path / "s", os.path.realpath(sys.executable), json.dumps(packages))
    )
    gateway = subprocess.Popen(
        [program, "fn", "serve", "--config", str(config)], stdout=subprocess.PIPE, text=True
    )
    try:
        url = gateway.stdout.readline().strip()
        if not url:
            pytest.skip("this machine cannot isolate functions: unlade doctor")
        code = {
            "mapper": "def handler(event, context):\n    return sum(event['numbers'])\n",
            "driver": "import boto3, json\n"
            "functions = boto3.client('lambda')\n"
            "def handler(event, context):\n"
            "    def call(numbers):\n"
            "        text = json.dumps({'numbers': numbers})\n"
            "        found = functions.invoke(FunctionName=event['name'], Payload=text)\n"
            "        return json.loads(found['Payload'].read())\n"
            "    return call([call(part) for part in event['parts']])\n",
        }
        role = '[[role.statements]]\neffect = "allow"\nactions = ["lambda:InvokeFunction"]\n'
        role += 'resources = ["function:mapper"]\n'
        tool = [program, "fn"]
        where = ["--gateway", url, "--state", str(tmp_path / "s")]
        for name, text in code.items():
            source = tmp_path / name
            source.mkdir()
            (source / "app.py").write_text(text)
            manifest = 'handler = "app.handler"\n[environment]\nAWS_DEFAULT_REGION = "eu-west-1"\n'
            (source / "function.toml").write_text(manifest + (role if name == "driver" else ""))
            subprocess.run(tool + ["deploy", *where, str(source)], check=True)

        def invoke(name):
            event = json.dumps({"name": name, "parts": [[1, 2], [3, 4], [5]]})
            done = subprocess.run(
                tool + ["invoke", *where, "driver", "--payload", event], capture_output=True, text=True
            )
            return done.stdout + done.stderr

        assert invoke("mapper").strip() == "15"
        said = invoke("driver")
        assert "lambda:InvokeFunction on function:driver" in said, said
    finally:
        hosts.stop(gateway)
