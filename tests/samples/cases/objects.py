"""Handlers of S3, some of them with other services."""

import gzip
import json

from case import Case, Step, bucket, s3_event, sqs_event, table, topic

from .texts import LOG_HEAD

CLOUDTRAIL = "cloudtrail-lambda-dynamodb-cdk/src/lib/lambda/"
TRAIL = "AWSLogs/123456789012/CloudTrail/one.json.gz"
TAGS = [{"Key": "Key%d" % number, "Value": "v"} for number in range(1, 5)]


def _trail(*keys):
    """A file of CloudTrail."""
    records = [
        {
            "eventName": "PutObject",
            "userIdentity": {"type": "IAMUser"},
            "requestParameters": {"bucketName": "photos", "key": key},
        }
        for key in keys
    ]
    own = {"type": "AWSService", "invokedBy": "cloudtrail.amazonaws.com"}
    records.append({"eventName": "PutObject", "userIdentity": own})
    return gzip.compress(json.dumps({"Records": records}).encode(), mtime=0)


def _image(key):
    """A new item of a stream of DynamoDB."""
    arn = "arn:aws:s3:::photos/" + key
    return {
        "dynamodb": {
            "NewImage": {
                "object_arn": {"S": arn},
                "object_key": {"S": key},
                "bucket_name": {"S": "photos"},
                "is_compliant": {"BOOL": False},
            }
        }
    }


MAIL = b"""From: ann@example.com
Subject: two parts
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary=edge

--edge
Content-Type: text/plain

hello there
--edge
Content-Type: text/csv
Content-Disposition: attachment; filename=data.csv

a,b
--edge--
"""

