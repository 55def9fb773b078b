"""Values as JSON that can be compared; what a server makes anew is left out by these lists, only."""

import datetime
import re

import observe as objects

VARYING = {
    "AccessKeyId",
    "ApproximateArrivalTimestamp",
    "AssumedRoleId",
    "CreatedDate",
    "EventId",
    "FunctionUrl",
    "MD5OfMessageAttributes",
    "MessageId",
    "PolicyId",
    "ReceiptHandle",
    "RequestId",
    "RoleId",
    "GrantId",
    "GrantToken",
    "GroupId",
    "InstanceProfileId",
    "LastModified",
    "LatestStreamArn",
    "LatestStreamLabel",
    "SecretAccessKey",
    "SecretVersionsToStages",
    "SequenceNumber",
    "SessionToken",
    "ShardIterator",
    "NextShardIterator",
    "StartingSequenceNumber",
    "EndingSequenceNumber",
    "SubscriptionArn",
    "TableId",
    "UserId",
    "VersionId",
    "VersionIdsToStages",
    "ApproximateFirstReceiveTimestamp",
    "SentTimestamp",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "creationTime",
    "ingestionTime",
    "timestamp",
    "eventId",
    "firstEventTimestamp",
    "lastEventTimestamp",
    "lastIngestionTime",
    "lastUpdatedTime",
    "uploadSequenceToken",
    "nextSequenceToken",
    "nextToken",
    "nextForwardToken",
    "nextBackwardToken",
    "NextToken",
    "date",
    "x-amzn-requestid",
    "x-amz-crc32",
}
# Of a body with such values.
LENGTH = "content-length"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.I)
# Stock boto3 knows where the server is; a function on the host does not.
ENDPOINT = re.compile(r'(endpoint URL: ")https?://[^"/]+/')
SECRET = re.compile(r"(:secret:[\w/-]+)-[A-Za-z0-9]{6}\b")


def observe(value, key=None):
    """JSON of a value."""
    if (key in VARYING or key == LENGTH) and value is not None:
        return {"varying": type(value).__name__}
    if isinstance(value, str):
        text = ENDPOINT.sub(r"\1<server>/", objects.observe(value))
        return SECRET.sub(r"\1-<random>", UUID.sub("<uuid>", text))
    if isinstance(value, datetime.datetime):
        return {"instant": value.tzinfo is not None}
    if isinstance(value, dict):
        return {str(k): observe(v, k) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [observe(item) for item in value]
    if isinstance(value, BaseException):
        out = {"type": type(value).__name__, "text": observe(str(value))}
        out["bases"] = [kind.__name__ for kind in type(value).__mro__[1:]]
        for name in ("response", "operation_name", "last_response"):
            if hasattr(value, name):
                out[name] = observe(getattr(value, name))
        return out
    return objects.observe(value, key)
