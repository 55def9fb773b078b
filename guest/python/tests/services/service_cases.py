"""Cases: functions that use services as a function would, and say what they see."""

import base64
import json
from decimal import Decimal

CASES = {}


def case(function):
    """Registers a case."""
    CASES[function.__name__] = function
    return function


def table(t):
    """A client of DynamoDB, and a table."""
    db = t.client("dynamodb")
    db.create_table(
        TableName="orders",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return db


@case
def dynamodb_items(t):
    db = table(t)
    item = {"id": {"S": "a"}, "n": {"N": "5"}, "b": {"B": b"\x00\xff"}, "u": {"S": "\u00e9\u4e2d"}}
    t.see("put", db.put_item(TableName="orders", Item=item))
    t.see("get", db.get_item(TableName="orders", Key={"id": {"S": "a"}}, ConsistentRead=True))
    t.see("none", db.get_item(TableName="orders", Key={"id": {"S": "x"}}))
    update = {
        "UpdateExpression": "SET n = n + :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
        "ReturnValues": "ALL_NEW",
    }
    t.see("update", db.update_item(TableName="orders", Key={"id": {"S": "a"}}, **update))
    t.see("scan", db.scan(TableName="orders"))
    query = {
        "KeyConditionExpression": "id = :id",
        "ExpressionAttributeValues": {":id": {"S": "a"}},
    }
    t.see("query", db.query(TableName="orders", **query))
    t.see("delete", db.delete_item(TableName="orders", Key={"id": {"S": "a"}}))
    t.see("describe", db.describe_table(TableName="orders"))
    t.see("list", db.list_tables())


@case
def dynamodb_errors(t):
    db = table(t)
    key = {"id": {"S": "a"}}
    found = t.attempt("missing", db.get_item, TableName="none", Key=key)
    t.see("class", isinstance(found, db.exceptions.ResourceNotFoundException))
    db.put_item(TableName="orders", Item=key)
    condition = {"ConditionExpression": "attribute_not_exists(id)"}
    found = t.attempt("condition", db.put_item, TableName="orders", Item=key, **condition)
    t.see("class", isinstance(found, db.exceptions.ConditionalCheckFailedException))
    t.attempt("parameters", db.get_item, TableName="orders", Key={"id": {"S": 7}})
    t.attempt("unknown", db.get_item, TableName="orders", Kee={})
    t.attempt("key", db.get_item, TableName="orders", Key={"other": {"S": "a"}})
    t.attempt("again", db.create_table, TableName="orders", KeySchema=[], AttributeDefinitions=[])


@case
def dynamodb_batches(t):
    db = table(t)
    puts = [{"PutRequest": {"Item": {"id": {"S": str(n)}, "d": {"S": "x" * 300}}}} for n in range(25)]
    t.see("write", db.batch_write_item(RequestItems={"orders": puts}))
    keys = {"orders": {"Keys": [{"id": {"S": "1"}}, {"id": {"S": "2"}}]}}
    found = db.batch_get_item(RequestItems=keys)["Responses"]["orders"]
    t.see("get", sorted(item["id"]["S"] for item in found))
    put = {"Put": {"TableName": "orders", "Item": {"id": {"S": "t"}}}}
    t.see("transact", db.transact_write_items(TransactItems=[put]))
    refused = {"ConditionExpression": "attribute_not_exists(id)"}
    failing = {"Put": dict(put["Put"], **refused)}
    t.attempt("cancelled", db.transact_write_items, TransactItems=[failing])
    get = {"Get": {"TableName": "orders", "Key": {"id": {"S": "t"}}}}
    t.see("transact get", db.transact_get_items(TransactItems=[get]))
    pages = db.get_paginator("scan").paginate(TableName="orders", PaginationConfig={"PageSize": 10})
    t.see("pages", [page["Count"] for page in pages])
    db.get_waiter("table_exists").wait(TableName="orders")
    t.attempt(
        "waiter",
        db.get_waiter("table_exists").wait,
        TableName="none",
        WaiterConfig={"Delay": 0, "MaxAttempts": 2},
    )


@case
def dynamodb_resource(t):
    from boto3.dynamodb.conditions import Attr, Key

    table(t)
    orders = t.boto3.resource("dynamodb", region_name="us-east-1").Table("orders")
    t.see("put", orders.put_item(Item={"id": "a", "n": Decimal("1.5"), "s": {"x", "y"}}))
    found = orders.get_item(Key={"id": "a"})["Item"]
    t.see("item", [found["id"], str(found["n"]), sorted(found["s"])])
    with orders.batch_writer() as batch:
        for number in range(30):
            batch.put_item(Item={"id": str(number)})
    t.see("query", orders.query(KeyConditionExpression=Key("id").eq("7"))["Count"])
    t.see("scan", orders.scan(FilterExpression=Attr("n").exists())["Count"])
    t.see("status", orders.table_status)


@case
def dynamodb_large(t):
    db = table(t)
    data = "x" * 200_000
    t.see("put", db.put_item(TableName="orders", Item={"id": {"S": "l"}, "d": {"S": data}}))
    found = db.get_item(TableName="orders", Key={"id": {"S": "l"}})["Item"]["d"]["S"]
    t.see("whole", found == data)
    puts = [{"PutRequest": {"Item": {"id": {"S": str(n)}, "d": {"S": data}}}} for n in range(20)]
    t.see("many", db.batch_write_item(RequestItems={"orders": puts})["UnprocessedItems"])
    t.see("all", sum(len(i["d"]["S"]) for i in db.scan(TableName="orders")["Items"]) > 0)


@case
def dynamodb_threads(t):
    from concurrent.futures import ThreadPoolExecutor

    db = table(t)

    def work(number):
        db.put_item(TableName="orders", Item={"id": {"S": str(number)}})
        return db.get_item(TableName="orders", Key={"id": {"S": str(number)}})["Item"]["id"]["S"]

    with ThreadPoolExecutor(8) as pool:
        t.see("each", list(pool.map(work, range(40))))


@case
def sqs_messages(t):
    sqs = t.client("sqs")
    url = sqs.create_queue(QueueName="jobs", Attributes={"VisibilityTimeout": "5"})["QueueUrl"]
    t.see("url", url.rsplit("/", 2)[1:])
    attributes = {"kind": {"DataType": "String", "StringValue": "a"}}
    t.see("send", sqs.send_message(QueueUrl=url, MessageBody="m\u00e9", MessageAttributes=attributes))
    entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(3)]
    t.see("batch", sqs.send_message_batch(QueueUrl=url, Entries=entries))
    got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=1, MessageAttributeNames=["All"])
    t.see("receive", got)
    handle = got["Messages"][0]["ReceiptHandle"]
    t.see("delete", sqs.delete_message(QueueUrl=url, ReceiptHandle=handle))
    t.see("attributes", sqs.get_queue_attributes(
        QueueUrl=url, AttributeNames=["VisibilityTimeout", "QueueArn"]))
    t.see("list", len(sqs.list_queues()["QueueUrls"]))
    t.see("get url", sqs.get_queue_url(QueueName="jobs")["QueueUrl"] == url)
    queue = t.boto3.resource("sqs", region_name="us-east-1").Queue(url)
    t.see("resource", len(queue.receive_messages(MaxNumberOfMessages=10)))
    t.see("purge", sqs.purge_queue(QueueUrl=url))