CASES = (
    Case(
        "cdk-s3-sqs-lambda-dynamodb/lambda/index.py",
        "s3 dynamodb",
        (sqs_event(s3_event("people", "people.csv")),),
        prepare=bucket(
            "people", {"people.csv": b"name,email\nAnn,ann@example.com\nBo,bo@example.com\n"}
        )
        + table("employeeInfoNew", "name"),
        shows='"bo@example.com"}',
    ),
    Case(
        CLOUDTRAIL + "object_tag_checker/index.py",
        "s3 dynamodb",
        ({"Records": [_image("tagged.jpg"), _image("bare.jpg"), _image("absent.jpg")]},),
        environment={"TABLE_NAME": "objects"},
        prepare=bucket("photos", {"tagged.jpg": b"1", "bare.jpg": b"2"})
        + (
            Step(
                "s3",
                "put_object_tagging",
                {"Bucket": "photos", "Key": "tagged.jpg", "Tagging": {"TagSet": TAGS}},
            ),
        )
        + table("objects", "object_arn"),
        shows='"is_compliant": {"BOOL": true}',
        says=True,
    ),
    Case(
        CLOUDTRAIL + "populate_dynamo/index.py",
        "s3 dynamodb",
        (
            s3_event("trails", TRAIL),
            s3_event("other", TRAIL),
            s3_event("trails", "a/b/CloudTrail/no"),
        ),
        environment={"TABLE_NAME": "objects", "CLOUDTRAIL_BUCKET_NAME": "trails"},
        prepare=bucket("trails", {TRAIL: _trail("cat.jpg", "dog.jpg")})
        + table("objects", "object_arn"),
        shows="arn:aws:s3:::photos/dog.jpg",
    ),
    Case(
        "inspector-lambda/src/InspectorFindings.py",
        "s3",
        ({"id": "f-1", "detail": {"title": "a finding"}},),
        handler="handler",
        environment={"S3_BUCKET": "findings"},
        prepare=bucket("findings"),
        shows="f-1.json",
        texts=(r"\d{4}/\d\d/\d\d/\d\d/\d\d",),
    ),
    Case(
        "inspector-lambda/src/InspectorInitialScan.py",
        "s3",
        ({"id": "s-1", "detail": {"scan": "initial"}},),
        handler="handler",
        environment={"S3_BUCKET": "scans"},
        prepare=bucket("scans"),
        shows="s-1.json",
        texts=(r"\d{4}/\d\d/\d\d/\d\d/\d\d",),
    ),
    Case(
        "lambda-s3-async-lambda/asynchronousFunction/app.py",
        "s3",
        (s3_event("payloads", "one.json", eventName="ObjectCreated:Put"), "[1, 2, 3]"),
        prepare=bucket("payloads", {"one.json": b'{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}'}),
        says=True,
        shows="\\t5",
        texts=(LOG_HEAD,),
    ),
    Case(
        "lambda-s3/src/app.py",
        "s3",
        ({},),
        environment={"DestinationBucketName": "greetings"},
        prepare=bucket("greetings"),
        shows="Hello World",
    ),
    Case(
        "s3-lambda-container-sam/src/app.py",
        "s3",
        (s3_event("texts", "a/b c.txt"),),
        environment={"S3_BUCKET": "texts"},
        prepare=bucket("texts", {"a/b c.txt": b"one\ntwo\n"}),
        says=True,
        shows="['one', 'two']",
    ),
    Case(
        "s3-lambda-dynamodb-cdk/cdk/code/data-load.py",
        "s3 dynamodb",
        ({},),
        handler="handler",
        environment={"bucket": "data", "key": "rows.csv", "table": "rows"},
        prepare=bucket(
            "data",
            {"rows.csv": b"id,text\n" + b"".join(b"r-%d,row %d\n" % (n, n) for n in range(130))},
        )
        + table("rows", "id"),
        shows="row 129",
    ),
    Case(
        "s3-lambda-dynamodb-terraform/modules/s3_event/code/lambda_function.py",
        "s3 dynamodb",
        (s3_event("data", "row.json"), s3_event("data", "absent.json")),
        environment={"DYNAMODB_TABLE_NAME": "rows"},
        prepare=bucket("data", {"row.json": b'{"id": "r-1", "tags": ["x", "y"]}'})
        + table("rows", "id"),
        shows='{"L": [{"S": "x"}, {"S": "y"}]}',
    ),
    Case(
        "s3-lambda-sns-python-cdk/src/lambda_function.py",
        "s3 sns",
        (s3_event("photos", "cat.jpg"),),
        environment={"TOPIC_ARN": "arn:aws:sns:$ARN:uploads"},
        prepare=topic("uploads"),
        shows="File uploaded to bucket photos with key cat.jpg",
    ),
    Case(
        "ses-s3-lambda-sam/src/app.py",
        "s3",
        (s3_event("mails", "one"), s3_event("mails", "two")),
        prepare=bucket(
            "mails", {"one": MAIL, "two": b"From: bo@example.com\nSubject: plain\n\nhi\n"}
        ),
        says=True,
        shows="Attachment: data.csv",
    ),
    Case(
        "sqs-lambda-s3-terraform-python/handler.py",
        "s3",
        (sqs_event({"uniqueID": "7", "text": "é"}),),
        environment={"AWS_REGION_NAME": "us-east-1", "S3_BUCKET_NAME": "requests"},
        prepare=bucket("requests"),
        shows="request_7.json",
    ),
    Case(
        "ta-eventbridge-lambda-s3/lambda_functions/s3openbucket/s3openbucket.py",
        "s3 sns",
        (
            {
                "detail": {
                    "check-item-detail": {
                        "Bucket Name": "open",
                        "ACL Allows List": "No",
                        "ACL Allows Upload/Delete": "No",
                        "Policy Allows Access": "Yes",
                    }
                }
            },
            {
                "detail": {
                    "check-item-detail": {
                        "Bucket Name": "open",
                        "ACL Allows List": "Yes",
                        "ACL Allows Upload/Delete": "No",
                        "Policy Allows Access": "No",
                    }
                }
            },
        ),
        environment={"topic_arn": "arn:aws:sns:$ARN:advice"},
        prepare=bucket("open")
        + (
            Step(
                "s3",
                "put_bucket_policy",
                {
                    "Bucket": "open",
                    "Policy": json.dumps(
                        {
                            "Version": "2012-10-17",
                            "Statement": [
                                {
                                    "Effect": "Allow",
                                    "Principal": "*",
                                    "Action": "s3:GetObject",
                                    "Resource": "arn:aws:s3:::open/*",
                                }
                            ],
                        }
                    ),
                },
            ),
            Step("s3", "put_bucket_acl", {"Bucket": "open", "ACL": "public-read"}),
        )
        + topic("advice"),
        shows="Original Bucket Policy",
        fails="TypeError",
    ),
)
