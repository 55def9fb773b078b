"""CloudWatch."""

import datetime
import json

from .rows import Row, call, pages, use, wait

SERVICE = "cloudwatch"
STAND_INS = {}
PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
SPAN = {
    "StartTime": PAST - datetime.timedelta(hours=1),
    "EndTime": PAST + datetime.timedelta(hours=1),
}
ALARM = {
    "AlarmName": "high",
    "MetricName": "m",
    "Namespace": "app",
    "Statistic": "Average",
    "Period": 60,
    "EvaluationPeriods": 2,
    "Threshold": 1.5,
    "ComparisonOperator": "GreaterThanThreshold",
}
BOARD = json.dumps({"widgets": [{"type": "text", "properties": {"markdown": "\u00e9"}}]})


def setup(client):
    """Metrics of long ago, an alarm and a dashboard."""
    kinds = [{"Name": "kind", "Value": "a"}]
    data = [
        {
            "MetricName": "m",
            "Value": float(n),
            "Timestamp": PAST,
            "Unit": "Count",
            "Dimensions": kinds,
        }
        for n in range(4)
    ]
    client.put_metric_data(Namespace="app", MetricData=data + [{"MetricName": "other", "Value": 1}])
    client.put_metric_alarm(**ALARM)
    client.put_dashboard(DashboardName="board", DashboardBody=BOARD)


def put(*data, namespace="new"):
    """Values are put, and the metrics listed."""
    return [
        call("put_metric_data", Namespace=namespace, MetricData=list(data)),
        call("list_metrics", Namespace=namespace),
    ]


def metric(**more):
    """One value."""
    return dict({"MetricName": "n", "Value": 1.0, "Timestamp": PAST}, **more)


def statistics(*kinds, **more):
    """Statistics of the metric."""
    given = dict(SPAN, Namespace="app", MetricName="m", Period=3600, Statistics=list(kinds))
    return call("get_metric_statistics", **dict(given, **more))


def alarm(**more):
    """An alarm is put, and described."""
    return [
        call("put_metric_alarm", **dict(ALARM, **dict({"AlarmName": "new"}, **more))),
        call("describe_alarms", AlarmNames=["new"]),
    ]


def queries(*found, **more):
    """Data by queries."""
    return call("get_metric_data", MetricDataQueries=list(found), **dict(SPAN, **more))


def stat(name, kind, **more):
    """A query for a statistic."""
    of = {"Namespace": "app", "MetricName": "m", "Dimensions": [{"Name": "kind", "Value": "a"}]}
    return dict({"Id": name, "MetricStat": {"Metric": of, "Period": 3600, "Stat": kind}}, **more)


def alarmed(trial, _):
    """The resource."""
    found = trial.boto3.resource("cloudwatch", region_name="us-east-1").Alarm("high")
    return [found.threshold, found.comparison_operator, found.disable_actions()]


