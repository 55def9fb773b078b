"""STS."""

import json

from .rows import Row, call, use

SERVICE = "sts"
STAND_INS = {}
ROLE = "arn:aws:iam::123456789012:role/reader"
POLICY = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*"}]})


def setup(_):
    """Nothing: STS keeps nothing."""


def assume(**more):
    """Keys of a role."""
    return call("assume_role", **dict({"RoleArn": ROLE, "RoleSessionName": "session"}, **more))


def web(**more):
    """Keys of a role for a token."""
    given = {"RoleArn": ROLE, "RoleSessionName": "web", "WebIdentityToken": "token.\u00e9.x"}
    return call("assume_role_with_web_identity", **dict(given, **more))


def federated(name, **more):
    """Keys of a user with another name."""
    return call("get_federation_token", Name=name, **more)


ROWS = {
    "identity": call("get_caller_identity"),
    "identity: unknown member": call("get_caller_identity", Account="1"),
    "identity: another region": Row(call("get_caller_identity"), region="eu-west-3"),
    "identity: China": Row(call("get_caller_identity"), region="cn-north-1"),
    "identity: unsigned": Row(
        call("get_caller_identity"), config={"signature_version": "unsigned"}
    ),
    "identity: legacy retries": Row(
        call("get_caller_identity"), config={"retries": {"mode": "legacy", "max_attempts": 0}}
    ),
    "identity: one attempt": Row(
        call("get_caller_identity"), config={"retries": {"total_max_attempts": 1}}
    ),
    "identity: own user agent": Row(
        call("get_caller_identity"), config={"user_agent_extra": "own/1"}
    ),
    "identity: application": Row(call("get_caller_identity"), config={"user_agent_appid": "app-1"}),
    "account of a key": call("get_access_key_info", AccessKeyId="AKIAIOSFODNN7EXAMPLE"),
    "account of a short key": call("get_access_key_info", AccessKeyId="x"),
    "role": assume(),
    "role: duration": assume(DurationSeconds=900),
    "role: too long": assume(DurationSeconds=50_000),
    "role: policy": assume(Policy=POLICY),
    "role: policy too large": assume(Policy=POLICY + " " * 3000),
    "role: policies and tags": assume(
        PolicyArns=[{"arn": "arn:aws:iam::aws:policy/ReadOnlyAccess"}],
        Tags=[{"Key": "a&b", "Value": "\u00e9=+ %"}, {"Key": "c", "Value": ""}],
        TransitiveTagKeys=["c"],
    ),
    "role: identities": assume(
        ExternalId="x/y:z",
        SourceIdentity="me@x",
        SerialNumber="arn:aws:iam::1:mfa/m",
        TokenCode="123456",
    ),
    "role: contexts": assume(
        ProvidedContexts=[{"ProviderArn": "arn:aws:iam::aws:c/x", "ContextAssertion": "a"}]
    ),
    "role: bad ARN": assume(RoleArn="reader"),
    "role: short ARN": assume(RoleArn="arn:aws:iam::1:role/x"),
    "role: bad name": assume(RoleSessionName="a b"),
    "role: long name": assume(RoleSessionName="s" * 65),
    "role: empty name": assume(RoleSessionName=""),
    "role: wrong types": assume(DurationSeconds="900", Tags="x", PolicyArns=[{"arn": 1}]),
    "role: without a name": call("assume_role", RoleArn=ROLE),
    "token": web(),
    "token: empty": web(WebIdentityToken=""),
    "token: provider": web(ProviderId="www.amazon.com", DurationSeconds=3600),
    "token: bad ARN": web(RoleArn="x"),
    "token: unsigned": Row(web(), config={"signature_version": "unsigned"}),
    "assertion: no SAML": call(
        "assume_role_with_saml", RoleArn=ROLE, PrincipalArn="arn:aws:iam::1:saml-provider/x"
    ),
    "session": call("get_session_token"),
    "session: duration": call("get_session_token", DurationSeconds=1000),
    "session: wrong type": call("get_session_token", DurationSeconds=1.5),
    "federation": federated("bob"),
    "federation: policy": federated("bob", Policy=POLICY, Tags=[{"Key": "a", "Value": "b"}]),
    "federation: policy too large": federated("bob", Policy="x" * 3000),
    "federation: duration": federated("bob", DurationSeconds=900),
    "federation: long name": federated("x" * 33),
    "federation: odd name": federated("a=,.@-_\u00e9"),
    "federation: a list for a name": federated(["bob"]),
    "no paginators": use(lambda trial, _: trial.client("sts").get_paginator("assume_role")),
    "no waiters": use(lambda trial, _: trial.client("sts").waiter_names),
    "no such waiter": use(lambda trial, _: trial.client("sts").get_waiter("done")),
    "no resource": use(lambda trial, _: trial.boto3.resource("sts", region_name="us-east-1")),
    "no such region": use(lambda trial, _: trial.boto3.client("sts", region_name="a b")),
}
