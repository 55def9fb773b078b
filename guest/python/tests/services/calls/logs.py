"""CloudWatch Logs."""

import time

from .rows import Given, Row, call, pages

SERVICE = "logs"
# A server takes events of the last days only.
STAND_INS = {"now_ms": 1_700_000_000_000}
GROUP = {"logGroupName": "/app/f"}
STREAM = dict(GROUP, logStreamName="s")
OF_GROUP = "arn:aws:logs:us-east-1:123456789012:log-group:/app/f"


def setup(client):
    """A group with two streams, the first with lines."""
    client.create_log_group(tags={"kind": "x"}, **GROUP)
    client.create_log_stream(**STREAM)
    client.create_log_stream(logStreamName="t", **GROUP)
    texts = ("one", "ERROR two", '{"level": "error", "n": 3}', "\u00e9\u4e2d")
    now_ms = int(time.time() * 1000)
    lines = [{"timestamp": now_ms + n, "message": text} for n, text in enumerate(texts)]
    client.put_log_events(logEvents=lines, **STREAM)
    return {"now_ms": now_ms}


def put(*messages, **more):
    """Lines are put, and read again."""
    events = [{"timestamp": Given("now_ms"), "message": message} for message in messages]
    return [
        call("put_log_events", logEvents=events, **dict(STREAM, logStreamName="t", **more)),
        call("get_log_events", logStreamName="t", startFromHead=True, **GROUP),
    ]


def found(pattern=None, **more):
    """Lines that a filter finds."""
    given = dict(GROUP, **more)
    if pattern is not None:
        given["filterPattern"] = pattern
    return call("filter_log_events", **given)


