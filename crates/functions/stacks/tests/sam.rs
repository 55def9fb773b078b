//! The SAM transform: the resources that it generates, and its refusals.

use serde_json::{Map, Value, json};
use unlade_fn_stacks::{document, sam};

const HEAD: &str = "Transform: AWS::Serverless-2016-10-31\n";

fn expand(text: &str) -> Result<Value, String> {
    let root = document::parse(&format!("{HEAD}{text}")).map_err(|failure| failure.message)?;
    let parameters = Map::from_iter([("Stage".to_owned(), json!("live"))]);
    let expanded = sam::expand(root, &parameters).map_err(|failure| failure.message)?;
    Ok(Value::Object(expanded))
}

fn function(properties: &str) -> String {
    format!(
        "Resources:\n  F:\n    Type: AWS::Serverless::Function\n    Properties: {{{properties}}}\n"
    )
}

#[test]
fn a_function_gets_a_role() {
    let text = function("CodeUri: 's3://b/d/k.zip', Handler: app.h, Runtime: python3.12");
    let expanded = expand(&text).unwrap();
    assert!(expanded.get("Transform").is_none());
    let resources = &expanded["Resources"];
    assert_eq!(resources["F"]["Type"], "AWS::Lambda::Function");
    let properties = &resources["F"]["Properties"];
    assert_eq!(properties["Code"], json!({"S3Bucket": "b", "S3Key": "d/k.zip"}));
    assert_eq!(properties["Role"], json!({"Fn::GetAtt": ["FRole", "Arn"]}));
    let role = &resources["FRole"];
    assert_eq!(role["Type"], "AWS::IAM::Role");
    let basic = "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole";
    assert_eq!(role["Properties"]["ManagedPolicyArns"], json!([basic]));
    assert_eq!(resources.as_object().unwrap().len(), 2);
}

#[test]
fn globals_are_merged() {
    let globals = "Globals:\n  Function: {Timeout: 3, Runtime: python3.12, Environment: {Variables: {A: 1, B: \
                   1}}, Layers: [x], Tags: {t: u}}\n";
    let own = function(
        "InlineCode: 'def h(e, c): pass', Handler: index.h, Timeout: 9, Role: r, Layers: [y], \
         Environment: {Variables: {B: 2}}",
    );
    let expanded = expand(&format!("{globals}{own}")).unwrap();
    let resources = expanded["Resources"].as_object().unwrap();
    assert_eq!(resources.len(), 1, "a function with a role gets none");
    let properties = &resources["F"]["Properties"];
    assert_eq!(properties["Timeout"], 9);
    assert_eq!(properties["Environment"], json!({"Variables": {"A": 1, "B": 2}}));
    assert_eq!(properties["Layers"], json!(["x", "y"]));
    assert_eq!(properties["Code"], json!({"ZipFile": "def h(e, c): pass"}));
    let tags = json!([{"Key": "lambda:createdBy", "Value": "SAM"}, {"Key": "t", "Value": "u"}]);
    assert_eq!(properties["Tags"], tags);
}

