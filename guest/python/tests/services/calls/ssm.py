"""Systems Manager."""

import datetime

from .rows import Row, call, pages

SERVICE = "ssm"
STAND_INS = {}


def setup(client):
    """Parameters."""
    for name, value, kind in (
        ("/app/a", "1", "String"),
        ("/app/list", "x,y,z", "StringList"),
        ("plain", "p", "String"),
    ):
        client.put_parameter(Name=name, Value=value, Type=kind)


# Steps before others: a second version with the first one labelled; a sealed one further down.
AGAIN = [
    call("put_parameter", Name="plain", Value="p2", Overwrite=True),
    call("label_parameter_version", Name="plain", ParameterVersion=1, Labels=["first"]),
]
SECRET = call("put_parameter", Name="/app/deep/secret", Value="s3cret", Type="SecureString")


def put(name="new", value="v", **more):
    """A parameter is put, and read again."""
    more.setdefault("Type", "String")
    return [
        call("put_parameter", Name=name, Value=value, **more),
        call("get_parameter", Name=name, WithDecryption=True),
    ]


def described(**given):
    """Parameters that a filter finds."""
    return call("describe_parameters", ParameterFilters=[given])


def by_path(path, **more):
    """Parameters below a path."""
    return call("get_parameters_by_path", Path=path, **more)


