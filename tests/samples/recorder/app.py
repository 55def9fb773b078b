"""A function that the samples invoke: it writes its event into the bucket `calls`."""

import json

import boto3

s3 = boto3.client("s3")


def handler(event, context):
    """Keeps the event below the function's name."""
    key = "%s/%s.json" % (context.function_name, context.aws_request_id)
    s3.put_object(Bucket="calls", Key=key, Body=json.dumps(event, sort_keys=True).encode())
    return {"recorded": True}