@case
def sqs_errors(t):
    sqs = t.client("sqs")
    found = t.attempt("missing", sqs.get_queue_url, QueueName="none")
    t.see("class", isinstance(found, sqs.exceptions.QueueDoesNotExist))
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    t.attempt("send", sqs.send_message, QueueUrl=url + "x", MessageBody="a")
    t.attempt("handle", sqs.delete_message, QueueUrl=url, ReceiptHandle="none")
    t.attempt("fifo", sqs.create_queue, QueueName="a", Attributes={"FifoQueue": "true"})
    t.attempt("batch", sqs.send_message_batch, QueueUrl=url, Entries=[])


@case
def sns_topics(t):
    sns = t.client("sns")
    arn = t.see("create", sns.create_topic(Name="alerts"))["TopicArn"]
    sqs = t.client("sqs")
    url = sqs.create_queue(QueueName="sink")["QueueUrl"]
    queue = "arn:aws:sqs:us-east-1:123456789012:sink"
    t.see("subscribe", sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue))
    t.see("publish", sns.publish(TopicArn=arn, Message="a&b=c \u00e9", Subject="s"))
    entries = [{"Id": "1", "Message": "x"}, {"Id": "2", "Message": "y"}]
    t.see("batch", sns.publish_batch(TopicArn=arn, PublishBatchRequestEntries=entries))
    got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=1)["Messages"][0]["Body"]
    t.see("message", json.loads(got)["Message"])
    t.see("list", sns.list_topics())
    t.see("subscriptions", len(sns.list_subscriptions_by_topic(TopicArn=arn)["Subscriptions"]))
    t.see("attributes", sorted(sns.get_topic_attributes(TopicArn=arn)["Attributes"]))
    found = t.attempt("missing", sns.publish, TopicArn=arn + "x", Message="a")
    t.see("class", isinstance(found, sns.exceptions.NotFoundException))
    t.attempt("invalid", sns.create_topic, Name="a b")
    topic = t.boto3.resource("sns", region_name="us-east-1").Topic(arn)
    t.see("resource", topic.arn)
    t.see("delete", sns.delete_topic(TopicArn=arn))


