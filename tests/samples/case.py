"""A case: a handler of a collection, how it is called, and what its run must show.

Texts of a case may have these words, which are replaced in each run:
`$MOTO`   the address of the server that plays AWS, as `http://127.0.0.1:PORT`
`$QUEUES` the start of queue URLs, `$MOTO/123456789012`
`$ARN`    the end of ARNs: `us-east-1:123456789012`
and the names that a step of the preparation has kept.
"""

import dataclasses
import json

ACCOUNT = "123456789012"
REGION = "us-east-1"


@dataclasses.dataclass(frozen=True)
class Part:
    """A file or a directory of a collection, at a place of its own in the package."""

    path: str
    place: str = ""  # the directory in the package; else its root
    collection: str = ""  # else the case's


@dataclasses.dataclass(frozen=True)
class Content:
    """The bytes of a file of a collection, as a parameter of a step."""

    path: str
    collection: str


@dataclasses.dataclass
class Case:
    """A function that is run, and the way in which its results are compared."""

    path: str  # the file in the collection
    services: str  # that its role allows, with spaces between them
    events: tuple  # one invocation for each
    handler: str = "lambda_handler"  # the function in the file
    environment: dict = dataclasses.field(default_factory=dict)
    prepare: tuple = ()  # of steps, before the function is deployed
    documents: dict = dataclasses.field(default_factory=dict)  # files of GridFS: database and name
    # to bytes or `Content`. The case is run if there is a database; its address is `$DATABASE`
    callees: tuple = ()  # functions that it invokes: names, of those that record their event in the
    # bucket `calls`, or cases, deployed under the name of their `alias`
    awaits: tuple = ()  # bucket, prefix and number of the objects that are there when all is done
    shows: str = ""  # a text that the result must have: the handler did its work
    says: bool = False  # its log is compared as well
    requests: str = (
        ""  # a text by which requests are known that are compared: their operation, path or
    )
    # action, of services that cannot be asked afterwards
    varies: (
        tuple
    ) = ()  # places in the result with random values or times: names with spaces between
    texts: tuple = ()  # regular expressions of random parts of texts and names
    fails: str = ""  # the type of the error that the handler is made to raise
    region: str = REGION  # of the client's resources
    parts: (
        tuple
    ) = ()  # paths, or a `Part` each, of files and of directories whose files are deployed: the
    # file's directory if none
    adapter: str = ""  # a file of `adapters/` that has the handler, for a file without one
    collection: str = "serverless-patterns"
    alias: str = "sample"  # the function's name
    packages: str = ""  # the list of packages that it needs beside boto3: `vswarm` or `servers`
    memory: str = "512MiB"  # of an instance
    beyond: bool = False  # it is chosen by hand, and the rule does not take it
    remark: str = ""  # for the table
    fault: str = ""  # a known difference of the default mode, with its reason: it has to be there
    fault_shows: str = ""  # a text that the result in the default mode must have then

    @property
    def directory(self):
        """The directory of the file, in the collection."""
        return self.path.rpartition("/")[0] or "."

    @property
    def dotted(self):
        """The handler as Lambda is told it: MODULE.FUNCTION."""
        file = self.adapter or self.path.rpartition("/")[2]
        return "%s.%s" % (file.removesuffix(".py"), self.handler)


@dataclasses.dataclass
class Step:
    """A call of boto3 that prepares a case. `keep` names values of its result for later texts."""

    service: str
    operation: str
    parameters: dict
    keep: dict = dataclasses.field(default_factory=dict)


def bucket(name, objects=None):
    """A bucket with objects, from their keys to their bytes."""
    steps = [Step("s3", "create_bucket", {"Bucket": name})]
    for key, body in (objects or {}).items():
        steps.append(Step("s3", "put_object", {"Bucket": name, "Key": key, "Body": body}))
    return tuple(steps)


def table(name, *keys, items=()):
    """A table with a partition key, and a sort key if there are two; `S` where no type is named."""
    pairs = [(key.partition(":")[0], key.partition(":")[2] or "S") for key in keys]
    steps = [
        Step(
            "dynamodb",
            "create_table",
            {
                "TableName": name,
                "KeySchema": [
                    {"AttributeName": key, "KeyType": kind}
                    for (key, _), kind in zip(pairs, ("HASH", "RANGE"))
                ],
                "AttributeDefinitions": [
                    {"AttributeName": key, "AttributeType": kind} for key, kind in pairs
                ],
                "BillingMode": "PAY_PER_REQUEST",
            },
        )
    ]
    for item in items:
        steps.append(Step("dynamodb", "put_item", {"TableName": name, "Item": item}))
    return tuple(steps)


def queue(name, *bodies, **attributes):
    """A queue with messages."""
    steps = [Step("sqs", "create_queue", {"QueueName": name, "Attributes": attributes})]
    for body in bodies:
        said = {"QueueUrl": "$QUEUES/" + name, "MessageBody": body}
        if name.endswith(".fifo"):
            said.update(MessageGroupId="group", MessageDeduplicationId=str(len(steps)))
        steps.append(Step("sqs", "send_message", said))
    return tuple(steps)


def topic(name):
    """A topic, and a queue of the same name that gets its messages."""
    subscription = {
        "TopicArn": "arn:aws:sns:$ARN:" + name,
        "Protocol": "sqs",
        "Endpoint": "arn:aws:sqs:$ARN:" + name,
    }
    return (
        Step("sns", "create_topic", {"Name": name}),
        *queue(name),
        Step("sns", "subscribe", subscription),
    )


def bus(name, pattern, target_queue=""):
    """A rule of an event bus, and a queue that gets its events: one of the bus's name, or another."""
    rule = {"Name": "rule", "EventPattern": json.dumps(pattern), "EventBusName": name}
    made = () if name == "default" else (Step("events", "create_event_bus", {"Name": name}),)
    target = {
        "Rule": "rule",
        "EventBusName": name,
        "Targets": [{"Id": "queue", "Arn": "arn:aws:sqs:$ARN:" + (target_queue or name)}],
    }
    return (
        *made,
        *(() if target_queue else queue(name)),
        Step("events", "put_rule", rule),
        Step("events", "put_targets", target),
    )


def secret(name, text):
    """A secret, whose ARN is `$SECRET`."""
    return (
        Step(
            "secretsmanager",
            "create_secret",
            {"Name": name, "SecretString": text},
            {"SECRET": "ARN"},
        ),
    )


def machine(name, states):
    """A state machine."""
    parameters = {
        "name": name,
        "definition": json.dumps(states),
        "roleArn": "arn:aws:iam::%s:role/states" % ACCOUNT,
    }
    return (Step("stepfunctions", "create_state_machine", parameters),)


def s3_event(name, key, **more):
    """The notification of a new object."""
    record = {"s3": {"bucket": {"name": name}, "object": {"key": key}}, "eventSource": "aws:s3"}
    return {"Records": [{**record, **more}]}


def sqs_event(*bodies, **attributes):
    """Messages of a queue, as a function gets them."""
    records = [
        {
            "messageId": "message-%d" % number,
            "receiptHandle": "receipt-%d" % number,
            "body": body if isinstance(body, str) else json.dumps(body),
            "attributes": attributes,
            "eventSource": "aws:sqs",
        }
        for number, body in enumerate(bodies)
    ]
    return {"Records": records}
