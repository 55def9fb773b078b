"""Halves a photograph."""

import io
from urllib.parse import unquote_plus

import boto3
from PIL import Image, JpegImagePlugin  # the plugin, at import and not at the first picture

s3 = boto3.client("s3")


def handler(event, context):
    source = event["Records"][0]["s3"]
    bucket, key = source["bucket"]["name"], unquote_plus(source["object"]["key"])
    picture = Image.open(s3.get_object(Bucket=bucket, Key=key)["Body"])
    half = picture.resize((picture.width // 2, picture.height // 2), Image.Resampling.LANCZOS)
    encoded = io.BytesIO()
    half.save(encoded, JpegImagePlugin.JpegImageFile.format, quality=85)
    output = event["output"]
    s3.put_object(
        Bucket=output["bucket"],
        Key=output["key"],
        Body=encoded.getvalue(),
        ContentType="image/jpeg",
    )
    return {"width": half.width, "height": half.height}
