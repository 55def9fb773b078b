"""Kinesis."""

import datetime

from .rows import Given, Row, call, pages, use, wait

SERVICE = "kinesis"
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/clicks"
STAND_INS = {"iterator": "AAAA", "first": "4950"}
ON = {"StreamName": "clicks"}
SHARD = dict(ON, ShardId="shardId-000000000000")


def setup(client):
    """A stream of two shards with a record in the first one."""
    client.create_stream(ShardCount=2, **ON)
    put = client.put_record(Data=b"first", PartitionKey="k", ExplicitHashKey="0", **ON)
    kind = {"ShardIteratorType": "TRIM_HORIZON"}
    iterator = client.get_shard_iterator(**SHARD, **kind)["ShardIterator"]
    return {"iterator": iterator, "first": put["SequenceNumber"]}


def put(data, **more):
    """A record."""
    return call("put_record", **dict(ON, Data=data, **dict({"PartitionKey": "k"}, **more)))


def several(*records, **more):
    """Records at once."""
    return call("put_records", Records=list(records), **dict(ON, **more))


def iterator(kind, **more):
    """An iterator."""
    return call("get_shard_iterator", **dict(SHARD, ShardIteratorType=kind, **more))


def read(kind, **more):
    """Records that an iterator finds."""

    def records(trial, values):
        client = trial.client("kinesis")
        given = {k: v.of(values) if isinstance(v, Given) else v for k, v in more.items()}
        found = client.get_shard_iterator(ShardIteratorType=kind, **SHARD, **given)
        return client.get_records(ShardIterator=found["ShardIterator"], Limit=10)

    return use(records)


def create(name, **more):
    """A stream is made, and described."""
    return [
        call("create_stream", StreamName=name, **more),
        call("describe_stream_summary", StreamName=name),
    ]


