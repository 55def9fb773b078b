//! Stacks of CloudFormation at the gateway: requests as SAM CLI and the Serverless Framework send them, the
//! tools themselves where they can be had, and a gateway that is killed within a deployment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use system_tests::functions::{Answer, Gateway, ask, ask_as, ask_plainly, keys_of, until};
use system_tests::moto::Moto;
use system_tests::needs_functions;
use unlade_testkit::Random;

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded; charset=utf-8");

/// A function whose code is in the template, its role, version, alias and permission.
const PLAIN: &str = r#"
Parameters:
  Word: {Type: String}
  Secret: {Type: String, NoEcho: true, Default: not-to-be-seen}
Resources:
  Role:
    Type: AWS::IAM::Role
    Properties:
      AssumeRolePolicyDocument:
        Version: "2012-10-17"
        Statement:
          - {Effect: Allow, Action: sts:AssumeRole, Principal: {Service: lambda.amazonaws.com}}
      Policies:
        - PolicyName: reads
          PolicyDocument:
            Version: "2012-10-17"
            Statement: [{Effect: Allow, Action: s3:GetObject, Resource: "arn:aws:s3:::box/*"}]
  Speaker:
    Type: AWS::Lambda::Function
    Properties:
      Role: !GetAtt Role.Arn
      Runtime: python3.12
      Handler: index.handler
      Timeout: "10"
      Environment: {Variables: {WORD: !Ref Word, SECRET: !Ref Secret}}
      Code:
        ZipFile: |
          import os
          import boto3
          def handler(event, context):
              s3 = boto3.client("s3")
              try:
                  return [os.environ["WORD"],
                          s3.get_object(Bucket=event["bucket"], Key="k")["Body"].read().decode()]
              except s3.exceptions.ClientError as error:
                  return [os.environ["WORD"], error.response["Error"]["Code"]]
  Published:
    Type: AWS::Lambda::Version
    Properties: {FunctionName: !Ref Speaker}
  Live:
    Type: AWS::Lambda::Alias
    Properties: {FunctionName: !Ref Speaker, FunctionVersion: !GetAtt Published.Version, Name: live}
  Caller:
    Type: AWS::Lambda::Permission
    Properties: {FunctionName: !Ref Live, Action: lambda:InvokeFunction, Principal: s3.amazonaws.com}
  Logs:
    Type: AWS::Logs::LogGroup
    Properties: {LogGroupName: !Sub "/aws/lambda/${Speaker}", RetentionInDays: 7}
Outputs:
  Name: {Value: !Ref Speaker}
  Alias: {Value: !Ref Live}
"#;

fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let of = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(of).collect()
}

/// Sends a request of CloudFormation.
fn call(gateway: &Gateway, action: &str, members: &[(&str, &str)]) -> Answer {
    let mut form = format!("Action={action}&Version=2010-05-15");
    for (name, value) in members {
        form += &format!("&{name}={}", encoded(value));
    }
    ask(gateway.address, "POST", "/", &[FORM], form.as_bytes()).unwrap()
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

/// Sends a request that succeeds; returns the answer.
fn done(gateway: &Gateway, action: &str, members: &[(&str, &str)]) -> String {
    let answer = call(gateway, action, members);
    assert_eq!(answer.status, 200, "{action}: {answer:?}");
    text(&answer)
}

/// The first text of an element.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0)
}

/// The outputs of a stack.
fn outputs(xml: &str) -> BTreeMap<String, String> {
    let members = xml.split("<OutputKey>").skip(1);
    let of = |member: &str| {
        let key = member.split_once('<')?.0.to_owned();
        Some((key, element(member, "OutputValue")?.to_owned()))
    };
    members.filter_map(of).collect()
}

/// Waits for the end of an operation; returns the status, and the answer.
fn settled(gateway: &Gateway, stack: &str) -> (String, String) {
    until("the operation ends", || {
        let about = done(gateway, "DescribeStacks", &[("StackName", stack)]);
        let status = element(&about, "StackStatus")?.to_owned();
        (!status.ends_with("IN_PROGRESS")).then_some((status, about))
    })
}

