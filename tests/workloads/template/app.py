"""Renders the page of an order."""

import json
from urllib.parse import unquote_plus

import boto3
from jinja2 import Environment

s3 = boto3.client("s3")

PAGE = Environment(autoescape=True, trim_blocks=True).from_string("""<!doctype html>
<title>Order {{ order.number }}</title>
<h1>Order {{ order.number }} of {{ order.customer }}</h1>
<table>
{% for line in order.lines %}
<tr><td>{{ line.article }}</td><td>{{ line.count }}</td><td>{{ line.cents }}</td></tr>
{% endfor %}
</table>
<p>Total: {{ order.lines | sum(attribute="cents") }}</p>
""")


def handler(event, context):
    source = event["Records"][0]["s3"]
    bucket, key = source["bucket"]["name"], unquote_plus(source["object"]["key"])
    order = json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    page = PAGE.render(order=order).encode()
    output = event["output"]
    s3.put_object(Bucket=output["bucket"], Key=output["key"], Body=page, ContentType="text/html")
    return {"bytes": len(page)}
