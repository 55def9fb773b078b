"""IAM."""

import json

from .rows import Given, Row, call, pages, use, wait

SERVICE = "iam"
STAND_INS = {"policy": "arn:aws:iam::123456789012:policy/reading", "key": "AKIAIOSFODNN7EXAMPLE"}
READ = {"Effect": "Allow", "Action": ["s3:Get*"], "Resource": "*", "Sid": "Read"}
POLICY = json.dumps({"Version": "2012-10-17", "Statement": [READ]})
OTHER = json.dumps({"Version": "2012-10-17", "Statement": [dict(READ, Effect="Deny")]})
TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "lambda.amazonaws.com"},
                "Action": "sts:AssumeRole",
                "Condition": {"StringEquals": {"a:b": "\u00e9 &="}},
            }
        ],
    }
)
ARN = Given("policy")
USER, ROLE, GROUP = {"UserName": "ann"}, {"RoleName": "reader"}, {"GroupName": "staff"}


def setup(client):
    """A user, a role and a policy; a key of the user where it is used."""
    client.create_user(Path="/team/", **USER)
    client.create_role(AssumeRolePolicyDocument=TRUST, Description="d", **ROLE)
    policy = client.create_policy(PolicyName="reading", PolicyDocument=POLICY)["Policy"]["Arn"]

    def key():
        return client.create_access_key(**USER)["AccessKey"]["AccessKeyId"]

    return {"policy": policy, "key": key}


# Steps before others.
STAFF = [call("create_group", **GROUP), call("add_user_to_group", **USER, **GROUP)]
ATTACHED = call("attach_role_policy", PolicyArn=ARN, **ROLE)


def role(**more):
    """A role is made, and read again."""
    given = {"RoleName": "new", "AssumeRolePolicyDocument": TRUST}
    return [call("create_role", **dict(given, **more)), call("get_role", RoleName="new")]


def policy(document, name="new", **more):
    """A policy."""
    return call("create_policy", PolicyName=name, PolicyDocument=document, **more)


def resource(trial):
    """The resource."""
    return trial.boto3.resource("iam", region_name="us-east-1")