/// Waits for the end of an operation with this status; returns the answer.
fn settled_as(gateway: &Gateway, stack: &str, due: &str) -> String {
    let (status, about) = settled(gateway, stack);
    if status != due {
        panic!("{about}\n{}", done(gateway, "DescribeStackEvents", &[("StackName", stack)]));
    }
    about
}

/// The names of all functions of the caller.
fn functions(gateway: &Gateway) -> Vec<String> {
    let answer = ask(gateway.address, "GET", "/2015-03-31/functions", &[], b"").unwrap();
    let all = answer.json()["Functions"].as_array().cloned().unwrap_or_default();
    all.iter().map(|one| one["FunctionName"].as_str().unwrap().to_owned()).collect()
}

/// The roles that the stacks of the tenant `default` have.
fn roles(gateway: &Gateway) -> Vec<String> {
    let file = gateway.dir.path().join("stacks/default/identities.json");
    let Ok(text) = std::fs::read_to_string(file) else { return Vec::new() };
    let content: Value = serde_json::from_str(&text).unwrap();
    content["roles"].as_object().unwrap().keys().cloned().collect()
}

fn create(gateway: &Gateway, word: &str) -> String {
    let members = [
        ("StackName", "app"),
        ("TemplateBody", PLAIN),
        ("Capabilities.member.1", "CAPABILITY_IAM"),
        ("Parameters.member.1.ParameterKey", "Word"),
        ("Parameters.member.1.ParameterValue", word),
    ];
    done(gateway, "CreateStack", &members);
    settled_as(gateway, "app", "CREATE_COMPLETE")
}

fn invoke(gateway: &Gateway, name: &str, bucket: &str) -> Value {
    let path = format!("/2015-03-31/functions/{name}/invocations");
    let event = json!({ "bucket": bucket }).to_string();
    let answer = ask(gateway.address, "POST", &path, &[], event.as_bytes()).unwrap();
    assert!(answer.is_success(), "{answer:?}");
    answer.json()
}

#[test]
fn a_stack_makes_changes_and_removes_its_resources() {
    needs_functions!();
    let gateway = Gateway::start("");
    for bucket in ["box", "secret"] {
        gateway.bucket(bucket);
        gateway.put(bucket, "k", b"x");
    }
    let made = outputs(&create(&gateway, "one"));
    let (name, alias) = (&made["Name"], &made["Alias"]);
    assert!(alias.ends_with(&format!("{name}:live")), "{made:?}");
    // The role of the template decides.
    assert_eq!(invoke(&gateway, &format!("{name}:live"), "box"), json!(["one", "x"]));
    assert_eq!(invoke(&gateway, name, "secret"), json!(["one", "AccessDenied"]));
    let policy = format!("/2015-03-31/functions/{name}/policy?Qualifier=live");
    let policy = ask(gateway.address, "GET", &policy, &[], b"").unwrap();
    assert!(text(&policy).contains("s3.amazonaws.com"), "{policy:?}");
    let events = done(&gateway, "DescribeStackEvents", &[("StackName", "app")]);
    assert!(events.contains("RetentionInDays has no effect"), "{events}");
    let again = call(&gateway, "CreateStack", &[("StackName", "app"), ("TemplateBody", PLAIN)]);
    assert_eq!((again.status, text(&again).contains("AlreadyExistsException")), (400, true));

    let change = [
        ("StackName", "app"),
        ("UsePreviousTemplate", "true"),
        ("Capabilities.member.1", "CAPABILITY_IAM"),
        ("Parameters.member.1.ParameterKey", "Word"),
        ("Parameters.member.1.ParameterValue", "two"),
    ];
    done(&gateway, "UpdateStack", &change);
    settled_as(&gateway, "app", "UPDATE_COMPLETE");
    assert_eq!(invoke(&gateway, name, "box"), json!(["two", "x"]));
    assert_eq!(invoke(&gateway, &format!("{name}:live"), "box"), json!(["one", "x"]), "a version");

    done(&gateway, "DeleteStack", &[("StackName", "app")]);
    until("it is gone", || {
        let answer = call(&gateway, "DescribeStacks", &[("StackName", "app")]);
        text(&answer).contains("does not exist").then_some(())
    });
    assert_eq!((functions(&gateway), roles(&gateway)), (Vec::new(), Vec::new()));
}

