"""Calls functions over plain HTTP: by their URLs, and by HTTP APIs of stacks that an unmodified boto3 makes.

python function_urls.py CASE: the endpoints and the keys come from the environment, as for any client.
"""

import base64
import http.client
import io
import json
import os
import subprocess
import sys
import time
import urllib.parse
import zipfile

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

ROLE = "arn:aws:iam::000000000000:role/default"
CODE = '''
import base64, json, time

def handler(event, context):
    path = event.get("rawPath") or event["path"]
    name = path.rsplit("/", 1)[-1]
    if name == "plain":
        return {"hello": "world"}
    if name == "text":
        return "hello"
    if name == "binary":
        body = base64.b64decode(event["body"])
        return {"statusCode": 200, "headers": {"content-type": "application/octet-stream"},
                "body": base64.b64encode(body[::-1]).decode(), "isBase64Encoded": True}
    if name == "cookies":
        return {"statusCode": 302, "cookies": ["a=1; Path=/", "b=2"],
                "headers": {"location": "/plain", "access-control-allow-origin": "https://evil.example"}}
    if name == "malformed":
        return {"statusCode": "no"}
    if name == "fails":
        raise ValueError("no")
    if name == "slow":
        time.sleep(5)
    body = json.dumps({"event": event, "id": context.aws_request_id})
    return {"statusCode": 200, "headers": {"content-type": "application/json"}, "body": body}
'''
client = boto3.client("lambda", config=Config(retries={"max_attempts": 0}, read_timeout=300))
errors = client.exceptions