ROWS = {
    "user: made": [
        call(
            "create_user", UserName="new", Path="/a/b/", Tags=[{"Key": "k&", "Value": "\u00e9=+%"}]
        ),
        call("get_user", UserName="new"),
        call("list_user_tags", UserName="new"),
    ],
    "user: there already": call("create_user", **USER),
    "user: own": call("get_user"),
    "user: none": call("get_user", UserName="none"),
    "user: bad name": call("create_user", UserName="a b"),
    "user: wrong type": call("create_user", UserName=["a"], Path=1),
    "user: nothing": call("create_user"),
    "user: renamed": [
        call("update_user", NewUserName="bob", NewPath="/x/", **USER),
        call("list_users"),
    ],
    "user: by path": call("list_users", PathPrefix="/team/", MaxItems=10),
    "user: by pages": pages("list_users", PaginationConfig={"PageSize": 1}),
    "user: deleted with a key": [call("get_access_key_last_used", AccessKeyId=Given("key"))]
    + [call("delete_user", **USER)],
    "user: none is deleted": call("delete_user", UserName="none"),
    "user: groups": STAFF + [call("list_groups_for_user", **USER)],
    "user: inline policy": [
        call("put_user_policy", PolicyName="p", PolicyDocument=POLICY, **USER),
        call("get_user_policy", PolicyName="p", **USER),
        call("list_user_policies", **USER),
        call("delete_user_policy", PolicyName="p", **USER),
    ],
    "user: no such inline policy": call("get_user_policy", PolicyName="none", **USER),
    "user: boundary": [
        call("put_user_permissions_boundary", PermissionsBoundary=ARN, **USER),
        call("get_user", **USER),
    ],
    "user: wrong boundary": call(
        "put_user_permissions_boundary", PermissionsBoundary="arn:aws:x", **USER
    ),
    "user: tags": [
        call("tag_user", Tags=[{"Key": "a", "Value": ""}, {"Key": "\u00e9", "Value": "1"}], **USER),
        call("untag_user", TagKeys=["a"], **USER),
        call("list_user_tags", **USER),
    ],
    "key: list": [call("get_access_key_last_used", AccessKeyId=Given("key"))]
    + [call("list_access_keys", **USER)],
    "key: off": [
        call("update_access_key", AccessKeyId=Given("key"), Status="Inactive", **USER),
        call("list_access_keys", **USER),
    ],
    "key: last used": call("get_access_key_last_used", AccessKeyId=Given("key")),
    "key: deleted": [
        call("delete_access_key", AccessKeyId=Given("key"), **USER),
        call("list_access_keys", **USER),
    ],
    "key: none is deleted": call("delete_access_key", AccessKeyId="AKIA000000000000NONE", **USER),
    "key: a third one": [call("create_access_key", **USER), call("create_access_key", **USER)],
    "login: made": [
        call("create_login_profile", Password="p&w=\u00e9", PasswordResetRequired=True, **USER),
        call("get_login_profile", **USER),
        call("delete_login_profile", **USER),
    ],
    "login: none": call("get_login_profile", **USER),
    "group: there already": STAFF + [call("create_group", **GROUP)],
    "group: members": STAFF + [call("get_group", **GROUP)],
    "group: members by pages": STAFF + [pages("get_group", search="Users[].UserName", **GROUP)],
    "group: none": call("get_group", GroupName="none"),
    "group: left": STAFF
    + [call("remove_user_from_group", **USER, **GROUP), call("get_group", **GROUP)],
    "group: joined by none": STAFF + [call("add_user_to_group", UserName="none", **GROUP)],
    "group: policies": STAFF
    + [
        call("attach_group_policy", PolicyArn=ARN, **GROUP),
        call("list_attached_group_policies", **GROUP),
        call("detach_group_policy", PolicyArn=ARN, **GROUP),
        call("detach_group_policy", PolicyArn=ARN, **GROUP),
    ],
    "role: made": role(
        Path="/service/", MaxSessionDuration=7200, Tags=[{"Key": "a", "Value": "b"}]
    ),
    "role: there already": call("create_role", AssumeRolePolicyDocument=TRUST, **ROLE),
    "role: no JSON": role(AssumeRolePolicyDocument="{"),
    "role: too long a session": role(MaxSessionDuration=100_000),
    "role: long name": role(RoleName="r" * 65),
    "role: many tags": role(Tags=[{"Key": str(n), "Value": ""} for n in range(51)]),
    "role: one tag twice": role(Tags=[{"Key": "a", "Value": ""}, {"Key": "A", "Value": ""}]),
    "role: boundary": role(PermissionsBoundary=ARN),
    "role: read": call("get_role", **ROLE),
    "role: none": call("get_role", RoleName="none"),
    "role: list": call("list_roles", PathPrefix="/"),
    "role: trust": [
        call("update_assume_role_policy", PolicyDocument=OTHER, **ROLE),
        call("get_role", **ROLE),
    ],
    "role: description": call(
        "update_role", Description="\u00e9 & \u4e2d", MaxSessionDuration=3600, **ROLE
    ),
    "role: attached": [ATTACHED, call("list_attached_role_policies", **ROLE)],
    "role: attached by pages": [
        ATTACHED,
        pages("list_attached_role_policies", PaginationConfig={"PageSize": 1}, **ROLE),
    ],
    "role: none is attached": call(
        "attach_role_policy", PolicyArn="arn:aws:iam::123456789012:policy/none", **ROLE
    ),
    "role: bad ARN is attached": call("attach_role_policy", PolicyArn="short", **ROLE),
    "role: inline policy": [
        call("put_role_policy", PolicyName="p", PolicyDocument=POLICY, **ROLE),
        call("get_role_policy", PolicyName="p", **ROLE),
        call("delete_role", **ROLE),
    ],
    "role: deleted with a policy": [ATTACHED, call("delete_role", **ROLE)],
    "role: deleted": [
        ATTACHED,
        call("detach_role_policy", PolicyArn=ARN, **ROLE),
        call("delete_role", **ROLE),
        call("get_role", **ROLE),
    ],
    "policy: made": policy(
        POLICY, Description="\u00e9", Path="/x/", Tags=[{"Key": "a", "Value": "b"}]
    ),
    "policy: there already": policy(POLICY, "reading"),
    "policy: no JSON": policy("{"),
    "policy: no version": policy(json.dumps({"Statement": [READ]})),
    "policy: wrong effect": policy(
        json.dumps({"Version": "2012-10-17", "Statement": [dict(READ, Effect="Maybe")]})
    ),
    "policy: no action": policy(
        '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Resource": "*"}]}'
    ),
    "policy: one Sid twice": policy(
        json.dumps({"Version": "2012-10-17", "Statement": [READ, READ]})
    ),
    "policy: bad resource": policy(
        json.dumps({"Version": "2012-10-17", "Statement": dict(READ, Resource="x")})
    ),
    "policy: read": call("get_policy", PolicyArn=ARN),
    "policy: none": call("get_policy", PolicyArn="arn:aws:iam::123456789012:policy/none"),
    "policy: list": [ATTACHED, call("list_policies", Scope="Local", OnlyAttached=True)],
    "policy: document": call("get_policy_version", PolicyArn=ARN, VersionId="v1"),
    "policy: no such version": call("get_policy_version", PolicyArn=ARN, VersionId="v9"),
    "policy: versions": [
        call("create_policy_version", PolicyArn=ARN, PolicyDocument=OTHER, SetAsDefault=True),
        call("list_policy_versions", PolicyArn=ARN),
        call("delete_policy_version", PolicyArn=ARN, VersionId="v2"),
        call("set_default_policy_version", PolicyArn=ARN, VersionId="v1"),
    ],
    "policy: entities": [ATTACHED, call("list_entities_for_policy", PolicyArn=ARN)],
    "policy: deleted while attached": [ATTACHED, call("delete_policy", PolicyArn=ARN)],
    "profile": [
        call("create_instance_profile", InstanceProfileName="p"),
        call("add_role_to_instance_profile", InstanceProfileName="p", **ROLE),
        call("get_instance_profile", InstanceProfileName="p"),
        call("delete_instance_profile", InstanceProfileName="p"),
    ],
    "profile: none": call("get_instance_profile", InstanceProfileName="none"),
    "account: alias": [
        call("create_account_alias", AccountAlias="own-1"),
        call("list_account_aliases"),
        call("delete_account_alias", AccountAlias="own-1"),
    ],
    "account: summary": call("get_account_summary"),
    "account: no password policy": call("get_account_password_policy"),
    "account: password policy": [
        call("update_account_password_policy", MinimumPasswordLength=12, RequireSymbols=True),
        call("get_account_password_policy"),
    ],
    "account: passwords too short": call("update_account_password_policy", MinimumPasswordLength=1),
    "provider": [
        call(
            "create_open_id_connect_provider",
            Url="https://id.example.com/x",
            ClientIDList=["a", "b"],
            ThumbprintList=["0" * 40],
        ),
        call("list_open_id_connect_providers"),
    ],
    "provider: bad URL": call("create_open_id_connect_provider", Url="x", ThumbprintList=["1"]),
    "provider: none": call(
        "get_saml_provider", SAMLProviderArn="arn:aws:iam::123456789012:saml-provider/none"
    ),
    "certificate: none": call("get_server_certificate", ServerCertificateName="none"),
    "device: none": call("list_mfa_devices", **USER),
    "waiter: user": wait("user_exists", **USER),
    "waiter: no user": wait("user_exists", UserName="none"),
    "waiter: role": wait("role_exists", **ROLE),
    "waiter: no policy": wait("policy_exists", PolicyArn="arn:aws:iam::123456789012:policy/none"),
    "resource: role": use(
        lambda trial, values: [
            resource(trial).Role("reader").description,
            resource(trial).Role("reader").attach_policy(PolicyArn=values["policy"]),
            [p.policy_name for p in resource(trial).Role("reader").attached_policies.all()],
        ]
    ),
    "resource: users": use(
        lambda trial, _: [[u.name, u.path] for u in resource(trial).users.all()]
    ),
    "resource: none": use(lambda trial, _: resource(trial).Group("none").arn),
    "config: unsigned": Row(call("list_users"), config={"signature_version": "unsigned"}),
    "unknown member": call("get_user", Name="ann"),
}