#[test]
fn a_failed_creation_leaves_nothing_and_says_why() {
    needs_functions!();
    let gateway = Gateway::start("");
    let broken = PLAIN.replace("import os\n", "import no_such_module\n");
    let members = [
        ("StackName", "app"),
        ("TemplateBody", broken.as_str()),
        ("Capabilities.member.1", "CAPABILITY_IAM"),
        ("Parameters.member.1.ParameterKey", "Word"),
        ("Parameters.member.1.ParameterValue", "x"),
    ];
    done(&gateway, "CreateStack", &members);
    settled_as(&gateway, "app", "ROLLBACK_COMPLETE");
    let events = done(&gateway, "DescribeStackEvents", &[("StackName", "app")]);
    assert!(events.contains("no_such_module"), "{events}");
    assert!(!events.contains("not-to-be-seen"));
    assert_eq!((functions(&gateway), roles(&gateway)), (Vec::new(), Vec::new()));
    done(&gateway, "DeleteStack", &[("StackName", "app")]);
}

/// The rights of a role in a template end at the operator's limit, and a name of the operator's is not
/// taken.
#[test]
fn roles_of_stacks_are_within_the_operators_limit() {
    needs_functions!();
    let gateway = Gateway::start(
        "[[tenant.default.role.statements]]\neffect = \"allow\"\nactions = [\"s3:*\"]\n\
         resources = [\"secret\", \"secret/*\"]\n\
         [[tenant.default.roles.reader.statements]]\neffect = \"allow\"\n\
         actions = [\"s3:GetObject\"]\nresources = [\"secret/*\"]\n",
    );
    let made = outputs(&create(&gateway, "w"));
    // The template allows the bucket `box`, the operator the bucket `secret`: neither can be read.
    for bucket in ["box", "secret"] {
        let denied = invoke(&gateway, &made["Name"], bucket);
        assert_eq!(denied, json!(["w", "AccessDenied"]), "{bucket}");
    }
    let taken = r#"{"Resources": {"R": {"Type": "AWS::IAM::Role", "Properties": {
        "RoleName": "reader", "AssumeRolePolicyDocument": {"Statement": [{"Effect": "Allow",
        "Action": "sts:AssumeRole", "Principal": {"Service": "lambda.amazonaws.com"}}]}}}}}"#;
    let members = [
        ("StackName", "other"),
        ("TemplateBody", taken),
        ("Capabilities.member.1", "CAPABILITY_NAMED_IAM"),
    ];
    done(&gateway, "CreateStack", &members);
    settled_as(&gateway, "other", "ROLLBACK_COMPLETE");
    let events = done(&gateway, "DescribeStackEvents", &[("StackName", "other")]);
    assert!(events.contains("a role of the operator"), "{events}");
}

/// A Zip archive of files, which have no directories.
fn archive_of(directory: &Path, files: &[(&str, &str)]) -> Vec<u8> {
    let packed = directory.join("packed.zip");
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-m", "zipfile", "-c"]).arg(&packed);
    for (name, content) in files {
        std::fs::write(directory.join(name), content).unwrap();
        command.arg(directory.join(name));
    }
    assert!(command.status().unwrap().success());
    std::fs::read(packed).unwrap()
}

