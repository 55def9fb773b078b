"""Keeps the lines of an access log that tell of a failure of the server."""

from urllib.parse import unquote_plus

import boto3

s3 = boto3.client("s3")


def handler(event, context):
    source = event["Records"][0]["s3"]
    bucket, key = source["bucket"]["name"], unquote_plus(source["object"]["key"])
    log = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    kept = [line for line in log.splitlines(keepends=True) if b'" 5' in line]
    output = event["output"]
    s3.put_object(Bucket=output["bucket"], Key=output["key"], Body=b"".join(kept))
    return {"lines": len(kept)}
