"""Handlers of SQS, SNS, EventBridge and Kinesis."""

import base64
import gzip
import json

from case import Case, Step, bus, queue, sqs_event, table, topic

LOGS = {
    "logGroup": "/aws/lambda/one",
    "logStream": "s-1",
    "logEvents": [{"id": "1", "timestamp": 1, "message": "an Exception"}],
}
AWSLOGS = {
    "awslogs": {
        "data": base64.b64encode(gzip.compress(json.dumps(LOGS).encode(), mtime=0)).decode()
    }
}


def _kinesis(*values):
    return {
        "Records": [
            {
                "kinesis": {
                    "sequenceNumber": str(number),
                    "data": base64.b64encode(json.dumps(value).encode()).decode(),
                }
            }
            for number, value in enumerate(values)
        ]
    }


def _produces(path, handler):
    return Case(
        path,
        "kinesis",
        ({}, {}),
        handler=handler,
        environment={"KINESIS_STREAM": "properties"},
        prepare=(Step("kinesis", "create_stream", {"StreamName": "properties", "ShardCount": 1}),),
        shows="Property11",
        varies=(
            "effects kinesis properties * 1 json prop",
            "effects kinesis properties * 1 json timestamp",
        ),
    )


ATOM = {"AtomicNumber": 1, "Element": "Hydrogen", "Symbol": "H", "AtomicMass": 1.008}
SENT = (
    "effects sqs default messages * body json id",
    "effects sqs default messages * body json time",
)