#[test]
fn an_alias_follows_a_version_of_the_code() {
    let text = |key: &str| {
        let own = format!(
            "CodeUri: {{Bucket: b, Key: {key}, Version: v}}, Handler: h, Runtime: python3.12, Role: r, \
             AutoPublishAlias: !Ref Stage, ProvisionedConcurrencyConfig: {{ProvisionedConcurrentExecutions: \
             1}}"
        );
        function(&own)
            + "Outputs:\n  A: {Value: !Ref F.Alias}\n  V: {Value: !GetAtt F.Version.Version}\n  S: {Value: \
               !Sub '${F.Alias}/${F.Version.FunctionArn}/${F}'}\n"
    };
    let version_of = |expanded: &Value| {
        let resources = expanded["Resources"].as_object().unwrap();
        resources.keys().find(|id| id.starts_with("FVersion")).unwrap().clone()
    };
    let expanded = expand(&text("one")).unwrap();
    let version = version_of(&expanded);
    assert_eq!(version.len(), "FVersion".len() + 10);
    assert_eq!(version, version_of(&expand(&text("one")).unwrap()));
    assert_ne!(version, version_of(&expand(&text("two")).unwrap()));
    let resources = &expanded["Resources"];
    assert_eq!(resources[&version]["DeletionPolicy"], "Retain");
    let alias = json!({
        "FunctionName": {"Ref": "F"},
        "FunctionVersion": {"Fn::GetAtt": [version, "Version"]},
        "Name": "live",
        "ProvisionedConcurrencyConfig": {"ProvisionedConcurrentExecutions": 1},
    });
    assert_eq!(resources["FAliaslive"]["Properties"], alias);
    let outputs = &expanded["Outputs"];
    assert_eq!(outputs["A"]["Value"], json!({"Ref": "FAliaslive"}));
    assert_eq!(outputs["V"]["Value"], json!({"Fn::GetAtt": [version, "Version"]}));
    let sub = format!("${{FAliaslive}}/${{{version}.FunctionArn}}/${{F}}");
    assert_eq!(outputs["S"]["Value"], json!({"Fn::Sub": sub}));
}

#[test]
fn events_and_policies_are_those_of_the_specification() {
    let text = function(
        "CodeUri: 's3://b/k', Handler: h, Runtime: python3.12, AutoPublishAlias: live, DeadLetterQueue: \
         {Type: SQS, TargetArn: dead}, EventInvokeConfig: {MaximumRetryAttempts: 1, DestinationConfig: \
         {OnFailure: {Type: SNS, Destination: topic}}}, Policies: [AmazonS3ReadOnlyAccess, {SQSPollerPolicy: \
         {QueueName: q}}, {Statement: []}, 'arn:aws:iam::aws:policy/X'], Events: {Queue: {Type: SQS, \
         Properties: {Queue: queue, BatchSize: 5}}}",
    );
    let expanded = expand(&text).unwrap();
    let resources = &expanded["Resources"];
    let mapping =
        json!({"EventSourceArn": "queue", "BatchSize": 5, "FunctionName": {"Ref": "FAliaslive"}});
    assert_eq!(resources["FQueue"]["Properties"], mapping);
    let config = &resources["FEventInvokeConfig"];
    let expected = json!({
        "FunctionName": {"Ref": "F"},
        "Qualifier": "live",
        "MaximumRetryAttempts": 1,
        "DestinationConfig": {"OnFailure": {"Destination": "topic"}},
    });
    assert_eq!(config["Properties"], expected);
    assert_eq!(config["DependsOn"], json!(["FAliaslive"]));
    assert_eq!(resources["F"]["Properties"]["DeadLetterConfig"], json!({"TargetArn": "dead"}));
    let role = &resources["FRole"]["Properties"];
    let managed = role["ManagedPolicyArns"].as_array().unwrap();
    let managed: Vec<_> = managed.iter().map(|arn| arn.as_str().unwrap()).collect();
    let expected = [
        "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole",
        "arn:aws:iam::aws:policy/service-role/AWSLambdaSQSQueueExecutionRole",
        "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess",
        "arn:aws:iam::aws:policy/X",
    ];
    assert_eq!(managed, expected);
    let inline = role["Policies"].as_array().unwrap();
    let names: Vec<_> =
        inline.iter().map(|policy| policy["PolicyName"].as_str().unwrap()).collect();
    let expected = [
        "DeadLetterQueuePolicy",
        "FEventInvokeConfigOnFailureSNSPolicy",
        "FRolePolicy1",
        "FRolePolicy2",
    ];
    assert_eq!(names, expected);
    let poller = &inline[2]["PolicyDocument"]["Statement"][0];
    assert_eq!(poller["Resource"]["Fn::Sub"][1], json!({"Name": "q"}));
}

