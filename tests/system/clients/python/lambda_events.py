"""Events of Lambda's life cycle with an unmodified boto3: destinations, dead-letter queues, queues that
feed functions.

python lambda_events.py CASE [ARGUMENT...]: endpoints and keys come from the environment.
"""

import io
import json
import sys
import time
import zipfile

import boto3
from botocore.config import Config

ROLE = "arn:aws:iam::000000000000:role/sender"
ACCOUNT = "123456789012"
SECONDS_MAX = 90
client = boto3.client("lambda", config=Config(retries={"max_attempts": 0}, read_timeout=300))
errors = client.exceptions
sqs = boto3.client("sqs")

FAILS = """
def handler(event, context):
    if event.get("fail"):
        raise ValueError("no\\n" + event["fail"])
    return {"fine": event}
"""
TAKES = """
import json
import boto3
s3 = boto3.client("s3")
def handler(event, context):
    failed = []
    for record in event["Records"]:
        body = json.loads(record["body"])
        if body.get("poison"):
            failed.append({"itemIdentifier": record["messageId"]})
        else:
            s3.put_object(Bucket="box", Key="n-%d" % body["n"], Body=json.dumps(record).encode())
    return {"batchItemFailures": failed}
"""
STORES = """
import json
import boto3
def handler(event, context):
    boto3.client("s3").put_object(Bucket="box", Key="told", Body=json.dumps(event).encode())
"""
WAITS = """
import time
import boto3
s3 = boto3.client("s3")
def handler(event, context):
    s3.put_object(Bucket="box", Key="begun", Body=b"x")
    while True:
        try:
            return s3.get_object(Bucket="box", Key="go")["Body"].read().decode()
        except s3.exceptions.NoSuchKey:
            time.sleep(0.01)
"""


def create(name, text, **more):
    """Creates a function."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made:
        made.writestr("app.py", text)
    return client.create_function(
        FunctionName=name,
        Runtime="python3.11",
        Role=ROLE,
        Handler="app.handler",
        Timeout=300,
        Code={"ZipFile": content.getvalue()},
        **more,
    )


def refused(kind, call, **parameters):
    """The message of a call that raises this exception."""
    try:
        answer = call(**parameters)
    except kind as error:
        return error.response["Error"]["Message"]
    raise AssertionError("%s was not raised: %s" % (kind.__name__, answer))


def until(what, find):
    """What is found, as soon as it is there."""
    end = time.monotonic() + SECONDS_MAX
    while time.monotonic() < end:
        found = find()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(what)


def queue(name, **attributes):
    """A new queue: its URL and its ARN."""
    url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    return url, "arn:aws:sqs:us-east-1:%s:%s" % (ACCOUNT, name)


def message(url):
    """The next message of a queue, deleted."""
    def find():
        return sqs.receive_message(
            QueueUrl=url, MessageAttributeNames=["All"], WaitTimeSeconds=1
        ).get("Messages")

    found = until("a message of " + url, find)[0]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=found["ReceiptHandle"])
    return found


def counts(url):
    """Numbers of messages that are visible, and that are not."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return [int(found[name]) for name in names]


def invoke(name, event, **more):
    """Accepts an event; returns its number."""
    answer = client.invoke(
        FunctionName=name, InvocationType="Event", Payload=json.dumps(event), **more
    )
    assert answer["StatusCode"] == 202
    return answer["ResponseMetadata"]["RequestId"]