@case
def sts_identities(t):
    sts = t.client("sts")
    t.see("identity", sts.get_caller_identity())
    role = "arn:aws:iam::123456789012:role/reader"
    t.see("assume", sts.assume_role(RoleArn=role, RoleSessionName="session"))
    t.see("session", sts.get_session_token())
    t.attempt("invalid", sts.assume_role, RoleArn="x", RoleSessionName="session")
    t.attempt("policy", sts.get_federation_token, Name="a" * 40)


REGION = "us-east-1"


def assumed(t, account):
    """The keys of a role of another account."""
    role = "arn:aws:iam::%s:role/r" % account
    found = t.client("sts").assume_role(RoleArn=role, RoleSessionName="session")["Credentials"]
    return {
        "aws_access_key_id": found["AccessKeyId"],
        "aws_secret_access_key": found["SecretAccessKey"],
        "aws_session_token": found["SessionToken"],
    }


def core(t):
    """A session of botocore."""
    import botocore.session

    return botocore.session.get_session()


@case
def keys_of_another_account(t):
    other = assumed(t, "111111111111")
    mine, others = t.client("sqs"), t.client("sqs", **other)
    t.see("mine", mine.create_queue(QueueName="work"))
    url = t.see("other", others.create_queue(QueueName="work"))["QueueUrl"]
    t.see("send", others.send_message(QueueUrl=url, MessageBody="of the other"))
    for client in (mine, others):
        found = client.get_queue_url(QueueName="work")["QueueUrl"]
        t.see("url", found.rpartition("/")[0].rpartition("/")[2])
        t.see("messages", client.receive_message(QueueUrl=found).get("Messages"))
    table(t)
    db = t.client("dynamodb", **other)
    t.see("tables", [t.client("dynamodb").list_tables()["TableNames"], db.list_tables()["TableNames"]])
    t.attempt("absent", db.get_item, TableName="orders", Key={"id": {"S": "a"}})
    found = t.boto3.resource("sqs", region_name=REGION, **other).get_queue_by_name(QueueName="work")
    t.see("resource", found.attributes["QueueArn"])


def account_of(t, client):
    """The account whose keys a client has."""
    return t.see("account", client.get_caller_identity())["Account"]


@case
def keys_of_sessions(t):
    other = assumed(t, "222222222222")
    three = list(other.values())
    session = t.boto3.Session(region_name=REGION, **other)
    account_of(t, session.client("sts"))
    t.see("credentials", session.get_credentials().access_key == three[0])
    account_of(t, core(t).create_client("sts", region_name=REGION, **other))
    set_by_hand = core(t)
    set_by_hand.set_credentials(*three)
    account_of(t, set_by_hand.create_client("sts", region_name=REGION))
    account_of(t, t.boto3.Session(botocore_session=set_by_hand, region_name=REGION).client("sts"))
    account_of(t, t.client("sts"))
    # The client's keys come before its session's.
    account_of(t, session.client("sts", **assumed(t, "333333333333")))


@case
def keys_that_change(t):
    import datetime

    from botocore.credentials import RefreshableCredentials

    fetched = []

    def refresh():
        keys = assumed(t, "%012d" % (4 + len(fetched)))
        fetched.append(keys["aws_access_key_id"])
        minute = datetime.timedelta(minutes=-1 if len(fetched) == 1 else 60)
        return {
            "access_key": keys["aws_access_key_id"],
            "secret_key": keys["aws_secret_access_key"],
            "token": keys["aws_session_token"],
            "expiry_time": (datetime.datetime.now(datetime.timezone.utc) + minute).isoformat(),
        }

    class Provider:
        def load_credentials(self):
            return RefreshableCredentials.create_from_metadata(refresh(), refresh, "own")

    session = core(t)
    session.register_component("credential_provider", Provider())
    client = session.create_client("sts", region_name=REGION)
    account_of(t, client)
    account_of(t, client)
    t.see("fetched", len(fetched))


