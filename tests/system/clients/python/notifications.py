"""Notifications of the built-in store with an unmodified boto3.

python notifications.py CASE [ARGUMENT...]: endpoints and keys come from the environment.
"""

import sys
import time

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

ACCOUNT = "000000000000"
SECONDS_MAX = 90
ATTEMPTS = Config(retries={"max_attempts": 0}, read_timeout=300)
functions = boto3.client("lambda", config=ATTEMPTS)
s3 = boto3.client("s3", config=ATTEMPTS)


def arn(name: str) -> str:
    return f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:{name}"


def permit(name: str, bucket: str) -> None:
    functions.add_permission(
        FunctionName=name,
        StatementId=f"s3-{bucket}",
        Action="lambda:InvokeFunction",
        Principal="s3.amazonaws.com",
        SourceArn=f"arn:aws:s3:::{bucket}",
        SourceAccount=ACCOUNT,
    )


def configuration(name: str, events: list[str], **filters: str) -> dict:
    rules = [{"Name": key, "Value": value} for key, value in filters.items()]
    return {
        "Id": name,
        "LambdaFunctionArn": arn(name.split("-")[0]),
        "Events": events,
        "Filter": {"Key": {"FilterRules": rules}},
    }


def configure(bucket: str, *all_: dict) -> None:
    s3.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"LambdaFunctionConfigurations": list(all_)}
    )


def refused(code: str, *all_: dict, **other: object) -> str:
    """A configuration that must be refused; return the message."""
    document = {"LambdaFunctionConfigurations": list(all_), **other}
    try:
        s3.put_bucket_notification_configuration(Bucket="box", NotificationConfiguration=document)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, error
        return error.response["Error"]["Message"]
    raise AssertionError(f"accepted: {document}")


def configurations() -> None:
    """Configurations are checked and come back."""
    created, removed = ["s3:ObjectCreated:*"], ["s3:ObjectRemoved:*"]
    assert "LambdaFunctionConfigurations" not in s3.get_bucket_notification_configuration(Bucket="box")
    message = refused("InvalidArgument", configuration("thumb", created))
    assert "Unable to validate the following destination configurations" in message, message
    permit("thumb", "box")
    two = [
        configuration("thumb-1", created, prefix="in/", suffix=".jpg"),
        configuration("thumb-2", removed),
    ]
    configure("box", *two)
    found = s3.get_bucket_notification_configuration(Bucket="box")["LambdaFunctionConfigurations"]
    assert [one["Id"] for one in found] == ["thumb-1", "thumb-2"], found
    names = {rule["Name"].lower(): rule["Value"] for rule in found[0]["Filter"]["Key"]["FilterRules"]}
    assert names == {"prefix": "in/", "suffix": ".jpg"} and found[0]["Events"] == created, found
    overlapping = [configuration("thumb-1", created, prefix="a"), configuration("thumb-2", created)]
    assert "overlap" in refused("InvalidArgument", *overlapping)
    refused("InvalidArgument", configuration("thumb", ["s3:ObjectRestore:Completed"]))
    refused("InvalidArgument", configuration("absent", created))
    queue = {"QueueArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:q", "Events": created}
    refused("NotImplemented", QueueConfigurations=[queue])
    topic = {"TopicArn": f"arn:aws:sns:us-east-1:{ACCOUNT}:t", "Events": created}
    refused("NotImplemented", TopicConfigurations=[topic])
    refused("NotImplemented", EventBridgeConfiguration={})
    # A refused configuration changes nothing.
    assert s3.get_bucket_notification_configuration(Bucket="box")["LambdaFunctionConfigurations"] == found
    configure("box")
    assert "LambdaFunctionConfigurations" not in s3.get_bucket_notification_configuration(Bucket="box")
    permit("thumb", "other")
    s3.create_bucket(Bucket="other")
    configure("other", configuration("thumb", created))
    s3.delete_bucket(Bucket="other")
    s3.create_bucket(Bucket="other")
    assert "LambdaFunctionConfigurations" not in s3.get_bucket_notification_configuration(Bucket="other")


def prepare() -> None:
    """`thumb` for uploads, and `seen` for what it writes."""
    for name in ("thumb", "seen"):
        permit(name, "box")
    configure(
        "box",
        configuration("thumb", ["s3:ObjectCreated:*"], prefix="in/", suffix=".jpg"),
        configuration("seen", ["s3:ObjectCreated:Put"], prefix="out/"),
    )


