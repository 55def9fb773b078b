"""moto's server, which plays AWS: preparation of a case, and all that is in it afterwards."""

import base64
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import boto3
from botocore.config import Config

from case import ACCOUNT, REGION, Content

KEY, SECRET = "SAMPLES", "samples-secret"
START_SECONDS_MAX = 60
QUIET = Config(retries={"max_attempts": 0}, read_timeout=120, parameter_validation=True)


def free_port():
    """A port that the kernel has found."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, condition, seconds_max=START_SECONDS_MAX):
    """Asks again until the condition gives something; RuntimeError after the deadline."""
    end = time.monotonic() + seconds_max
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise RuntimeError("%s: not within %d s" % (what, seconds_max))


class Cloud:
    """A server of moto."""

    def __init__(self, log, scratch):
        self.url = "http://127.0.0.1:%d" % free_port()
        port = self.url.rpartition(":")[2]
        self._recording = os.path.join(scratch, "requests")
        environment = {
            **os.environ,
            "MOTO_ACCOUNT_ID": ACCOUNT,
            "MOTO_RECORDER_FILEPATH": self._recording,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
        )
        self._clients = {}
        self.database = None  # where cases have documents
        until("moto answers", self._answers)

    def _answers(self):
        if self.process.poll() is not None:
            raise RuntimeError("moto has ended with status %d" % self.process.returncode)
        try:
            self.reset()
            return True
        except OSError:
            return False

    def _post(self, path):
        request = urllib.request.Request(self.url + path, data=b"", method="POST")
        urllib.request.urlopen(request, timeout=60).close()

    def reset(self):
        """Forgets everything."""
        self._post("/moto-api/reset")

    def record(self):
        """Keeps the requests from now on."""
        self._post("/moto-api/recorder/reset-recording")
        self._post("/moto-api/recorder/start-recording")

    def recorded(self, text):
        """The requests since then that have a text in their operation, path or body."""
        self._post("/moto-api/recorder/stop-recording")
        out = []
        with open(self._recording, encoding="utf-8") as file:
            for line in file:
                entry = json.loads(line)
                named = {name.lower(): value for name, value in entry["headers"].items()}
                path = entry["url"].partition("://")[2].partition("/")[2]
                body = entry["body"]
                if entry["body_encoded"]:
                    body = base64.b64decode(body).decode("utf-8", "backslashreplace")
                operation = named.get("x-amz-target", "").rpartition(".")[2]
                line = "%s /%s %s" % (entry["method"], path, operation)
                if text in line or text in body:
                    out.append([line, body])
        return out

    def client(self, service, region=REGION):
        """A client of stock boto3."""
        if (service, region) not in self._clients:
            self._clients[service, region] = boto3.client(
                service,
                region_name=region,
                endpoint_url=self.url,
                aws_access_key_id=KEY,
                aws_secret_access_key=SECRET,
                config=QUIET,
            )
        return self._clients[service, region]

    def words(self):
        """The values that replace the words of a case's texts."""
        queues, arn = "%s/%s" % (self.url, ACCOUNT), "%s:%s" % (REGION, ACCOUNT)
        return {"MOTO": self.url, "QUEUES": queues, "ARN": arn}

    def prepare(self, case, content_of):
        """Empties the server, runs the case's steps, and returns the words of its texts.

        `content_of` gives the bytes of a file of a collection."""
        self.reset()
        words = self.words()
        if case.documents:
            self.database.fill(
                {
                    name: content_of(body) if isinstance(body, Content) else body
                    for name, body in case.documents.items()
                }
            )
            words["DATABASE"] = self.database.url
        for step in case.prepare:
            client = self.client(step.service, case.region)
            given = {
                name: content_of(value) if isinstance(value, Content) else value
                for name, value in filled(step.parameters, words).items()
            }
            result = getattr(client, step.operation)(**given)
            for name, place in step.keep.items():
                value = result
                for part in place.split():
                    value = value[int(part) if part.isdigit() else part]
                words[name] = value
        if any(isinstance(callee, str) for callee in case.callees):
            self.client("s3").create_bucket(Bucket="calls")
        return words

    def close(self):
        """Ends the server."""
        self.process.terminate()
        self.process.wait()


