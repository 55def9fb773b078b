"""Lambda. moto runs functions in containers only, so that no row invokes one that is there."""

import functools
import io
import zipfile

from .rows import File, Given, Row, call, pages, use, wait

SERVICE = "lambda"
STAND_INS = {"role": "arn:aws:iam::123456789012:role/runner"}
ARN = "arn:aws:lambda:us-east-1:123456789012:function:f"
QUEUE = "arn:aws:sqs:us-east-1:123456789012:jobs"
ON = {"FunctionName": "f"}
NONE = {"FunctionName": "none"}
POLICY = '{"Version": "2012-10-17", "Statement": []}'


def archive(text="def handler(event, context):\n    return event\n"):
    """A Zip archive, the same each time."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr(zipfile.ZipInfo("app.py", (2020, 1, 1, 0, 0, 0)), text)
    return out.getvalue()


FUNCTION = {
    "FunctionName": "new",
    "Runtime": "python3.11",
    "Role": Given("role"),
    "Handler": "app.handler",
    "Code": {"ZipFile": archive()},
}


@functools.lru_cache(maxsize=None)
def iam():
    """The client of IAM, one for all setups."""
    import boto3

    return boto3.client("iam", region_name="us-east-1")


def setup(client):
    """A role, and a function."""
    role = iam().create_role(RoleName="runner", AssumeRolePolicyDocument=POLICY)["Role"]["Arn"]
    client.create_function(**dict(FUNCTION, FunctionName="f", Role=role, Tags={"kind": "x"}))
    return {"role": role}


def create(**more):
    """A function is made, and read again."""
    return [
        call("create_function", **dict(FUNCTION, **more)),
        call("get_function_configuration", FunctionName=more.get("FunctionName", "new")),
    ]


def update(**more):
    """A configuration is changed."""
    return call("update_function_configuration", **dict(ON, **more))


def invoke(payload=b"{}", **more):
    """Something is invoked that is not there."""
    return call("invoke", Payload=payload, **dict(NONE, **more))


def mapping(**more):
    """A queue's messages for the function."""
    return call("create_event_source_mapping", EventSourceArn=QUEUE, **dict(ON, **more))


