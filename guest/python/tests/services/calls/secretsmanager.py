"""Secrets Manager."""

from .rows import Given, Row, call, pages

SERVICE = "secretsmanager"
ARN = "arn:aws:secretsmanager:us-east-1:123456789012:secret:app/text-AbCdEf"
STAND_INS = {"arn": ARN, "version": "00000000-0000-0000-0000-000000000001"}
TEXT = {"SecretId": "app/text"}
TOKEN = "11111111-2222-3333-4444-555555555555"


def setup(client):
    """Secrets of text and of bytes, with versions."""
    found = client.create_secret(
        Name="app/text", SecretString="one", Description="d", Tags=[{"Key": "kind", "Value": "x"}]
    )
    second = client.put_secret_value(SecretId="app/text", SecretString="two")
    client.create_secret(Name="app/bytes", SecretBinary=b"\x00\xff")
    client.create_secret(Name="app/none")
    return {"arn": found["ARN"], "version": second["VersionId"]}


def create(name="new", **more):
    """A secret is made, and read again."""
    return [call("create_secret", Name=name, **more), call("get_secret_value", SecretId=name)]


def put(**more):
    """A version is put, and the current one read again."""
    return [call("put_secret_value", **dict(TEXT, **more)), call("get_secret_value", **TEXT)]


def listed(key, *values):
    """Secrets that a filter finds."""
    return call("list_secrets", Filters=[{"Key": key, "Values": list(values)}])


def password(**more):
    """Random by nature: only what is refused can be compared, and the length."""
    return call("get_random_password", **more)


