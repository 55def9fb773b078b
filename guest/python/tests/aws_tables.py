"""The host's tables of services and of operations by path, made from the pinned botocore.

python aws_tables.py [--write]        compares the files with botocore; writes them
"""

import os
import sys
from urllib.parse import urlsplit

import botocore.session
from botocore.endpoint_provider import EndpointProvider

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "..", "..", "crates", "functions", "worker", "src", "cut")
REGIONS = ("us-east-1", "eu-west-1")
PROTOCOLS = {
    "json": "json",
    "query": "query",
    "ec2": "query",
    "rest-json": "rest",
    "rest-xml": "rest",
    "smithy-rpc-v2-cbor": "cbor",
}
# S3's calls have a policy by object; these have other signatures, or no endpoint without an ARN.
OMITTED = (
    "s3",
    "s3control",
    "s3outposts",
    "cloudfront-keyvaluestore",
    "codecatalyst",
    "importexport",
    "neptune-graph",
    "sdb",
    "signin",
    "simpledbv2",
)
# The service's name in IAM's actions, where it is not that in signatures.
ACTIONS = {
    "monitoring": "cloudwatch",
    "iotdata": "iot",
    "tagging": "tag",
    "IngestionService": "importexport",
}
# Services whose requests name their operation by method and path, and are told apart by the host.
# A request of another such service needs the right to all of its operations.
TOLD_APART = (
    "apigatewaymanagementapi",
    "appconfigdata",
    "bedrock-agent-runtime",
    "bedrock-runtime",
    "lambda",
    "polly",
    "rds-data",
    "scheduler",
    "xray",
)


def service(session, loader, name):
    """A line of the table of services."""
    model = session.get_service_model(name)
    rules = loader.load_service_model(name, "endpoint-rule-set-1")
    provider = EndpointProvider(rules, loader.load_data("partitions"))
    found = [resolved(provider, rules, region) for region in REGIONS]
    if found[0] is None:
        hosts = ["%s.%s.amazonaws.com" % (model.endpoint_prefix, region) for region in REGIONS]
        scheme = {}
    else:
        hosts = [urlsplit(endpoint.url).hostname for endpoint in found]
        scheme = (found[0].properties.get("authSchemes") or [{}])[0]
    fixed = "-"
    if hosts[0] == hosts[1]:
        fixed = scheme.get("signingRegion") or REGIONS[0]
        host = hosts[0]
    else:
        host = hosts[0].replace(REGIONS[0], "{region}")
        assert host.replace("{region}", REGIONS[1]) == hosts[1], (name, hosts)
    signing = scheme.get("signingName") or model.signing_name
    signature = "v4a" if scheme.get("name") == "sigv4a" else "v4"
    protocols = sorted({PROTOCOLS[each] for each in model.metadata.get("protocols", [model.protocol])})
    return " ".join(
        (
            name,
            host,
            signing,
            ACTIONS.get(signing, signing),
            fixed,
            signature,
            ",".join(protocols),
            model.metadata.get("targetPrefix") or "-",
        )
    )


def resolved(provider, rules, region):
    """A service's endpoint in a region; None where it needs more than that."""
    given = {name: rule["default"] for name, rule in rules["parameters"].items() if "default" in rule}
    given.update(Region=region, UseFIPS=False, UseDualStack=False)
    given = {name: value for name, value in given.items() if name in rules["parameters"]}
    try:
        return provider.resolve_endpoint(**given)
    except Exception:
        return None


def operations(session, name):
    """Lines of the table of operations of a service."""
    model = session.get_service_model(name)
    for operation in sorted(model.operation_names):
        http = model.operation_model(operation).http
        path, _, query = http["requestUri"].partition("?")
        yield " ".join((name, http["method"], path, query or "-", operation))


def tables():
    """The files' contents by their names."""
    session = botocore.session.get_session()
    loader = session.get_component("data_loader")
    names = [name for name in session.get_available_services() if name not in OMITTED]
    services = [service(session, loader, name) for name in sorted(names)]
    paths = [line for name in TOLD_APART for line in operations(session, name)]
    return {"services.txt": services, "operations.txt": paths}


def main():
    """Compares, or writes."""
    for name, lines in tables().items():
        text = "".join(line + "\n" for line in lines)
        path = os.path.join(OUT, name)
        if "--write" in sys.argv:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            continue
        with open(path, encoding="utf-8") as file:
            if file.read() != text:
                sys.exit("%s is not that of the pinned botocore: guest/python/test --write" % name)


if __name__ == "__main__":
    main()