#[test]
fn http_events_become_an_api_with_a_document_and_permissions() {
    let event = |more: &str| format!("{{Type: HttpApi, Properties: {{{more}}}}}");
    let events = format!(
        "{{A: {}, B: {}, C: {}}}",
        event("Path: '/pets/{id}', Method: GET"),
        event("Path: /old, Method: any, PayloadFormatVersion: '1.0', TimeoutInMillis: 500"),
        event("Path: /own, Method: post, ApiId: !Ref Own")
    );
    let globals = "Globals:\n  HttpApi: {CorsConfiguration: {AllowOrigins: ['*']}}\n";
    let own = function(&format!("CodeUri: 's3://b/k', Handler: h, Role: r, Events: {events}"))
        + "  Own: {Type: AWS::Serverless::HttpApi, Properties: {Name: own, StageName: !Ref Stage}}\n";
    let expanded = expand(&format!("{globals}{own}")).unwrap();
    let resources = &expanded["Resources"];
    let names: Vec<_> = resources.as_object().unwrap().keys().map(String::as_str).collect();
    let due = [
        "F",
        "FAPermission",
        "FBPermission",
        "FCPermission",
        "Own",
        "OwnliveStage",
        "ServerlessHttpApi",
        "ServerlessHttpApiApiGatewayDefaultStage",
    ];
    assert_eq!(names, due);
    let body = &resources["ServerlessHttpApi"]["Properties"]["Body"];
    assert_eq!(body["x-amazon-apigateway-cors"], json!({"allowOrigins": ["*"]}));
    let pet = &body["paths"]["/pets/{id}"]["get"];
    let uri = "arn:${AWS::Partition}:apigateway:${AWS::Region}:lambda:path/2015-03-31/functions/${F.Arn}/\
               invocations";
    let integration = json!({"type": "aws_proxy", "httpMethod": "POST",
        "payloadFormatVersion": "2.0", "uri": {"Fn::Sub": uri}});
    assert_eq!(pet["x-amazon-apigateway-integration"], integration);
    let old = &body["paths"]["/old"]["x-amazon-apigateway-any-method"];
    assert_eq!(old["x-amazon-apigateway-integration"]["timeoutInMillis"], 500);
    let source = |id: &str| {
        let own = resources[id]["Properties"]["SourceArn"]["Fn::Sub"].clone();
        let text = own[0].as_str().unwrap().rsplit("${__Stage__}").next().unwrap().to_owned();
        (own[1]["__ApiId__"]["Ref"].as_str().unwrap().to_owned(), text)
    };
    let api = "ServerlessHttpApi".to_owned();
    assert_eq!(source("FAPermission"), (api.clone(), "/GET/pets/*".to_owned()));
    assert_eq!(source("FBPermission"), (api, "/*/old".to_owned()));
    assert_eq!(source("FCPermission"), ("Own".to_owned(), "/POST/own".to_owned()));
    assert_eq!(resources["OwnliveStage"]["Properties"]["StageName"], json!({"Ref": "Stage"}));
}

#[test]
fn a_url_is_public_only_without_authentication() {
    let text = |auth: &str| {
        let url = format!("{{AuthType: {auth}, Cors: {{AllowOrigins: ['*']}}}}");
        function(&format!(
            "CodeUri: 's3://b/k', Handler: h, Role: r, AutoPublishAlias: live, FunctionUrlConfig: {url}"
        ))
    };
    let expanded = expand(&text("NONE")).unwrap();
    let resources = &expanded["Resources"];
    let url = json!({"AuthType": "NONE", "Cors": {"AllowOrigins": ["*"]},
        "TargetFunctionArn": {"Ref": "FAliaslive"}});
    assert_eq!(resources["FUrl"]["Properties"], url);
    let public = &resources["FUrlPublicPermissions"]["Properties"];
    assert_eq!(public["FunctionUrlAuthType"], "NONE");
    assert_eq!(public["FunctionName"], json!({"Ref": "FAliaslive"}));
    let by_url = &resources["FURLInvokeAllowPublicAccess"]["Properties"];
    assert_eq!(by_url["InvokedViaFunctionUrl"], true);
    let signed = expand(&text("AWS_IAM")).unwrap();
    let resources = signed["Resources"].as_object().unwrap();
    assert!(resources.contains_key("FUrl") && !resources.contains_key("FUrlPublicPermissions"));
}