FIRST = {"StartingSequenceNumber": Given("first")}
PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
ROWS = {
    "put: all bytes": put(bytes(range(256))),
    "put: text": put("\u00e9\u4e2d"),
    "put: bytearray": put(bytearray(b"\x00\x01")),
    "put: empty": put(b""),
    "put: large": put(b"x" * 900_000),
    "put: too large": put(b"x" * 1_100_000),
    "put: hash key": put(b"x", ExplicitHashKey="170141183460469231731687303715884105728"),
    "put: unicode key": put(b"x", PartitionKey="\u00e9 \U0001f600"),
    "put: empty key": put(b"x", PartitionKey=""),
    "put: long key": put(b"x", PartitionKey="k" * 257),
    "put: order": put(b"x", SequenceNumberForOrdering="1"),
    "put: ARN": call("put_record", StreamARN=ARN, Data=b"x", PartitionKey="k"),
    "put: no such stream": put(b"x", StreamName="none"),
    "put: no stream": call("put_record", Data=b"x", PartitionKey="k"),
    "put: a number": put(5),
    "put: nothing": put(None),
    "several: records": several(*[{"Data": b"%d" % n, "PartitionKey": str(n)} for n in range(5)]),
    "several: hash keys": several({"Data": b"x", "PartitionKey": "k", "ExplicitHashKey": "0"}),
    "several: none": several(),
    "several: too many": several(*[{"Data": b"x", "PartitionKey": "k"}] * 501),
    "several: one too large": several(
        {"Data": b"x", "PartitionKey": "k"}, {"Data": b"x" * 1_100_000, "PartitionKey": "k"}
    ),
    "several: wrong members": several({"Data": b"x"}, {"PartitionKey": 1, "Data": 1.5}),
    "several: no such stream": several({"Data": b"x", "PartitionKey": "k"}, StreamName="none"),
    "iterator: latest": iterator("LATEST"),
    "iterator: at": iterator("AT_SEQUENCE_NUMBER", **FIRST),
    "iterator: at a time": iterator("AT_TIMESTAMP", Timestamp=PAST),
    "iterator: at a number of seconds": iterator("AT_TIMESTAMP", Timestamp=1577836800.5),
    "iterator: at a text": iterator("AT_TIMESTAMP", Timestamp="2020-01-01T00:00:00Z"),
    "iterator: wrong kind": iterator("NOW"),
    "iterator: wrong time": iterator("AT_TIMESTAMP", Timestamp="no time"),
    "iterator: no such shard": call(
        "get_shard_iterator", ShardId="shardId-000000000009", ShardIteratorType="LATEST", **ON
    ),
    "read: from the start": read("TRIM_HORIZON"),
    "read: latest": read("LATEST"),
    "read: after": read("AFTER_SEQUENCE_NUMBER", **FIRST),
    "read: from a time": read("AT_TIMESTAMP", Timestamp=PAST),
    "read: given": call("get_records", ShardIterator=Given("iterator"), Limit=1),
    "read: too many": call("get_records", ShardIterator=Given("iterator"), Limit=100_000),
    "stream: described": call("describe_stream", **ON),
    "stream: described by pages": pages("describe_stream", PaginationConfig={"PageSize": 1}, **ON),
    "stream: summary by ARN": call("describe_stream_summary", StreamARN=ARN),
    "stream: none": call("describe_stream_summary", StreamName="none"),
    "stream: bad name": create("a b", ShardCount=1),
    "stream: there already": call("create_stream", ShardCount=1, **ON),
    "stream: on demand": create("more", StreamModeDetails={"StreamMode": "ON_DEMAND"}),
    "stream: no shards": create("more", ShardCount=0),
    "stream: list": call("list_streams", Limit=1),
    "stream: list by pages": pages("list_streams"),
    "stream: deleted": [call("delete_stream", **ON), call("list_streams")],
    "stream: mode": [
        call("update_stream_mode", StreamARN=ARN, StreamModeDetails={"StreamMode": "ON_DEMAND"}),
        call("describe_stream_summary", **ON),
    ],
    "stream: limits": call("describe_limits"),
    "shards: list": call("list_shards", MaxResults=1, **ON),
    "shards: by pages": pages("list_shards", PaginationConfig={"PageSize": 1}, **ON),
    "shards: after": call("list_shards", ExclusiveStartShardId="shardId-000000000000", **ON),
    "shards: filter": call("list_shards", ShardFilter={"Type": "AT_LATEST"}, **ON),
    "shards: of none": call("list_shards", StreamName="none"),
    "shards: more": call(
        "update_shard_count", TargetShardCount=3, ScalingType="UNIFORM_SCALING", **ON
    ),
    "shards: split": call(
        "split_shard",
        ShardToSplit="shardId-000000000000",
        NewStartingHashKey="85070591730234615",
        **ON,
    ),
    "shards: split where it is not": call(
        "split_shard", ShardToSplit="shardId-000000000000", NewStartingHashKey="-1", **ON
    ),
    "shards: merged": call(
        "merge_shards",
        ShardToMerge="shardId-000000000000",
        AdjacentShardToMerge="shardId-000000000001",
        **ON,
    ),
    "shards: merged with none": call(
        "merge_shards", ShardToMerge="shardId-000000000000", AdjacentShardToMerge="shardId-7", **ON
    ),
    "retention: longer": [
        call("increase_stream_retention_period", RetentionPeriodHours=48, **ON),
        call("decrease_stream_retention_period", RetentionPeriodHours=24, **ON),
    ],
    "retention: not longer": call(
        "increase_stream_retention_period", RetentionPeriodHours=12, **ON
    ),
    "retention: too short": call("decrease_stream_retention_period", RetentionPeriodHours=1, **ON),
    "metrics": call("enable_enhanced_monitoring", ShardLevelMetrics=["ALL"], **ON),
    "encryption": [
        call("start_stream_encryption", EncryptionType="KMS", KeyId="alias/own", **ON),
        call("describe_stream_summary", **ON),
        call("stop_stream_encryption", EncryptionType="KMS", KeyId="alias/own", **ON),
    ],
    "tags": [
        call("add_tags_to_stream", Tags={"a": "\u00e9", "b": ""}, **ON),
        call("remove_tags_from_stream", TagKeys=["a"], **ON),
        call("list_tags_for_stream", **ON),
    ],
    "tags: of none": call("list_tags_for_stream", StreamName="none"),
    "consumer": [
        call("register_stream_consumer", StreamARN=ARN, ConsumerName="c"),
        call("list_stream_consumers", StreamARN=ARN),
        call("describe_stream_consumer", StreamARN=ARN, ConsumerName="c"),
        call("deregister_stream_consumer", StreamARN=ARN, ConsumerName="c"),
    ],
    "consumer: none": call("describe_stream_consumer", StreamARN=ARN, ConsumerName="none"),
    "waiter: exists": wait("stream_exists", **ON),
    "waiter: does not come": wait("stream_exists", StreamName="none"),
    "waiter: gone": wait("stream_not_exists", StreamName="none"),
    "waiter: is not gone": wait("stream_not_exists", **ON),
    "region: another": Row(call("list_streams"), region="sa-east-1"),
    "config: unsigned": Row(call("list_streams"), config={"signature_version": "unsigned"}),
    "unknown member": call("list_streams", Max=1),
}