def all_events() -> None:
    """Each kind of change, in a bucket with versions and without."""
    permit("seen", "all")
    permit("seen", "versions")
    for bucket in ("all", "versions"):
        s3.create_bucket(Bucket=bucket)
        configure(bucket, configuration("seen", ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]))
    s3.put_object(Bucket="all", Key="a b+ü", Body=b"hello")
    s3.copy_object(Bucket="all", Key="copy", CopySource={"Bucket": "all", "Key": "a b+ü"})
    upload = s3.create_multipart_upload(Bucket="all", Key="parts")["UploadId"]
    part = s3.upload_part(Bucket="all", Key="parts", UploadId=upload, PartNumber=1, Body=b"part")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket="all", Key="parts", UploadId=upload, MultipartUpload=parts)
    s3.delete_objects(Bucket="all", Delete={"Objects": [{"Key": "copy"}, {"Key": "none"}]})
    s3.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
    version = s3.put_object(Bucket="versions", Key="v", Body=b"1")["VersionId"]
    marker = s3.delete_object(Bucket="versions", Key="v")["VersionId"]
    s3.delete_object(Bucket="versions", Key="v", VersionId=version)
    print(version, marker)


def upload(count: str) -> None:
    """Upload until as many objects are acknowledged, over kills; print their names."""
    done, attempt, begin = 0, 0, time.monotonic()
    while done < int(count):
        attempt += 1
        assert time.monotonic() - begin < SECONDS_MAX, "the store does not come back"
        name = f"n-{attempt}.jpg"
        try:
            s3.put_object(Bucket="box", Key=f"in/{name}", Body=b"picture " + name.encode())
        except (BotoCoreError, ClientError):
            # The store was killed: nothing is known of this one.
            time.sleep(0.01)
            continue
        done += 1
        print(name, flush=True)


TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Watch:
    Type: AWS::Serverless::Function
    Properties:
      Runtime: python3.12
      Handler: index.handler
      Policies: [AmazonS3FullAccess]
      InlineCode: |
        import json
        import boto3
        def handler(event, context):
            for record in event["Records"]:
                own = record["s3"]
                key = "seen/%s/%s" % (own["bucket"]["name"], own["object"]["sequencer"])
                boto3.client("s3").put_object(Bucket="records", Key=key, Body=json.dumps(record).encode())
      Events:
        Uploaded:
          Type: S3
          Properties:
            Bucket: !Ref Uploads
            Events: ["s3:ObjectCreated:*"]
            Filter: {S3Key: {Rules: [{Name: suffix, Value: .jpg}]}}
  Uploads: {Type: AWS::S3::Bucket, Properties: {BucketName: uploads}}
"""


def stack() -> None:
    """A bucket that invokes a function, both of one stack; the update takes the event away."""
    stacks = boto3.client("cloudformation", config=ATTEMPTS)
    capabilities = ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
    stacks.create_stack(StackName="watch", TemplateBody=TEMPLATE, Capabilities=capabilities)
    stacks.get_waiter("stack_create_complete").wait(StackName="watch", WaiterConfig={"Delay": 1})
    s3.put_object(Bucket="uploads", Key="in/cat.txt", Body=b"text")
    s3.put_object(Bucket="uploads", Key="in/cat.jpg", Body=b"picture")
    begin = time.monotonic()
    while not s3.list_objects_v2(Bucket="records").get("Contents"):
        assert time.monotonic() - begin < SECONDS_MAX, "the function is not invoked"
        time.sleep(0.02)
    without = TEMPLATE[: TEMPLATE.index("      Events:")] + TEMPLATE[TEMPLATE.index("  Uploads:") :]
    stacks.update_stack(StackName="watch", TemplateBody=without, Capabilities=capabilities)
    stacks.get_waiter("stack_update_complete").wait(StackName="watch", WaiterConfig={"Delay": 1})
    assert "LambdaFunctionConfigurations" not in s3.get_bucket_notification_configuration(Bucket="uploads")
    s3.put_object(Bucket="uploads", Key="in/dog.jpg", Body=b"picture")


def forbid() -> None:
    functions.remove_permission(FunctionName="thumb", StatementId="s3-box")


def delete(name: str) -> None:
    functions.delete_function(FunctionName=name)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
