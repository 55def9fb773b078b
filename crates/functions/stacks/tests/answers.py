#!/usr/bin/env python3
"""Parse the answers of this crate with botocore's own parser, and its requests with this crate.

    crates/functions/stacks/tests/answers.py

needs botocore. The example `answer` reads forms, one a line, and writes the answers, one a line. Every
operation is sent as botocore writes it; the parsed answers are checked. Exits with 1 at a difference.
"""

import datetime
import subprocess
import sys

import botocore.parsers
import botocore.serialize
import botocore.session

TEMPLATE = """
Description: a <queue>
Parameters: {Stage: {Type: String, Default: dev, AllowedValues: [dev, live], NoEcho: true}}
Resources:
  Q: {Type: 'AWS::SQS::Queue', Properties: {Tags: [{Key: a, Value: !Ref Stage}]}}
Outputs: {Url: {Value: !Ref Q, Export: {Name: url}}}
"""
# Each operation, its parameters, and a path in the answer with its value; None: it is only there.
STACK = {"StackName": "app"}
CHANGE = {"StackName": "app", "ChangeSetName": "c1"}
CASES = [
    ("ValidateTemplate", {"TemplateBody": TEMPLATE}, "Parameters.0.ParameterKey", "Stage"),
    ("GetTemplateSummary", {"TemplateBody": TEMPLATE}, "ResourceTypes.0", "AWS::SQS::Queue"),
    ("DescribeStacks", STACK, "Error.Message", "Stack with id app does not exist"),
    (
        "CreateChangeSet",
        {**CHANGE, "ChangeSetType": "CREATE", "TemplateBody": TEMPLATE},
        "Id",
        None,
    ),
    ("DescribeStacks", STACK, "Stacks.0.StackStatus", "REVIEW_IN_PROGRESS"),
    ("DescribeChangeSet", CHANGE, "Changes.0.ResourceChange.Action", "Add"),
    ("ListChangeSets", STACK, "Summaries.0.Status", "CREATE_COMPLETE"),
    ("ExecuteChangeSet", CHANGE, "ResponseMetadata.RequestId", None),
    ("DescribeStacks", STACK, "Stacks.0.StackStatus", "CREATE_COMPLETE"),
    ("DescribeStacks", STACK, "Stacks.0.CreationTime", datetime.datetime),
    ("DescribeStacks", {}, "Stacks.0.Outputs.0.ExportName", "url"),
    ("DescribeStacks", STACK, "Stacks.0.Parameters.0.ParameterValue", "****"),
    ("DescribeStackEvents", STACK, "StackEvents.0.ResourceStatus", "CREATE_COMPLETE"),
    ("DescribeStackEvents", STACK, "StackEvents.0.Timestamp", datetime.datetime),
    ("ListStackResources", STACK, "StackResourceSummaries.0.ResourceType", "AWS::SQS::Queue"),
    ("DescribeStackResources", STACK, "StackResources.0.LogicalResourceId", "Q"),
    (
        "DescribeStackResource",
        {**STACK, "LogicalResourceId": "Q"},
        "StackResourceDetail.ResourceStatus",
        "CREATE_COMPLETE",
    ),
    ("GetTemplate", STACK, "TemplateBody", TEMPLATE),
    ("ListExports", {}, "Exports.0.Name", "url"),
    ("ListStacks", {"StackStatusFilter": ["CREATE_COMPLETE"]}, "StackSummaries.0.StackName", "app"),
    (
        "UpdateStack",
        {**STACK, "TemplateBody": TEMPLATE},
        "Error.Message",
        "No updates are to be performed.",
    ),
    (
        "UpdateStack",
        {
            **STACK,
            "UsePreviousTemplate": True,
            "Parameters": [{"ParameterKey": "Stage", "ParameterValue": "live"}],
            "Tags": [],
        },
        "StackId",
        None,
    ),
    ("DescribeStacks", STACK, "Stacks.0.StackStatus", "UPDATE_COMPLETE"),
    (
        "CreateStack",
        {"StackName": "new", "TemplateBody": TEMPLATE, "Capabilities": []},
        "StackId",
        None,
    ),
    ("DescribeStacks", {"StackName": "new"}, "Stacks.0.StackStatus", "ROLLBACK_COMPLETE"),
    ("DeleteChangeSet", {**CHANGE, "ChangeSetName": "none"}, "ResponseMetadata.RequestId", None),
    ("DescribeChangeSet", {**CHANGE, "ChangeSetName": "none"}, "Error.Code", "ChangeSetNotFound"),
    ("DeleteStack", STACK, "ResponseMetadata.RequestId", None),
    ("DescribeStacks", STACK, "Error.Code", "ValidationError"),
]


def at(value: object, path: str) -> object:
    """Return the value at a path of keys and numbers."""
    for key in path.split("."):
        value = value[int(key)] if key.isdigit() else value[key]
    return value


def main() -> int:
    """Send every case."""
    model = botocore.session.get_session().get_service_model("cloudformation")
    serializer = botocore.serialize.create_serializer("query")
    parser = botocore.parsers.create_parser("query")
    forms = []
    for name, parameters, _, _ in CASES:
        body = serializer.serialize_to_request(parameters, model.operation_model(name))["body"]
        request = botocore.awsrequest.AWSRequest("POST", "http://localhost/", {}, body)
        prepared = request.prepare().body
        forms.append(prepared.decode() if isinstance(prepared, bytes) else prepared)
    command = ["cargo", "run", "-q", "-p", "unlade-fn-stacks", "--example", "answer"]
    done = subprocess.run(
        command, input="\n".join(forms), stdout=subprocess.PIPE, check=True, text=True
    )
    # Newlines within an answer are escaped by the example.
    answers = done.stdout.splitlines()
    assert len(answers) == len(CASES), (len(answers), done.stdout)
    failed = 0
    for (name, _, path, expected), line in zip(CASES, answers):
        status, xml = line.split(" ", 1)
        response = {
            "status_code": int(status),
            "headers": {},
            "body": xml.replace("\\n", "\n").replace("\\\\", "\\").encode(),
        }
        parsed = parser.parse(response, model.operation_model(name).output_shape)
        try:
            found = at(parsed, path)
        except (KeyError, IndexError, TypeError):
            found = KeyError
        kind = isinstance(expected, type)
        good = isinstance(found, expected) if kind else expected in (None, found)
        if found is KeyError or not good:
            failed += 1
            print(f"{name}: {path} is {found!r}, not {expected!r}: {parsed}")
    print(f"{len(CASES) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
