"""Compresses a document, as gzip(1) does where it is not told otherwise."""

import gzip
from urllib.parse import unquote_plus

import boto3

s3 = boto3.client("s3")


def handler(event, context):
    source = event["Records"][0]["s3"]
    bucket, key = source["bucket"]["name"], unquote_plus(source["object"]["key"])
    document = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    packed = gzip.compress(document, compresslevel=6, mtime=0)
    output = event["output"]
    s3.put_object(Bucket=output["bucket"], Key=output["key"], Body=packed)
    return {"bytes": len(packed)}