/// Lambda's API takes an archive that the tenant's worker reads in several parts, with the tenant's own
/// rights.
#[test]
fn code_is_read_from_the_store_in_parts_with_the_rights_of_the_tenant() {
    needs_functions!();
    let gateway = Gateway::start(
        "[[tenant.bound.role.statements]]\neffect = \"allow\"\nactions = [\"s3:*\"]\n\
         resources = [\"own\", \"own/*\"]\n",
    );
    gateway.bucket("box");
    let scratch = tempfile::tempdir().unwrap();
    // Digits of random numbers have half of their length when they are packed.
    let mut random = Random::new(11);
    let digits: String = (0..1 << 20).map(|_| format!("{:016x}", random.next())).collect();
    let code = "import os\n\ndef handler(event, context):\n    \
                return os.path.getsize(os.path.join(os.path.dirname(__file__), 'digits'))\n";
    let packed = archive_of(scratch.path(), &[("app.py", code), ("digits", &digits)]);
    assert!(packed.len() > 2 * (4 << 20), "more than two parts");
    gateway.put("box", "code", &packed);
    let body = |key: &str| {
        json!({
            "FunctionName": "big", "Runtime": "python3.12", "Handler": "app.handler",
            "Role": "arn:aws:iam::000000000000:role/default", "Timeout": 30,
            "Code": {"S3Bucket": "box", "S3Key": key},
        })
        .to_string()
    };
    let path = "/2015-03-31/functions";
    let absent = ask(gateway.address, "POST", path, &[], body("absent").as_bytes()).unwrap();
    assert!(absent.status == 400 && text(&absent).contains("NoSuchKey"), "{absent:?}");
    let keys = keys_of(gateway.address, "bound").unwrap();
    let denied =
        ask_as(&keys, gateway.address, "POST", path, &[], body("code").as_bytes()).unwrap();
    assert!(denied.status == 400 && text(&denied).contains("s3:GetObject"), "{denied:?}");
    let made = ask(gateway.address, "POST", path, &[], body("code").as_bytes()).unwrap();
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(made.json()["CodeSize"], packed.len());
    let path = "/2015-03-31/functions/big/invocations";
    let answer = ask(gateway.address, "POST", path, &[], b"{}").unwrap();
    assert_eq!(answer.json(), digits.len(), "{answer:?}");
}

/// The template of `sam init`, after `sam package`.
const SAM: &str = r#"
AWSTemplateFormatVersion: '2010-09-09'
Transform: AWS::Serverless-2016-10-31
Resources:
  HelloWorldFunction:
    Type: AWS::Serverless::Function
    Metadata: {SamResourceId: HelloWorldFunction}
    Properties:
      CodeUri: s3://box/app/code
      Handler: app.handler
      Runtime: python3.12
      AutoPublishAlias: live
      Timeout: 10
Outputs:
  HelloWorldFunction: {Value: !GetAtt HelloWorldFunction.Arn}
"#;

/// The requests of `sam deploy` and `sam delete` (1.170.0), without the tool.
#[test]
fn sam_deploys_and_deletes_by_its_requests() {
    needs_functions!();
    let gateway = Gateway::start("");
    gateway.bucket("box");
    let scratch = tempfile::tempdir().unwrap();
    let code = |number: u32| {
        let text = format!("def handler(event, context):\n    return {number}\n");
        gateway.put("box", "app/code", &archive_of(scratch.path(), &[("app.py", &text)]));
    };
    let identity = b"Action=GetCallerIdentity&Version=2011-06-15";
    let identity = ask(gateway.address, "POST", "/", &[FORM], identity).unwrap();
    assert_eq!(element(&text(&identity), "Account"), Some("000000000000"), "{identity:?}");
    let deployed = |number: u32, kind: &str| {
        code(number);
        // Another key for each code, as the tool does: its hash.
        let template = SAM.replace("app/code", &format!("app/code-{number}"));
        gateway.put(
            "box",
            &format!("app/code-{number}"),
            &gateway.object("box", "app/code").unwrap(),
        );
        gateway.put("box", "app/template", template.as_bytes());
        let name = format!("samcli-deploy{number}");
        let members = [
            ("StackName", "app"),
            ("ChangeSetName", name.as_str()),
            ("ChangeSetType", kind),
            ("TemplateURL", "https://s3.us-east-1.amazonaws.com/box/app/template"),
            ("Capabilities.member.1", "CAPABILITY_IAM"),
            ("Description", "Created by SAM CLI at 2026-01-01T00:00:00 UTC"),
        ];
        let made = done(&gateway, "CreateChangeSet", &members);
        let (set, stack) = (element(&made, "Id").unwrap(), element(&made, "StackId").unwrap());
        let about = [("ChangeSetName", set), ("StackName", stack)];
        let changes = done(&gateway, "DescribeChangeSet", &about);
        assert_eq!(element(&changes, "Status"), Some("CREATE_COMPLETE"), "{changes}");
        assert!(changes.contains("AWS::Lambda::Version"), "{changes}");
        done(&gateway, "ExecuteChangeSet", &about);
        let due = if kind == "CREATE" { "CREATE_COMPLETE" } else { "UPDATE_COMPLETE" };
        let about = settled_as(&gateway, "app", due);
        let arn = outputs(&about)["HelloWorldFunction"].clone();
        let path =
            format!("/2015-03-31/functions/{}:live/invocations", arn.rsplit(':').next().unwrap());
        let answer = ask(gateway.address, "POST", &path, &[], b"{}").unwrap();
        assert_eq!(answer.json(), number, "{answer:?}");
    };
    deployed(1, "CREATE");
    deployed(2, "UPDATE");
    done(&gateway, "GetTemplate", &[("StackName", "app"), ("TemplateStage", "Original")]);
    done(&gateway, "DeleteStack", &[("StackName", "app")]);
    until("it is gone", || functions(&gateway).is_empty().then_some(()));
    until("its role is gone", || roles(&gateway).is_empty().then_some(()));
}