def filled(value, words):
    """A value with the words in its texts replaced, the longest first."""
    if isinstance(value, str):
        for name in sorted(words, key=len, reverse=True):
            value = value.replace("$" + name, words[name])
        return value
    if isinstance(value, dict):
        return {filled(key, words): filled(one, words) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [filled(one, words) for one in value]
    return value


def seen(cloud, case):
    """All that the server has of the services that a case can have changed."""
    services = set(case.services.split())
    if services & {"sns", "events"}:
        services.add("sqs")
    if case.callees:
        services.add("s3")
    out = {}
    for name in sorted(services & set(READERS)):
        out[name] = READERS[name](cloud.client(name, case.region))
    return out


def _objects(s3):
    out = {}
    for bucket in s3.list_buckets()["Buckets"]:
        name = bucket["Name"]
        grants = s3.get_bucket_acl(Bucket=name)["Grants"]
        found = {"grants": [[one["Grantee"].get("URI"), one["Permission"]] for one in grants]}
        found["policy"] = _or_none(lambda: s3.get_bucket_policy(Bucket=name)["Policy"])
        objects = found["objects"] = {}
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
            for one in page.get("Contents", ()):
                got = s3.get_object(Bucket=name, Key=one["Key"])
                objects[one["Key"]] = {
                    "body": got["Body"].read().decode("utf-8", "backslashreplace"),
                    "type": got["ContentType"],
                    "metadata": got["Metadata"],
                    "tags": s3.get_object_tagging(Bucket=name, Key=one["Key"])["TagSet"],
                }
        out[name] = found
    return out


def _or_none(call):
    from botocore.exceptions import ClientError

    try:
        return call()
    except ClientError:
        return None


def _items(dynamodb):
    out = {}
    for name in dynamodb.list_tables()["TableNames"]:
        pages = dynamodb.get_paginator("scan").paginate(TableName=name)
        out[name] = [item for page in pages for item in page["Items"]]
    return out


def _messages(sqs):
    out = {}
    for url in sqs.list_queues().get("QueueUrls", ()):
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        found = []
        while True:
            got = sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                VisibilityTimeout=600,
                AttributeNames=["MessageGroupId"],
                MessageAttributeNames=["All"],
            ).get("Messages", ())
            if not got:
                break
            found.extend(got)
        out[url.rpartition("/")[2]] = {
            "in flight": attributes["ApproximateNumberOfMessagesNotVisible"],
            "messages": [_message(one) for one in found],
        }
    return out


def _message(message):
    """A message without what every server makes new; of a topic's, its text and subject."""
    out = {"body": message["Body"]}
    for name in ("Attributes", "MessageAttributes"):
        if message.get(name):
            out[name] = message[name]
    try:
        body = json.loads(message["Body"])
    except ValueError:
        return out
    if isinstance(body, dict) and body.get("Type") == "Notification":
        names = ("TopicArn", "Subject", "Message", "MessageAttributes")
        out["body"] = {name: body[name] for name in names if name in body}
    return out


def _secrets(client):
    out = {}
    for one in client.list_secrets()["SecretList"]:
        name = one["Name"]
        stages = client.describe_secret(SecretId=name).get("VersionIdsToStages", {})
        versions = []
        for version, labels in stages.items():
            got = _or_none(lambda: client.get_secret_value(SecretId=name, VersionId=version))
            versions.append(
                {"id": version, "stages": sorted(labels), "text": (got or {}).get("SecretString")}
            )
        versions.sort(key=lambda one: one["stages"])
        out[name] = {"versions": versions, "tags": one.get("Tags", [])}
    return out