#[test]
fn unsupported_parts_are_named_with_advice() {
    let event = |kind: &str| {
        function(&format!("CodeUri: 's3://b/k', Events: {{E: {{Type: {kind}, Properties: {{}}}}}}"))
    };
    let http = |properties: &str| {
        let event = format!("{{Type: HttpApi, Properties: {{{properties}}}}}");
        function(&format!("CodeUri: 's3://b/k', Events: {{E: {event}}}"))
    };
    let get = "{Type: HttpApi, Properties: {Path: /a, Method: get}}";
    let twice = function(&format!("CodeUri: 's3://b/k', Events: {{A: {get}, B: {get}}}"));
    let of = |kind: &str| format!("Resources:\n  X: {{Type: AWS::Serverless::{kind}}}\n");
    for (text, parts) in [
        (event("Api"), vec!["[F]", "[E]", "Api is not supported", "use HttpApi"]),
        (http("Path: /a"), vec!["[F]", "[E]", "Path and Method"]),
        (http("Path: /a, Method: trace"), vec!["[E]", "Method"]),
        (http("Auth: {Authorizer: A}"), vec!["[E]", "Auth is not supported"]),
        (http("ApiId: !Ref Gone"), vec!["[Gone]", "AWS::Serverless::HttpApi"]),
        (http("ApiId: x"), vec!["[E]", "ApiId must be Ref"]),
        (twice, vec!["[ServerlessHttpApi]", "there twice"]),
        (
            "Resources:\n  X: {Type: AWS::Serverless::HttpApi, Properties: {Auth: {}}}\n"
                .to_owned(),
            vec!["[X]", "Auth is not supported"],
        ),
        (format!("Globals: {{HttpApi: {{Auth: {{}}}}}}\n{}", http("")), vec!["'Auth' of HttpApi"]),
        (function("CodeUri: 's3://b/k', FunctionUrlConfig: {}"), vec!["AuthType is required"]),
        (
            function("CodeUri: 's3://b/k', FunctionUrlConfig: {AuthType: NONE, X: 1}"),
            vec!["FunctionUrlConfig: X"],
        ),
        (event("Schedule"), vec!["[E]", "no scheduler"]),
        (event("S3"), vec!["[E]", "in the same template"]),
        (event("SQS"), vec!["[E]", "No Queue was provided"]),
        (of("Api"), vec!["[X]", "AWS::Serverless::Api is not supported", "HttpApi"]),
        (of("SimpleTable"), vec!["[X]", "AWS::DynamoDB::Table"]),
        (function("CodeUri: ./src"), vec!["'CodeUri' is not a valid S3 Uri"]),
        (function("Handler: h"), vec!["InlineCode and CodeUri", "sam package"]),
        (function("InlineCode: x, Runtime: provided"), vec!["Python only"]),
        (function("CodeUri: 's3://b/k', ImageUri: x"), vec!["ImageUri", "use CodeUri"]),
        (
            function("CodeUri: 's3://b/k', Policies: [{NoPolicy: {}}]"),
            vec!["NoPolicy", "SQSPollerPolicy"],
        ),
        (
            function("CodeUri: 's3://b/k', Policies: [{SQSPollerPolicy: {}}]"),
            vec!["needs QueueName"],
        ),
        (
            function("CodeUri: 's3://b/k', AutoPublishAlias: !GetAtt X.Y"),
            vec!["Ref of a parameter"],
        ),
        (
            function("CodeUri: 's3://b/k', ProvisionedConcurrencyConfig: {}"),
            vec!["AutoPublishAlias"],
        ),
        (
            function("CodeUri: 's3://b/k'") + "  FRole: {Type: AWS::IAM::Role}\n",
            vec!["[FRole]", "rename"],
        ),
        ("Globals: []\n".to_owned() + &function("CodeUri: 's3://b/k'"), vec!["[Globals]"]),
    ] {
        let message = expand(&text).unwrap_err();
        assert!(
            message.starts_with("Transform AWS::Serverless-2016-10-31 failed with: "),
            "{message}"
        );
        for part in parts {
            assert!(message.contains(part), "{message} has no {part}");
        }
    }
}

