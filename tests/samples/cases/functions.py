"""Handlers that invoke other functions."""

import hashlib
import hmac
import json

from case import Case, bucket, sqs_event

from .texts import UUID

HOOK = json.dumps({"type": "push", "sender": "Ann"})
SIGNED = "sha256=" + hmac.new(b"hook", HOOK.encode(), hashlib.sha256).hexdigest()
LARGE = {"payload": "x" * 1_200_000}

CASES = (
    Case(
        "apigw-websocket-ack-connect-route/src/lambda_function.py",
        "lambda",
        (
            {
                "requestContext": {
                    "routeKey": "$connect",
                    "domainName": "example.com",
                    "stage": "prod",
                    "connectionId": "c-1",
                }
            },
        ),
        callees=("WebsocketPostToConnectionId",),
        awaits=("calls", "", 1),
        shows="https://example.com/prod",
        texts=(UUID,),
    ),
    Case(
        "lambda-durable-webhook-sam-python/src/webhook_validator.py",
        "lambda",
        tuple(
            {"body": HOOK, "headers": {"x-hub-signature-256": signature}}
            for signature in (SIGNED, "sha256=wrong")
        ),
        environment={"PROCESSOR_FUNCTION_NAME": "processor", "WEBHOOK_SECRET": "hook"},
        callees=("processor",),
        awaits=("calls", "", 1),
        shows="Invalid signature",
        texts=(UUID,),
    ),
    Case(
        "lambda-s3-async-lambda/sendPayloadFunction/app.py",
        "lambda s3",
        ({"small": True}, LARGE),
        environment={
            "AsyncLambdaFunctionName": "asynchronous",
            "PayloadPrefix": "payload-",
            "PayloadBucketName": "payloads",
        },
        prepare=bucket("payloads"),
        callees=("asynchronous",),
        awaits=("calls", "", 1),
        shows="xxxxxxxxxxxxxxxx",
        varies=("results * answer body json ResponseMetadata",),
        texts=(UUID, r"payload-\d{14}"),
        fault="the members of the result of `put_object` come in another order; else the same",
    ),
    Case(
        "sqs-lambda-tenant-isolation-sam-py/sqs-processor/index.py",
        "lambda",
        (
            sqs_event({"order": 1}, "no JSON", MessageGroupId="tenant-1"),
            sqs_event({}, MessageGroupId="*"),
        ),
        handler="handler",
        environment={"TENANT_ISOLATED_FUNCTION_NAME": "isolated"},
        callees=("isolated",),
        awaits=("calls", "", 1),
        shows="isolated/",
        fails="ValueError",
        texts=(UUID,),
    ),
)
