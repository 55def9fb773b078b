"""Merges the word counts of many map outputs, and keeps the most frequent words."""

import json
from collections import Counter
from urllib.parse import unquote_plus

import boto3

s3 = boto3.client("s3")
WORDS_MAX = 100


def handler(event, context):
    total = Counter()
    for record in event["Records"]:
        source = record["s3"]
        bucket, key = source["bucket"]["name"], unquote_plus(source["object"]["key"])
        total.update(json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read()))
    most = sorted(total.items(), key=lambda item: (-item[1], item[0]))[:WORDS_MAX]
    output = event["output"]
    s3.put_object(Bucket=output["bucket"], Key=output["key"], Body=json.dumps(most).encode())
    return {"words": len(total)}
