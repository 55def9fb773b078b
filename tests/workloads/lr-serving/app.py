"""Serves a logistic regression: probabilities for a batch of samples."""

import io
import json
from urllib.parse import unquote_plus

import boto3
import numpy as np

s3 = boto3.client("s3")


def load(bucket, key):
    body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    return np.load(io.BytesIO(body), allow_pickle=False)


def handler(event, context):
    model = load(event["model"]["bucket"], event["model"]["key"])
    source = event["Records"][0]["s3"]
    samples = load(source["bucket"]["name"], unquote_plus(source["object"]["key"]))
    scores = samples @ model[:-1] + model[-1]
    chances = 1.0 / (1.0 + np.exp(-scores))
    answer = json.dumps([round(float(chance), 5) for chance in chances]).encode()
    output = event["output"]
    s3.put_object(Bucket=output["bucket"], Key=output["key"], Body=answer)
    return {"samples": len(samples)}
