import json
import os

import boto3

queue = boto3.client("sqs")


def handler(event, context):
    sent = queue.send_message(QueueUrl=os.environ["QUEUE"], MessageBody=json.dumps(event))
    return {"message": sent["MessageId"]}
