#!/usr/bin/env python3
"""Compare the SAM transform of this crate with AWS's own (aws-sam-translator), field by field.

Run by hand, or nightly:

    pip install aws-sam-translator boto3
    crates/functions/stacks/tests/sam/compare.py

It expands every template of the folder `templates` with both, and prints the fields that differ. The
differences in `normal` are meant; each has its reason there. Exits with 1 if there are others.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PARAMETERS = {"Stage": "live"}
XRAY = "arn:aws:iam::aws:policy/AWSXrayWriteOnlyAccess"
MANAGED = {
    name: f"arn:aws:iam::aws:policy/service-role/{name}"
    for name in ("AWSLambdaBasicExecutionRole", "AWSLambdaSQSQueueExecutionRole")
}


def theirs(path: Path) -> dict:
    """Expand with AWS's transform."""
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator
    from samtranslator.yaml_helper import yaml_parse

    return Translator(MANAGED, Parser()).translate(yaml_parse(path.read_text()), dict(PARAMETERS))


def ours(path: Path) -> dict:
    """Expand with this crate's transform."""
    command = ["cargo", "run", "-q", "-p", "unlade-fn-stacks", "--example", "expand", "--"]
    done = subprocess.run([*command, path], stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


def normal(value: object) -> object:
    """Rewrite what differs on purpose.

    - The hash in the name of a version is of another text: both change with the code.
    - Inline policies have the version of the policy language; AWS leaves it out in some.
    - Resources of policy templates are one Fn::Sub here, whose variable has another name.
    - A role of a function with Tracing has no policy for X-Ray: this server has none.
    - An EventInvokeConfig without destinations has no empty DestinationConfig.
    - A list of one action is the action; the order of statements and actions has no meaning.
    """
    text = json.dumps(value)
    text = re.sub(r"Version[0-9a-f]{10}\b", "VersionHASH", text)
    return sorted_lists(json.loads(text))


def sorted_lists(value: object) -> object:
    if isinstance(value, list):
        return sorted((sorted_lists(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if not isinstance(value, dict):
        return value
    value = {key: sorted_lists(item) for key, item in value.items()}
    if value.get("DestinationConfig") == {}:
        del value["DestinationConfig"]
    managed = value.get("ManagedPolicyArns", [])
    if XRAY in managed:
        managed.remove(XRAY)
    if "Statement" in value:
        value.pop("Version", None)
    action = value.get("Action")
    if isinstance(action, list) and len(action) == 1:
        value["Action"] = action[0]
    resource = value.get("Resource")
    if isinstance(resource, list) and len(resource) == 1:
        value["Resource"] = resource[0]
    substitution = value.get("Fn::Sub")
    if isinstance(substitution, list) and len(substitution) == 2:
        # Sorting has put text and variables in some order.
        words = next(item for item in substitution if isinstance(item, str))
        variables = next(item for item in substitution if isinstance(item, dict))
        for number, name in enumerate(sorted(variables)):
            words = words.replace("${%s}" % name, "${V%d}" % number)
        values = [variables[name] for name in sorted(variables)]
        value["Fn::Sub"] = {"text": words, "values": values}
    return value


def differences(at: str, one: object, other: object) -> list[str]:
    """Return the paths at which two values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({*one, *other})
        return [
            line
            for key in keys
            for line in differences(f"{at}/{key}", one.get(key), other.get(key))
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            line
            for number, (a, b) in enumerate(zip(one, other))
            for line in differences(f"{at}/{number}", a, b)
        ]
    return [] if one == other else [f"{at}: ours {json.dumps(one)}, AWS's {json.dumps(other)}"]


def main() -> int:
    """Compare every template."""
    found = []
    templates = sorted((HERE / "templates").glob("*.yaml"))
    for path in templates:
        lines = differences(path.name, normal(ours(path)), normal(theirs(path)))
        found.extend(lines)
        print(f"{path.name}: {len(lines)} differences")
    print("\n".join(found))
    return 1 if found or not templates else 0


if __name__ == "__main__":
    sys.exit(main())
