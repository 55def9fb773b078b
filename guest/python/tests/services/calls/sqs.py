"""SQS."""

from .rows import Given, Row, call, pages, use

SERVICE = "sqs"
BASE = "https://sqs.us-east-1.amazonaws.com/123456789012/"
STAND_INS = {"url": BASE + "jobs", "fifo": BASE + "jobs.fifo", "handle": "handle"}
URL, FIFO, HANDLE = Given("url"), Given("fifo"), Given("handle")
ARN = "arn:aws:sqs:us-east-1:123456789012:"


def setup(client):
    """A queue with a message in flight, and an ordered one."""
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "false"}
    out = {
        "url": client.create_queue(QueueName="jobs")["QueueUrl"],
        "fifo": client.create_queue(QueueName="jobs.fifo", Attributes=fifo)["QueueUrl"],
    }
    client.send_message(QueueUrl=out["url"], MessageBody="first")
    out["handle"] = client.receive_message(QueueUrl=out["url"])["Messages"][0]["ReceiptHandle"]
    return out


def send(body="m", **more):
    """A message."""
    return call("send_message", QueueUrl=URL, MessageBody=body, **more)


def attributes(**given):
    """A message with attributes of one type each, and its receipt."""
    found = {name: {"DataType": kind, key: value} for name, (kind, key, value) in given.items()}
    receive = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
    return [send(MessageAttributes=found), call("receive_message", QueueUrl=URL, **receive)]


def batch(*bodies, **more):
    """Messages at once."""
    entries = [dict({"Id": str(n), "MessageBody": body}, **more) for n, body in enumerate(bodies)]
    return call("send_message_batch", QueueUrl=URL, Entries=entries)


def create(name, **given):
    """A queue."""
    return call("create_queue", QueueName=name, Attributes=given)


def queue(trial, values):
    """The resource."""
    return trial.boto3.resource("sqs", region_name="us-east-1").Queue(values["url"])


def received(trial, values):
    """Messages of the resource, changed and deleted."""
    queue(trial, values).send_message(MessageBody="r\u00e9")
    (message,) = queue(trial, values).receive_messages(AttributeNames=["All"])
    changed = message.change_visibility(VisibilityTimeout=0)
    return [message.body, sorted(message.attributes), changed, message.delete()]