CASES = (
    Case(
        "apigw-http-api-fifo-sqs-lambda-sns-sam/src/app.py",
        "sns",
        (sqs_event({"order": 1}, {"order": 2, "text": "é"}),),
        environment={"TOPIC_ARN": "arn:aws:sns:$ARN:alerts"},
        prepare=topic("alerts"),
        shows="SQS Event Notification",
    ),
    Case(
        "apigw-lambda-sns-monitoring-sam/src/code.py",
        "sns",
        ({"order": 1},),
        environment={"TOPIC_ARN": "arn:aws:sns:$ARN:alerts"},
        prepare=topic("alerts"),
        shows="order",
        varies=("results 0 answer body json messageId",),
    ),
    Case(
        "apigw-rest-api-lambda-vpc-sqs/src/handler.py",
        "sqs",
        ({"body": json.dumps({"message": "hello"})},),
        environment={"SQSqueueName": "$QUEUES/orders"},
        prepare=queue("orders"),
        shows='"body": "hello"',
    ),
    Case(
        "cloudwatch-account-subscription-Lambda-sns-notification/notification-lambda/index.py",
        "sns",
        (AWSLOGS,),
        environment={"SNS_TOPIC_ARN": "arn:aws:sns:$ARN:account"},
        prepare=topic("account"),
        shows="Log events received from log group: /aws/lambda/one",
    ),
    Case(
        "cwlogs-lambda-sns-sqs-cdk/src/lambda/index.py",
        "sns",
        (AWSLOGS,),
        environment={"TOPIC_ARN": "arn:aws:sns:$ARN:logs"},
        prepare=topic("logs"),
        shows="an Exception",
    ),
    Case(
        "cdk-closed-loop-serverless-control/cdk/lambda/CallPlannerLambda/handler.py",
        "cloudwatch events",
        ({"call": 7},),
        handler="handler",
        prepare=bus("default", {"source": ["thirdPartyCalls"]}),
        shows="Planned third party call event",
        varies=SENT,
    ),
    Case(
        "fifo-sqs-redrive/originalmessage/app.py",
        "sqs",
        (sqs_event({"order": 1}),),
        shows="Failed to process message",
        fails="Exception",
    ),
    Case(
        "fifo-sqs-redrive/redrivenmessage/app.py",
        "sqs",
        ({"Records": [{"body": '{"order": 1}', "receiptHandle": "$RECEIPT"}]},),
        environment={"QUEUE_URL": "$QUEUES/redriven"},
        prepare=queue("redriven", '{"order": 1}', '{"order": 2}')
        + (
            Step(
                "sqs",
                "receive_message",
                {"QueueUrl": "$QUEUES/redriven"},
                {"RECEIPT": "Messages 0 ReceiptHandle"},
            ),
        ),
        shows='"in flight": "0"',
    ),
    Case(
        "kinesis-lambda-error-handling/kinesis-consumer/kinesis-consumer-fn.py",
        "kinesis",
        (_kinesis(ATOM), _kinesis(ATOM, {**ATOM, "AtomicMass": 1})),
        environment={"KINESIS_STREAM_NAME": "atoms"},
        shows="'AtomicMass' field should be of type float.",
        fails="ValueError",
    ),
    Case(
        "lambda-eventbridge-sls/handler.py",
        "events",
        (
            {"body": '{"a": 1}', "isBase64Encoded": False},
            {"body": base64.b64encode(b'{"b": 2}').decode(), "isBase64Encoded": True},
        ),
        handler="post",
        environment={"SOURCE_NAME": "shop", "DETAIL_TYPE": "order"},
        prepare=bus("default", {"source": ["shop"]}),
        shows="order",
        varies=(
            *SENT,
            "results * answer body json Entries * EventId",
            "results * answer body json ResponseMetadata",
        ),
    ),
    Case(
        "lambda-eventbridge-sns-sam/src/app.py",
        "events",
        ({},),
        prepare=queue("bank")
        + tuple(
            step
            for name in ("bus_a", "bus_b", "bus_c")
            for step in bus(name, {"detail-type": ["Bank transaction"]}, "bank")
        ),
        shows="John Smith",
        varies=tuple(
            "effects sqs bank messages * body json " + name
            for name in ("id", "source", "time", "detail date", "detail bop_reportable")
        ),
    ),
    Case(
        "lambda-eventbridge-sqs-lambda-cdk-python/src/eventsGenerator.py",
        "events",
        ({},),
        prepare=bus("default", {"source": ["content-generator"]}),
        shows="3papi",
        varies=(*SENT, "effects sqs default messages * body json detail batchId"),
    ),
    _produces("lambda-kinesis-lambda-cdk/src/producer/lambda_function.py", "handler"),
    _produces("lambda-kinesis-lambda/producer/producer-function.py", "lambda_handler"),
    Case(
        "lambda-sns-cdk/src/lambda/handler.py",
        "sns",
        ({"topic_arn": "arn:aws:sns:$ARN:hello", "message": {"text": "hi"}},),
        handler="main",
        prepare=topic("hello"),
        shows='{\\"text\\": \\"hi\\"}',
    ),
    Case(
        "lambda-sns-sls/handler.py",
        "sns",
        ({"order": 1},),
        handler="handle",
        environment={"TOPIC_ARN": "arn:aws:sns:$ARN:hello"},
        prepare=topic("hello"),
        shows="TopicArn",
    ),
    Case(
        "lambda-sqs-cdk/lambda_fns/sendSqsMessage.py",
        "sqs",
        ({"order": 1},),
        handler="handler",
        prepare=queue("LambdaToSqsQueue"),
        shows='"messages": [{"body"',
    ),
    Case(
        "lambda-sqs-sls/handler.py",
        "sqs",
        ({"order": 1},),
        handler="handle",
        environment={"QUEUE_NAME": "orders"},
        prepare=queue("orders"),
        shows='"messages": [{"body"',
    ),
    Case(
        "serverless-message-processing/functions/decision_maker/app.py",
        "sqs",
        (
            sqs_event(
                {"messageId": "1", "payload": {"email": " a@b@example.con "}},
                {"messageId": "2", "payload": {}},
                {"messageId": "3", "remediation": {}},
                "no JSON",
            ),
        ),
        environment={"MAIN_QUEUE_URL": "$QUEUES/main", "FATAL_DLQ_URL": "$QUEUES/fatal"},
        prepare=queue("main") + queue("fatal"),
        shows="Remediation error",
    ),
    Case(
        "sqs-fifo-delayed-queue-dynamodb/lambda/process_message.py",
        "sqs dynamodb",
        (sqs_event("one", MessageGroupId="c-1"), sqs_event("two", MessageGroupId="c-1")),
        handler="handler",
        environment={"TABLE_NAME": "customers", "QUEUE_URL": "$QUEUES/downstream.fifo"},
        prepare=queue("downstream.fifo", FifoQueue="true", ContentBasedDeduplication="true")
        + table("customers", "customer_id"),
        shows='"itemIdentifier": "message-0"',
        varies=("effects dynamodb customers * ttl",),
    ),
    Case(
        "sqs-lambda-eb-cdk-python/lambda/submit_job.py",
        "sqs",
        ({},),
        handler="handler",
        environment={"QUEUE_URL": "$QUEUES/jobs"},
        prepare=queue("jobs", *("job %d" % number for number in range(7))),
        shows="Started 5 jobs.",
    ),
)
