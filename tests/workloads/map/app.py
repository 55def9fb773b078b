"""Counts the words of a shard of text."""

import json
import re
from collections import Counter
from urllib.parse import unquote_plus

import boto3

s3 = boto3.client("s3")
WORD = re.compile(r"[a-z']+")


def handler(event, context):
    source = event["Records"][0]["s3"]
    bucket, key = source["bucket"]["name"], unquote_plus(source["object"]["key"])
    text = s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode()
    counts = Counter(WORD.findall(text.lower()))
    output = event["output"]
    s3.put_object(
        Bucket=output["bucket"],
        Key=output["key"],
        Body=json.dumps(counts, sort_keys=True).encode(),
    )
    return {"words": len(counts)}
