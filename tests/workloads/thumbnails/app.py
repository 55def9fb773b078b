"""Makes thumbnails of several sizes of a photograph."""

import io
from urllib.parse import unquote_plus

import boto3
from PIL import Image, JpegImagePlugin  # the plugin, at import and not at the first picture

s3 = boto3.client("s3")
EDGES = (256, 128, 64)


def handler(event, context):
    source = event["Records"][0]["s3"]
    bucket, key = source["bucket"]["name"], unquote_plus(source["object"]["key"])
    body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    picture = Image.open(io.BytesIO(body))
    output = event["output"]
    for edge in EDGES:
        picture.thumbnail((edge, edge), Image.Resampling.BICUBIC)
        encoded = io.BytesIO()
        picture.save(encoded, JpegImagePlugin.JpegImageFile.format, quality=80)
        encoded.seek(0)
        s3.upload_fileobj(
            encoded,
            output["bucket"],
            "%s-%d.jpg" % (output["key"], edge),
            ExtraArgs={"ContentType": "image/jpeg"},
        )
    return {"thumbnails": len(EDGES)}