def configurations():
    """Event invoke configurations and dead-letter queues, as their API has them."""
    arn = "arn:aws:sqs:us-east-1:%s:q" % ACCOUNT
    made = create("f", FAILS, DeadLetterConfig={"TargetArn": arn}, Publish=True)
    assert made["DeadLetterConfig"] == {"TargetArn": arn}
    refused(errors.ResourceNotFoundException, client.get_function_event_invoke_config,
            FunctionName="f")
    put = client.put_function_event_invoke_config(
        FunctionName="f",
        MaximumRetryAttempts=1,
        DestinationConfig={"OnFailure": {"Destination": arn}},
    )
    assert put["FunctionArn"].endswith(":function:f:$LATEST") and put["LastModified"].year > 2000
    assert put["MaximumRetryAttempts"] == 1 and "MaximumEventAgeInSeconds" not in put
    changed = client.update_function_event_invoke_config(
        FunctionName="f", MaximumEventAgeInSeconds=60
    )
    assert (changed["MaximumRetryAttempts"], changed["MaximumEventAgeInSeconds"]) == (1, 60)
    assert changed["DestinationConfig"] == {"OnSuccess": {}, "OnFailure": {"Destination": arn}}
    got = client.get_function_event_invoke_config(FunctionName="f")
    assert {**got, "ResponseMetadata": 0} == {**changed, "ResponseMetadata": 0}
    client.put_function_event_invoke_config(
        FunctionName="f", Qualifier="1", MaximumRetryAttempts=0
    )
    listed = client.list_function_event_invoke_configs(FunctionName="f")
    arns = [own["FunctionArn"].rsplit(":", 1)[1] for own in listed["FunctionEventInvokeConfigs"]]
    assert sorted(arns) == ["$LATEST", "1"], arns
    page = client.list_function_event_invoke_configs(FunctionName="f", MaxItems=1)
    assert len(page["FunctionEventInvokeConfigs"]) == 1 and page["NextMarker"]
    client.delete_function_event_invoke_config(FunctionName="f")
    refused(errors.ResourceNotFoundException, client.delete_function_event_invoke_config,
            FunctionName="f")
    wrong = errors.InvalidParameterValueException
    put = client.put_function_event_invoke_config
    refused(wrong, put, FunctionName="f")
    bucket = {"OnFailure": {"Destination": "arn:aws:s3:::bucket"}}
    assert "OnFailure" in refused(wrong, put, FunctionName="f", DestinationConfig=bucket)
    refused(errors.ResourceNotFoundException, put, FunctionName="g", MaximumRetryAttempts=0)
    none = client.update_function_configuration(
        FunctionName="f", DeadLetterConfig={"TargetArn": ""}
    )
    assert "DeadLetterConfig" not in none
    assert "DeadLetterConfig" in refused(
        wrong, client.update_function_configuration, FunctionName="f",
        DeadLetterConfig={"TargetArn": "arn:aws:lambda:us-east-1:000000000000:function:f"},
    )


def destinations():
    """Ends of events go where they should: queue, topic, event bus, function, dead-letter queue."""
    good, good_arn = queue("good")
    bad, bad_arn = queue("bad")
    dead, dead_arn = queue("dead")
    create("f", FAILS, DeadLetterConfig={"TargetArn": dead_arn})
    client.put_function_event_invoke_config(
        FunctionName="f",
        MaximumRetryAttempts=1,
        DestinationConfig={
            "OnSuccess": {"Destination": good_arn}, "OnFailure": {"Destination": bad_arn},
        },
    )
    number = invoke("f", {"a": "é\""})
    record = json.loads(message(good)["Body"])
    function = "arn:aws:lambda:us-east-1:000000000000:function:f:$LATEST"
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "version": "1.0",
        "requestContext": {
            "requestId": number, "functionArn": function, "condition": "Success",
            "approximateInvokeCount": 1,
        },
        "requestPayload": {"a": "é\""},
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST"},
        "responsePayload": {"fine": {"a": "é\""}},
    }, record
    number = invoke("f", {"fail": "way"})
    record = json.loads(message(bad)["Body"])
    context = record["requestContext"]
    assert (context["condition"], context["approximateInvokeCount"]) == ("RetriesExhausted", 2)
    assert record["responseContext"]["functionError"] == "Unhandled"
    assert record["responsePayload"]["errorType"] == "ValueError"
    letter = message(dead)
    assert json.loads(letter["Body"]) == {"fail": "way"}
    attributes = {name: own["StringValue"] for name, own in letter["MessageAttributes"].items()}
    assert attributes == {"RequestID": number, "ErrorCode": "200", "ErrorMessage": "noway"}

    inbox, inbox_arn = queue("inbox")
    topic = boto3.client("sns").create_topic(Name="topic")["TopicArn"]
    boto3.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=inbox_arn)
    bus = boto3.client("events").create_event_bus(Name="bus")["EventBusArn"]
    client.update_function_event_invoke_config(
        FunctionName="f",
        DestinationConfig={"OnSuccess": {"Destination": topic}, "OnFailure": {"Destination": bus}},
    )
    invoke("f", {"a": 2})
    told = json.loads(json.loads(message(inbox)["Body"])["Message"])
    assert told["requestPayload"] == {"a": 2}, told
    # The rules of moto's event bus have no targets here: that it takes the event is counted.
    invoke("f", {"fail": "bus"})
    assert json.loads(message(dead)["Body"]) == {"fail": "bus"}

    create("told", STORES)
    client.update_function_event_invoke_config(
        FunctionName="f",
        DestinationConfig={
            "OnSuccess": {"Destination": "arn:aws:lambda:us-east-1:000000000000:function:told"},
        },
    )
    invoke("f", {"a": 3})
    # A message that is too long for a queue is counted and logged, and goes nowhere.
    client.update_function_event_invoke_config(FunctionName="f", MaximumRetryAttempts=0)
    invoke("f", {"fail": "x", "long": "y" * 300000})