/// The template with which `serverless deploy` (3) begins.
const BUCKET: &str = r#"{"AWSTemplateFormatVersion": "2010-09-09", "Resources": {
    "ServerlessDeploymentBucket": {"Type": "AWS::S3::Bucket", "Properties": {
        "BucketEncryption": {"ServerSideEncryptionConfiguration": [
            {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}}},
    "ServerlessDeploymentBucketPolicy": {"Type": "AWS::S3::BucketPolicy", "Properties": {
        "Bucket": {"Ref": "ServerlessDeploymentBucket"},
        "PolicyDocument": {"Statement": [{"Action": "s3:*", "Effect": "Deny", "Principal": "*",
            "Resource": [{"Fn::Join": ["", ["arn:", {"Ref": "AWS::Partition"}, ":s3:::",
                {"Ref": "ServerlessDeploymentBucket"}, "/*"]]}],
            "Condition": {"Bool": {"aws:SecureTransport": false}}}]}}}},
    "Outputs": {"ServerlessDeploymentBucketName": {"Value": {"Ref": "ServerlessDeploymentBucket"}}}}"#;

/// The requests of `serverless deploy` and `serverless remove` (3) about its bucket, without the tool.
#[test]
fn serverless_makes_and_removes_its_bucket_by_its_requests() {
    needs_functions!();
    let gateway = Gateway::start("");
    let missing = call(&gateway, "DescribeStacks", &[("StackName", "app-dev")]);
    assert!(text(&missing).contains("Stack with id app-dev does not exist"), "{missing:?}");
    done(&gateway, "ValidateTemplate", &[("TemplateBody", BUCKET)]);
    let members = [
        ("StackName", "app-dev"),
        ("OnFailure", "DELETE"),
        ("Capabilities.member.1", "CAPABILITY_IAM"),
        ("Tags.member.1.Key", "STAGE"),
        ("Tags.member.1.Value", "dev"),
        ("TemplateBody", BUCKET),
    ];
    done(&gateway, "CreateStack", &members);
    let about = settled_as(&gateway, "app-dev", "CREATE_COMPLETE");
    let bucket = outputs(&about)["ServerlessDeploymentBucketName"].clone();
    let resource = [("StackName", "app-dev"), ("LogicalResourceId", "ServerlessDeploymentBucket")];
    let resource = done(&gateway, "DescribeStackResource", &resource);
    assert_eq!(element(&resource, "PhysicalResourceId"), Some(bucket.as_str()));
    let events = done(&gateway, "DescribeStackEvents", &[("StackName", "app-dev")]);
    assert!(events.contains("only denies requests without TLS"), "{events}");
    gateway.put(&bucket, "code", b"x");
    done(&gateway, "DeleteStack", &[("StackName", "app-dev")]);
    let (status, about) = settled(&gateway, "app-dev");
    assert_eq!(status, "DELETE_FAILED", "a bucket with objects stays: {about}");
}

