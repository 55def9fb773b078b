"""SNS."""

import json

from .rows import Given, Row, call, pages, use

SERVICE = "sns"
BASE = "arn:aws:sns:us-east-1:123456789012:"
STAND_INS = {
    "topic": BASE + "alerts",
    "fifo": BASE + "alerts.fifo",
    "subscription": BASE + "alerts:1",
}
TOPIC, FIFO, SUBSCRIPTION = Given("topic"), Given("fifo"), Given("subscription")
QUEUE = "arn:aws:sqs:us-east-1:123456789012:sink"


def setup(client):
    """A topic with a subscription, and an ordered one."""
    fifo = {"FifoTopic": "true"}
    out = {
        "topic": client.create_topic(Name="alerts")["TopicArn"],
        "fifo": client.create_topic(Name="alerts.fifo", Attributes=fifo)["TopicArn"],
    }
    given = {"Protocol": "sms", "Endpoint": "+15551234567", "ReturnSubscriptionArn": True}
    out["subscription"] = client.subscribe(TopicArn=out["topic"], **given)["SubscriptionArn"]
    return out


def publish(message="m", **more):
    """A message."""
    more.setdefault("TopicArn", TOPIC)
    return call("publish", Message=message, **more)


def attributes(**given):
    """A message with attributes."""
    found = {name: {"DataType": kind, key: value} for name, (kind, key, value) in given.items()}
    return publish(MessageAttributes=found)


def batch(*entries, topic=TOPIC):
    """Messages at once."""
    return call("publish_batch", TopicArn=topic, PublishBatchRequestEntries=list(entries))


def subscribe(protocol, endpoint, **more):
    """A subscription."""
    return call("subscribe", TopicArn=TOPIC, Protocol=protocol, Endpoint=endpoint, **more)


def topic(trial, values):
    """The resource."""
    return trial.boto3.resource("sns", region_name="us-east-1").Topic(values["topic"])


