"""Files that the rule takes and that are not run, each with its reason."""

DURABLE = (
    "it ends a callback of a durable execution of Lambda, which neither moto nor the gateway has"
)
LEFT_OUT = {
    "apigw-websocket-api-bedrock-streaming/src/getBoto3.py": (
        "it installs boto3 from PyPI in each invocation, and answers a URL of CloudFormation"
    ),
    "lambda-durable-human-approval-sam/src/callback_handler.py": DURABLE,
    "lambda-durable-investigation-escalation/src/callback_handler.py": DURABLE,
}