def archive(text):
    """The bytes of a Zip archive with `app.py`."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made:
        made.writestr("app.py", text)
    return content.getvalue()


def create(name):
    """Creates a function."""
    client.create_function(FunctionName=name, Runtime="python3.11", Role=ROLE, Handler="app.handler",
                           Timeout=30, Code={"ZipFile": archive(CODE)})


def allow(name, principal="*", auth="NONE", **more):
    """Lets a principal use the URL of a function."""
    client.add_permission(FunctionName=name, StatementId="url", Action="lambda:InvokeFunctionUrl",
                          Principal=principal, FunctionUrlAuthType=auth, **more)
    client.add_permission(FunctionName=name, StatementId="by-url", Action="lambda:InvokeFunction",
                          Principal=principal, InvokedViaFunctionUrl=True, **more)


def ask(url, method="GET", path="", headers=None, body=None, connection=None):
    """Sends a request to a URL on this machine; returns status, header fields and body."""
    parts = urllib.parse.urlsplit(url)
    own = connection or http.client.HTTPConnection("127.0.0.1", parts.port, timeout=60)
    target = (parts.path.rstrip("/") + path) or "/"
    own.request(method, target, body, {"Host": parts.netloc, **(headers or {})})
    answer = own.getresponse()
    content = answer.read()
    if connection is None:
        own.close()
    return answer.status, answer.headers, content


def sign(url, method, path, body, keys, service="lambda"):
    """The header fields that sign a request."""
    request = AWSRequest(method, url.rstrip("/") + path, data=body)
    request.headers["Host"] = urllib.parse.urlsplit(url).netloc
    SigV4Auth(Credentials(*keys), service, "us-east-1").add_auth(request)
    return {name: value for name, value in request.headers.items() if name != "Host"}


def refused(kind, call, **parameters):
    """The message of a call that raises this exception."""
    try:
        call(**parameters)
    except kind as error:
        return error.response["Error"]["Message"]
    raise AssertionError("%s was not raised" % kind.__name__)


def urls():
    """The life cycle of a URL, and requests without a signature."""
    create("f")
    cors = {"AllowOrigins": ["https://a.example"], "AllowMethods": ["GET"], "MaxAge": 60}
    made = client.create_function_url_config(FunctionName="f", AuthType="NONE", Cors=cors)
    url = made["FunctionUrl"]
    assert ".lambda-url.us-east-1.localhost:" in url and made["Cors"] == cors, made
    assert ask(url)[0] == 403, "a URL without a permission"
    client.add_permission(FunctionName="f", StatementId="half", Action="lambda:InvokeFunctionUrl",
                          Principal="*", FunctionUrlAuthType="NONE")
    assert ask(url)[0] == 403, "the permission of the URL alone"
    allow("f")
    assert ask(url, path="/plain")[2] == b'{"hello": "world"}'
    status, headers, body = ask(url, path="/text")
    assert (status, headers["content-type"], body) == (200, "application/json", b"hello")

    status, headers, body = ask(url, "POST", "/a%20b/c?x=1&x=2&y=%21", {
        "Content-Type": "application/json", "Cookie": "a=1; b=2", "X-Forwarded-For": "192.0.2.1"}, b'{"k": 1}')
    said = json.loads(body)
    event = said["event"]
    assert status == 200 and headers["x-amzn-requestid"] == said["id"], headers
    assert event["requestContext"]["requestId"] == said["id"]
    assert (event["version"], event["routeKey"]) == ("2.0", "$default")
    assert (event["rawPath"], event["rawQueryString"]) == ("/a%20b/c", "x=1&x=2&y=%21")
    assert event["queryStringParameters"] == {"x": "1,2", "y": "!"}
    assert event["cookies"] == ["a=1", "b=2"] and "cookie" not in event["headers"]
    assert (event["body"], event["isBase64Encoded"]) == ('{"k": 1}', False)
    assert event["headers"]["x-forwarded-for"] == "192.0.2.1, 127.0.0.1"
    assert event["requestContext"]["http"]["sourceIp"] == "127.0.0.1"
    assert event["requestContext"]["accountId"] == "anonymous"

    content = bytes(range(256)) * 4096
    status, headers, body = ask(url, "PUT", "/binary", {"Content-Type": "image/png"}, content)
    assert (status, body) == (200, content[::-1])
    # Base64 makes an event longer than the limit of a body that is not.
    assert ask(url, "PUT", "/binary", {"Content-Type": "image/png"}, bytes(5 << 20))[0] == 413
    status, headers, body = ask(url, path="/cookies")
    assert (status, headers.get_all("set-cookie")) == (302, ["a=1; Path=/", "b=2"])
    assert headers["access-control-allow-origin"] is None, "the configuration decides"
    for wrong in ("/malformed", "/fails"):
        status, headers, body = ask(url, path=wrong)
        assert (status, json.loads(body)) == (502, {"message": "Internal Server Error"}), wrong

    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "GET"}
    status, headers, body = ask(url, "OPTIONS", "/fails", asked)
    assert (status, headers["access-control-allow-origin"]) == (200, "https://a.example")
    assert (headers["access-control-allow-methods"], headers["access-control-max-age"]) == ("GET", "60")
    status, headers, body = ask(url, "OPTIONS", "/fails", {**asked, "Origin": "https://evil.example"})
    assert (status, headers["access-control-allow-origin"]) == (200, None)
    status, headers, body = ask(url, path="/plain", headers={"Origin": "https://a.example"})
    assert headers["access-control-allow-origin"] == "https://a.example"

    one = http.client.HTTPConnection("127.0.0.1", urllib.parse.urlsplit(url).port, timeout=60)
    for _ in range(3):
        assert ask(url, path="/plain", connection=one)[0] == 200, "a connection serves several requests"
    one.close()
    # The path names the function at other host names; curl and browsers resolve names below localhost.
    base = "http://127.0.0.1:%d" % urllib.parse.urlsplit(url).port
    identifier = urllib.parse.urlsplit(url).netloc.split(".")[0]
    assert ask(base, path="/lambda-url/%s/plain" % identifier)[2] == b'{"hello": "world"}'
    assert subprocess.run(["curl", "-sS", url + "plain"], stdout=subprocess.PIPE, check=True).stdout == (
        b'{"hello": "world"}')
    assert ask(base, path="/plain")[0] == 404 and ask(base, path="/lambda-url/none/plain")[0] == 404

    changed = client.update_function_url_config(FunctionName="f", Cors={})
    assert changed["FunctionUrl"] == url and "Cors" not in changed
    assert client.get_function_url_config(FunctionName="f")["AuthType"] == "NONE"
    assert "already" in refused(errors.ResourceConflictException, client.create_function_url_config,
                                FunctionName="f", AuthType="NONE")
    for wrong in ({"InvokeMode": "RESPONSE_STREAM"}, {"Cors": {"AllowOrigins": ["a b"]}}):
        refused(errors.InvalidParameterValueException, client.update_function_url_config,
                FunctionName="f", **wrong)
    version = client.publish_version(FunctionName="f")["Version"]
    refused(errors.InvalidParameterValueException, client.create_function_url_config, FunctionName="f",
            Qualifier=version, AuthType="NONE")
    client.create_alias(FunctionName="f", Name="live", FunctionVersion=version)
    alias = client.create_function_url_config(FunctionName="f", Qualifier="live", AuthType="NONE")
    assert ask(alias["FunctionUrl"])[0] == 403, "the policy of the alias is its own"
    allow("f", Qualifier="live")
    assert json.loads(ask(alias["FunctionUrl"])[2])["event"]["version"] == "2.0"
    listed = client.list_function_url_configs(FunctionName="f")["FunctionUrlConfigs"]
    assert [own["FunctionUrl"] for own in listed] == [url, alias["FunctionUrl"]], listed
    client.put_function_concurrency(FunctionName="f", ReservedConcurrentExecutions=0)
    assert ask(url, path="/plain")[0] == 429
    client.delete_function_concurrency(FunctionName="f")
    client.delete_function_url_config(FunctionName="f")
    assert ask(url, path="/plain")[0] == 404
    refused(errors.ResourceNotFoundException, client.get_function_url_config, FunctionName="f")
    client.delete_function(FunctionName="f")
    assert ask(alias["FunctionUrl"])[0] == 404


def signed():
    """Requests with a signature: of the owner, of another tenant, wrong ones."""
    own = (os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    other = (os.environ["OTHER_ACCESS_KEY_ID"], os.environ["OTHER_SECRET_ACCESS_KEY"])
    create("f")
    url = client.create_function_url_config(FunctionName="f", AuthType="AWS_IAM")["FunctionUrl"]
    assert ask(url)[0] == 403, "no signature"

    def post(path, keys, body=b'{"k": 1}', sent=None, **more):
        headers = sign(url, "POST", path, body, keys, **more)
        return ask(url, "POST", path, {"Content-Type": "application/json", **headers}, sent or body)

    # At the root, too, where other requests of the gateway are those of CloudFormation.
    for path in ("/", "/a%20b?x=1"):
        status, _, body = post(path, own)
        assert status == 200, body
        caller = json.loads(body)["event"]["requestContext"]["authorizer"]["iam"]
        assert (caller["accessKey"], caller["userArn"].split("/")[-1]) == (own[0], "default")
    assert post("/", own, sent=b'{"k": 2}')[0] == 403, "another body"
    assert post("/", (own[0], "wrong"))[0] == 403, "another secret"
    assert post("/", ("NOBODY", own[1]))[0] == 403, "an unknown key"
    assert post("/", own, service="s3")[0] == 403, "another service"
    headers = sign(url, "GET", "/other", None, own)
    assert ask(url, "GET", "/", headers)[0] == 403, "another path"
    assert post("/", other)[0] == 403, "another tenant"
    allow("f", "arn:aws:iam::000000000000:user/other", "AWS_IAM")
    status, _, body = post("/", other)
    assert status == 200 and "user/other" in body.decode(), body
    # A permission for signed requests is none without.
    client.update_function_url_config(FunctionName="f", AuthType="NONE")
    assert ask(url)[0] == 403 and post("/", other)[0] == 403


TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Parameters: {Word: {Type: String, Default: one}}
Globals:
  Function: {Runtime: python3.11, Handler: index.handler, Timeout: 30, Environment: {Variables: {WORD: !Ref Word}}}
Resources:
  F:
    Type: AWS::Serverless::Function
    Properties:
      InlineCode: |
CODE
      FunctionUrlConfig: {AuthType: NONE}
      Events:
        Pet: {Type: HttpApi, Properties: {Path: '/pets/{id}', Method: get}}
        Old: {Type: HttpApi, Properties: {Path: '/old/{rest+}', Method: any, PayloadFormatVersion: '1.0'}}
        Late: {Type: HttpApi, Properties: {Path: /slow, Method: get, TimeoutInMillis: 300}}
        Own: {Type: HttpApi, Properties: {Path: '/own/{id}', Method: post, ApiId: !Ref Second}}
  Second:
    Type: AWS::Serverless::HttpApi
    Properties:
      StageName: dev
      StageVariables: {word: !Ref Word}
      CorsConfiguration: {AllowOrigins: ['https://a.example'], AllowMethods: [POST]}
  Plain:
    Type: AWS::ApiGatewayV2::Api
    Properties: {Name: plain, ProtocolType: HTTP}
  PlainStage:
    Type: AWS::ApiGatewayV2::Stage
    Properties: {ApiId: !Ref Plain, StageName: $default, AutoDeploy: true}
  PlainIntegration:
    Type: AWS::ApiGatewayV2::Integration
    Properties:
      ApiId: !Ref Plain
      IntegrationType: AWS_PROXY
      IntegrationUri: !GetAtt F.Arn
      PayloadFormatVersion: '2.0'
  PlainRoute:
    Type: AWS::ApiGatewayV2::Route
    Properties:
      ApiId: !Ref Plain
      RouteKey: ROUTE
      Target: !Sub 'integrations/${PlainIntegration}'
PERMISSION
Outputs:
  Url: {Value: !GetAtt FUrl.FunctionUrl}
  Api: {Value: !Ref ServerlessHttpApi}
  Endpoint: {Value: !GetAtt ServerlessHttpApi.ApiEndpoint}
  Aws: {Value: !Sub 'https://${ServerlessHttpApi}.execute-api.${AWS::Region}.${AWS::URLSuffix}/'}
  Second: {Value: !GetAtt Second.ApiEndpoint}
  Plain: {Value: !GetAtt Plain.ApiEndpoint}
"""
PERMISSION = """
  PlainPermission:
    Type: AWS::Lambda::Permission
    Properties:
      Action: lambda:InvokeFunction
      FunctionName: !Ref F
      Principal: apigateway.amazonaws.com
      SourceArn: !Sub 'arn:aws:execute-api:${AWS::Region}:${AWS::AccountId}:${Plain}/*'
"""


