"""Classifies a picture with a small convolutional network."""

import io
import json
from urllib.parse import unquote_plus

import boto3
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

s3 = boto3.client("s3")


def load(bucket, key):
    body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    return np.load(io.BytesIO(body), allow_pickle=False)


def convolve(planes, kernels):
    """Planes of height and width, with kernels of 3 by 3; then a rectifier."""
    windows = sliding_window_view(planes, (3, 3), axis=(1, 2))
    columns = windows.transpose(1, 2, 0, 3, 4).reshape(-1, planes.shape[0] * 9)
    summed = columns @ kernels.reshape(len(kernels), -1).T
    height, width = planes.shape[1] - 2, planes.shape[2] - 2
    return np.maximum(summed.T.reshape(len(kernels), height, width), 0.0)


def pool(planes):
    """The largest of each 2 by 2."""
    count, height, width = planes.shape
    even = planes[:, : height // 2 * 2, : width // 2 * 2]
    return even.reshape(count, height // 2, 2, width // 2, 2).max(axis=(2, 4))


def handler(event, context):
    model = load(event["model"]["bucket"], event["model"]["key"])
    source = event["Records"][0]["s3"]
    picture = load(source["bucket"]["name"], unquote_plus(source["object"]["key"]))
    planes = picture.astype(np.float32).transpose(2, 0, 1) / 255.0
    for name in ("first", "second", "third"):
        planes = pool(convolve(planes, model[name]))
    scores = planes.mean(axis=(1, 2)) @ model["classes"]
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    answer = {
        "class": int(chances.argmax()),
        "chances": [round(float(chance), 5) for chance in chances],
    }
    output = event["output"]
    s3.put_object(Bucket=output["bucket"], Key=output["key"], Body=json.dumps(answer).encode())
    return answer["class"]