METRIC = {"metricName": "m", "metricNamespace": "n", "metricValue": "1"}
ROWS = {
    "put: unicode": put('\u00e9\u4e2d\U0001f600 &<"\\\n\t'),
    "put: large": put("x" * 100_000),
    "put: many": put(*[str(n) for n in range(200)]),
    "put: empty line": put(""),
    "put: none": put(),
    "put: no stream": put("x", logGroupName="/none"),
    "put: long ago": call("put_log_events", logEvents=[{"timestamp": 1, "message": "x"}], **STREAM),
    "put: far ahead": call(
        "put_log_events", logEvents=[{"timestamp": 4_102_444_800_000, "message": "x"}], **STREAM
    ),
    "put: negative time": call(
        "put_log_events", logEvents=[{"timestamp": -1, "message": "x"}], **STREAM
    ),
    "put: wrong types": call(
        "put_log_events", logEvents=[{"timestamp": "1", "message": 5}], **STREAM
    ),
    "put: no message": call("put_log_events", logEvents=[{"timestamp": 1}], **STREAM),
    "get: from the head": call("get_log_events", startFromHead=True, **STREAM),
    "get: the last": call("get_log_events", limit=1, **STREAM),
    "get: of a time": call("get_log_events", startTime=0, endTime=1, **STREAM),
    "get: too many": call("get_log_events", limit=20_000, **STREAM),
    "get: bad token": call("get_log_events", nextToken="none", **STREAM),
    "get: no stream": call("get_log_events", logStreamName="none", **GROUP),
    "get: no group": call("get_log_events", logGroupName="/none", logStreamName="s"),
    "get: unknown member": call("get_log_events", from_="x", **STREAM),
    "filter: all": found(),
    "filter: word": found("ERROR"),
    "filter: several words": found("ERROR two"),
    "filter: quoted": found('"two"'),
    "filter: nothing": found("nowhere"),
    "filter: streams": found(logStreamNames=["t"]),
    "filter: stream prefix": found(logStreamNamePrefix="s", limit=2),
    "filter: interleaved": found(interleaved=True, startTime=0),
    "filter: no group": call("filter_log_events", logGroupName="/none"),
    "filter: too many": found(limit=20_000),
    "filter: pages": pages("filter_log_events", PaginationConfig={"PageSize": 2}, **GROUP),
    "filter: pages to a limit": pages(
        "filter_log_events", PaginationConfig={"MaxItems": 3}, **GROUP
    ),
    "filter: found by an expression": pages(
        "filter_log_events", search="events[].message", **GROUP
    ),
    "group: made": [
        call("create_log_group", logGroupName="a.b-c_d/e#f", tags={"a": "\u00e9", "b": ""}),
        call("describe_log_groups", logGroupNamePrefix="a."),
    ],
    "group: there already": call("create_log_group", **GROUP),
    "group: bad name": call("create_log_group", logGroupName="a b\u00e9"),
    "group: long name": call("create_log_group", logGroupName="a" * 513),
    "group: empty name": call("create_log_group", logGroupName=""),
    "group: list": call("describe_log_groups", limit=1),
    "group: list by pages": pages("describe_log_groups", PaginationConfig={"PageSize": 1}),
    "group: too many": call("describe_log_groups", limit=51),
    "group: list none": call("describe_log_groups", logGroupNamePrefix="/none"),
    "group: deleted": [call("delete_log_group", **GROUP), call("describe_log_streams", **GROUP)],
    "group: none is deleted": call("delete_log_group", logGroupName="/none"),
    "retention": [
        call("put_retention_policy", retentionInDays=30, **GROUP),
        call("describe_log_groups"),
        call("delete_retention_policy", **GROUP),
    ],
    "retention: of none": call("put_retention_policy", logGroupName="/none", retentionInDays=1),
    "retention: text": call("put_retention_policy", retentionInDays="30", **GROUP),
    "stream: there already": call("create_log_stream", **STREAM),
    "stream: bad name": call("create_log_stream", logStreamName="a:b*", **GROUP),
    "stream: list": call("describe_log_streams", **GROUP),
    "stream: list by prefix": call("describe_log_streams", logStreamNamePrefix="t", **GROUP),
    "stream: by time": call(
        "describe_log_streams", orderBy="LastEventTime", descending=True, **GROUP
    ),
    "stream: by time with a prefix": call(
        "describe_log_streams", orderBy="LastEventTime", logStreamNamePrefix="t", **GROUP
    ),
    "stream: wrong order": call("describe_log_streams", orderBy="Size", **GROUP),
    "stream: by pages": pages("describe_log_streams", PaginationConfig={"PageSize": 1}, **GROUP),
    "stream: too many": call("describe_log_streams", limit=100, **GROUP),
    "stream: deleted": [call("delete_log_stream", **STREAM), call("describe_log_streams", **GROUP)],
    "stream: none is deleted": call("delete_log_stream", logStreamName="none", **GROUP),
    "tags: of a group": [
        call("tag_log_group", tags={"a": "1"}, **GROUP),
        call("untag_log_group", tags=["kind"], **GROUP),
        call("list_tags_log_group", **GROUP),
    ],
    "tags: of an ARN": [
        call("tag_resource", resourceArn=OF_GROUP, tags={"\u00e9": "x"}),
        call("list_tags_for_resource", resourceArn=OF_GROUP),
        call("untag_resource", resourceArn=OF_GROUP, tagKeys=["\u00e9"]),
    ],
    "tags: of none": call("list_tags_log_group", logGroupName="/none"),
    "metric filter": [
        call(
            "put_metric_filter",
            filterName="f",
            filterPattern="ERROR",
            metricTransformations=[METRIC],
            **GROUP,
        ),
        call("describe_metric_filters", filterNamePrefix="f", **GROUP),
        call("delete_metric_filter", filterName="f", **GROUP),
    ],
    "metric filter: bad name": call(
        "put_metric_filter",
        filterName="a:b",
        filterPattern="",
        metricTransformations=[METRIC],
        **GROUP,
    ),
    "metric filter: none": call("delete_metric_filter", filterName="a:b", **GROUP),
    "subscription: none": call("describe_subscription_filters", **GROUP),
    "subscription: of no group": call("describe_subscription_filters", logGroupName="/none"),
    "subscription: nowhere": call(
        "put_subscription_filter",
        filterName="f",
        filterPattern="",
        destinationArn="arn:aws:lambda:us-east-1:123456789012:function:none",
        **GROUP,
    ),
    "policy": [
        call("put_resource_policy", policyName="p", policyDocument='{"a": "\u00e9"}'),
        call("describe_resource_policies"),
        call("delete_resource_policy", policyName="p"),
    ],
    "policy: none is deleted": call("delete_resource_policy", policyName="none"),
    "query": call("start_query", startTime=0, endTime=1, queryString="fields @message", **GROUP),
    "query: of no group": call(
        "start_query", logGroupName="/none", startTime=0, endTime=1, queryString="fields @message"
    ),
    "destination: none": call("describe_destinations"),
    "export: none": call("describe_export_tasks"),
    "export: of none": call("cancel_export_task", taskId="none"),
    "region: another": Row(call("describe_log_streams", **GROUP), region="ap-northeast-1"),
    "config: unsigned": Row(call("describe_log_groups"), config={"signature_version": "unsigned"}),
}
