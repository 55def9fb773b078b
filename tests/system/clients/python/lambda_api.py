"""Calls Lambda's API for the life cycle of functions with an unmodified boto3.

python lambda_api.py CASE: the endpoint and the keys come from the environment, as for any client.
"""

import base64
import hashlib
import io
import json
import sys
import time
import zipfile

import boto3
from botocore.config import Config

ROLE = "arn:aws:iam::000000000000:role/default"
ECHO = "import os\ndef handler(event, context):\n    return {'event': event, 'v': %d, \
'version': context.function_version, 'env': os.environ.get('WORD')}\n"
client = boto3.client(
    "lambda", config=Config(retries={"max_attempts": 0}, read_timeout=300)
)
errors = client.exceptions


def archive(text, **others):
    """The bytes of a Zip archive with `app.py` and other files."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("app.py", text)
        for name, other in others.items():
            made.writestr(name.replace("_", "."), other)
    return content.getvalue()


def create(name, text=ECHO % 1, **more):
    """Creates a function."""
    given = {
        "FunctionName": name,
        "Runtime": "python3.11",
        "Role": ROLE,
        "Handler": "app.handler",
        "Code": {"ZipFile": archive(text)},
    }
    return client.create_function(**{**given, **more})


def refused(kind, call, **parameters):
    """The message of a call that raises this exception."""
    try:
        answer = call(**parameters)
    except kind as error:
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] >= 400
        return error.response["Error"]["Message"]
    raise AssertionError("%s was not raised: %s" % (kind.__name__, answer))


def invoke(name, **more):
    """The result of an invocation, and the version that served it."""
    answer = client.invoke(FunctionName=name, Payload=b'{"a": 1}', **more)
    result = json.loads(answer["Payload"].read())
    assert "FunctionError" not in answer, result
    return result, answer["ExecutedVersion"]


def functions():
    """Create, read, update and delete."""
    code = archive(ECHO % 1)
    made = create("f", Code={"ZipFile": code}, Tags={"team": "a"}, Description="first")
    assert made["ResponseMetadata"]["HTTPStatusCode"] == 201
    assert made["FunctionArn"].endswith(":function:f") and made["Version"] == "$LATEST"
    assert made["CodeSha256"] == base64.b64encode(hashlib.sha256(code).digest()).decode()
    assert (made["CodeSize"], made["Timeout"], made["MemorySize"]) == (len(code), 3, 128)
    assert (made["State"], made["LastUpdateStatus"]) == ("Active", "Successful"), made
    client.get_waiter("function_active").wait(FunctionName="f")
    client.get_waiter("function_active_v2").wait(FunctionName="f")
    client.get_waiter("function_exists").wait(FunctionName="f")
    got = client.get_function(FunctionName=made["FunctionArn"])
    assert got["Tags"] == {"team": "a"} and got["Code"] and "Concurrency" not in got
    for field, value in got["Configuration"].items():
        assert made[field] == value, field
    assert invoke("f") == ({"event": {"a": 1}, "v": 1, "version": "$LATEST", "env": None}, "$LATEST")
    assert "already exist" in refused(errors.ResourceConflictException, create, name="f")

    revision = made["RevisionId"]
    updated = client.update_function_code(
        FunctionName="f", ZipFile=archive(ECHO % 2), RevisionId=revision
    )
    assert updated["RevisionId"] != revision and updated["CodeSha256"] != made["CodeSha256"]
    client.get_waiter("function_updated").wait(FunctionName="f")
    client.get_waiter("function_updated_v2").wait(FunctionName="f")
    assert invoke("f")[0]["v"] == 2
    refused(
        errors.PreconditionFailedException,
        client.update_function_code,
        FunctionName="f", ZipFile=archive(ECHO % 3), RevisionId=revision,
    )
    dry = client.update_function_code(FunctionName="f", ZipFile=archive(ECHO % 3), DryRun=True)
    assert dry["CodeSha256"] != updated["CodeSha256"]
    assert invoke("f")[0]["v"] == 2, "a dry run changes nothing"

    changed = client.update_function_configuration(
        FunctionName="f",
        Environment={"Variables": {"WORD": "x"}},
        Timeout=9,
        MemorySize=192,
        Description="second",
    )
    assert changed["Environment"] == {"Variables": {"WORD": "x"}}
    assert (changed["Timeout"], changed["MemorySize"], changed["Description"]) == (9, 192, "second")
    assert changed["Handler"] == "app.handler" and changed["CodeSha256"] == updated["CodeSha256"]
    assert invoke("f")[0] == {"event": {"a": 1}, "v": 2, "version": "$LATEST", "env": "x"}
    got = client.get_function_configuration(FunctionName="f")
    assert {field: got[field] for field in ("Timeout", "RevisionId")} == {
        field: changed[field] for field in ("Timeout", "RevisionId")
    }
    assert client.update_function_configuration(
        FunctionName="f", Environment={"Variables": {}}
    ).get("Environment") is None

    client.delete_function(FunctionName="f")
    for call in (client.get_function, client.delete_function, client.get_function_configuration):
        refused(errors.ResourceNotFoundException, call, FunctionName="f")
    create("f")
    assert invoke("f")[0]["v"] == 1, "the name is free again"


def lists():
    """Pages of functions and versions."""
    names = ["l%d" % number for number in range(5)]
    for name in names:
        create(name)
    for number in range(3):
        client.update_function_code(FunctionName="l1", ZipFile=archive(ECHO % (10 + number)))
        client.publish_version(FunctionName="l1")
    pages = client.get_paginator("list_functions").paginate(PaginationConfig={"PageSize": 2})
    pages = [[own["FunctionName"] for own in page["Functions"]] for page in pages]
    assert pages == [["l0", "l1"], ["l2", "l3"], ["l4"]], pages
    every = client.list_functions(FunctionVersion="ALL")["Functions"]
    assert [own["Version"] for own in every if own["FunctionName"] == "l1"] == [
        "$LATEST", "1", "2", "3",
    ]
    pages = client.get_paginator("list_versions_by_function")
    pages = pages.paginate(FunctionName="l1", PaginationConfig={"PageSize": 3})
    pages = [[own["Version"] for own in page["Versions"]] for page in pages]
    assert pages == [["$LATEST", "1", "2"], ["3"]], pages
    wrong = errors.InvalidParameterValueException
    refused(wrong, client.list_functions, Marker="nonsense")
    refused(wrong, client.list_functions, FunctionVersion="SOME")
    usage = client.get_account_settings()
    assert usage["AccountUsage"]["FunctionCount"] == 5
    assert usage["AccountLimit"]["CodeSizeUnzipped"] == 250 << 20


def refusals():
    """Refused changes, after which the function before goes on."""
    create("f")
    wrong = errors.InvalidParameterValueException
    for text, said in (
        ("import nothing_of_that_name\n", "Traceback"),
        ("def handler(:\n", "SyntaxError"),
        ("other = 1\n", "handler"),
        ("raise RuntimeError('by itself')\n", "by itself"),
    ):
        message = refused(
            wrong, client.update_function_code, FunctionName="f", ZipFile=archive(text)
        )
        assert said in message and "does not start" in message, message
        assert said in refused(wrong, create, name="g", text=text)
    message = refused(
        wrong, client.update_function_configuration, FunctionName="f", Handler="app.absent"
    )
    assert "absent" in message, message
    for more in (
        {"Layers": ["arn:aws:lambda:us-east-1:000000000000:layer:x:1"]},
        {"Runtime": "nodejs22.x"},
        {"VpcConfig": {"SubnetIds": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}},
        {"PackageType": "Image"},
        {"Architectures": ["arm64"]},
        {"Role": "arn:aws:iam::000000000000:role/unknown"},
        {"Code": {"S3Bucket": "box", "S3Key": "k"}},
        {"Code": {"ZipFile": b"no archive"}},
        {"Environment": {"Variables": {"AWS_REGION": "x"}}},
        {"Code": {"ZipFile": archive(ECHO % 1, function_toml='handler = "app.handler"\nmode = "stock"\n')}},
    ):
        refused(wrong, create, name="g", **more)
    refused(errors.ResourceNotFoundException, client.get_function, FunctionName="g")
    message = refused(wrong, create, name="g", Role="arn:aws:iam::123456789012:role/unknown")
    assert "`roles.unknown = " in message and "[tenant.default]" in message, message
    refused(
        errors.ResourceNotFoundException,
        client.update_function_code, FunctionName="absent", ZipFile=archive(ECHO % 1),
    )
    refused(
        errors.ResourceNotFoundException,
        client.update_function_configuration, FunctionName="absent", Timeout=3,
    )
    assert invoke("f")[0]["v"] == 1
    assert [own["FunctionName"] for own in client.list_functions()["Functions"]] == ["f"]


def versions():
    """Versions, aliases and their weights."""
    first = create("f", Publish=True)
    assert first["Version"] == "1"
    client.get_waiter("published_version_active").wait(FunctionName="f", Qualifier="1")
    same = client.publish_version(FunctionName="f")
    assert same["Version"] == "1", "nothing has changed"
    second = client.update_function_code(
        FunctionName="f", ZipFile=archive(ECHO % 2), Publish=True
    )
    assert second["Version"] == "2" and second["FunctionArn"].endswith(":function:f:2")
    third = client.update_function_code(FunctionName="f", ZipFile=archive(ECHO % 3))
    wrong = errors.InvalidParameterValueException
    refused(wrong, client.publish_version, FunctionName="f", CodeSha256=first["CodeSha256"])
    refused(
        errors.PreconditionFailedException,
        client.publish_version, FunctionName="f", RevisionId=first["RevisionId"],
    )
    published = client.publish_version(
        FunctionName="f", CodeSha256=third["CodeSha256"], Description="three"
    )
    assert (published["Version"], published["Description"]) == ("3", "three")
    for qualifier, value in (("1", 1), ("2", 2), ("3", 3), ("$LATEST", 3)):
        result, executed = invoke("f", Qualifier=qualifier)
        assert (result["v"], result["version"], executed) == (value, qualifier, qualifier)
    assert invoke("f:1")[0]["v"] == 1
    missing = errors.ResourceNotFoundException
    refused(missing, client.invoke, FunctionName="f", Qualifier="9")
    refused(missing, client.get_function, FunctionName="f", Qualifier="9")

    alias = client.create_alias(FunctionName="f", Name="prod", FunctionVersion="1")
    assert alias["AliasArn"].endswith(":function:f:prod") and "RoutingConfig" not in alias
    refused(
        errors.ResourceConflictException,
        client.create_alias, FunctionName="f", Name="prod", FunctionVersion="1",
    )
    refused(missing, client.create_alias, FunctionName="f", Name="b", FunctionVersion="9")
    refused(missing, client.get_alias, FunctionName="f", Name="absent")
    assert invoke("f", Qualifier="prod") == (
        {"event": {"a": 1}, "v": 1, "version": "1", "env": None}, "1",
    )
    got = client.get_function_configuration(FunctionName="f", Qualifier="prod")
    assert got["FunctionArn"].endswith(":f:prod") and got["Version"] == "1"
    halves = client.update_alias(
        FunctionName="f",
        Name="prod",
        RoutingConfig={"AdditionalVersionWeights": {"2": 0.5}},
        RevisionId=alias["RevisionId"],
    )
    assert halves["RoutingConfig"] == {"AdditionalVersionWeights": {"2": 0.5}}
    refused(
        errors.PreconditionFailedException,
        client.update_alias,
        FunctionName="f", Name="prod", FunctionVersion="2", RevisionId=alias["RevisionId"],
    )
    served = [invoke("f", Qualifier="prod") for _ in range(60)]
    assert all(result["version"] == executed for result, executed in served)
    # With halves, the chance that one of them never serves is 2 to the power of -59.
    assert {executed for _, executed in served} == {"1", "2"}
    refused(
        errors.ResourceConflictException, client.delete_function, FunctionName="f", Qualifier="2"
    )
    client.update_alias(FunctionName="f", Name="prod", FunctionVersion="3", RoutingConfig={})
    assert {invoke("f", Qualifier="prod")[1] for _ in range(9)} == {"3"}
    client.create_alias(FunctionName="f", Name="beta", FunctionVersion="$LATEST")
    aliases = client.list_aliases(FunctionName="f")["Aliases"]
    assert [own["Name"] for own in aliases] == ["beta", "prod"]
    aliases = client.list_aliases(FunctionName="f", FunctionVersion="3")["Aliases"]
    assert [own["Name"] for own in aliases] == ["prod"]
    client.delete_function(FunctionName="f", Qualifier="2")
    refused(missing, client.invoke, FunctionName="f", Qualifier="2")
    client.delete_alias(FunctionName="f", Name="prod")
    client.delete_alias(FunctionName="f", Name="prod")
    refused(missing, client.invoke, FunctionName="f", Qualifier="prod")
    refused(wrong, client.delete_function, FunctionName="f", Qualifier="$LATEST")
    accepted = client.invoke(
        FunctionName="f", Qualifier="1", InvocationType="Event", Payload=b"{}"
    )
    assert accepted["StatusCode"] == 202


def concurrency():
    """Reserved and provisioned concurrency."""
    create("f", Publish=True)
    assert client.get_function_concurrency(FunctionName="f").get(
        "ReservedConcurrentExecutions"
    ) is None
    put = client.put_function_concurrency(FunctionName="f", ReservedConcurrentExecutions=0)
    assert put["ReservedConcurrentExecutions"] == 0
    try:
        client.invoke(FunctionName="f")
        raise AssertionError("it is not throttled")
    except errors.TooManyRequestsException as error:
        assert error.response["Reason"] == "ReservedFunctionConcurrentInvocationLimitExceeded"
        assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 429
    got = client.get_function(FunctionName="f")
    assert got["Concurrency"] == {"ReservedConcurrentExecutions": 0}
    client.put_function_concurrency(FunctionName="f", ReservedConcurrentExecutions=2)
    assert client.get_function_concurrency(FunctionName="f")["ReservedConcurrentExecutions"] == 2
    limit = client.get_account_settings()["AccountLimit"]
    assert limit["ConcurrentExecutions"] - limit["UnreservedConcurrentExecutions"] == 2
    assert invoke("f")[0]["v"] == 1
    wrong = errors.InvalidParameterValueException
    refused(
        wrong,
        client.put_function_concurrency,
        FunctionName="f", ReservedConcurrentExecutions=limit["ConcurrentExecutions"] + 1,
    )
    refused(
        wrong,
        client.put_provisioned_concurrency_config,
        FunctionName="f", Qualifier="1", ProvisionedConcurrentExecutions=3,
    )
    client.delete_function_concurrency(FunctionName="f")
    assert "Concurrency" not in client.get_function(FunctionName="f")
    refused(
        errors.ProvisionedConcurrencyConfigNotFoundException,
        client.get_provisioned_concurrency_config, FunctionName="f", Qualifier="1",
    )
    refused(
        wrong,
        client.put_provisioned_concurrency_config,
        FunctionName="f", Qualifier="$LATEST", ProvisionedConcurrentExecutions=1,
    )
    client.create_alias(FunctionName="f", Name="prod", FunctionVersion="1")
    put = client.put_provisioned_concurrency_config(
        FunctionName="f", Qualifier="prod", ProvisionedConcurrentExecutions=2
    )
    assert put["RequestedProvisionedConcurrentExecutions"] == 2
    deadline = time.monotonic() + 120
    while put["Status"] != "READY":
        assert put["Status"] == "IN_PROGRESS" and time.monotonic() < deadline, put
        time.sleep(0.05)
        put = client.get_provisioned_concurrency_config(FunctionName="f", Qualifier="prod")
    assert put["AvailableProvisionedConcurrentExecutions"] == 2
    configs = client.list_provisioned_concurrency_configs(FunctionName="f")
    assert [own["FunctionArn"][-7:] for own in configs["ProvisionedConcurrencyConfigs"]] == [
        ":f:prod"
    ]


def tags_and_permissions():
    """Tags, resource policies, code signing."""
    arn = create("f", Publish=True, Tags={"a": "1"})["FunctionArn"].rpartition(":")[0]
    client.tag_resource(Resource=arn, Tags={"a": "2", "b c/d": "3"})
    assert client.list_tags(Resource=arn)["Tags"] == {"a": "2", "b c/d": "3"}
    client.untag_resource(Resource=arn, TagKeys=["b c/d", "absent"])
    assert client.list_tags(Resource=arn)["Tags"] == {"a": "2"}
    missing = errors.ResourceNotFoundException
    refused(missing, client.list_tags, Resource=arn + "-other")
    refused(
        errors.InvalidParameterValueException,
        client.tag_resource, Resource=arn, Tags={"aws:x": "1"},
    )
    refused(missing, client.get_policy, FunctionName="f")
    added = client.add_permission(
        FunctionName="f",
        StatementId="s3",
        Action="lambda:InvokeFunction",
        Principal="s3.amazonaws.com",
        SourceArn="arn:aws:s3:::box",
        SourceAccount="000000000000",
    )
    statement = json.loads(added["Statement"])
    assert statement["Condition"]["ArnLike"] == {"AWS:SourceArn": "arn:aws:s3:::box"}
    policy = client.get_policy(FunctionName="f")
    assert json.loads(policy["Policy"])["Statement"] == [statement]
    refused(
        errors.ResourceConflictException,
        client.add_permission,
        FunctionName="f", StatementId="s3", Action="lambda:*", Principal="*",
    )
    refused(
        errors.PreconditionFailedException,
        client.add_permission,
        FunctionName="f", StatementId="t", Action="lambda:*", Principal="*", RevisionId="other",
    )
    client.add_permission(
        FunctionName="f", Qualifier="1", StatementId="q", Action="lambda:*", Principal="*"
    )
    own = json.loads(client.get_policy(FunctionName="f", Qualifier="1")["Policy"])
    assert own["Statement"][0]["Resource"].endswith(":f:1")
    refused(missing, client.remove_permission, FunctionName="f", StatementId="absent")
    client.remove_permission(
        FunctionName="f", StatementId="s3", RevisionId=policy["RevisionId"]
    )
    refused(missing, client.get_policy, FunctionName="f")
    signing = client.get_function_code_signing_config(FunctionName="f")
    assert signing["FunctionName"] == "f" and not signing["CodeSigningConfigArn"]


def prepare():
    """A function with everything, for a restart."""
    create("f", Publish=True, Tags={"a": "1"}, Timeout=7)
    client.update_function_code(FunctionName="f", ZipFile=archive(ECHO % 2), Publish=True)
    client.update_function_code(FunctionName="f", ZipFile=archive(ECHO % 3))
    client.create_alias(
        FunctionName="f",
        Name="prod",
        FunctionVersion="1",
        RoutingConfig={"AdditionalVersionWeights": {"2": 1.0}},
    )
    client.put_function_concurrency(FunctionName="f", ReservedConcurrentExecutions=5)
    client.put_provisioned_concurrency_config(
        FunctionName="f", Qualifier="2", ProvisionedConcurrentExecutions=1
    )
    client.add_permission(
        FunctionName="f", StatementId="s", Action="lambda:*", Principal="events.amazonaws.com"
    )


def describe():
    """Prints all that is known of that function."""
    known = [
        client.get_function(FunctionName="f"),
        client.list_versions_by_function(FunctionName="f"),
        client.list_aliases(FunctionName="f"),
        client.get_function_concurrency(FunctionName="f"),
        client.get_policy(FunctionName="f"),
        [invoke("f", Qualifier=own) for own in ("$LATEST", "1", "2", "prod")],
        client.get_provisioned_concurrency_config(FunctionName="f", Qualifier="2")[
            "RequestedProvisionedConcurrentExecutions"
        ],
    ]
    for answer in known[:5]:
        del answer["ResponseMetadata"]
    print(json.dumps(known, indent=1, sort_keys=True))


def role():
    """A role of the operator gives the rights of a function."""
    text = "import boto3\ns3 = boto3.client('s3')\ndef handler(event, context):\n    \
return s3.get_object(Bucket=event['bucket'], Key='k')['Body'].read().decode()\n"
    create("f", text, Role="arn:aws:iam::123456789012:role/service-role/reader")

    def read(bucket):
        answer = client.invoke(FunctionName="f", Payload=json.dumps({"bucket": bucket}))
        return json.loads(answer["Payload"].read())

    assert read("box") == "x"
    denied = read("secret")
    assert "AccessDenied" in json.dumps(denied), denied
    client.update_function_configuration(FunctionName="f", Role=ROLE)
    assert read("secret") == "x"


globals()[sys.argv[1]]()
