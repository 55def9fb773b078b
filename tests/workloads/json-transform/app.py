"""Turns lines of orders into one document: what each customer has ordered."""

import json
from urllib.parse import unquote_plus

import boto3

s3 = boto3.client("s3")


def handler(event, context):
    source = event["Records"][0]["s3"]
    bucket, key = source["bucket"]["name"], unquote_plus(source["object"]["key"])
    customers = {}
    for line in s3.get_object(Bucket=bucket, Key=key)["Body"].read().splitlines():
        order = json.loads(line)
        customer = customers.setdefault(order["customer"], {"orders": 0, "cents": 0})
        customer["orders"] += 1
        customer["cents"] += sum(part["cents"] for part in order["lines"])
    output = event["output"]
    s3.put_object(
        Bucket=output["bucket"],
        Key=output["key"],
        Body=json.dumps(customers, sort_keys=True).encode(),
        ContentType="application/json",
    )
    return {"customers": len(customers)}