/// A function with an event of S3, and a bucket with these attributes.
fn with_bucket(event: &str, function: &str, bucket: &str) -> String {
    format!(
        "Resources:\n  F:\n    Type: AWS::Serverless::Function\n{function}    Properties: {{CodeUri: \
         's3://b/k', Role: r, Events: {{E: {{Type: S3, Properties: {{{event}}}}}}}}}\n  B:\n    Type: \
         AWS::S3::Bucket\n{bucket}"
    )
}

#[test]
fn a_bucket_notifies_a_function_that_permits_it() {
    let event = "Bucket: !Ref B, Events: ['s3:ObjectCreated:Put', 's3:ObjectRemoved:*'], Filter: {S3Key: \
                 {Rules: [{Name: suffix, Value: .jpg}]}}";
    let expanded = expand(&with_bucket(event, "", "    DependsOn: F\n")).unwrap();
    let resources = &expanded["Resources"];
    let permission = json!({
        "Type": "AWS::Lambda::Permission",
        "Properties": {
            "Action": "lambda:InvokeFunction", "FunctionName": {"Ref": "F"},
            "Principal": "s3.amazonaws.com", "SourceAccount": {"Ref": "AWS::AccountId"}}});
    assert_eq!(resources["FEPermission"], permission);
    let bucket = &resources["B"];
    assert_eq!(bucket["DependsOn"], json!(["F", "FEPermission"]));
    let filter = json!({"S3Key": {"Rules": [{"Name": "suffix", "Value": ".jpg"}]}});
    let one = |event: &str| json!({"Event": event, "Filter": filter, "Function": {"Fn::GetAtt": ["F", "Arn"]}});
    assert_eq!(
        bucket["Properties"]["NotificationConfiguration"]["LambdaConfigurations"],
        json!([one("s3:ObjectCreated:Put"), one("s3:ObjectRemoved:*")])
    );
}

#[test]
fn the_condition_of_a_function_is_that_of_its_notification() {
    let event = "Bucket: !Ref B, Events: 's3:ObjectCreated:*'";
    let text = with_bucket(event, "    Condition: C\n", "");
    let expanded = expand(&text).unwrap();
    let bucket = &expanded["Resources"]["B"];
    assert!(bucket.get("DependsOn").is_none());
    let depends = json!({"Fn::If": ["C", {"Ref": "FEPermission"}, "no dependency"]});
    let tag = json!([{"Key": "sam:ConditionalDependsOn:FEPermission", "Value": depends}]);
    assert_eq!(bucket["Properties"]["Tags"], tag);
    let own = json!({"Event": "s3:ObjectCreated:*", "Function": {"Fn::GetAtt": ["F", "Arn"]}});
    assert_eq!(
        bucket["Properties"]["NotificationConfiguration"]["LambdaConfigurations"],
        json!([{"Fn::If": ["C", own, {"Ref": "AWS::NoValue"}]}])
    );
    assert_eq!(expanded["Resources"]["FEPermission"]["Condition"], "C");
}

#[test]
fn an_invalid_event_of_a_bucket_is_refused() {
    for (event, due) in [
        ("Events: 's3:ObjectCreated:*'", "in the same template"),
        ("Bucket: name, Events: 's3:ObjectCreated:*'", "in the same template"),
        ("Bucket: !Ref F, Events: 's3:ObjectCreated:*'", "in the same template"),
        ("Bucket: !Ref B", "Events must be"),
        ("Bucket: !Ref B, Events: []", "Events must be"),
        ("Bucket: !Ref B, Events: 's3:ObjectCreated:*', More: 1", "property More"),
    ] {
        let why = expand(&with_bucket(event, "", "")).unwrap_err();
        assert!(why.contains(due), "{event}: {why}");
    }
    let wrong = with_bucket("Bucket: !Ref B, Events: 'e'", "", "    DependsOn: {a: b}\n");
    assert!(expand(&wrong).unwrap_err().contains("DependsOn"), "{wrong}");
}