def template(route, permission=""):
    """The template with a route of the plain API."""
    code = "\n".join("        " + line for line in CODE.strip().splitlines())
    return TEMPLATE.replace("CODE", code).replace("ROUTE", route).replace("PERMISSION", permission)


def outputs(formation):
    """The outputs of the stack."""
    stack = formation.describe_stacks(StackName="app")["Stacks"][0]
    return {own["OutputKey"]: own["OutputValue"] for own in stack["Outputs"]}


def stack():
    """HTTP APIs and a URL of a stack."""
    formation = boto3.client("cloudformation", config=Config(retries={"max_attempts": 0}))
    given = {"StackName": "app", "Capabilities": ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]}

    def wait(kind):
        formation.get_waiter(kind).wait(StackName="app", WaiterConfig={"Delay": 1, "MaxAttempts": 120})

    formation.create_stack(TemplateBody=template("GET /plain"), **given)
    wait("stack_create_complete")
    made = outputs(formation)
    assert ask(made["Url"], path="/plain")[2] == b'{"hello": "world"}'
    endpoint = made["Endpoint"]
    status, headers, body = ask(endpoint, path="/pets/a%20b?x=1")
    said = json.loads(body)["event"]
    assert status == 200 and headers["apigw-requestid"], headers
    assert (said["routeKey"], said["rawPath"]) == ("GET /pets/{id}", "/pets/a%20b")
    assert said["pathParameters"] == {"id": "a b"} and said["requestContext"]["stage"] == "$default"
    status, _, body = ask(endpoint, "DELETE", "/old/a/b?x=1&x=2")
    said = json.loads(body)["event"]
    assert (said["version"], said["resource"], said["httpMethod"]) == ("1.0", "/old/{rest+}", "DELETE")
    assert said["pathParameters"] == {"rest": "a/b"}
    assert said["multiValueQueryStringParameters"] == {"x": ["1", "2"]}
    # In format 1.0 a result without a status is no response.
    assert ask(endpoint, path="/old/plain")[0] == 500 and ask(endpoint, path="/old/fails")[0] == 500
    assert ask(endpoint, "POST", "/pets/1")[0] == 404 and ask(endpoint, path="/")[0] == 404
    begin = time.monotonic()
    assert ask(endpoint, path="/slow")[0] == 503 and time.monotonic() - begin < 5
    # The name that AWS's own pseudo parameters give is the same API, as is its path.
    port = urllib.parse.urlsplit(endpoint).port
    aws = urllib.parse.urlsplit(made["Aws"]).netloc
    assert ask("http://127.0.0.1:%d" % port, path="/pets/1", headers={"Host": aws})[0] == 200
    assert ask("http://127.0.0.1:%d/execute-api/%s" % (port, made["Api"]), path="/pets/1")[0] == 200

    asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    status, headers, _ = ask(made["Second"], "OPTIONS", "/dev/own/1", asked)
    assert (status, headers["access-control-allow-methods"]) == (204, "POST")
    status, headers, body = ask(made["Second"], "POST", "/dev/own/1", {"Origin": "https://a.example"}, b"x")
    said = json.loads(body)["event"]
    assert headers["access-control-allow-origin"] == "https://a.example"
    assert said["stageVariables"] == {"word": "one"} and said["rawPath"] == "/dev/own/1"
    assert ask(made["Second"], "POST", "/own/1")[0] == 404, "no such stage"

    assert ask(made["Plain"], path="/plain")[0] == 500, "no permission"
    formation.update_stack(TemplateBody=template("GET /{name}", PERMISSION),
                           Parameters=[{"ParameterKey": "Word", "ParameterValue": "two"}], **given)
    wait("stack_update_complete")
    assert outputs(formation) == made, "addresses stay"
    assert ask(made["Plain"], path="/plain")[2] == b'{"hello": "world"}'
    status, _, body = ask(made["Second"], "POST", "/dev/own/1")
    assert json.loads(body)["event"]["stageVariables"] == {"word": "two"}
    wrong = template("GET /{a}/{a}", PERMISSION)
    formation.update_stack(TemplateBody=wrong, **given)
    for _ in range(600):
        status = formation.describe_stacks(StackName="app")["Stacks"][0]["StackStatus"]
        if status == "UPDATE_ROLLBACK_COMPLETE":
            break
        time.sleep(0.1)
    assert status == "UPDATE_ROLLBACK_COMPLETE", status
    assert ask(made["Plain"], path="/plain")[2] == b'{"hello": "world"}', "as before"

    function = formation.describe_stack_resource(StackName="app", LogicalResourceId="F")
    client.delete_function(FunctionName=function["StackResourceDetail"]["PhysicalResourceId"])
    assert ask(endpoint, path="/pets/1")[0] == 500, "its function is gone"
    formation.delete_stack(StackName="app")
    wait("stack_delete_complete")
    for address in (made["Url"], endpoint, made["Second"], made["Plain"]):
        assert ask(address, path="/pets/1")[0] == 404, address


globals()[sys.argv[1]]()
