"""Handlers of Step Functions, CloudWatch and its logs."""

import json

from case import Case, Step, bucket, machine, table

PASS = {"StartAt": "Pass", "States": {"Pass": {"Type": "Pass", "End": True}}}
BOOKING = "arn:aws:states:$ARN:stateMachine:booking"
EXPORT = {
    "logGroupName": "/shop",
    "fromTime": 0,
    "to": 1,
    "destination": "archive",
    "destinationPrefix": "x",
}


def _alarm(state):
    return {"Sns": {"Message": json.dumps({"AlarmName": "disk", "NewStateValue": state})}}


CASES = (
    Case(
        "appsync-lambda-sfn-cdk/cdk_momo/lambda/start_step_function.py",
        "stepfunctions",
        ({"arguments": {"input": {"id": "b-1"}}},),
        handler="handler",
        environment={"STEP_FNS_ARN": BOOKING},
        prepare=machine("booking", PASS),
        shows="bookedStatus",
    ),
    Case(
        "appsync-lambda-sfn-sam/src/app.py",
        "stepfunctions sqs",
        ({"arguments": {"input": {"id": "b-1"}}},),
        environment={"STATE_MACHINE_ARN": BOOKING},
        prepare=machine("booking", PASS),
        shows="bookedStatus",
    ),
    Case(
        "cdk-closed-loop-serverless-control/cdk/lambda/ThirdPartyProcessorLambda/handler.py",
        "cloudwatch",
        (
            {"detail": {"simulated_response": {"response_time": 5, "status_code": 503}}},
            {"detail": {}},
        ),
        handler="handler",
        shows='"StatusCode", "Value": "503"',
        varies=("effects cloudwatch 2 3 * 0",),
    ),
    Case(
        "cloudwatch-log-alarm-lambda-remediation-cdk/lambdas/remediation/handler.py",
        "ssm logs",
        ({"Records": [_alarm("ALARM"), _alarm("OK"), {"Sns": {"Message": "no JSON"}}]},),
        shows="Auto-remediation: disk",
    ),
    Case(
        "s3-event-sfn-lambda-ddb-sns/src/lambda-dynamoDb.py",
        "s3 dynamodb stepfunctions",
        (
            {
                "data": {"detail": {"bucket": {"name": "data"}, "object": {"key": "rows.csv"}}},
                "token": "a-token",
            },
        ),
        environment={"TableName": "rows"},
        prepare=bucket("data", {"rows.csv": b"t-1,1,Ann\nt-2,2,Bo\nwrong\n"})
        + table("rows", "transaction_id"),
        shows='{"S": "Bo"}',
        requests="SendTaskSuccess",
    ),
    Case(
        "sfn-callback-cdk/lambda/send_callback_token.py",
        "stepfunctions",
        ({"token": "a-token"},),
        handler="handler",
        shows="serverless-pattern",
        requests="SendTaskSuccess",
    ),
    Case(
        "sfn-log-export/src/functions/cloudwatch_snapshot/index.py",
        "logs",
        ({"name": "/shop"},),
        handler="handler",
        environment={"ARCHIVE_BUCKET": "archive", "BUCKET_PREFIX": "logs"},
        prepare=bucket("archive") + (Step("logs", "create_log_group", {"logGroupName": "/shop"}),),
        shows="logs/shop",
        varies=("results 0 answer taskId",),
    ),
    Case(
        "sfn-log-export/src/functions/export_status_check/index.py",
        "logs",
        ({"taskId": "$TASK"},),
        handler="handler",
        prepare=bucket("archive")
        + (
            Step("logs", "create_log_group", {"logGroupName": "/shop"}),
            Step("logs", "create_export_task", EXPORT, {"TASK": "taskId"}),
        ),
        shows="Status",
        requests="DescribeExportTasks",
        texts=(r'taskId\\": \\"[0-9a-f-]+',),
    ),
)
