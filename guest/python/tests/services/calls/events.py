"""EventBridge."""

import datetime
import json

from .rows import Row, call

SERVICE = "events"
STAND_INS = {}
QUEUE = "arn:aws:sqs:us-east-1:123456789012:sink"
PATTERN = json.dumps({"source": ["app"], "detail": {"n": [{"numeric": [">", 1]}]}})
ENTRY = {"Source": "app", "DetailType": "d", "Detail": "{}"}


def setup(client):
    """A bus, and rules with targets."""
    client.create_event_bus(Name="own")
    client.put_rule(Name="hourly", ScheduleExpression="rate(1 hour)")
    client.put_rule(Name="matching", EventPattern=PATTERN, EventBusName="own", Description="d")
    client.put_targets(Rule="hourly", Targets=[{"Id": "q", "Arn": QUEUE}])


def put(**more):
    """An event for the bus `own`."""
    return call("put_events", Entries=[dict(ENTRY, EventBusName="own", **more)])


def rule(name, **more):
    """A rule is put, and described."""
    return [call("put_rule", Name=name, **more), call("describe_rule", Name=name)]


def targets(*given, rule="hourly"):
    """Targets are put, and listed."""
    return [
        call("put_targets", Rule=rule, Targets=list(given)),
        call("list_targets_by_rule", Rule=rule),
    ]


def matches(pattern, **event):
    """A pattern is tried."""
    whole = {
        "id": "1",
        "account": "123456789012",
        "source": "app",
        "time": "2020-01-01T00:00:00Z",
        "region": "us-east-1",
        "resources": [],
        "detail-type": "d",
        "detail": event,
    }
    return call("test_event_pattern", EventPattern=json.dumps(pattern), Event=json.dumps(whole))