/// A queue, a topic and a table.
const SERVICES: &str = r#"
Parameters:
  Wait: {Type: Number, Default: 40}
Resources:
  Jobs:
    Type: AWS::SQS::Queue
    Properties: {QueueName: jobs, VisibilityTimeout: !Ref Wait, Tags: [{Key: own, Value: q}]}
  News:
    Type: AWS::SNS::Topic
    Properties: {TopicName: news, Tags: [{Key: own, Value: t}]}
  Things:
    Type: AWS::DynamoDB::Table
    Properties:
      TableName: things
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions: [{AttributeName: id, AttributeType: S}]
      KeySchema: [{AttributeName: id, KeyType: HASH}]
      TimeToLiveSpecification: {AttributeName: end, Enabled: "true"}
      Tags: [{Key: own, Value: d}]
Outputs:
  Queue: {Value: !Ref Jobs}
  Topic: {Value: !Ref News}
  Table: {Value: !GetAtt Things.Arn}
"#;

/// Asks moto as another client of the services.
fn at_moto(moto: &Moto, service: &str, head: (&str, &str), body: &str) -> Answer {
    let scope = format!("k/20260101/us-east-1/{service}/aws4_request");
    let signature = format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0");
    let headers = [("authorization", signature.as_str()), head];
    ask_plainly(moto.address, "POST", "/", &headers, body.as_bytes()).unwrap()
}

/// An operation with JSON at moto.
fn json_at_moto(moto: &Moto, service: &str, target: &str, body: &Value) -> Value {
    at_moto(moto, service, ("x-amz-target", target), &body.to_string()).json()
}

/// The tags of the queue, the topic and the table, in texts.
fn tags_at_moto(moto: &Moto, made: &BTreeMap<String, String>) -> [String; 3] {
    let queue = json!({"QueueUrl": made["Queue"]});
    let queue = json_at_moto(moto, "sqs", "AmazonSQS.ListQueueTags", &queue);
    let form = format!("Action=ListTagsForResource&ResourceArn={}", encoded(&made["Topic"]));
    let topic = text(&at_moto(moto, "sns", FORM, &form));
    let table = json!({"ResourceArn": made["Table"]});
    let table = json_at_moto(moto, "dynamodb", "DynamoDB_20120810.ListTagsOfResource", &table);
    [queue["Tags"].to_string(), topic, table["Tags"].to_string()]
}

/// The names of all tables, and the queues.
fn left_at_moto(moto: &Moto) -> (Value, Value) {
    let tables = json_at_moto(moto, "dynamodb", "DynamoDB_20120810.ListTables", &json!({}));
    let queues = json_at_moto(moto, "sqs", "AmazonSQS.ListQueues", &json!({}));
    (tables["TableNames"].clone(), queues.get("QueueUrls").cloned().unwrap_or(json!([])))
}

