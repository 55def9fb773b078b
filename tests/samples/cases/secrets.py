"""Handlers of Secrets Manager and Systems Manager."""

import base64

from case import Case, Step, secret

from .texts import UUID

WAF = "apigw-http-api-waf-cloudfront-terraform/src/"
TOKEN = "11111111-2222-4333-8444-555555555555"


def _rotation(*steps):
    return tuple(
        {"SecretId": "origin", "ClientRequestToken": TOKEN, "Step": step} for step in steps
    )


CASES = (
    Case(
        WAF + "auth_function.py",
        "secretsmanager",
        tuple(
            {
                "headers": headers,
                "routeArn": "arn:aws:execute-api:us-east-1:123456789012:abc/prod/GET/x",
            }
            for headers in ({"x-origin-verify": "s3cret"}, {"x-origin-verify": "wrong"}, {})
        ),
        environment={"SECRET_NAME": "origin"},
        prepare=secret("origin", "s3cret"),
        shows="arn:aws:execute-api:us-east-1:123456789012:abc/prod/GET/*",
        fails="Exception",
        texts=(UUID,),
    ),
    Case(
        WAF + "edge_function.py",
        "secretsmanager",
        (
            {
                "Records": [
                    {
                        "cf": {
                            "request": {
                                "uri": "/x",
                                "origin": {
                                    "custom": {
                                        "customHeaders": {
                                            "x-origin-verify": [{"value": "origin"}],
                                            "x-origin-verify-region": [{"value": "us-east-1"}],
                                        }
                                    }
                                },
                            }
                        }
                    }
                ]
            },
        ),
        prepare=secret("origin", "s3cret"),
        shows='[{"key": "x-origin-verify", "value": "s3cret"}]',
        texts=(UUID,),
    ),
    Case(
        WAF + "secret_rotation_function.py",
        "secretsmanager",
        _rotation(
            "createSecret", "setSecret", "testSecret", "finishSecret", "finishSecret", "other"
        ),
        environment={"UNIQUE_KEY_LENGTH": "20"},
        prepare=(
            Step(
                "secretsmanager",
                "create_secret",
                {"Name": "origin", "SecretString": "s3cret"},
                {"FIRST": "VersionId"},
            ),
            # moto enables the rotation by making a version without a text current.
            Step(
                "secretsmanager",
                "rotate_secret",
                {"SecretId": "origin", "RotationRules": {"AutomaticallyAfterDays": 30}},
                {"EMPTY": "VersionId"},
            ),
            Step(
                "secretsmanager",
                "update_secret_version_stage",
                {
                    "SecretId": "origin",
                    "VersionStage": "AWSCURRENT",
                    "MoveToVersionId": "$FIRST",
                    "RemoveFromVersionId": "$EMPTY",
                },
            ),
            Step(
                "secretsmanager",
                "put_secret_value",
                {
                    "SecretId": "origin",
                    "ClientRequestToken": TOKEN,
                    "SecretString": "to come",
                    "VersionStages": ["AWSPENDING"],
                },
            ),
        ),
        shows='"text": "to come"',
        texts=(UUID,),
    ),
    Case(
        "automate-secrets-manager-tags/lambda/index.py",
        "secretsmanager",
        (
            {
                "detail": {
                    "userIdentity": {"principalId": "AROA:ann"},
                    "requestParameters": {"name": "db"},
                }
            },
            {"detail": {}},
        ),
        prepare=secret("db", "s3cret"),
        shows='{"Key": "LoginUserName", "Value": "ann"}',
        texts=(UUID,),
    ),
    Case(
        "eventbridge-schedule-secret-rotation-cdk/src/lambda/rotation_lambda.py",
        "secretsmanager",
        ({},),
        environment={"SECRET_ID": "db"},
        prepare=secret("db", "s3cret"),
        shows="secret_",
        texts=(UUID, r"secret_\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"),
    ),
    Case(
        "kinesis-data-stream-firehose-apigw-sam/src/lambda_authorizer.py",
        "secretsmanager",
        tuple(
            {"authorizationToken": token, "methodArn": "arn:aws:execute-api:x"}
            for token in ("s3cret", "wrong")
        ),
        environment={"SECRET_NAME": "api"},
        prepare=secret("api", "s3cret"),
        shows='"Effect": "Allow"',
        texts=(UUID,),
    ),
    Case(
        "lambda-ssm-sls/handler.py",
        "ssm",
        (
            {"body": "one", "isBase64Encoded": False},
            {"body": base64.b64encode("zwei é".encode()).decode(), "isBase64Encoded": True},
        ),
        handler="put",
        environment={"PARAMETER_NAME": "/shop/colour"},
        shows="zwei",
    ),
    Case(
        "lambda-ssm-sls/handler.py",
        "ssm",
        ({},),
        handler="get",
        environment={"PARAMETER_NAME": "/shop/colour"},
        prepare=(
            Step(
                "ssm", "put_parameter", {"Name": "/shop/colour", "Value": "red", "Type": "String"}
            ),
        ),
        shows='"body": "\\"red\\""',
    ),
    Case(
        "lambda-vpc-interface-endpoints-secrets-manager/lambda/LambdaFunctionPrivate/handler.py",
        "secretsmanager",
        ({},),
        prepare=secret("db", "s3cret"),
        shows="SecretList",
        varies=(
            "results 0 answer api_response json ResponseMetadata",
            *(
                "results 0 answer api_response json SecretList * " + name
                for name in ("ARN", "CreatedDate", "LastChangedDate", "SecretVersionsToStages")
            ),
        ),
        texts=(UUID,),
    ),
)