EACH = {"default": "d", "sqs": "q", "http": "h"}
POLICY = {"Version": "2012-10-17", "Statement": []}
ROWS = {
    "publish: form characters": publish("a=b&c=d+e %20;\u00e9\u4e2d\U0001f600\n\t"),
    "publish: subject": publish(Subject="s & t"),
    "publish: long subject": publish(Subject="s" * 101),
    "publish: empty": publish(""),
    "publish: large": publish("x" * 200_000),
    "publish: too large": publish("x" * 270_000),
    "publish: by protocol": publish(json.dumps(EACH), MessageStructure="json"),
    "publish: by protocol without a default": publish('{"sqs": "q"}', MessageStructure="json"),
    "publish: to a phone": call("publish", PhoneNumber="+15551234567", Message="m"),
    "publish: to a bad phone": call("publish", PhoneNumber="NAA+15551234567", Message="m"),
    "publish: to nothing": call("publish", Message="m"),
    "publish: no such topic": publish(TopicArn=Given("topic", "%s-none")),
    "publish: target": call("publish", TargetArn=TOPIC, Message="m"),
    "publish: ordered": publish(TopicArn=FIFO, MessageGroupId="g", MessageDeduplicationId="d"),
    "publish: ordered without a group": publish(TopicArn=FIFO),
    "publish: group for an unordered topic": publish(
        MessageDeduplicationId="d", MessageGroupId="g"
    ),
    "publish: of no type": publish(12),
    "attributes: text": attributes(
        a=("String", "StringValue", "\u00e9&="), b=("String.Array", "StringValue", "[1]")
    ),
    "attributes: binary": attributes(a=("Binary", "BinaryValue", bytes(range(200)))),
    "attributes: number": attributes(a=("Number", "StringValue", "1e3")),
    "attributes: empty": attributes(a=("String", "StringValue", "")),
    "attributes: unknown type": attributes(a=("Thing", "StringValue", "x")),
    "attributes: bad name": attributes(**{"a b": ("String", "StringValue", "x")}),
    "batch: several": batch(
        {"Id": "1", "Message": "\u00e9"}, {"Id": "2", "Message": "y", "Subject": "s"}
    ),
    "batch: one Id twice": batch({"Id": "1", "Message": "x"}, {"Id": "1", "Message": "y"}),
    "batch: none": batch(),
    "batch: too many": batch(*[{"Id": str(n), "Message": "x"} for n in range(11)]),
    "batch: without groups": batch({"Id": "1", "Message": "x"}, topic=FIFO),
    "batch: wrong members": batch({"Id": 1}, {"Mesage": "x"}),
    "topic: the same again": call("create_topic", Name="alerts"),
    "topic: attributes and tags": call(
        "create_topic",
        Name="more",
        Attributes={"DisplayName": "D \u00e9", "KmsMasterKeyId": "k"},
        Tags=[{"Key": "a", "Value": ""}, {"Key": "b", "Value": "&"}],
    ),
    "topic: bad name": call("create_topic", Name="a/b"),
    "topic: long name": call("create_topic", Name="a" * 257),
    "topic: ordered by name only": call("create_topic", Name="more.fifo"),
    "topic: attribute": [
        call(
            "set_topic_attributes",
            TopicArn=TOPIC,
            AttributeName="DisplayName",
            AttributeValue="x y",
        ),
        call("get_topic_attributes", TopicArn=TOPIC),
    ],
    "topic: policy": call(
        "set_topic_attributes",
        TopicArn=TOPIC,
        AttributeName="Policy",
        AttributeValue=json.dumps(POLICY),
    ),
    "topic: none": call("get_topic_attributes", TopicArn=BASE + "none"),
    "topic: bad ARN": call("get_topic_attributes", TopicArn="alerts"),
    "topic: list": pages("list_topics"),
    "topic: tags": [
        call("tag_resource", ResourceArn=TOPIC, Tags=[{"Key": "\u00e9", "Value": "1"}]),
        call("untag_resource", ResourceArn=TOPIC, TagKeys=["none"]),
        call("list_tags_for_resource", ResourceArn=TOPIC),
    ],
    "topic: tags of none": call("list_tags_for_resource", ResourceArn=BASE + "none"),
    "topic: permission": [
        call(
            "add_permission",
            TopicArn=TOPIC,
            Label="l",
            AWSAccountId=["1" * 12],
            ActionName=["Publish"],
        ),
        call("remove_permission", TopicArn=TOPIC, Label="l"),
    ],
    "topic: deleted": [
        call("delete_topic", TopicArn=TOPIC),
        call("list_subscriptions_by_topic", TopicArn=TOPIC),
    ],
    "subscription: queue": subscribe("sqs", QUEUE, Attributes={"RawMessageDelivery": "true"}),
    "subscription: filter": subscribe(
        "sqs", QUEUE, Attributes={"FilterPolicy": '{"a": ["x", {"prefix": "y"}]}'}
    ),
    "subscription: bad filter": subscribe("sqs", QUEUE, Attributes={"FilterPolicy": '{"a": 1}'}),
    "subscription: unknown attribute": subscribe("sqs", QUEUE, Attributes={"Colour": "red"}),
    "subscription: bad phone": subscribe("sms", "NAA+15551234567"),
    "subscription: no such topic": call(
        "subscribe", TopicArn=BASE + "none", Protocol="sqs", Endpoint=QUEUE
    ),
    "subscription: attributes": [
        call(
            "set_subscription_attributes",
            SubscriptionArn=SUBSCRIPTION,
            AttributeName="DeliveryPolicy",
            AttributeValue='{"healthyRetryPolicy": {"numRetries": 3}}',
        ),
        call("get_subscription_attributes", SubscriptionArn=SUBSCRIPTION),
    ],
    "subscription: attributes of none": call(
        "get_subscription_attributes", SubscriptionArn=BASE + "a:b"
    ),
    "subscription: list": call("list_subscriptions"),
    "subscription: ended": [
        call("unsubscribe", SubscriptionArn=SUBSCRIPTION),
        call("list_subscriptions_by_topic", TopicArn=TOPIC),
    ],
    "subscription: token": call("confirm_subscription", TopicArn=TOPIC, Token="none"),
    "phone: attributes": [
        call("set_sms_attributes", attributes={"DefaultSMSType": "Promotional"}),
        call("get_sms_attributes", attributes=["DefaultSMSType", "none"]),
    ],
    "phone: opted out": call("list_phone_numbers_opted_out"),
    "phone: opted in": call("opt_in_phone_number", phoneNumber="+15551234567"),
    "phone: is it": call("check_if_phone_number_is_opted_out", phoneNumber="+4419900990"),
    "application: none": call("get_platform_application_attributes", PlatformApplicationArn="a"),
    "application: made": call(
        "create_platform_application",
        Name="p",
        Platform="APNS",
        Attributes={"PlatformCredential": "\u00e9"},
    ),
    "application: list": call("list_platform_applications"),
    "endpoint: none": call("get_endpoint_attributes", EndpointArn="a"),
    "resource: publish": use(lambda trial, values: topic(trial, values).publish(Message="m")),
    "resource: attributes": use(lambda trial, values: sorted(topic(trial, values).attributes)),
    "resource: subscriptions": use(
        lambda trial, values: len(list(topic(trial, values).subscriptions.all()))
    ),
    "region: another": Row(call("list_topics"), region="us-west-2"),
    "config: unsigned": Row(call("list_topics"), config={"signature_version": "unsigned"}),
    "unknown member": call("publish", Topic="x", Message="m"),
}