/// Queues, topics and tables follow the template and the tags of their stack, at the tenant's services. What
/// others have there is neither taken nor deleted.
#[test]
fn queues_topics_and_tables_follow_their_stack() {
    needs_functions!();
    let Some(moto) = Moto::start() else { return };
    let gateway = Gateway::start(&moto.config("\"s3:*\""));
    let tag = |value| [("Tags.member.1.Key", "team"), ("Tags.member.1.Value", value)];
    let body = [("StackName", "app"), ("TemplateBody", SERVICES)];
    done(&gateway, "CreateStack", &[body, tag("red")].concat());
    let made = outputs(&settled_as(&gateway, "app", "CREATE_COMPLETE"));
    for (of, own) in tags_at_moto(&moto, &made).iter().zip(["q", "t", "d"]) {
        let has_both = ["own", own, "team", "red"].iter().all(|text| of.contains(text));
        assert!(has_both, "{of}");
    }

    // A stack without tags, and resources without tags of their own.
    let plain: Vec<&str> = SERVICES.lines().filter(|line| !line.contains("      Tags:")).collect();
    let plain = plain.join("\n").replace(", Tags: [{Key: own, Value: q}]", "");
    let plain = plain.replace(", Tags: [{Key: own, Value: t}]", "");
    assert!(!plain.contains("Tags"));
    let change = [
        ("StackName", "app"),
        ("TemplateBody", plain.as_str()),
        ("Tags", ""),
        ("Parameters.member.1.ParameterKey", "Wait"),
        ("Parameters.member.1.ParameterValue", "50"),
    ];
    done(&gateway, "UpdateStack", &change);
    settled_as(&gateway, "app", "UPDATE_COMPLETE");
    for of in tags_at_moto(&moto, &made) {
        assert!(["own", "team", "red"].iter().all(|text| !of.contains(text)), "{of}");
    }
    let queue = json!({"QueueUrl": made["Queue"], "AttributeNames": ["VisibilityTimeout"]});
    let queue = json_at_moto(&moto, "sqs", "AmazonSQS.GetQueueAttributes", &queue);
    assert_eq!(queue["Attributes"]["VisibilityTimeout"], "50");

    // Another stack does not get a name of the first one, and what it has made before is gone.
    let other = SERVICES.replace("QueueName: jobs", "QueueName: more").replace(": news", ": other");
    done(&gateway, "CreateStack", &[("StackName", "other"), ("TemplateBody", &other)]);
    let about = settled_as(&gateway, "other", "ROLLBACK_COMPLETE");
    let events = done(&gateway, "DescribeStackEvents", &[("StackName", "other")]);
    assert!(events.contains("the table things already exists"), "{about}{events}");
    assert_eq!(left_at_moto(&moto), (json!(["things"]), json!([made["Queue"]])));

    done(&gateway, "DeleteStack", &[("StackName", "app")]);
    until("it is gone", || {
        let answer = call(&gateway, "DescribeStacks", &[("StackName", "app")]);
        text(&answer).contains("does not exist").then_some(())
    });
    assert_eq!(left_at_moto(&moto), (json!([]), json!([])));
    let topics = text(&at_moto(&moto, "sns", FORM, "Action=ListTopics"));
    assert!(!topics.contains("<TopicArn>"), "{topics}");
}

/// The tags of a function are those of its stack, also after an update that takes them away.
#[test]
fn a_function_has_the_tags_of_its_stack() {
    needs_functions!();
    let gateway = Gateway::start("");
    let members = [
        ("StackName", "app"),
        ("TemplateBody", PLAIN),
        ("Capabilities.member.1", "CAPABILITY_IAM"),
        ("Parameters.member.1.ParameterKey", "Word"),
        ("Parameters.member.1.ParameterValue", "w"),
    ];
    let tags = |pairs: &[(&'static str, &'static str)]| {
        let of = |((key, value), number): (&(&'static str, &'static str), u32)| {
            [
                (format!("Tags.member.{number}.Key"), *key),
                (format!("Tags.member.{number}.Value"), *value),
            ]
        };
        pairs.iter().zip(1..).flat_map(of).collect::<Vec<_>>()
    };
    let ask_for = |action: &str, pairs: &[(&'static str, &'static str)]| {
        let tags = tags(pairs);
        let tags = tags.iter().map(|(name, value)| (name.as_str(), *value));
        done(&gateway, action, &members.iter().copied().chain(tags).collect::<Vec<_>>());
    };
    ask_for("CreateStack", &[("team", "red"), ("stage", "dev")]);
    let made = outputs(&settled_as(&gateway, "app", "CREATE_COMPLETE"));
    let path = format!(
        "/2017-03-31/tags/{}",
        encoded(&format!("arn:aws:lambda:us-east-1:000000000000:function:{}", made["Name"]))
    );
    let tagged = || ask(gateway.address, "GET", &path, &[], b"").unwrap().json()["Tags"].clone();
    assert_eq!(tagged(), json!({"team": "red", "stage": "dev"}));
    ask_for("UpdateStack", &[("stage", "live")]);
    settled_as(&gateway, "app", "UPDATE_COMPLETE");
    assert_eq!(tagged(), json!({"stage": "live"}));
}

