"""Handlers beyond the rule: of services whose resources the host does not know, chosen for their
protocols (forms, paths, streamed answers, clients with an `endpoint_url`, requests while the module
is imported)."""

import json

from case import Case, Step, bucket, s3_event, sqs_event, table

IOT_ANSWER = ("results * answer body json ResponseMetadata",)
# moto's names of user pools.
POOL = r"us-east-1_\w+"


def _comprehends(path, events, shows):
    return Case(path, "comprehend", events, shows=shows, beyond=True)


def _transcribes(path, output):
    return Case(
        path,
        "transcribe",
        (s3_event("talks", "one.mp3"),),
        environment={"DESTINATION_BUCKET": output, "OUTPUT_BUCKET": output},
        prepare=bucket("talks") + bucket(output),
        shows="s3://talks/one.mp3",
        texts=(r"one\d+",),
        beyond=True,
    )


def _connects(path, event, environment=None, varies=()):
    return Case(
        path,
        "apigatewaymanagementapi",
        (event,),
        environment=environment or {},
        requests="/@connections/",
        shows="POST /@connections/c-1",
        varies=varies,
        beyond=True,
    )


def _pool():
    """A user pool, `$POOL`, whose users have the fingerprint of a certificate."""
    schema = [{"Name": "cert_fingerprint", "AttributeDataType": "String", "Mutable": True}]
    parameters = {"PoolName": "people", "Schema": schema}
    return (Step("cognito-idp", "create_user_pool", parameters, {"POOL": "UserPool Id"}),)


DATABASE = Step(
    "rds",
    "create_db_instance",
    {
        "DBInstanceIdentifier": "shop",
        "DBInstanceClass": "db.t3.micro",
        "Engine": "postgres",
        "AllocatedStorage": 20,
    },
)
REMINDER = {
    "Keys": {"id": {"S": "r-1"}},
    "NewImage": {
        "datetime": {"S": "2040-01-01T10:00:00Z"},
        "description": {"S": "dentist"},
        "email": {"S": "ann@example.com"},
    },
}
ROLE = "arn:aws:iam::123456789012:role/scheduler"
SENDER = Step("ses", "verify_email_identity", {"EmailAddress": "shop@example.com"})