def undeliverable():
    """A destination that is not there; its function is deleted then."""
    create("gone", FAILS)
    client.put_function_event_invoke_config(
        FunctionName="gone",
        DestinationConfig={
            "OnSuccess": {"Destination": "arn:aws:sqs:us-east-1:%s:nowhere" % ACCOUNT},
        },
    )
    invoke("gone", {})


def delete(name):
    """Deletes a function."""
    client.delete_function(FunctionName=name)


def waiting():
    """An event for which there is no instance."""
    create("waiting", FAILS)
    client.put_function_concurrency(FunctionName="waiting", ReservedConcurrentExecutions=0)
    invoke("waiting", {})


def restarted():
    """A function for events that a gateway before has accepted."""
    _, bad_arn = queue("bad")
    create("f", FAILS)
    client.put_function_event_invoke_config(
        FunctionName="f", DestinationConfig={"OnFailure": {"Destination": bad_arn}}
    )


def replayed():
    """The ends of these events."""
    url = sqs.get_queue_url(QueueName="bad")["QueueUrl"]
    records = [json.loads(message(url)["Body"]) for _ in range(2)]
    found = {own["requestContext"]["condition"]: own for own in records}
    aged, failed = found["EventAgeExceeded"], found["RetriesExhausted"]
    assert aged["requestContext"]["approximateInvokeCount"] == 0, aged
    assert aged["requestPayload"] == {"old": 1} and "responsePayload" not in aged
    assert failed["requestContext"]["approximateInvokeCount"] == 3, failed
    assert failed["requestContext"]["requestId"] == "failed"


def mapping(name, arn, **more):
    """A mapping of a queue to a function."""
    return client.create_event_source_mapping(FunctionName=name, EventSourceArn=arn, **more)


def mappings():
    """Event source mappings, as their API has them."""
    _, arn = queue("q")
    create("f", TAKES, Publish=True)
    made = mapping("f", arn, Enabled=False)
    assert made["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert (made["State"], made["BatchSize"]) == ("Disabled", 10), made
    assert made["FunctionArn"].endswith(":function:f") and made["EventSourceArn"] == arn
    assert made["FunctionResponseTypes"] == [] and made["LastModified"].year > 2000
    uuid = made["UUID"]
    assert uuid in refused(errors.ResourceConflictException, mapping, name="f", arn=arn)
    other = mapping("f:1", arn, Enabled=False, ScalingConfig={"MaximumConcurrency": 2})
    assert other["ScalingConfig"] == {"MaximumConcurrency": 2}
    assert other["FunctionArn"].endswith(":function:f:1")
    changed = client.update_event_source_mapping(
        UUID=uuid, BatchSize=100, MaximumBatchingWindowInSeconds=5,
        FunctionResponseTypes=["ReportBatchItemFailures"],
    )
    assert (changed["BatchSize"], changed["MaximumBatchingWindowInSeconds"]) == (100, 5)
    got = client.get_event_source_mapping(UUID=uuid)
    assert {**got, "ResponseMetadata": 0} == {**changed, "ResponseMetadata": 0}
    listed = client.list_event_source_mappings(FunctionName="f")["EventSourceMappings"]
    assert {own["UUID"] for own in listed} == {uuid, other["UUID"]}
    listed = client.list_event_source_mappings(FunctionName="f:1", EventSourceArn=arn)
    assert [own["UUID"] for own in listed["EventSourceMappings"]] == [other["UUID"]]
    page = client.list_event_source_mappings(MaxItems=1)
    assert len(page["EventSourceMappings"]) == 1 and page["NextMarker"]
    wrong = errors.InvalidParameterValueException
    create_mapping = client.create_event_source_mapping
    for word, more in [
        ("BatchSize", {"BatchSize": 11}),
        ("FilterCriteria", {"FilterCriteria": {"Filters": [{"Pattern": "{}"}]}}),
        ("StartingPosition", {"StartingPosition": "LATEST"}),
        ("FIFO", {"EventSourceArn": arn + ".fifo"}),
        ("queues of SQS", {"EventSourceArn": arn.replace("sqs", "sns")}),
        ("EventSourceArn", {"EventSourceArn": "arn:aws:kinesis:us-east-1:1:stream/s"}),
    ]:
        given = {"FunctionName": "f", "EventSourceArn": arn.replace(":q", ":r"), **more}
        assert word in refused(wrong, create_mapping, **given), word
    refused(errors.ResourceNotFoundException, mapping, name="nothing", arn=arn)
    gone = client.delete_event_source_mapping(UUID=uuid)
    assert gone["State"] == "Deleting"
    refused(errors.ResourceNotFoundException, client.get_event_source_mapping, UUID=uuid)
    client.delete_function(FunctionName="f")
    assert client.list_event_source_mappings()["EventSourceMappings"] == []


def queues():
    """Messages are handled and deleted; a poisoned one ends in the queue's dead-letter queue."""
    url, arn = queue("q", VisibilityTimeout="600")
    create("f", TAKES)
    for n in range(12):
        sqs.send_message(
            QueueUrl=url,
            MessageBody=json.dumps({"n": n}),
            MessageAttributes={"word": {"DataType": "String", "StringValue": "w"}},
        )
    sqs.send_message(QueueUrl=url, MessageBody='{"poison": true}')
    report = ["ReportBatchItemFailures"]
    made = mapping("f", arn, Enabled=False, FunctionResponseTypes=report)
    assert counts(url) == [13, 0], "a mapping that is disabled takes nothing"
    client.update_event_source_mapping(UUID=made["UUID"], Enabled=True)
    until("all others are deleted", lambda: counts(url) == [0, 1])
    got = client.get_event_source_mapping(UUID=made["UUID"])
    assert (got["State"], got["LastProcessingResult"]) == ("Enabled", "OK"), got
    # A window: fewer messages than a batch has wait for others.
    client.update_event_source_mapping(
        UUID=made["UUID"], BatchSize=100, MaximumBatchingWindowInSeconds=2
    )
    sqs.send_message(QueueUrl=url, MessageBody='{"n": 100}')
    until("it is deleted", lambda: counts(url) == [0, 1])
    # It becomes visible again and again, until the queue gives it up.
    dead, dead_arn = queue("dead")
    redrive = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 2})
    url, arn = queue("poisoned", RedrivePolicy=redrive, VisibilityTimeout="1")
    sqs.send_message(QueueUrl=url, MessageBody='{"poison": 2}')
    mapping("f", arn, FunctionResponseTypes=report)
    assert message(dead)["Body"] == '{"poison": 2}'
    assert counts(url) == [0, 0]


