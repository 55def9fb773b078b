import json
import os

import boto3

table = boto3.resource("dynamodb").Table(os.environ["TABLE"])


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        table.put_item(Item={"id": order["id"], "of": order["of"]})