DOCUMENT = '{"schemaVersion": "2.2", "description": "d", "mainSteps": []}'
ROWS = {
    "put: unicode": put(value="\u00e9\u4e2d\U0001f600 &<\"'\n", Description="\u00fc"),
    "put: list": put(value="a,b,,c", Type="StringList"),
    "put: secure": put(value="x", Type="SecureString", KeyId="alias/own"),
    "put: empty": put(value=""),
    "put: large": put(value="x" * 4096),
    "put: too large": put(value="x" * 4097),
    "put: advanced": put(value="x" * 8000, Tier="Advanced"),
    "put: pattern": put(value="12", AllowedPattern="^\\d+$"),
    "put: image": put(value="ami-12345678", DataType="aws:ec2:image"),
    "put: wrong data type": put(DataType="aws:nothing"),
    "put: wrong type": put(Type="Number"),
    "put: reserved name": put("aws-thing"),
    "put: reserved path": put("/aws/thing"),
    "put: deep path": put("/" + "/".join("abcdefghijklmnopq")),
    "put: bad name": put("a b\u00e9"),
    "put: empty name": put(""),
    "put: there already": put("plain"),
    "put: over it": put("plain", "p3", Overwrite=True),
    "put: with tags": [
        call(
            "put_parameter",
            Name="t",
            Value="v",
            Type="String",
            Tags=[{"Key": "a", "Value": "\u00e9"}],
        ),
        call("list_tags_for_resource", ResourceType="Parameter", ResourceId="t"),
    ],
    "put: tags over it": call(
        "put_parameter", Name="plain", Value="v", Overwrite=True, Tags=[{"Key": "a", "Value": "b"}]
    ),
    "put: bytes": call("put_parameter", Name="n", Value=b"v", Type="String"),
    "put: number": call("put_parameter", Name="n", Value=5, Type="String", Overwrite="no"),
    "get: version": AGAIN + [call("get_parameter", Name="plain:1")],
    "get: label": AGAIN + [call("get_parameter", Name="plain:first")],
    "get: no such version": call("get_parameter", Name="plain:9"),
    "get: no such label": AGAIN + [call("get_parameter", Name="plain:none")],
    "get: sealed": [SECRET, call("get_parameter", Name="/app/deep/secret")],
    "get: opened": [
        SECRET,
        call("get_parameter", Name="/app/deep/secret", WithDecryption=True),
    ],
    "get: none": call("get_parameter", Name="/none"),
    "get: ARN": call("get_parameter", Name="arn:aws:ssm:us-east-1:123456789012:parameter/app/a"),
    "get: several": AGAIN
    + [call("get_parameters", Names=["plain", "/app/list", "none", "plain:1"])],
    "get: one twice": call("get_parameters", Names=["plain", "plain"]),
    "get: too many": call("get_parameters", Names=[str(n) for n in range(11)]),
    "get: no names": call("get_parameters", Names=[]),
    "get: names of one text": call("get_parameters", Names="plain"),
    "get: unknown member": call("get_parameter", Name="plain", Decrypt=True),
    "path: direct": [SECRET, by_path("/app")],
    "path: recursive": [SECRET, by_path("/app", Recursive=True, WithDecryption=True)],
    "path: root": by_path("/", Recursive=True),
    "path: none": by_path("/none"),
    "path: without a slash": by_path("app"),
    "path: filter of types": by_path(
        "/app", ParameterFilters=[{"Key": "Type", "Option": "Equals", "Values": ["StringList"]}]
    ),
    "path: too many results": by_path("/app", MaxResults=50),
    "path: pages": pages(
        "get_parameters_by_path", Path="/app", Recursive=True, PaginationConfig={"PageSize": 2}
    ),
    "path: pages to a limit": pages(
        "get_parameters_by_path", Path="/app", Recursive=True, PaginationConfig={"MaxItems": 1}
    ),
    "path: found by an expression": pages(
        "get_parameters_by_path", Path="/app", Recursive=True, search="Parameters[].[Name, Value]"
    ),
    "describe: all": call("describe_parameters"),
    "describe: name begins": described(Key="Name", Option="BeginsWith", Values=["/app/"]),
    "describe: name contains": described(Key="Name", Option="Contains", Values=["ai"]),
    "describe: path": described(Key="Path", Option="Recursive", Values=["/app"]),
    "describe: tag": described(Key="tag:a", Values=["b"]),
    "describe: wrong key": described(Key="Colour", Values=["b"]),
    "describe: wrong option": described(Key="Type", Option="Contains", Values=["b"]),
    "describe: pages": pages("describe_parameters", PaginationConfig={"PageSize": 2}),
    "history": AGAIN + [call("get_parameter_history", Name="plain", MaxResults=5)],
    "history: pages": AGAIN
    + [pages("get_parameter_history", Name="plain", PaginationConfig={"PageSize": 1})],
    "history: none": call("get_parameter_history", Name="none"),
    "label: moved": AGAIN
    + [
        call("label_parameter_version", Name="plain", ParameterVersion=2, Labels=["first", "x"]),
        call("get_parameter", Name="plain:first"),
    ],
    "label: wrong": call("label_parameter_version", Name="plain", Labels=["aws-x", "1x", "a b"]),
    "label: too many": call(
        "label_parameter_version", Name="plain", Labels=[str(n) for n in range(11)]
    ),
    "label: no such version": call(
        "label_parameter_version", Name="plain", ParameterVersion=7, Labels=["y"]
    ),
    "label: removed": AGAIN
    + [call("unlabel_parameter_version", Name="plain", ParameterVersion=1, Labels=["first"])],
    "delete: one": [call("delete_parameter", Name="plain"), call("get_parameter", Name="plain")],
    "delete: none": call("delete_parameter", Name="none"),
    "delete: several": call("delete_parameters", Names=["plain", "/app/a", "none"]),
    "tags: changed": [
        call(
            "add_tags_to_resource",
            ResourceType="Parameter",
            ResourceId="plain",
            Tags=[{"Key": "a", "Value": ""}, {"Key": "b", "Value": "2"}],
        ),
        call(
            "remove_tags_from_resource", ResourceType="Parameter", ResourceId="plain", TagKeys=["a"]
        ),
        call("list_tags_for_resource", ResourceType="Parameter", ResourceId="plain"),
    ],
    "tags: of none": call("list_tags_for_resource", ResourceType="Parameter", ResourceId="none"),
    "tags: of a wrong type": call(
        "list_tags_for_resource", ResourceType="Thing", ResourceId="none"
    ),
    "document: made": call("create_document", Name="d", Content=DOCUMENT, DocumentType="Command"),
    "document: described": [
        call("create_document", Name="d", Content=DOCUMENT, DocumentType="Command"),
        call("describe_document", Name="d", DocumentVersion="1"),
        call("get_document", Name="d"),
        call("list_documents"),
        call("delete_document", Name="d"),
    ],
    "document: none": call("get_document", Name="none"),
    "document: no JSON": call("create_document", Name="d", Content="{", DocumentType="Command"),
    "command: sent": call(
        "send_command",
        DocumentName="AWS-RunShellScript",
        InstanceIds=["i-0123456789abcdef0"],
        Parameters={"commands": ["echo \u00e9", "exit 1"]},
        TimeoutSeconds=60,
    ),
    "command: list": call("list_commands", CommandId="00000000-0000-0000-0000-000000000000"),
    "window: made": call(
        "create_maintenance_window",
        Name="w",
        Schedule="cron(0 2 ? * SUN *)",
        Duration=2,
        Cutoff=1,
        AllowUnassociatedTargets=False,
    ),
    "window: times are text there": call(
        "create_maintenance_window",
        Name="w",
        Schedule="rate(1 day)",
        Duration=25,
        Cutoff=datetime.datetime(2020, 1, 1),
        AllowUnassociatedTargets=1,
    ),
    "region: another": Row(put("plain", "r", Overwrite=True)[0], region="eu-west-1"),
    "config: unsigned": Row(
        call("get_parameter", Name="plain"), config={"signature_version": "unsigned"}
    ),
    "config: unchecked parameters": Row(
        call("get_parameter", Name="plain", More=[7]), config={"parameter_validation": False}
    ),
}
