"""Handlers of DynamoDB, by its client and by its resource."""

import base64
import json

from case import Case, sqs_event, table

from .texts import ISO_TIME, UUID

SAGA = "saga-pattern-lambda-durable-functions/saga-pattern-cdk/lambda/"
ORDER = {"id": "t-1", "name": "Ann", "description": "two chairs", "customer": "c-7"}


def body(value, **more):
    """A request of API Gateway."""
    return {"body": json.dumps(value), **more}


def _reserves(kind, name, table_name, key, says, varies=()):
    return Case(
        SAGA + "%s/%s.py" % (kind, name),
        "dynamodb",
        ({key: "r-1", "price": 12.5}, {}),
        environment={"TABLE_NAME": table_name},
        prepare=table(table_name, key),
        shows=says,
        varies=varies,
        texts=(ISO_TIME, UUID),
    )


def _cancels(kind, name, table_name, key):
    kept = {key: {"S": "r-1"}, "status": {"S": "RESERVED"}}
    return Case(
        SAGA + "%s/%s.py" % (kind, name),
        "dynamodb",
        ({key: "r-1"}, {key: "absent"}),
        environment={"TABLE_NAME": table_name},
        prepare=table(table_name, key, items=(kept,)),
        shows="CANCELLED",
        fails="LookupError",
        texts=(ISO_TIME,),
    )