PAST = datetime.datetime(2020, 1, 1, 12, 30, tzinfo=datetime.timezone.utc)
ARCHIVE = {
    "ArchiveName": "kept",
    "EventSourceArn": "arn:aws:events:us-east-1:123456789012:event-bus/own",
}
ROWS = {
    "put: detail": put(
        Detail=json.dumps({"a": [1, 2.5, None, "\u00e9\U0001f600"]}, ensure_ascii=False)
    ),
    "put: time and resources": put(
        Time=PAST, Resources=["arn:aws:x:::y", "z"], TraceHeader="Root=1-5"
    ),
    "put: time as a number": put(Time=1577836800),
    "put: no JSON": put(Detail="{"),
    "put: detail is a list": put(Detail="[]"),
    "put: large": put(Detail=json.dumps({"x": "x" * 200_000})),
    "put: too large": put(Detail=json.dumps({"x": "x" * 300_000})),
    "put: no source": call("put_events", Entries=[{"DetailType": "d", "Detail": "{}"}]),
    "put: no detail": call("put_events", Entries=[{"Source": "a", "DetailType": "d"}]),
    "put: empty entry": call("put_events", Entries=[{}]),
    "put: some are wrong": call(
        "put_events", Entries=[dict(ENTRY, EventBusName="own"), {"Source": "x"}]
    ),
    "put: too many": call("put_events", Entries=[dict(ENTRY, EventBusName="own")] * 11),
    "put: no such bus": call("put_events", Entries=[dict(ENTRY, EventBusName="none")]),
    "put: wrong types": call("put_events", Entries=[dict(ENTRY, Detail={"a": 1}, Time=[])]),
    "put: wrong member": call("put_events", Entries=[dict(ENTRY, Bus="own")]),
    "rule: schedule": rule("new", ScheduleExpression="cron(0 12 * * ? *)", State="DISABLED"),
    "rule: wrong schedule": rule("new", ScheduleExpression="every day"),
    "rule: schedule of an own bus": call(
        "put_rule", Name="new", ScheduleExpression="rate(1 hour)", EventBusName="own"
    ),
    "rule: pattern": rule("new", EventPattern=PATTERN, Description="\u00e9 \u4e2d"),
    "rule: no JSON": rule("new", EventPattern="{"),
    "rule: pattern of no lists": rule("new", EventPattern='{"source": "app"}'),
    "rule: neither": rule("new"),
    "rule: bad name": rule("a b", ScheduleExpression="rate(1 hour)"),
    "rule: wrong state": rule("new", ScheduleExpression="rate(1 hour)", State="OFF"),
    "rule: tags": [
        call(
            "put_rule",
            Name="t",
            ScheduleExpression="rate(1 hour)",
            Tags=[{"Key": "a", "Value": "\u00e9"}],
        ),
        call("list_tags_for_resource", ResourceARN="arn:aws:events:us-east-1:123456789012:rule/t"),
    ],
    "rule: of a bus": call("describe_rule", Name="matching", EventBusName="own"),
    "rule: of another bus": call("describe_rule", Name="matching"),
    "rule: none": call("describe_rule", Name="none"),
    "rule: list": call("list_rules"),
    "rule: list by prefix": call("list_rules", NamePrefix="h", Limit=1),
    "rule: names by target": call("list_rule_names_by_target", TargetArn=QUEUE),
    "rule: switched": [
        call("disable_rule", Name="hourly"),
        call("describe_rule", Name="hourly"),
        call("enable_rule", Name="hourly"),
        call("describe_rule", Name="hourly"),
    ],
    "rule: none is switched": call("disable_rule", Name="none"),
    "rule: deleted with targets": call("delete_rule", Name="hourly"),
    "rule: deleted": [
        call("remove_targets", Rule="hourly", Ids=["q"]),
        call("delete_rule", Name="hourly"),
        call("list_rules"),
    ],
    "rule: none is deleted": call("delete_rule", Name="none"),
    "targets: input": targets({"Id": "a", "Arn": QUEUE, "Input": '{"a": "\u00e9"}'}),
    "targets: transformed": targets(
        {
            "Id": "a",
            "Arn": QUEUE,
            "InputTransformer": {
                "InputPathsMap": {"n": "$.detail.n"},
                "InputTemplate": '"n is <n>"',
            },
            "RetryPolicy": {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60},
            "DeadLetterConfig": {"Arn": QUEUE},
        }
    ),
    "targets: ordered queue": targets(
        {"Id": "a", "Arn": QUEUE + ".fifo", "SqsParameters": {"MessageGroupId": "g"}}
    ),
    "targets: ordered queue without a group": targets({"Id": "a", "Arn": QUEUE + ".fifo"}),
    "targets: no ARN": targets({"Id": "a", "Arn": "sink"}),
    "targets: none": targets(),
    "targets: no such rule": call("put_targets", Rule="none", Targets=[{"Id": "a", "Arn": QUEUE}]),
    "targets: removed": [
        call("remove_targets", Rule="hourly", Ids=["q", "none"]),
        call("list_targets_by_rule", Rule="hourly", Limit=1),
    ],
    "targets: of no rule": call("list_targets_by_rule", Rule="none"),
    "pattern: matches": matches({"source": ["app"]}, n=2),
    "pattern: does not match": matches({"detail": {"n": [{"numeric": [">", 1]}]}}, n=0),
    "pattern: exists": matches({"detail": {"m": [{"exists": False}]}}, n=0),
    "pattern: no JSON": call("test_event_pattern", EventPattern="{", Event="{}"),
    "bus: made": [
        call("create_event_bus", Name="new", Tags=[{"Key": "a", "Value": ""}]),
        call("describe_event_bus", Name="new"),
    ],
    "bus: there already": call("create_event_bus", Name="own"),
    "bus: bad name": call("create_event_bus", Name="a/b"),
    "bus: default": call("describe_event_bus"),
    "bus: none": call("describe_event_bus", Name="none"),
    "bus: list": call("list_event_buses", NamePrefix="o"),
    "bus: deleted": [call("delete_event_bus", Name="own"), call("list_event_buses")],
    "bus: default is not deleted": call("delete_event_bus", Name="default"),
    "permission": [
        call(
            "put_permission",
            EventBusName="own",
            Action="events:PutEvents",
            Principal="111111111111",
            StatementId="s",
        ),
        call("describe_event_bus", Name="own"),
        call("remove_permission", EventBusName="own", StatementId="s"),
    ],
    "permission: none": call("remove_permission", EventBusName="own", StatementId="none"),
    "permission: wrong action": call(
        "put_permission", Action="events:All", Principal="111111111111", StatementId="s"
    ),
    "archive": [
        call("create_archive", RetentionDays=2, EventPattern=PATTERN, **ARCHIVE),
        call("describe_archive", ArchiveName="kept"),
        call("list_archives", NamePrefix="k"),
        call("update_archive", ArchiveName="kept", Description="\u00e9"),
        call("delete_archive", ArchiveName="kept"),
    ],
    "archive: none": call("describe_archive", ArchiveName="none"),
    "archive: of no bus": call(
        "create_archive", ArchiveName="a", EventSourceArn=ARCHIVE["EventSourceArn"] + "x"
    ),
    "archive: bad pattern": call("create_archive", EventPattern="x", **ARCHIVE),
    "replay": [
        call("create_archive", **ARCHIVE),
        call(
            "start_replay",
            ReplayName="again",
            EventSourceArn="arn:aws:events:us-east-1:123456789012:archive/kept",
            EventStartTime=PAST,
            EventEndTime=PAST + datetime.timedelta(hours=1),
            Destination={"Arn": ARCHIVE["EventSourceArn"]},
        ),
        call("describe_replay", ReplayName="again"),
    ],
    "replay: none": call("cancel_replay", ReplayName="none"),
    "connection": [
        call(
            "create_connection",
            Name="c",
            AuthorizationType="API_KEY",
            AuthParameters={"ApiKeyAuthParameters": {"ApiKeyName": "k", "ApiKeyValue": "\u00e9"}},
        ),
        call("list_connections"),
        call("delete_connection", Name="c"),
    ],
    "connection: none": call("describe_connection", Name="none"),
    "destination: none": call("describe_api_destination", Name="none"),
    "tags: of none": call(
        "list_tags_for_resource", ResourceARN="arn:aws:events:us-east-1:123456789012:rule/none"
    ),
    "region: another": Row(call("list_rules"), region="ca-central-1"),
    "config: unsigned": Row(call("list_rules"), config={"signature_version": "unsigned"}),
    "unknown member": call("list_rules", Prefix="h"),
}
