"""A function with stock boto3 and AWS's own runtime interface client, `awslambdaric`. As a program it
does its work once, and prints the result: that is the comparison."""

import hashlib
import json
import sys

import boto3
from botocore.exceptions import ClientError

KEY = "a b/ü+%"


def code(call, **parameters):
    try:
        call(**parameters)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return None


def work(bucket):
    s3 = boto3.client("s3")
    small = b"small " * 1000
    s3.put_object(Bucket=bucket, Key=KEY, Body=small, ContentType="text/plain", Metadata={"who": "me"})
    got = s3.get_object(Bucket=bucket, Key=KEY)
    out = {"get": [hashlib.sha256(got["Body"].read()).hexdigest(), got["ContentType"], got["Metadata"]]}
    out["get"].append(got["ETag"])
    part = s3.get_object(Bucket=bucket, Key=KEY, Range="bytes=3-9")
    out["range"] = [part["Body"].read().decode(), part["ContentRange"]]
    large = bytes(range(256)) * (13 << 12)
    with open("/tmp/large", "wb") as file:
        file.write(large)
    s3.upload_file("/tmp/large", bucket, "large")
    out["head"] = s3.head_object(Bucket=bucket, Key="large")["ContentLength"]
    s3.download_file(bucket, "large", "/tmp/again")
    with open("/tmp/again", "rb") as file:
        out["large"] = file.read() == large
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "large"})
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, PaginationConfig={"PageSize": 2})
    out["list"] = [[o["Key"], o["Size"], o["ETag"]] for page in pages for o in page["Contents"]]
    out["missing"] = code(s3.get_object, Bucket=bucket, Key="none")
    out["absent"] = code(s3.head_object, Bucket=bucket, Key="none")
    objects = [{"Key": "copy"}, {"Key": "large"}]
    out["deleted"] = len(s3.delete_objects(Bucket=bucket, Delete={"Objects": objects})["Deleted"])
    return out


def handler(event, context):
    if "fail" in event:
        raise ValueError(event["fail"])
    return work(event["bucket"])


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1])))