@case
def keys_that_are_half(t):
    t.attempt("secret", t.client, service="sqs", aws_access_key_id="k")
    t.attempt("id", t.client, service="sqs", aws_secret_access_key="s")


@case
def secretsmanager_secrets(t):
    secrets = t.client("secretsmanager")
    t.see("create", secrets.create_secret(Name="db/password", SecretString="s3cret"))
    t.see("get", secrets.get_secret_value(SecretId="db/password"))
    t.see("put", secrets.put_secret_value(SecretId="db/password", SecretBinary=b"\x00\x01"))
    t.see("binary", secrets.get_secret_value(SecretId="db/password")["SecretBinary"])
    t.see("list", [one["Name"] for one in secrets.list_secrets()["SecretList"]])
    found = t.attempt("missing", secrets.get_secret_value, SecretId="none")
    t.see("class", isinstance(found, secrets.exceptions.ResourceNotFoundException))
    t.attempt("again", secrets.create_secret, Name="db/password", SecretString="x")
    t.see("delete", secrets.delete_secret(SecretId="db/password", ForceDeleteWithoutRecovery=True))
    t.attempt("deleted", secrets.get_secret_value, SecretId="db/password")


@case
def ssm_parameters(t):
    ssm = t.client("ssm")
    for name in ("/app/a", "/app/b", "/app/c/d", "plain"):
        t.see("put", ssm.put_parameter(Name=name, Value="v" + name, Type="String"))
    t.see("secure", ssm.put_parameter(Name="/app/s", Value="x", Type="SecureString"))
    t.see("get", ssm.get_parameter(Name="/app/a"))
    t.see("decrypted", ssm.get_parameter(Name="/app/s", WithDecryption=True)["Parameter"]["Value"])
    found = ssm.get_parameters(Names=["plain", "/app/b", "none"])
    t.see("several", [sorted(p["Name"] for p in found["Parameters"]), found["InvalidParameters"]])
    pages = ssm.get_paginator("get_parameters_by_path").paginate(Path="/app", Recursive=True)
    t.see("path", sorted(p["Name"] for page in pages for p in page["Parameters"]))
    found = t.attempt("missing", ssm.get_parameter, Name="none")
    t.see("class", isinstance(found, ssm.exceptions.ParameterNotFound))
    t.attempt("again", ssm.put_parameter, Name="plain", Value="x", Type="String")
    t.see("delete", ssm.delete_parameter(Name="plain"))


@case
def lambda_functions(t):
    functions = t.client("lambda")
    t.see("list", functions.list_functions())
    found = t.attempt("missing", functions.get_function, FunctionName="none")
    t.see("class", isinstance(found, functions.exceptions.ResourceNotFoundException))
    t.attempt("configuration", functions.get_function_configuration, FunctionName="a:b")
    t.attempt("invoke", functions.invoke, FunctionName="none", Payload=b"{}")
    t.see("pages", list(functions.get_paginator("list_functions").paginate())[0]["Functions"])


@case
def events_rules(t):
    events = t.client("events")
    # Before there is a rule: moto fails to match one without a pattern.
    entry = {"Source": "app", "DetailType": "d", "Detail": json.dumps({"a": 1})}
    t.see("put", events.put_events(Entries=[entry, dict(entry, EventBusName="default")]))
    t.see("rule", events.put_rule(Name="hourly", ScheduleExpression="rate(1 hour)"))
    target = {"Id": "1", "Arn": "arn:aws:sqs:us-east-1:123456789012:sink"}
    t.see("targets", events.put_targets(Rule="hourly", Targets=[target]))
    t.see("list", events.list_targets_by_rule(Rule="hourly"))
    t.see("bus", events.create_event_bus(Name="own"))
    t.see("describe", events.describe_rule(Name="hourly"))
    t.see("rules", events.list_rules())
    found = t.attempt("missing", events.describe_rule, Name="none")
    t.see("class", isinstance(found, events.exceptions.ResourceNotFoundException))
    t.attempt("bad", events.put_rule, Name="a", EventPattern="{")
    t.attempt("entries", events.put_events, Entries=[])