CASES = (
    Case(
        "api-lambda-ses/src/index.py",
        "ses",
        ({},),
        handler="handler",
        environment={"SENDER": "shop@example.com", "RECIPIENT": "ann@example.com"},
        prepare=(SENDER,),
        requests="Action=SendEmail",
        shows="Amazon+SES+Test",
        texts=(r"Message ID:[\w-]+",),
        beyond=True,
    ),
    Case(
        "apigw-cognito-certificate-bound-access-token/handlers/pre_token_gen_lambda.py",
        "cognito-idp",
        ({"userPoolId": "$POOL", "userName": "ann"}, {"userPoolId": "$POOL", "userName": "bo"}),
        prepare=_pool()
        + (
            Step(
                "cognito-idp",
                "admin_create_user",
                {
                    "UserPoolId": "$POOL",
                    "Username": "ann",
                    "UserAttributes": [{"Name": "custom:cert_fingerprint", "Value": "ab:cd"}],
                },
            ),
        ),
        shows="ab:cd",
        texts=(POOL,),
        beyond=True,
    ),
    Case(
        "apigw-dynamodb-lambda-scheduler-ses-auto-deletion-sam/src/scheduleHandler.py",
        "scheduler",
        tuple(
            {"Records": [{"eventName": name, "dynamodb": REMINDER}]}
            for name in ("INSERT", "MODIFY")
        ),
        environment={"SCHEDULER_ROLE_ARN": ROLE, "SES_SENDER_IDENTITY": "shop@example.com"},
        shows="at(2040-01-01T09:50:00)",
        beyond=True,
    ),
    _comprehends(
        "apigw-lambda-comprehend-cdk-python/src/lambda_function.py",
        ({"body": '{"input": "a good day"}'},),
        "Confidence Score",
    ),
    _comprehends(
        "apigw-lambda-comprehend-sam/src/app.py",
        ({"body": '{"input": "a good day"}'},),
        "confidence_scores",
    ),
    _comprehends("lambda-comprehend/src/index.py", ({"text": "a good day"},), "comprehend_scores"),
    Case(
        "apigw-lambda-iot-cdk/src/handler.py",
        "iot-data",
        ({"body": json.dumps({"topic": "shop/orders", "payload": {"order": 1}})}, {"body": "{}"}),
        handler="handler",
        requests="/topics/",
        shows="POST /topics/shop%2Forders",
        varies=("results 0 answer body json ResponseMetadata",),
        beyond=True,
    ),
    Case(
        "apigw-sqs-lambda-iot/src/app.py",
        "iot-data",
        (sqs_event({"topic": "shop/orders", "message": {"order": 1}}), sqs_event("no JSON")),
        environment={"IOT_DATA_ENDPOINT": "$MOTO", "IOT_TOPIC": "shop/other"},
        requests="/topics/",
        shows="POST /topics/shop%2Fother",
        varies=IOT_ANSWER,
        beyond=True,
    ),
    Case(
        "iot-lambda-pub-receiver-cdk/src/publisher_function.py",
        "iot-data",
        ({"order": 1},),
        handler="handler",
        environment={"MQTT_TOPIC_REGION": "us-east-1", "MQTT_TOPIC_NAME": "orders"},
        requests="/topics/",
        shows="POST /topics/orders",
        beyond=True,
    ),
    Case(
        "apigw-lambda-sagemaker-jumpstartendpoint-cdk-python/lambda/InvokeSagemakerEndpointLambda.py",
        "sagemaker-runtime",
        ({"body": json.dumps({"query": "hello"})},),
        environment={"SAGEMAKER_ENDPOINT_NAME": "model"},
        requests="/invocations",
        shows="POST /endpoints/model/invocations",
        beyond=True,
    ),
    _connects(
        "apigw-websocket-ack-connect-route/src/lambda_function_postToConnection.py",
        {"url": "$MOTO", "connectionId": "c-1"},
    ),
    _connects(
        "apigw-websocket-api-sqs-lambda-terraform/src/app.py",
        {
            "Records": [
                {
                    "body": "hello",
                    "messageAttributes": {
                        "connectionId": {"stringValue": "c-1"},
                        "requestId": {"stringValue": "q-1"},
                    },
                }
            ]
        },
        {"ApiGatewayEndpoint": "$MOTO"},
    ),
    Case(
        "apigw-lambda-bedrock-cdk-python/function_code/index.py",
        "bedrock-runtime",
        ({"body": '{"prompt": "a poem"}'},),
        handler="handler",
        requests="/model/",
        shows="a poem",
        beyond=True,
    ),
    Case(
        "cdk-lambda-scheduler-ses/scheduler_function/eventbridge_scheduler.py",
        "scheduler",
        ({"datetime": "2040-01-01T10:00:00Z", "message": "approve", "email": "ann@example.com"},),
        environment={"SCHEDULER_ROLE_ARN": ROLE, "SES_SENDER_IDENTITY": "shop@example.com"},
        shows="Pipeline Approval Reminder",
        beyond=True,
    ),
    Case(
        "lambda-athena-sam/function/athenaquerymaker.py",
        "athena",
        ({"dbQuery": "SELECT 1", "dbName": "shop", "s3OutputLocation": "s3://out/"},),
        requests="StartQueryExecution",
        shows="SELECT 1",
        texts=(r'ClientRequestToken\\": \\"[\w-]+',),
        beyond=True,
    ),
    Case(
        "lambda-glue-s3/functions/glue.py",
        "glue",
        ({},),
        handler="handler",
        environment={"JOB_NAME": "nightly"},
        prepare=(
            Step(
                "glue",
                "create_job",
                {
                    "Name": "nightly",
                    "Role": "r",
                    "Command": {"Name": "glueetl", "ScriptLocation": "s3://x"},
                },
            ),
        ),
        requests="StartJobRun",
        shows="nightly",
        beyond=True,
    ),
    Case(
        "rekognition-s3-detectlabels-python/src/lambda_function.py",
        "s3 rekognition",
        ({"detail": {"bucket": {"name": "photos"}, "object": {"key": "cat.jpg"}}},),
        handler="handler",
        environment={"OUTPUT_BUCKET": "labels"},
        prepare=bucket("photos", {"cat.jpg": b"jpeg"}) + bucket("labels"),
        shows="rekognition-output-cat.json",
        beyond=True,
    ),
    Case(
        "s3-lambda-rekognition-ddb-cdk/lib/rekognitionLambda/lambda_function.py",
        "rekognition dynamodb",
        (s3_event("photos", "cat.jpg"),),
        environment={"TABLE_NAME": "labels"},
        prepare=table("labels", "file_name"),
        shows="cat.jpg",
        varies=("effects dynamodb labels * labels S json ResponseMetadata",),
        beyond=True,
    ),
    Case(
        "s3-lambda-ses-sam/src/app.py",
        "s3 ses",
        (s3_event("photos", "cat.jpg"),),
        environment={
            "S3_BUCKET": "photos",
            "SENDER_EMAIL": "shop@example.com",
            "RECIPIENT_EMAIL": "ann@example.com",
        },
        prepare=bucket("photos", {"cat.jpg": b"jpeg"}) + (SENDER,),
        requests="Action=SendEmail",
        shows="You+can+access+it+with+this+pre-signed+URL",
        # The signature, and behind it the time at which the URL expires.
        texts=(r"Signature%3D[\w%-]+",),
        fault="the presigned URL has Signature Version 4; botocore's has Version 2 here",
        fault_shows="X-Amz-Algorithm%3DAWS4-HMAC-SHA256",
        beyond=True,
    ),
    _transcribes(
        "s3-lambda-transcribe-cdk/assets/file-uploaded-trigger/lambda_function.py", "texts"
    ),
    _transcribes("s3-lambda-transcribe-sam/src/app.py", "texts"),
    Case(
        "sfn-log-export/src/functions/query_log_groups/index.py",
        "resourcegroupstaggingapi logs lambda sts",
        ({},),
        handler="handler",
        environment={"EXPORT_TAGS": "export = yes, "},
        prepare=(
            Step("logs", "create_log_group", {"logGroupName": "/shop", "tags": {"export": "yes"}}),
            Step("logs", "create_log_group", {"logGroupName": "/other"}),
        ),
        shows='"logGroups": [{"name": "/shop',
        beyond=True,
    ),
    Case(
        "systems-manager-automation-to-stepfunctions/src/create-snapshot-lamda-function.py",
        "rds",
        tuple(
            {"ssm_automation_parameters": {"db_instance_id": name}} for name in ("shop", "absent")
        ),
        handler="handler",
        prepare=(DATABASE,),
        shows="MaxRetries",
        fails="DBInstanceNotFoundFault",
        texts=(r"rds-snapshot-\d+",),
        beyond=True,
    ),
    Case(
        "systems-manager-automation-to-stepfunctions/src/get-snapshot-status-lamda-function.py",
        "rds",
        ({"SnapshotDetails": {"Snapshot_Name": "one", "db_name": "shop"}},),
        handler="handler",
        prepare=(
            DATABASE,
            Step(
                "rds",
                "create_db_snapshot",
                {"DBSnapshotIdentifier": "one", "DBInstanceIdentifier": "shop"},
            ),
        ),
        shows="Snapshot_Status",
        beyond=True,
    ),
    Case(
        "textract-lambda-sam-python/src/lambda-start-detect-document-text-textract.py",
        "textract dynamodb",
        (s3_event("scans", "one.png"),),
        environment={"dynamoDBTableName": "scans"},
        prepare=table("scans", "Image"),
        shows="one.png",
        varies=("effects dynamodb scans * DetectedText M ResponseMetadata",),
        beyond=True,
    ),
)