def _parameters(ssm):
    out = {}
    for one in ssm.describe_parameters()["Parameters"]:
        got = ssm.get_parameter(Name=one["Name"])["Parameter"]
        out[one["Name"]] = {name: got[name] for name in ("Value", "Type", "Version")}
    commands = ssm.list_commands()["Commands"]
    names = ("DocumentName", "Parameters", "Targets", "Comment", "Status")
    kept = [{name: one.get(name) for name in names} for one in commands]
    return {"parameters": out, "commands": kept}


def _logs(logs):
    out = {}
    for group in logs.describe_log_groups()["logGroups"]:
        events = logs.filter_log_events(logGroupName=group["logGroupName"])["events"]
        out[group["logGroupName"]] = [[one["timestamp"], one["message"]] for one in events]
    names = ("logGroupName", "destination", "destinationPrefix", "from", "to")
    tasks = logs.describe_export_tasks()["exportTasks"]
    return {"groups": out, "exports": [{name: one.get(name) for name in names} for one in tasks]}


def _records(kinesis):
    out = {}
    for stream in kinesis.list_streams()["StreamNames"]:
        records = []
        for shard in kinesis.list_shards(StreamName=stream)["Shards"]:
            iterator = kinesis.get_shard_iterator(
                StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            records += kinesis.get_records(ShardIterator=iterator)["Records"]
        out[stream] = [[one["PartitionKey"], one["Data"].decode()] for one in records]
    return out


def _executions(states):
    out = {}
    for one in states.list_state_machines()["stateMachines"]:
        found = states.list_executions(stateMachineArn=one["stateMachineArn"])["executions"]
        described = [states.describe_execution(executionArn=each["executionArn"]) for each in found]
        names = ("name", "status", "input", "output")
        out[one["name"]] = [{name: each.get(name) for name in names} for each in described]
    return out


def _metrics(cloudwatch):
    out = []
    for metric in cloudwatch.list_metrics()["Metrics"]:
        got = cloudwatch.get_metric_statistics(
            Namespace=metric["Namespace"],
            MetricName=metric["MetricName"],
            Dimensions=metric["Dimensions"],
            StartTime=time.time() - 3600,
            EndTime=time.time() + 3600,
            Period=7200,
            Statistics=["Sum", "SampleCount"],
        )["Datapoints"]
        points = [[one["Sum"], one["SampleCount"], one["Unit"]] for one in got]
        out.append([metric["Namespace"], metric["MetricName"], metric["Dimensions"], points])
    out.sort(key=lambda one: json.dumps(one[:3]))
    return out


def _schedules(scheduler):
    names = ("Name", "Description", "ScheduleExpression", "Target", "ActionAfterCompletion")
    found = [
        scheduler.get_schedule(Name=one["Name"]) for one in scheduler.list_schedules()["Schedules"]
    ]
    return [{name: one.get(name) for name in names} for one in found]


def _transcriptions(transcribe):
    out = []
    for one in transcribe.list_transcription_jobs()["TranscriptionJobSummaries"]:
        name = one["TranscriptionJobName"]
        job = transcribe.get_transcription_job(TranscriptionJobName=name)["TranscriptionJob"]
        out.append([name, job["Media"], job.get("IdentifyLanguage")])
    return out


def _snapshots(rds):
    found = rds.describe_db_snapshots()["DBSnapshots"]
    return [[one["DBSnapshotIdentifier"], one["DBInstanceIdentifier"]] for one in found]


def _people(cognito):
    out = {}
    for pool in cognito.list_user_pools(MaxResults=10)["UserPools"]:
        users = cognito.list_users(UserPoolId=pool["Id"])["Users"]
        out[pool["Name"]] = [
            [[each["Name"] for each in one["Attributes"]], one["UserStatus"]] for one in users
        ]
    return out


READERS = {
    "cognito-idp": _people,
    "rds": _snapshots,
    "scheduler": _schedules,
    "transcribe": _transcriptions,
    "cloudwatch": _metrics,
    "dynamodb": _items,
    "kinesis": _records,
    "logs": _logs,
    "s3": _objects,
    "secretsmanager": _secrets,
    "sqs": _messages,
    "ssm": _parameters,
    "stepfunctions": _executions,
}
