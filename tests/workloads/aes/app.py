"""Encrypts a document with AES-SIV: the same document gives the same cipher text."""

import os
from urllib.parse import unquote_plus

import boto3
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

s3 = boto3.client("s3")


def handler(event, context):
    source = event["Records"][0]["s3"]
    bucket, key = source["bucket"]["name"], unquote_plus(source["object"]["key"])
    document = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    cipher = AESSIV(bytes.fromhex(os.environ["DATA_KEY"]))
    sealed = cipher.encrypt(document, [key.encode()])
    output = event["output"]
    s3.put_object(Bucket=output["bucket"], Key=output["key"], Body=sealed)
    return {"bytes": len(sealed)}