# Steps before others.
VERSION = call("publish_version", Description="first", **ON)
LIVE = [VERSION, call("create_alias", Name="live", FunctionVersion="1", **ON)]
LAYER = call("publish_layer_version", LayerName="l", Content={"ZipFile": archive()})
PERMISSION = {
    "StatementId": "s",
    "Action": "lambda:InvokeFunction",
    "Principal": "s3.amazonaws.com",
}
OF_ALIAS = dict(ON, Name="live")
ROWS = {
    "create: small": create(),
    "create: full": [
        LAYER,
        *create(
            Description="\u00e9 \u4e2d",
            Timeout=30,
            MemorySize=512,
            Environment={"Variables": {"A": "\u00e9=&", "EMPTY": ""}},
            Tags={"a": "b c"},
            TracingConfig={"Mode": "Active"},
            Architectures=["arm64"],
            EphemeralStorage={"Size": 1024},
            Layers=["arn:aws:lambda:us-east-1:123456789012:layer:l:1"],
            Publish=True,
        ),
    ],
    "create: image": create(
        PackageType="Image", Code={"ImageUri": "1.dkr.ecr.us-east-1.amazonaws.com/a:b"}
    ),
    "create: there already": call("create_function", **dict(FUNCTION, FunctionName="f")),
    "create: bad role": create(Role="runner"),
    "create: no such role": create(Role="arn:aws:iam::123456789012:role/none"),
    "create: bucket is not there": create(Code={"S3Bucket": "none", "S3Key": "k"}),
    "create: no such layer": create(Layers=["arn:aws:lambda:us-east-1:123456789012:layer:none:1"]),
    "create: too much memory": create(EphemeralStorage={"Size": 1}),
    "create: wrong types": create(
        Timeout="3", Environment={"Variables": ["a"]}, Code={"ZipFile": 5}
    ),
    "create: no handler": call("create_function", FunctionName="new", Code={"ZipFile": b"x"}),
    "create: archive of no bytes": create(Code={"ZipFile": "\u00e9"}),
    "get: function": call("get_function", **ON),
    "get: by ARN": call("get_function", FunctionName=ARN),
    "get: version": [VERSION, call("get_function", Qualifier="1", **ON)],
    "get: version in the name": [VERSION, call("get_function_configuration", FunctionName="f:1")],
    "get: alias": LIVE + [call("get_function_configuration", Qualifier="live", **ON)],
    "get: no such version": call("get_function", Qualifier="9", **ON),
    "get: none": call("get_function", **NONE),
    "get: bad name": call("get_function", FunctionName="a b/\u00e9?x=%20#f"),
    "get: empty name": call("get_function", FunctionName=""),
    "get: name of a number": call("get_function", FunctionName=5),
    "get: unknown member": call("get_function", Version="1", **ON),
    "list: all": call("list_functions", MaxItems=1),
    "list: versions": [VERSION, call("list_functions", FunctionVersion="ALL")],
    "list: pages": pages("list_functions"),
    "list: names": pages("list_functions", search="Functions[].[FunctionName, Version]"),
    "list: versions of one": [VERSION, call("list_versions_by_function", **ON)],
    "list: versions of none": call("list_versions_by_function", **NONE),
    "code: changed": [
        VERSION,
        call("update_function_code", ZipFile=archive("x = 1\n"), Publish=True, **ON),
        call("list_versions_by_function", **ON),
    ],
    "code: tried": call("update_function_code", ZipFile=archive("x = 2\n"), DryRun=True, **ON),
    "code: of none": call("update_function_code", ZipFile=archive(), **NONE),
    "code: large": call("update_function_code", ZipFile=bytes(300_000), DryRun=True, **ON),
    "configuration: environment": update(Environment={"Variables": {"B": "\u4e2d"}}, Timeout=9),
    "configuration: handler": update(Handler="x.y", Description="", MemorySize=256),
    "configuration: none": call("update_function_configuration", Timeout=1, **NONE),
    "configuration: wrong type": update(Timeout=[1]),
    "version: published": [
        call("publish_version", Description="again", **ON),
        call("get_function", **ON),
    ],
    "version: of none": call("publish_version", **NONE),
    "version: deleted": [
        VERSION,
        call("delete_function", Qualifier="1", **ON),
        call("list_versions_by_function", **ON),
    ],
    "delete": [call("delete_function", **ON), call("list_functions")],
    "delete: none": call("delete_function", **NONE),
    "alias: made": [
        VERSION,
        call(
            "create_alias",
            Name="next",
            FunctionVersion="1",
            Description="\u00e9",
            RoutingConfig={"AdditionalVersionWeights": {"2": 0.25}},
            **ON,
        ),
    ],
    "alias: there already": LIVE + [call("create_alias", FunctionVersion="1", **OF_ALIAS)],
    "alias: no such version": call("create_alias", Name="next", FunctionVersion="7", **ON),
    "alias: read": LIVE + [call("get_alias", **OF_ALIAS)],
    "alias: none": call("get_alias", Name="none", **ON),
    "alias: changed": LIVE
    + [call("update_alias", FunctionVersion="$LATEST", Description="x", **OF_ALIAS)],
    "alias: list": LIVE + [call("list_aliases", **ON)],
    "alias: deleted": LIVE + [call("delete_alias", **OF_ALIAS), call("get_alias", **OF_ALIAS)],
    "invoke: none": invoke(),
    "invoke: file": invoke(File(b'{"a": 1}')),
    "invoke: text": invoke('{"a": "\u00e9"}'),
    "invoke: large": invoke(b"x" * 500_000, InvocationType="Event"),
    "invoke: context and log": invoke(LogType="Tail", ClientContext="e30=", Qualifier="live"),
    "invoke: tried": invoke(InvocationType="DryRun"),
    "invoke: nothing": call("invoke", **NONE),
    "invoke: wrong payload": invoke({"a": 1}),
    "invoke: no such version": call("invoke", Qualifier="77", Payload=b"{}", **NONE),
    "permission": [
        call(
            "add_permission",
            SourceArn="arn:aws:s3:::photos",
            SourceAccount="123456789012",
            **PERMISSION,
            **ON,
        ),
        call("get_policy", **ON),
        call("remove_permission", StatementId="s", **ON),
        call("get_policy", **ON),
    ],
    "permission: of none": call("get_policy", **NONE),
    "permission: none is removed": call("remove_permission", StatementId="none", **ON),
    "concurrency": [
        call("put_function_concurrency", ReservedConcurrentExecutions=0, **ON),
        call("get_function_concurrency", **ON),
        call("delete_function_concurrency", **ON),
        call("get_function_concurrency", **ON),
    ],
    "concurrency: of none": call(
        "put_function_concurrency", ReservedConcurrentExecutions=1, **NONE
    ),
    "url": [
        call(
            "create_function_url_config",
            AuthType="NONE",
            Cors={"AllowOrigins": ["*"], "AllowCredentials": False, "MaxAge": 9},
            **ON,
        ),
        call("delete_function_url_config", **ON),
        call("get_function_url_config", **ON),
    ],
    "url: of none": call("get_function_url_config", **NONE),
    "tags": [
        call("tag_resource", Resource=ARN, Tags={"a": "\u00e9", "b": ""}),
        call("untag_resource", Resource=ARN, TagKeys=["kind", "a b&c"]),
        call("list_tags", Resource=ARN),
    ],
    "tags: of none": call("list_tags", Resource=ARN + "one"),
    "layer: published": [
        LAYER,
        call(
            "publish_layer_version",
            LayerName="l",
            Content={"ZipFile": archive("y = 1\n")},
            CompatibleRuntimes=["python3.11", "python3.12"],
            LicenseInfo="MIT",
            Description="\u00e9",
        ),
    ],
    "layer: read": [LAYER, call("get_layer_version", LayerName="l", VersionNumber=1)],
    "layer: no such version": [LAYER, call("get_layer_version", LayerName="l", VersionNumber=9)],
    "layer: version of text": call("get_layer_version", LayerName="l", VersionNumber="1"),
    "layer: list": [LAYER, call("list_layers")],
    "layer: versions": [LAYER, pages("list_layer_versions", LayerName="l")],
    "layer: versions of none": call("list_layer_versions", LayerName="none"),
    "layer: deleted": [
        LAYER,
        call("delete_layer_version", LayerName="l", VersionNumber=1),
        call("list_layer_versions", LayerName="l"),
    ],
    "mapping: no such queue": mapping(BatchSize=5),
    "mapping: too much": mapping(BatchSize=50_000),
    "mapping: wrong source": call("create_event_source_mapping", EventSourceArn="x", **ON),
    "mapping: none": call("get_event_source_mapping", UUID="none"),
    "mapping: list": call("list_event_source_mappings", EventSourceArn=QUEUE, FunctionName="f"),
    "destinations": [
        call(
            "put_function_event_invoke_config",
            MaximumRetryAttempts=0,
            MaximumEventAgeInSeconds=60,
            DestinationConfig={"OnFailure": {"Destination": QUEUE}},
            **ON,
        ),
        call("get_function_event_invoke_config", **ON),
        call("list_function_event_invoke_configs", **ON),
    ],
    "destinations: none": call("get_function_event_invoke_config", **ON),
    "signing: none": call("get_function_code_signing_config", **ON),
    "waiter: exists": wait("function_exists", **ON),
    "waiter: does not come": wait("function_exists", **NONE),
    "waiter: active": wait("function_active_v2", **ON),
    "waiter: of none": wait("function_active", **NONE),
    "waiters": use(lambda trial, _: trial.client("lambda").waiter_names),
    "region: another": Row(call("list_functions"), region="eu-west-2"),
}