CASES = (
    Case(
        "apigw-http-api-lambda-dynamodb-python-cdk/lambda/apigw-handler/index.py",
        "dynamodb",
        (body({"year": 1999, "title": "A film", "id": "f-1"}), {"body": None}),
        handler="handler",
        environment={"TABLE_NAME": "movies"},
        prepare=table("movies", "id"),
        shows="The Amazing Spider-Man 2",
        texts=(UUID,),
    ),
    Case(
        "apigw-lambda-dynamodb-kinesis-lambda/src/apiHandler.py",
        "dynamodb",
        (body(ORDER),),
        prepare=table("Transaction", "id"),
        shows="two chairs",
    ),
    Case(
        "apigw-lambda-dynamodb-stream-lambda/src/apiHandler.py",
        "dynamodb",
        (body(ORDER),),
        prepare=table("DemoStreamDynamoDBToLambda", "id"),
        shows="two chairs",
    ),
    Case(
        "apigw-lambda-dynamodb-terraform/src/app.py",
        "dynamodb",
        (body({"year": 1999, "title": "A film"}), {"body": ""}),
        environment={"DDB_TABLE": "movies"},
        prepare=table("movies", "year:N", "title"),
        shows="A film",
    ),
    Case(
        "apigw-lambda-dynamodb/src/index.py",
        "dynamodb",
        ({},),
        prepare=table("WeatherData", "id"),
        shows="Sunny",
    ),
    Case(
        "apigw-websocket-api-bedrock-streaming/src/onConnect.py",
        "dynamodb",
        ({"requestContext": {"connectionId": "c-1"}, "queryStringParameters": {"name": "Ann"}}, {}),
        environment={"WEBSOCKETS_DDB_TABLE": "connections"},
        prepare=table("connections", "connectionId"),
        shows="Ann",
    ),
    Case(
        "apigw-websocket-api-bedrock-streaming/src/onDisconnect.py",
        "dynamodb",
        ({"requestContext": {"connectionId": "c-1"}},),
        environment={"WEBSOCKETS_DDB_TABLE": "connections"},
        prepare=table("connections", "connectionId", items=({"connectionId": {"S": "c-1"}},)),
        shows='"connections": []',
    ),
    Case(
        "eventbridge-pipes-sqs-lambda-api-destination/src/lambdaToDynamoDB.py",
        "dynamodb",
        (body({"order_id": "o-1", "address": "Main St 1", "amount": "12", "type": "gift"}),),
        prepare=table("OrderTable", "id"),
        shows="Main St 1",
    ),
    Case(
        "eventbridge-scheduler-ai-agent-trigger/action_group.py",
        "dynamodb",
        (
            {
                "apiPath": "/record-task-execution",
                "actionGroup": "tasks",
                "httpMethod": "POST",
                "parameters": [
                    {"name": "taskId", "value": "t-1"},
                    {"name": "taskType", "value": "report"},
                    {"name": "executionSummary", "value": "all is well"},
                ],
            },
            {
                "apiPath": "/get-last-execution",
                "parameters": [{"name": "taskType", "value": "report"}],
            },
            {"apiPath": "/other"},
        ),
        environment={"DYNAMODB_TABLE": "tasks"},
        prepare=table("tasks", "TaskId"),
        shows="all is well",
        texts=(ISO_TIME,),
    ),
    Case(
        "inspector-eventbridge-multi-destinations/write_to_dynamodb/app.py",
        "dynamodb",
        (
            {
                "id": "e-1",
                "detail": {"severity": "HIGH", "status": "ACTIVE", "inspectorScore": 7.5},
            },
            {"id": "e-2", "detail": {}},
        ),
        prepare=table("MyDynamoDBTable", "UUID"),
        shows='"N": "7.5"',
    ),
    Case(
        "kinesis-lambda-ddb-cdk-java/lambda-code/index.py",
        "dynamodb",
        (
            {
                "Records": [
                    {"kinesis": {"data": base64.b64encode(json.dumps(one).encode()).decode()}}
                    for one in (
                        {"id": "p-1", "price": 12.5, "name": "chair"},
                        {"id": "p-2", "price": 3, "name": "nail"},
                    )
                ]
            },
        ),
        prepare=table("table-name", "id"),
        shows="chair",
    ),
    Case(
        "lambda-durable-esm-and-chaining/src/storage/handler.py",
        "dynamodb",
        (
            {
                "transformed_data": {"total": 3, "names": ["a", "b"]},
                "execution_id": "x-1",
                "original_data": {"data_source": "shop", "ok": True, "none": None},
            },
        ),
        environment={"PROCESSED_DATA_TABLE": "processed"},
        prepare=table("processed", "execution_id"),
        shows="shop",
        texts=(ISO_TIME,),
    ),
    Case(
        "lambda-durable-webhook-sam-python/src/status_query.py",
        "dynamodb",
        (
            {"pathParameters": {"executionToken": "t-1"}},
            {"pathParameters": {"executionToken": "t-2"}},
            {"pathParameters": {}},
        ),
        environment={"EVENTS_TABLE_NAME": "events"},
        prepare=table(
            "events",
            "executionToken",
            items=(
                {
                    "executionToken": {"S": "t-1"},
                    "status": {"S": "DONE"},
                    "createdAt": {"S": "monday"},
                    "lastUpdated": {"S": "tuesday"},
                    "webhookPayload": {"M": {"type": {"S": "push"}, "sender": {"S": "Ann"}}},
                },
            ),
        ),
        shows="tuesday",
    ),
    _cancels("car", "cancel_car", "saga-car-rentals", "rentalId"),
    _reserves("car", "reserve_car", "saga-car-rentals", "rentalId", "Sedan"),
    _cancels("flight", "cancel_flight", "saga-flight-bookings", "bookingId"),
    _reserves(
        "flight",
        "reserve_flight",
        "saga-flight-bookings",
        "bookingId",
        "JFK",
        (
            "effects dynamodb saga-flight-bookings * flightNumber",
            "results * answer flightNumber",
        ),
    ),
    _cancels("hotel", "cancel_hotel", "saga-hotel-reservations", "reservationId"),
    _reserves("hotel", "reserve_hotel", "saga-hotel-reservations", "reservationId", "Deluxe"),
    Case(
        "sqs-lambda-dynamodb-cdk/lambda_fns/insertRecord.py",
        "dynamodb",
        (
            sqs_event(
                "{'people': [{'PutRequest': {'Item': {'id': {'S': 'p-1'}}}}]}",
                "{'people': 'wrong'}",
            ),
        ),
        handler="handler",
        prepare=table("people", "id"),
        shows="p-1",
    ),
    Case(
        "systems-manager-automation-to-lambda/src/app.py",
        "dynamodb",
        tuple(
            {
                "ssm_automation_parameters": {
                    "table_name": name,
                    "partition_key_input": "Blue",
                    "sort_key_input": "Ann",
                }
            }
            for name in ("music", "absent")
        ),
        handler="handler",
        prepare=table("music", "Album", "Artist"),
        shows="Blue",
        fails="ResourceNotFoundException",
    ),
)