/// A killed gateway continues its deployment: it ends in the target, or rolls back, and a deletion then
/// leaves nothing.
#[test]
fn a_deployment_survives_the_gateway() {
    needs_functions!();
    const KILLS: u32 = 6;
    let mut random = Random::new(7);
    let mut gateway = Gateway::start("");
    for run in 0..KILLS {
        let members = [
            ("StackName", "app"),
            ("TemplateBody", PLAIN),
            ("Capabilities.member.1", "CAPABILITY_IAM"),
            ("Parameters.member.1.ParameterKey", "Word"),
            ("Parameters.member.1.ParameterValue", "w"),
        ];
        done(&gateway, "CreateStack", &members);
        // Killed after a number of events that differs from run to run.
        let events = 1 + random.below(14) as usize;
        until("some events", || {
            let text = done(&gateway, "DescribeStackEvents", &[("StackName", "app")]);
            (text.matches("<EventId>").count() >= events).then_some(())
        });
        gateway.restart();
        let (status, about) = settled(&gateway, "app");
        assert!(
            ["CREATE_COMPLETE", "ROLLBACK_COMPLETE"].contains(&status.as_str()),
            "{run}: {about}"
        );
        if status == "CREATE_COMPLETE" {
            assert_eq!(functions(&gateway).len(), 1, "run {run}");
        } else {
            assert_eq!(
                (functions(&gateway), roles(&gateway)),
                (Vec::new(), Vec::new()),
                "run {run}"
            );
        }
        done(&gateway, "DeleteStack", &[("StackName", "app")]);
        gateway.restart();
        until("it is gone", || {
            let answer = call(&gateway, "DescribeStacks", &[("StackName", "app")]);
            text(&answer).contains("does not exist").then_some(())
        });
        assert_eq!((functions(&gateway), roles(&gateway)), (Vec::new(), Vec::new()), "run {run}");
    }
}

#[test]
fn another_tenant_sees_no_stack() {
    needs_functions!();
    let gateway = Gateway::start("[tenant.other]\n");
    create(&gateway, "w");
    let keys = keys_of(gateway.address, "other").unwrap();
    let form = b"Action=DescribeStacks&Version=2010-05-15";
    let answer = ask_as(&keys, gateway.address, "POST", "/", &[FORM], form).unwrap();
    assert_eq!(answer.status, 200);
    assert!(!text(&answer).contains("<StackName>"), "{answer:?}");
}

/// The path that `tests/stacks/prepare` prints for a tool; `None`, and a message, where it cannot be had.
fn tool(name: &str) -> Option<PathBuf> {
    let prepare = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stacks/prepare");
    let output = Command::new(prepare).arg(name).output().expect("a shell");
    if !output.status.success() {
        println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
        return None;
    }
    Some(PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim()))
}

/// Runs `tests/stacks/NAME`, which deploys, changes and removes an application with the tool of this name.
fn run_tool(name: &str) {
    let Some(tool) = tool(name) else { return };
    let gateway = Gateway::start("");
    gateway.bucket("deployments");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stacks").join(name);
    let output = Command::new(script.join("run"))
        .env("TOOL", tool)
        .env("UNLADE_ENV", gateway.dir.path().join("env"))
        .output()
        .expect("a shell");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", said(&output.stdout), said(&output.stderr));
    assert_eq!((functions(&gateway), roles(&gateway)), (Vec::new(), Vec::new()));
}

#[test]
fn sam_cli_deploys_an_application_unmodified() {
    needs_functions!();
    run_tool("sam");
}

#[test]
fn the_serverless_framework_deploys_an_application_unmodified() {
    needs_functions!();
    run_tool("serverless");
}