HIGH = {"AlarmNames": ["high"]}
ROWS = {
    "put: one": put(metric()),
    "put: unicode": put(metric(MetricName="\u00e9 \u4e2d"), namespace="n/\u00fc"),
    "put: integers and floats": put(metric(Value=7), metric(Value=-1.5e-9), metric(Value=2.0**70)),
    "put: infinite": put(metric(Value=float("inf"))),
    "put: no number": put(metric(Value=float("nan"))),
    "put: a text": put(metric(Value="1")),
    "put: dimensions": put(
        metric(Dimensions=[{"Name": "a b", "Value": "&<>"}, {"Name": "c", "Value": "d"}])
    ),
    "put: statistics": put(
        {
            "MetricName": "n",
            "StatisticValues": {"SampleCount": 3, "Sum": 6, "Minimum": 1, "Maximum": 3},
        }
    ),
    "put: values and counts": put(
        {"MetricName": "n", "Values": [1, 2.5], "Counts": [3, 4], "StorageResolution": 1}
    ),
    "put: values without counts": put({"MetricName": "n", "Values": [1, 2]}),
    "put: value and values": put({"MetricName": "n", "Value": 1, "Values": [1, 2]}),
    "put: neither": put({"MetricName": "n"}),
    "put: many": put(*[metric(MetricName="n%d" % n) for n in range(200)]),
    "put: none": put(),
    "put: wrong unit": put(metric(Unit="Apples")),
    "put: times": put(metric(Timestamp=1577836800), metric(Timestamp="2020-01-01T00:00:00Z")),
    "put: time with a zone": put(
        metric(
            Timestamp=PAST.astimezone(datetime.timezone(datetime.timedelta(hours=5, minutes=30)))
        )
    ),
    "put: reserved namespace": put(metric(), namespace="AWS/own"),
    "put: no namespace": call("put_metric_data", MetricData=[metric()]),
    "put: wrong members": call("put_metric_data", Namespace=5, MetricData=[{"Name": "n"}, 7]),
    "list: all": call("list_metrics"),
    "list: dimension": call("list_metrics", Dimensions=[{"Name": "kind", "Value": "a"}]),
    "list: name": call("list_metrics", Namespace="app", MetricName="other"),
    "list: none": call("list_metrics", Namespace="none"),
    "list: pages": pages("list_metrics"),
    "list: found by an expression": pages("list_metrics", search="Metrics[].MetricName"),
    "statistics: all": statistics("Sum", "Average", "Minimum", "Maximum", "SampleCount"),
    "statistics: dimension": statistics("Sum", Dimensions=[{"Name": "kind", "Value": "b"}]),
    "statistics: unit": statistics("Sum", Unit="Seconds"),
    "statistics: none": statistics(),
    "statistics: wrong kind": statistics("Median"),
    "statistics: no period": statistics("Sum", Period=0),
    "statistics: wrong time": statistics("Sum", StartTime="some day"),
    "statistics: nothing there": statistics("Sum", MetricName="none"),
    "data: sum": queries(stat("a", "Sum"), stat("b", "Average", Label="\u00e9")),
    "data: upwards": queries(stat("a", "SampleCount"), ScanBy="TimestampAscending"),
    "data: expression": queries(stat("a", "Sum", ReturnData=False), {"Id": "e", "Expression": "a"}),
    "data: no queries": queries(),
    "data: times the wrong way": queries(
        stat("a", "Sum"), StartTime=PAST, EndTime=PAST - datetime.timedelta(1)
    ),
    "data: pages": pages("get_metric_data", MetricDataQueries=[stat("a", "Maximum")], **SPAN),
    "alarm: plain": alarm(),
    "alarm: full": alarm(
        AlarmDescription="\u00e9 & <x>",
        ActionsEnabled=False,
        AlarmActions=["arn:aws:sns:us-east-1:123456789012:alerts"],
        OKActions=[],
        Dimensions=[{"Name": "kind", "Value": "a"}],
        Unit="Count",
        DatapointsToAlarm=1,
        TreatMissingData="notBreaching",
        Tags=[{"Key": "a", "Value": ""}],
    ),
    "alarm: quantile": alarm(ExtendedStatistic="p99"),
    "alarm: wrong treatment": alarm(TreatMissingData="panic"),
    "alarm: wrong operator": alarm(ComparisonOperator="Above"),
    "alarm: threshold of text": alarm(Threshold="high"),
    "alarm: more points than periods": alarm(DatapointsToAlarm=5),
    "alarm: by prefix": call("describe_alarms", AlarmNamePrefix="hi", MaxRecords=1),
    "alarm: by state": call("describe_alarms", StateValue="OK"),
    "alarm: too many": call("describe_alarms", MaxRecords=1000),
    "alarm: by pages": pages("describe_alarms"),
    "alarm: for a metric": call("describe_alarms_for_metric", MetricName="m", Namespace="app"),
    "alarm: state": [
        call(
            "set_alarm_state",
            AlarmName="high",
            StateValue="ALARM",
            StateReason="r\u00e9",
            StateReasonData='{"a": 1}',
        ),
        call("describe_alarms", **HIGH),
    ],
    "alarm: wrong state": call(
        "set_alarm_state", AlarmName="high", StateValue="BAD", StateReason="r"
    ),
    "alarm: state of none": call(
        "set_alarm_state", AlarmName="none", StateValue="OK", StateReason="r"
    ),
    "alarm: state is no JSON": call(
        "set_alarm_state", AlarmName="high", StateValue="OK", StateReason="r", StateReasonData="{"
    ),
    "alarm: actions": [
        call("disable_alarm_actions", **HIGH),
        call("describe_alarms", **HIGH),
        call("enable_alarm_actions", **HIGH),
    ],
    "alarm: deleted": [call("delete_alarms", **HIGH), call("describe_alarms")],
    "alarm: none is deleted": call("delete_alarms", AlarmNames=["none"]),
    "board: read": call("get_dashboard", DashboardName="board"),
    "board: no JSON": call("put_dashboard", DashboardName="new", DashboardBody="{"),
    "board: none": call("get_dashboard", DashboardName="none"),
    "board: list": call("list_dashboards", DashboardNamePrefix="bo"),
    "board: deleted": call("delete_dashboards", DashboardNames=["board"]),
    "board: none is deleted": call("delete_dashboards", DashboardNames=["board", "none"]),
    "rules: list": call("describe_insight_rules"),
    "tags": [
        call(
            "tag_resource",
            ResourceARN="arn:aws:cloudwatch:us-east-1:123456789012:alarm:high",
            Tags=[{"Key": "a", "Value": "\u00e9"}],
        ),
        call(
            "list_tags_for_resource",
            ResourceARN="arn:aws:cloudwatch:us-east-1:123456789012:alarm:high",
        ),
    ],
    "tags: of none": call(
        "tag_resource",
        ResourceARN="arn:aws:cloudwatch:us-east-1:123456789012:alarm:none",
        Tags=[{"Key": "a", "Value": "b"}],
    ),
    "waiter: alarm": wait("alarm_exists", **HIGH),
    "waiter: no alarm": wait("alarm_exists", AlarmNames=["none"]),
    "waiter: no combined alarm": wait("composite_alarm_exists", AlarmNames=["none"]),
    "resource: alarm": use(alarmed),
    "region: another": Row(call("list_metrics"), region="us-east-2"),
    "config: unsigned": Row(call("list_metrics"), config={"signature_version": "unsigned"}),
    "config: large requests are compressed": Row(
        call(
            "put_metric_data",
            Namespace="new",
            MetricData=[metric(MetricName="n%d" % n) for n in range(150)],
        ),
        config={"request_min_compression_size_bytes": 100},
    ),
    "config: no compression": Row(
        call(
            "put_metric_data",
            Namespace="new",
            MetricData=[metric(MetricName="n%d" % n) for n in range(150)],
        ),
        config={"disable_request_compression": True},
    ),
}