@case
def kinesis_records(t):
    kinesis = t.client("kinesis")
    t.see("create", kinesis.create_stream(StreamName="clicks", ShardCount=1))
    kinesis.get_waiter("stream_exists").wait(StreamName="clicks", WaiterConfig={"Delay": 0})
    data = bytes(range(256))
    t.see("put", kinesis.put_record(StreamName="clicks", Data=data, PartitionKey="k"))
    records = [{"Data": b"%d" % n, "PartitionKey": str(n)} for n in range(5)]
    t.see("several", kinesis.put_records(StreamName="clicks", Records=records))
    shard = kinesis.describe_stream(StreamName="clicks")["StreamDescription"]["Shards"][0]["ShardId"]
    start = {"ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
    iterator = kinesis.get_shard_iterator(StreamName="clicks", **start)["ShardIterator"]
    got = kinesis.get_records(ShardIterator=iterator)["Records"]
    t.see("get", [record["Data"] for record in got])
    t.see("summary", kinesis.describe_stream_summary(StreamName="clicks"))
    t.see("list", kinesis.list_streams())
    found = t.attempt("missing", kinesis.describe_stream, StreamName="none")
    t.see("class", isinstance(found, kinesis.exceptions.ResourceNotFoundException))
    large = base64.b64encode(bytes(600_000))
    t.see("large", kinesis.put_record(StreamName="clicks", Data=large, PartitionKey="k"))


@case
def logs_events(t):
    logs = t.client("logs")
    t.see("group", logs.create_log_group(logGroupName="/app/f"))
    t.see("stream", logs.create_log_stream(logGroupName="/app/f", logStreamName="s"))
    import time

    now = int(time.time() * 1000)
    lines = [{"timestamp": now + n, "message": "line %d" % n} for n in range(5)]
    of = {"logGroupName": "/app/f", "logStreamName": "s"}
    t.see("put", logs.put_log_events(logEvents=lines, **of))
    t.see("get", [e["message"] for e in logs.get_log_events(startFromHead=True, **of)["events"]])
    pages = logs.get_paginator("filter_log_events").paginate(logGroupName="/app/f")
    t.see("filter", sorted(e["message"] for page in pages for e in page["events"]))
    t.see("streams", logs.describe_log_streams(logGroupName="/app/f"))
    found = t.attempt("missing", logs.create_log_stream, logGroupName="none", logStreamName="s")
    t.see("class", isinstance(found, logs.exceptions.ResourceNotFoundException))
    t.attempt("again", logs.create_log_group, logGroupName="/app/f")
    t.see("retention", logs.put_retention_policy(logGroupName="/app/f", retentionInDays=7))


@case
def cloudwatch_metrics(t):
    watch = t.client("cloudwatch")
    data = [{"MetricName": "m", "Value": 1.5, "Unit": "Count"}]
    t.attempt("put", watch.put_metric_data, Namespace="app", MetricData=data)
    t.attempt("list", watch.list_metrics, Namespace="app")
    t.attempt("missing", watch.describe_alarms, AlarmNames=["none"])


@case
def kms_keys(t):
    kms = t.client("kms")
    key = kms.create_key(Description="d")["KeyMetadata"]["KeyId"]
    sealed = kms.encrypt(KeyId=key, Plaintext=b"\x00secret")["CiphertextBlob"]
    t.see("plain", kms.decrypt(CiphertextBlob=sealed)["Plaintext"])
    t.attempt("missing", kms.describe_key, KeyId="none")


@case
def hooks(t):
    db = table(t)
    order = []
    kinds = (
        "provide-client-params",
        "before-parameter-build",
        "before-call",
        "request-created",
        "choose-signer",
        "before-sign",
        "before-send",
        "response-received",
        "before-parse",
        "after-call",
        "after-call-error",
        "needs-retry",
    )

    def hook(event_name, **given):
        order.append([event_name, sorted(given)])

    for kind in kinds:
        db.meta.events.register(kind + ".dynamodb.GetItem", hook)

    def signing(request, signing_name, region_name, signature_version, **_):
        request.headers["X-Own"] = "1"
        order.append([signing_name, region_name, signature_version])

    def sending(request, **_):
        order.append([request.method, "Authorization" in request.headers, request.headers["X-Own"]])

    def called(parsed, http_response, **_):
        order.append([http_response.status_code, sorted(parsed)])

    db.meta.events.register("before-sign.dynamodb", signing)
    db.meta.events.register("before-send.dynamodb", sending)
    db.meta.events.register("after-call.dynamodb", called)
    t.see("get", db.get_item(TableName="orders", Key={"id": {"S": "a"}}))
    t.see("order", order)


@case
def hooks_that_answer(t):
    from botocore.awsrequest import AWSResponse

    db = t.client("dynamodb")

    class Raw:
        def stream(self, **_):
            yield b'{"TableNames": ["made-up"]}'

    def answer(request, **_):
        return AWSResponse(request.url, 200, {"x-own": "1"}, Raw())

    def last(request, **_):
        t.see("last", request.method)

    db.meta.events.register_last("before-send.dynamodb.ListTables", last)
    db.meta.events.register("before-send.dynamodb.ListTables", answer)
    t.see("list", db.list_tables())

    def call(**_):
        return None

    db.meta.events.register("before-call.dynamodb", call)
    db.meta.events.unregister("before-send.dynamodb.ListTables", answer)
    t.see("own", db.list_tables()["TableNames"])


@case
def hooks_of_a_session(t):
    session = t.boto3.session.Session(region_name="us-east-1")
    seen = []

    def hook(event_name, **_):
        seen.append(event_name)

    session.events.register("before-send.dynamodb", hook)
    db = session.client("dynamodb")
    session.events.register("before-send.sqs", hook)
    db.list_tables()
    session.client("sqs").list_queues()
    t.see("seen", seen)


@case
def stubber(t):
    from botocore.stub import ANY, Stubber

    db = t.client("dynamodb")
    with Stubber(db) as stub:
        stub.add_response("get_item", {"Item": {"id": {"S": "x"}}}, {"TableName": "a", "Key": ANY})
        stub.add_client_error("put_item", "Own", "no", 418)
        t.see("get", db.get_item(TableName="a", Key={"id": {"S": "1"}}))
        t.attempt("put", db.put_item, TableName="a", Item={})
        t.attempt("unexpected", db.list_tables)
        stub.assert_no_pending_responses()
    t.see("real", db.list_tables()["TableNames"])


@case
def unsigned(t):
    from botocore import UNSIGNED
    from botocore.config import Config

    db = t.client("dynamodb", config=Config(signature_version=UNSIGNED))
    t.attempt("list", db.list_tables)


@case
def configs(t):
    from botocore.config import Config

    config = Config(retries={"total_max_attempts": 1}, read_timeout=30, user_agent_extra="own/1")
    db = t.client("dynamodb", config=config)
    t.see("list", db.list_tables()["TableNames"])
    t.see("config", [db.meta.config.read_timeout, "own/1" in db.meta.config.user_agent])
    t.see("meta", [db.meta.region_name, db.meta.service_model.service_name, db.meta.partition])
    t.see("paginate", db.can_paginate("scan"))
    db.close()


def item(t, label, name, **more):
    """GetItem of the scripted server."""
    db = t.client("dynamodb", **more)
    return t.attempt(label, db.get_item, TableName=name, Key={"id": {"S": "a"}})


@case
def scripted_retries(t):
    from botocore.config import Config

    item(t, "once", "fails-1")
    item(t, "closes", "closes-1")
    once = Config(retries={"total_max_attempts": 1})
    item(t, "never", "fails-2", config=once)
    item(t, "gone", "closes-9", config=once)
    item(t, "throttled", "throttles", config=Config(retries={"total_max_attempts": 2}))
    legacy = Config(retries={"mode": "legacy", "max_attempts": 1})
    item(t, "legacy", "fails-3", config=legacy)


@case
def scripted_answers(t):
    from botocore.config import Config

    item(t, "redirect", "redirects")
    item(t, "garbled", "garbles", config=Config(retries={"total_max_attempts": 1}))
    seen = item(t, "echo", "echoes")
    t.see("request", json.loads(seen["Item"]["seen"]["S"]))


@case
def scripted_streams(t):
    models = t.client("bedrock-runtime")
    given = models.invoke_model_with_response_stream(modelId="m", body=b"{}")
    stream = iter(given["body"])
    t.see("first", next(stream))
    # The server sends the second event after this call only.
    t.see("other", models.invoke_model(modelId="m", body=b"{}" * 4000)["body"].read())
    t.see("second", next(stream))
    t.see("end", list(stream))
