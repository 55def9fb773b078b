import os

import boto3


def handler(event, context):
    count = boto3.client("s3").list_objects_v2(Bucket="deployments")["KeyCount"]
    return {"word": os.environ["WORD"], "objects": count > 0}