ROWS = {
    "create: unicode": create(SecretString='\u00e9\u4e2d\U0001f600 &"\\', Description="\u00fc"),
    "create: JSON": create(SecretString='{"user": "u", "password": "p"}'),
    "create: bytes": create(SecretBinary=bytes(range(256))),
    "create: bytearray": create(SecretBinary=bytearray(b"\x01")),
    "create: empty": create(SecretString=""),
    "create: without a value": create(),
    "create: large": create(SecretString="x" * 60_000),
    "create: too large": create(SecretString="x" * 70_000),
    "create: there already": create("app/text", SecretString="x"),
    "create: with a token": create(SecretString="x", ClientRequestToken=TOKEN),
    "create: short token": create(SecretString="x", ClientRequestToken="short"),
    "create: key and tags": create(
        SecretString="x", KmsKeyId="alias/own", Tags=[{"Key": "a", "Value": "\u00e9"}]
    ),
    "create: both values": create(SecretString="x", SecretBinary=b"y"),
    "create: empty name": create("", SecretString="x"),
    "create: text for bytes": create(SecretBinary="\u00e9"),
    "create: wrong types": create(SecretString=1, Tags={"a": "b"}),
    "get: ARN": call("get_secret_value", SecretId=Given("arn")),
    "get: part of an ARN": call("get_secret_value", SecretId=ARN[:-7]),
    "get: previous": call("get_secret_value", VersionStage="AWSPREVIOUS", **TEXT),
    "get: version": call("get_secret_value", VersionId=Given("version"), **TEXT),
    "get: no such version": call("get_secret_value", VersionId=TOKEN, **TEXT),
    "get: no such stage": call("get_secret_value", VersionStage="none", **TEXT),
    "get: version and stage differ": call(
        "get_secret_value", VersionId=Given("version"), VersionStage="AWSPREVIOUS", **TEXT
    ),
    "get: without a value": call("get_secret_value", SecretId="app/none"),
    "get: none": call("get_secret_value", SecretId="none\u00e9"),
    "get: nothing named": call("get_secret_value"),
    "get: several": call("batch_get_secret_value", SecretIdList=["app/text", "app/bytes", "none"]),
    "get: several by filter": call(
        "batch_get_secret_value", Filters=[{"Key": "name", "Values": ["app/b"]}]
    ),
    "get: several in two ways": call(
        "batch_get_secret_value", SecretIdList=["x"], Filters=[{"Key": "name", "Values": ["a"]}]
    ),
    "put: text": put(SecretString="three"),
    "put: bytes": put(SecretBinary=b"\x00"),
    "put: the same token twice": [
        *put(SecretString="three", ClientRequestToken=TOKEN),
        *put(SecretString="three", ClientRequestToken=TOKEN),
    ],
    "put: a token for two values": [
        *put(SecretString="three", ClientRequestToken=TOKEN),
        *put(SecretString="four", ClientRequestToken=TOKEN),
    ],
    "put: stage": put(SecretString="three", VersionStages=["own"]),
    "put: nothing": put(),
    "put: none": put(SecretId="none", SecretString="x"),
    "update: value": [
        call("update_secret", SecretString="u", Description="\u00e9", **TEXT),
        call("describe_secret", **TEXT),
    ],
    "update: none": call("update_secret", SecretId="none", SecretString="u"),
    "describe": call("describe_secret", **TEXT),
    "describe: none": call("describe_secret", SecretId="none"),
    "list: all": call("list_secrets"),
    "list: name": listed("name", "app/t"),
    "list: not": listed("name", "!app/t"),
    "list: tag": listed("tag-value", "x"),
    "list: description": listed("description", "d", "none"),
    "list: wrong key": listed("colour", "x"),
    "list: no values": listed("name"),
    "list: pages": pages("list_secrets", PaginationConfig={"PageSize": 1}),
    "list: pages to a limit": pages("list_secrets", PaginationConfig={"MaxItems": 2}),
    "list: found by an expression": pages("list_secrets", search="SecretList[].Name"),
    "versions": call("list_secret_version_ids", **TEXT),
    "stage: moved": [
        call(
            "update_secret_version_stage",
            VersionStage="own",
            MoveToVersionId=Given("version"),
            **TEXT,
        ),
        call("get_secret_value", VersionStage="own", **TEXT),
    ],
    "stage: from a wrong version": call(
        "update_secret_version_stage", VersionStage="AWSCURRENT", RemoveFromVersionId=TOKEN, **TEXT
    ),
    "delete: later": [
        call("delete_secret", RecoveryWindowInDays=7, **TEXT),
        call("get_secret_value", **TEXT),
        call("restore_secret", **TEXT),
        call("get_secret_value", **TEXT),
    ],
    "delete: at once": [
        call("delete_secret", ForceDeleteWithoutRecovery=True, **TEXT),
        call("get_secret_value", **TEXT),
    ],
    "delete: in two ways": call(
        "delete_secret", ForceDeleteWithoutRecovery=True, RecoveryWindowInDays=7, **TEXT
    ),
    "delete: window too short": call("delete_secret", RecoveryWindowInDays=1, **TEXT),
    "delete: none": call("delete_secret", SecretId="none"),
    "restore: none": call("restore_secret", SecretId="none"),
    "tags": [
        call("tag_resource", Tags=[{"Key": "b", "Value": "\u00e9"}], **TEXT),
        call("untag_resource", TagKeys=["kind"], **TEXT),
        call("describe_secret", **TEXT),
    ],
    "tags: none": call("tag_resource", SecretId="none", Tags=[{"Key": "b", "Value": "1"}]),
    "policy": [
        call("put_resource_policy", ResourcePolicy='{"Version": "2012-10-17"}', **TEXT),
        call("get_resource_policy", **TEXT),
        call("delete_resource_policy", **TEXT),
    ],
    "policy: of none": call("get_resource_policy", SecretId="none"),
    "rotation: without a function": call("rotate_secret", RotateImmediately=False, **TEXT),
    "rotation: none": call("rotate_secret", SecretId="none"),
    "rotation: too rare": call(
        "rotate_secret", RotationRules={"AutomaticallyAfterDays": 2000}, **TEXT
    ),
    "rotation: cancelled": call("cancel_rotate_secret", **TEXT),
    "password: too short": password(PasswordLength=3),
    "password: too long": password(PasswordLength=5000),
    "password: of one letter": password(
        PasswordLength=40,
        ExcludeLowercase=True,
        ExcludeUppercase=True,
        ExcludePunctuation=True,
        ExcludeCharacters="123456789",
        RequireEachIncludedType=False,
    ),
    "password: text for a length": password(PasswordLength="20"),
    "region: another": Row(call("describe_secret", **TEXT), region="eu-north-1"),
    "config: legacy retries": Row(
        call("get_secret_value", SecretId="none"),
        config={"retries": {"mode": "legacy", "max_attempts": 1}},
    ),
    "unknown member": call("get_secret_value", Id="x", **TEXT),
}