ROWS = {
    "send: unicode": [send("\u00e9\u4e2d\U0001f600 &<>\"'"), call("receive_message", QueueUrl=URL)],
    "send: control characters": send("\x00\x01"),
    "send: empty": send(""),
    "send: large": send("x" * 200_000),
    "send: too large": send("x" * 1_100_000),
    "send: delayed": send(DelaySeconds=5),
    "send: delayed too long": send(DelaySeconds=9999),
    "send: of no type": send(b"bytes"),
    "send: group for an unordered queue": send(MessageGroupId="g"),
    "send: ordered": call(
        "send_message",
        QueueUrl=FIFO,
        MessageBody="m",
        MessageGroupId="g",
        MessageDeduplicationId="d",
    ),
    "send: ordered twice": [
        call(
            "send_message",
            QueueUrl=FIFO,
            MessageBody=b,
            MessageGroupId="g",
            MessageDeduplicationId="d",
        )
        for b in ("one", "other")
    ],
    "send: ordered without a group": call("send_message", QueueUrl=FIFO, MessageBody="m"),
    "send: ordered without an identity": call(
        "send_message", QueueUrl=FIFO, MessageBody="m", MessageGroupId="g"
    ),
    "send: no such queue": call("send_message", QueueUrl=Given("url", "%sx"), MessageBody="m"),
    "send: URL of something else": call("send_message", QueueUrl="jobs", MessageBody="m"),
    "attributes: text": attributes(
        a=("String", "StringValue", "\u00e9"), b=("String.x", "StringValue", "y")
    ),
    "attributes: number": attributes(a=("Number", "StringValue", "-1.5")),
    "attributes: binary": attributes(a=("Binary", "BinaryValue", b"\x00\xff" * 40)),
    "attributes: not a number": attributes(a=("Number", "StringValue", "x")),
    "attributes: unknown type": attributes(a=("Thing", "StringValue", "x")),
    "attributes: empty": attributes(a=("String", "StringValue", "")),
    "attributes: bad name": attributes(**{"a b\u00e9": ("String", "StringValue", "x")}),
    "attributes: system": send(
        MessageSystemAttributes={
            "AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be"}
        }
    ),
    "batch: several": batch("a", "\u00e9", "x" * 1000),
    "batch: too large together": batch(*["x" * 240_000] * 5),
    "batch: too many": batch(*["x"] * 11),
    "batch: none": batch(),
    "batch: one Id twice": call(
        "send_message_batch", QueueUrl=URL, Entries=[{"Id": "a", "MessageBody": "m"}] * 2
    ),
    "batch: bad Id": call(
        "send_message_batch", QueueUrl=URL, Entries=[{"Id": "a b", "MessageBody": "m"}]
    ),
    "batch: wrong members": call(
        "send_message_batch", QueueUrl=URL, Entries=[{"Id": "a"}, {"MessageBody": 1}, "x"]
    ),
    "batch: deletes": call(
        "delete_message_batch",
        QueueUrl=URL,
        Entries=[{"Id": "a", "ReceiptHandle": HANDLE}, {"Id": "b", "ReceiptHandle": "none"}],
    ),
    "batch: visibilities": call(
        "change_message_visibility_batch",
        QueueUrl=URL,
        Entries=[{"Id": "a", "ReceiptHandle": HANDLE, "VisibilityTimeout": 0}],
    ),
    "receive: nothing": call("receive_message", QueueUrl=FIFO),
    "receive: with everything": [
        send("x"),
        call(
            "receive_message",
            QueueUrl=URL,
            AttributeNames=["All"],
            WaitTimeSeconds=0,
            VisibilityTimeout=3,
        ),
    ],
    "receive: too many": call("receive_message", QueueUrl=URL, MaxNumberOfMessages=11),
    "receive: text for a number": call("receive_message", QueueUrl=URL, MaxNumberOfMessages="1"),
    "visibility: again": [
        call("change_message_visibility", QueueUrl=URL, ReceiptHandle=HANDLE, VisibilityTimeout=0),
        call("receive_message", QueueUrl=URL),
    ],
    "visibility: too long": call(
        "change_message_visibility", QueueUrl=URL, ReceiptHandle=HANDLE, VisibilityTimeout=50_000
    ),
    "delete: twice": [call("delete_message", QueueUrl=URL, ReceiptHandle=HANDLE)] * 2,
    "delete: unknown handle": call("delete_message", QueueUrl=URL, ReceiptHandle="\u00e9"),
    "queue: with all attributes": create(
        "more",
        DelaySeconds="1",
        MaximumMessageSize="2048",
        MessageRetentionPeriod="60",
        VisibilityTimeout="0",
    ),
    "queue: the same again": create("jobs"),
    "queue: the same with other attributes": create("jobs", VisibilityTimeout="7"),
    "queue: bad name": create("a b"),
    "queue: long name": create("a" * 81),
    "queue: unknown attribute": create("more", Colour="red"),
    "queue: ordered by name only": create("more.fifo"),
    "queue: dead letters": [
        create(
            "more", RedrivePolicy='{"deadLetterTargetArn": "%sjobs", "maxReceiveCount": 2}' % ARN
        ),
        call("list_dead_letter_source_queues", QueueUrl=URL),
    ],
    "queue: dead letters of none": create(
        "more", RedrivePolicy='{"deadLetterTargetArn": "%snone", "maxReceiveCount": 2}' % ARN
    ),
    "queue: set attributes": [
        call("set_queue_attributes", QueueUrl=URL, Attributes={"VisibilityTimeout": "3"}),
        call("get_queue_attributes", QueueUrl=URL, AttributeNames=["VisibilityTimeout"]),
    ],
    "queue: every attribute": call("get_queue_attributes", QueueUrl=FIFO, AttributeNames=["All"]),
    "queue: no attribute": call("get_queue_attributes", QueueUrl=URL),
    "queue: wrong attribute": call("get_queue_attributes", QueueUrl=URL, AttributeNames=["Colour"]),
    "queue: URL of another account": call(
        "get_queue_url", QueueName="jobs", QueueOwnerAWSAccountId="999999999999"
    ),
    "queue: list by prefix": call("list_queues", QueueNamePrefix="jobs."),
    "queue: list by pages": pages("list_queues", PaginationConfig={"PageSize": 1}),
    "queue: tags": [
        call("tag_queue", QueueUrl=URL, Tags={"a": "1", "\u00e9": ""}),
        call("untag_queue", QueueUrl=URL, TagKeys=["a"]),
        call("list_queue_tags", QueueUrl=URL),
    ],
    "queue: no tags to set": call("tag_queue", QueueUrl=URL, Tags={}),
    "queue: permissions": [
        call(
            "add_permission", QueueUrl=URL, Label="l", AWSAccountIds=["123456789012"], Actions=["*"]
        ),
        call("remove_permission", QueueUrl=URL, Label="none"),
    ],
    "queue: purged": [call("purge_queue", QueueUrl=URL), call("receive_message", QueueUrl=URL)],
    "queue: deleted": [call("delete_queue", QueueUrl=URL), call("get_queue_url", QueueName="jobs")],
    "resource: attributes": use(lambda trial, values: sorted(queue(trial, values).attributes)),
    "resource: message": use(received),
    "resource: by name": use(
        lambda trial, _: trial.boto3.resource("sqs", region_name="us-east-1")
        .get_queue_by_name(QueueName="none")
        .url
    ),
    "region: another": Row(call("get_queue_url", QueueName="jobs"), region="ap-southeast-2"),
    "config: unsigned": Row(call("list_queues"), config={"signature_version": "unsigned"}),
    "config: unchecked parameters": Row(send(b"x"), config={"parameter_validation": False}),
    "unknown member": call("get_queue_url", QueueName="jobs", Account="1"),
    "method that is not there": use(lambda trial, _: trial.client("sqs").create_bucket),
}