def troubles():
    """Mappings whose messages cannot be taken, invoked or deleted."""
    create("f", FAILS)
    missing = mapping("f", "arn:aws:sqs:us-east-1:%s:nowhere" % ACCOUNT)
    said = lambda made: client.get_event_source_mapping(UUID=made["UUID"])["LastProcessingResult"]
    until("it is said", lambda: "PROBLEM: ReceiveMessage" in said(missing))
    client.delete_event_source_mapping(UUID=missing["UUID"])
    # No instance may run: the message is made visible again.
    url, arn = queue("throttled", VisibilityTimeout="600")
    create("none", TAKES)
    client.put_function_concurrency(FunctionName="none", ReservedConcurrentExecutions=0)
    sqs.send_message(QueueUrl=url, MessageBody='{"n": 7}')
    made = mapping("none", arn)
    until("it is said", lambda: "Rate Exceeded" in said(made))
    client.delete_function_concurrency(FunctionName="none")
    until("it comes again, and is handled", lambda: counts(url) == [0, 0])
    # The function fails: the message stays invisible for its time.
    url, arn = queue("failing", VisibilityTimeout="600")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    create("fails", "def handler(event, context):\n    raise ValueError('no')\n")
    made = mapping("fails", arn)
    until("it is said", lambda: "has failed" in said(made))
    assert counts(url) == [0, 1]


def forbidden():
    """A role that may not ask the queue."""
    url, arn = queue("q")
    create("f", TAKES)
    made = mapping("f", arn)
    get = client.get_event_source_mapping
    said = lambda: get(UUID=made["UUID"])["LastProcessingResult"]
    until("it is said", lambda: "sqs:ReceiveMessage on q" in said())
    client.put_function_event_invoke_config(
        FunctionName="f", MaximumRetryAttempts=0,
        DestinationConfig={"OnFailure": {"Destination": arn}},
    )
    invoke("f", {})


def undeletable():
    """A role that may take messages, and not delete them."""
    url, arn = queue("q", VisibilityTimeout="600")
    sqs.send_message(QueueUrl=url, MessageBody='{"n": 1}')
    create("f", TAKES)
    made = mapping("f", arn)
    get = client.get_event_source_mapping
    said = lambda: get(UUID=made["UUID"])["LastProcessingResult"]
    until("it is said", lambda: "sqs:DeleteMessage on q" in said())
    assert counts(url) == [0, 1]


def slow():
    """A message whose function waits."""
    url, arn = queue("q", VisibilityTimeout="600")
    create("f", WAITS)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    mapping("f", arn)


def empty(name):
    """The queue has no messages, visible or not."""
    found = counts(sqs.get_queue_url(QueueName=name)["QueueUrl"])
    assert found == [0, 0], found


globals()[sys.argv[1]](*sys.argv[2:])
