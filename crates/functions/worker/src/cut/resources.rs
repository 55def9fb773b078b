//! The actions that a request needs, and the resources that they are on, where the request names
//! them in a way that only one reading has.
//!
//! Actions are IAM's. An operation that is not listed for its service, or whose members are not as
//! expected, is on [`Resource::Unknown`]: only a role with the right to everything has it.

use unlade_guest_protocol::RequestHead;
use unlade_guest_protocol::request::unescaped;
use unlade_s3::policy::services::{Action, Asked, Resource, arn};

use super::form;
use super::members::Kept;
use super::services::Service;
use super::told::{Parameters, Told};

/// Most resources of a request that are decided one by one.
const RESOURCES_MAX: usize = 512;
/// Longest name of a resource, in bytes: that of an ARN.
const NAME_BYTES_MAX: usize = 2048;

/// The actions of a request, each on a resource; at least one. Of a server that is not AWS's own,
/// which may take any region and account for its own, a resource is in all of them.
pub fn asked(service: &Service, is_aws: bool, head: &RequestHead, told: &Told) -> Vec<Asked> {
    let mut all = named(service, head, told);
    for asked in all.iter_mut().filter(|_| !is_aws) {
        if let Resource::Named { region, account, .. } = &mut asked.resource {
            (*region, *account) = (String::new(), None);
        }
    }
    all
}

fn named(service: &Service, head: &RequestHead, told: &Told) -> Vec<Asked> {
    let Some(operation) = told.operation.as_deref() else {
        let action = Action::Any(service.action.to_owned());
        return vec![Asked { action, resource: Resource::Unknown }];
    };
    let naming = Naming { service: service.action, region: &head.region };
    let found = match (&told.parameters, service.name) {
        (Parameters::Json(body), "dynamodb") => dynamodb(&naming, operation, body),
        (Parameters::Json(body), "sqs") => sqs(&naming, operation, body),
        (Parameters::Json(body), "secretsmanager") => secrets(&naming, operation, body),
        (Parameters::Json(body), "ssm") => ssm(&naming, operation, body),
        (Parameters::Json(body), "kinesis") => kinesis(&naming, operation, body),
        (Parameters::Json(body), "events") => events(&naming, operation, body),
        (Parameters::Json(body), "logs") => logs(&naming, operation, body),
        (Parameters::Form(fields), "sns") => sns(&naming, operation, fields),
        (Parameters::Form(fields), "sts") => sts(&naming, operation, fields),
        (Parameters::Path(segments), "lambda") => lambda(&naming, operation, segments, &head.query),
        _ => None,
    };
    let found = found.filter(|all| !all.is_empty() && all.len() <= RESOURCES_MAX);
    let unknown = || {
        let names = unlisted(service.name, operation);
        let ask = |name: &&str| naming.ask(name, Resource::Unknown);
        names.map_or_else(
            || vec![naming.ask(action(service.name, operation), Resource::Unknown)],
            |names| names.iter().map(ask).collect(),
        )
    };
    found.unwrap_or_else(unknown)
}

/// The action of an operation where its name is another.
fn action<'a>(service: &str, operation: &'a str) -> &'a str {
    match (service, operation) {
        ("sqs", "SendMessageBatch") => "SendMessage",
        ("sqs", "DeleteMessageBatch") => "DeleteMessage",
        ("sqs", "ChangeMessageVisibilityBatch") => "ChangeMessageVisibility",
        ("sns", "PublishBatch") => "Publish",
        ("lambda", "Invoke" | "InvokeWithResponseStream") => "InvokeFunction",
        ("bedrock-runtime", "Converse") => "InvokeModel",
        ("bedrock-runtime", "ConverseStream") => "InvokeModelWithResponseStream",
        (_, operation) => operation,
    }
}

/// The actions of an operation that may be any of several.
fn unlisted(service: &str, operation: &str) -> Option<&'static [&'static str]> {
    match (service, operation) {
        ("dynamodb", "ExecuteStatement" | "BatchExecuteStatement" | "ExecuteTransaction") => {
            Some(&["PartiQLSelect", "PartiQLInsert", "PartiQLUpdate", "PartiQLDelete"])
        }
        ("dynamodb", "TransactGetItems") => Some(&["GetItem"]),
        ("dynamodb", "TransactWriteItems") => {
            Some(&["PutItem", "UpdateItem", "DeleteItem", "ConditionCheckItem"])
        }
        ("secretsmanager", "BatchGetSecretValue") => {
            Some(&["BatchGetSecretValue", "GetSecretValue"])
        }
        _ => None,
    }
}

/// How a service's resources are named.
struct Naming<'a> {
    service: &'a str,
    region: &'a str,
}

impl Naming<'_> {
    fn ask(&self, action: &str, resource: Resource) -> Asked {
        Asked { action: Action::Named(format!("{}:{action}", self.service)), resource }
    }

    fn named(&self, account: Option<&str>, name: String) -> Resource {
        let (service, region) = (self.service.to_owned(), self.region.to_owned());
        let account = account.map(str::to_owned);
        Resource::Named { service, region, account, name, by_arn: false }
    }

    /// A resource by its name, or by its ARN of this service; `None` if it is neither.
    fn by_name(&self, text: &str, name: impl FnOnce(&str) -> String) -> Option<Resource> {
        if text.starts_with("arn:") {
            return self.by_arn(text, self.service);
        }
        is_name(text).then(|| self.named(None, name(text)))
    }

    fn by_arn(&self, text: &str, service: &str) -> Option<Resource> {
        let [_, of_service, region, account, name] = arn(text)?;
        let is_plain = of_service == service && name.split(':').all(is_name) && !name.is_empty();
        is_plain.then(|| Resource::Named {
            service: of_service.to_owned(),
            region: region.to_owned(),
            account: (!account.is_empty()).then(|| account.to_owned()),
            name: name.to_owned(),
            by_arn: true,
        })
    }
}

/// True for a name without characters that a service could take for something else.
fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./+=@#$".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

fn is_account(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn text<'a>(body: &'a Kept, name: &str) -> Option<&'a str> {
    body.get(name).and_then(Kept::text)
}

type Found = Option<Vec<Asked>>;

fn dynamodb(naming: &Naming<'_>, operation: &str, body: &Kept) -> Found {
    let table = |text: &str| naming.by_name(text, |name| format!("table/{name}"));
    match operation {
        "BatchGetItem" | "BatchWriteItem" => {
            let tables = body.get("RequestItems")?.members();
            tables.iter().map(|(name, _)| Some(naming.ask(operation, table(name)?))).collect()
        }
        "TransactGetItems" | "TransactWriteItems" => {
            let items = body.get("TransactItems")?.entries();
            items.iter().map(|item| transaction(naming, item, table)).collect()
        }
        "GetItem" | "PutItem" | "UpdateItem" | "DeleteItem" | "Query" | "Scan"
        | "DescribeTable" | "CreateTable" | "UpdateTable" | "DeleteTable"
        | "DescribeTimeToLive" | "UpdateTimeToLive" => {
            let mut resource = table(text(body, "TableName")?)?;
            if let Some(index) = body.get("IndexName") {
                // Other operations have no such member, and may ignore it.
                if !matches!(operation, "Query" | "Scan") {
                    return None;
                }
                let index = index.text().filter(|index| is_name(index))?;
                let Resource::Named { name, .. } = &mut resource else { return None };
                name.push_str("/index/");
                name.push_str(index);
            }
            Some(vec![naming.ask(operation, resource)])
        }
        _ => None,
    }
}

/// The action of an item of a transaction.
fn transaction(
    naming: &Naming<'_>,
    item: &Kept,
    table: impl Fn(&str) -> Option<Resource>,
) -> Option<Asked> {
    let [(kind, of)] = item.members() else { return None };
    let action = match kind.as_str() {
        "Get" => "GetItem",
        "Put" => "PutItem",
        "Update" => "UpdateItem",
        "Delete" => "DeleteItem",
        "ConditionCheck" => "ConditionCheckItem",
        _ => return None,
    };
    Some(naming.ask(action, table(text(of, "TableName")?)?))
}

fn sqs(naming: &Naming<'_>, operation: &str, body: &Kept) -> Found {
    let action = action("sqs", operation);
    let one = |resource| Some(vec![naming.ask(action, resource)]);
    let has_url = matches!(
        operation,
        "AddPermission"
            | "ChangeMessageVisibility"
            | "ChangeMessageVisibilityBatch"
            | "DeleteMessage"
            | "DeleteMessageBatch"
            | "DeleteQueue"
            | "GetQueueAttributes"
            | "ListDeadLetterSourceQueues"
            | "ListQueueTags"
            | "PurgeQueue"
            | "ReceiveMessage"
            | "RemovePermission"
            | "SendMessage"
            | "SendMessageBatch"
            | "SetQueueAttributes"
            | "TagQueue"
            | "UntagQueue"
    );
    if has_url {
        // SCHEME://HOST/ACCOUNT/NAME: the service reads no more than that.
        let (_, rest) = text(body, "QueueUrl")?.split_once("://")?;
        let segments: Vec<_> = rest.split('/').collect();
        let [_, account, name] = segments[..] else { return None };
        let is_plain = is_name(name) && is_account(account);
        return if is_plain { one(naming.named(Some(account), name.to_owned())) } else { None };
    }
    if !matches!(operation, "CreateQueue" | "GetQueueUrl") {
        return None;
    }
    let name = text(body, "QueueName").filter(|name| is_name(name))?;
    let account = match body.get("QueueOwnerAWSAccountId") {
        None => None,
        Some(account) => Some(account.text()?),
    };
    one(naming.named(account, name.to_owned()))
}

fn secrets(naming: &Naming<'_>, operation: &str, body: &Kept) -> Found {
    let secret = |text: &str| naming.by_name(text, |name| format!("secret:{name}"));
    match operation {
        "CreateSecret" => Some(vec![naming.ask(operation, secret(text(body, "Name")?)?)]),
        "BatchGetSecretValue" if body.get("Filters").is_none() => {
            let list = body.get("SecretIdList")?.entries();
            let ask = |action: &str, id: &Kept| Some(naming.ask(action, secret(id.text()?)?));
            list.iter().map(|id| ask("GetSecretValue", id)).collect()
        }
        "DeleteSecret"
        | "DescribeSecret"
        | "GetResourcePolicy"
        | "GetSecretValue"
        | "ListSecretVersionIds"
        | "PutSecretValue"
        | "RestoreSecret"
        | "RotateSecret"
        | "TagResource"
        | "UntagResource"
        | "UpdateSecret"
        | "UpdateSecretVersionStage" => {
            Some(vec![naming.ask(operation, secret(text(body, "SecretId")?)?)])
        }
        _ => None,
    }
}

fn ssm(naming: &Naming<'_>, operation: &str, body: &Kept) -> Found {
    let parameter = |text: &str| {
        // NAME:VERSION and NAME:LABEL are the parameter, too.
        if text.starts_with("arn:") {
            let is_one = arn(text)?[4].split(':').count() == 1;
            return naming.by_arn(text, naming.service).filter(|_| is_one);
        }
        let text = text.split(':').next().unwrap_or_default();
        naming.by_name(text, |name| format!("parameter/{}", name.trim_start_matches('/')))
    };
    match operation {
        "DeleteParameter"
        | "GetParameter"
        | "GetParameterHistory"
        | "LabelParameterVersion"
        | "PutParameter" => Some(vec![naming.ask(operation, parameter(text(body, "Name")?)?)]),
        "DeleteParameters" | "GetParameters" => {
            let names = body.get("Names")?.entries();
            names.iter().map(|name| Some(naming.ask(operation, parameter(name.text()?)?))).collect()
        }
        "GetParametersByPath" => {
            let path = text(body, "Path").filter(|path| *path != "/")?;
            Some(vec![naming.ask(operation, parameter(path)?)])
        }
        _ => None,
    }
}

fn kinesis(naming: &Naming<'_>, operation: &str, body: &Kept) -> Found {
    let mut all = Vec::new();
    if let Some(name) = body.get("StreamName") {
        let name = name.text().filter(|name| is_name(name))?;
        all.push(naming.ask(operation, naming.named(None, format!("stream/{name}"))));
    }
    if let Some(arn) = body.get("StreamARN") {
        all.push(naming.ask(operation, naming.by_arn(arn.text()?, naming.service)?));
    }
    let is_listed = matches!(
        operation,
        "AddTagsToStream"
            | "CreateStream"
            | "DecreaseStreamRetentionPeriod"
            | "DeleteStream"
            | "DescribeStream"
            | "DescribeStreamSummary"
            | "GetShardIterator"
            | "IncreaseStreamRetentionPeriod"
            | "ListTagsForStream"
            | "PutRecord"
            | "PutRecords"
            | "RemoveTagsFromStream"
    );
    is_listed.then_some(all)
}

fn events(naming: &Naming<'_>, operation: &str, body: &Kept) -> Found {
    let bus = |text: &str| naming.by_name(text, |name| format!("event-bus/{name}"));
    let rule = |name: &str| {
        let name = Some(name).filter(|name| is_name(name))?;
        let bus = match body.get("EventBusName").map(Kept::text) {
            None | Some(Some("default")) => String::new(),
            // The bus of another account has its rules there.
            Some(bus) => format!("{}/", bus.filter(|bus| is_name(bus))?),
        };
        Some(naming.named(None, format!("rule/{bus}{name}")))
    };
    match operation {
        "PutEvents" if body.get("EndpointId").is_none() => {
            let entries = body.get("Entries")?.entries();
            let of = |entry: &Kept| match entry.get("EventBusName") {
                None => bus("default"),
                Some(name) => bus(name.text()?),
            };
            entries.iter().map(|entry| Some(naming.ask(operation, of(entry)?))).collect()
        }
        "CreateEventBus" | "DeleteEventBus" | "DescribeEventBus" => {
            Some(vec![naming.ask(operation, bus(text(body, "Name")?)?)])
        }
        "DeleteRule" | "DescribeRule" | "DisableRule" | "EnableRule" | "PutRule" => {
            Some(vec![naming.ask(operation, rule(text(body, "Name")?)?)])
        }
        "ListTargetsByRule" | "PutTargets" | "RemoveTargets" => {
            Some(vec![naming.ask(operation, rule(text(body, "Rule")?)?)])
        }
        _ => None,
    }
}

fn logs(naming: &Naming<'_>, operation: &str, body: &Kept) -> Found {
    let is_listed = matches!(
        operation,
        "CreateLogGroup"
            | "CreateLogStream"
            | "DeleteLogGroup"
            | "DeleteLogStream"
            | "DeleteRetentionPolicy"
            | "DescribeLogStreams"
            | "FilterLogEvents"
            | "GetLogEvents"
            | "PutLogEvents"
            | "PutRetentionPolicy"
    );
    // The ARN of a group ends with its name, or with `:*` behind it.
    let group = |text: &str| {
        let bare = text.strip_suffix(":*").filter(|_| text.starts_with("arn:")).unwrap_or(text);
        naming.by_name(bare, |name| format!("log-group:{name}"))
    };
    let names = ["logGroupName", "logGroupIdentifier"].iter().filter_map(|name| body.get(name));
    let all = names.map(|name| Some(naming.ask(operation, group(name.text()?)?)));
    if is_listed { all.collect() } else { None }
}

fn sns(naming: &Naming<'_>, operation: &str, fields: &[(String, String)]) -> Found {
    let has = |name: &str| fields.iter().any(|(field, _)| field.eq_ignore_ascii_case(name));
    let only = |name: &str| form::only(fields, name);
    let action = action("sns", operation);
    let resource = match operation {
        "CreateTopic" => naming.named(None, only("Name").filter(|name| is_name(name))?.to_owned()),
        "Publish" if has("PhoneNumber") || (has("TargetArn") && has("TopicArn")) => return None,
        "Publish" if has("TargetArn") => naming.by_arn(only("TargetArn")?, "sns")?,
        "AddPermission"
        | "ConfirmSubscription"
        | "DeleteTopic"
        | "GetTopicAttributes"
        | "ListSubscriptionsByTopic"
        | "Publish"
        | "PublishBatch"
        | "RemovePermission"
        | "SetTopicAttributes"
        | "Subscribe" => naming.by_arn(only("TopicArn")?, "sns")?,
        _ => return None,
    };
    Some(vec![naming.ask(action, resource)])
}

fn sts(naming: &Naming<'_>, operation: &str, fields: &[(String, String)]) -> Found {
    if operation != "AssumeRole" {
        return None;
    }
    let role = naming.by_arn(form::only(fields, "RoleArn")?, "iam")?;
    Some(vec![naming.ask(operation, role)])
}

fn lambda(
    naming: &Naming<'_>,
    operation: &str,
    segments: &[(&'static str, String)],
    query: &str,
) -> Found {
    let (_, encoded) = segments.iter().find(|(name, _)| *name == "FunctionName")?;
    // Another server could take a slash for the end of a segment.
    let text = String::from_utf8(unescaped(encoded)?).ok().filter(|text| !text.contains('/'))?;
    let parts: Vec<_> = text.split(':').collect();
    // NAME, NAME:QUALIFIER, ACCOUNT:function:NAME, or an ARN.
    let mut resource = match parts[..] {
        ["arn", ..] => naming.by_arn(&text, naming.service)?,
        [account, "function", name] if is_name(name) && is_account(account) => {
            naming.named(Some(account), format!("function:{name}"))
        }
        [name] if is_name(name) => naming.named(None, format!("function:{name}")),
        // `function:NAME` and ACCOUNT:NAME are the function NAME for AWS.
        [name, qualifier]
            if is_name(name) && is_name(qualifier) && name != "function" && !is_account(name) =>
        {
            naming.named(None, format!("function:{name}:{qualifier}"))
        }
        _ => return None,
    };
    let mut qualifiers = query.split('&').filter_map(|field| field.strip_prefix("Qualifier="));
    if let Some(qualifier) = qualifiers.next() {
        let Resource::Named { name, .. } = &mut resource else { return None };
        let is_bare = name.split(':').count() == 2;
        if !is_name(qualifier) || !is_bare || qualifiers.next().is_some() {
            return None;
        }
        name.push(':');
        name.push_str(qualifier);
    }
    Some(vec![naming.ask(action("lambda", operation), resource)])
}

#[cfg(test)]
mod tests {
    use super::super::services::find;
    use super::super::told::tell;
    use super::super::told::tests::head;
    use super::*;
    use unlade_guest_protocol::RequestMethod;

    /// The actions that a request asks for, one line for each: `action resource account`.
    fn lines(head: &RequestHead, body: &str) -> Vec<String> {
        let service = find(&head.service).unwrap();
        let told = tell(service, head, body.as_bytes()).unwrap();
        let line = |asked: &Asked| {
            let account = match &asked.resource {
                Resource::Named { account: Some(account), .. } => format!(" {account}"),
                _ => String::new(),
            };
            format!("{} {}{account}", asked.action.text(), asked.resource.text())
        };
        asked(service, true, head, &told).iter().map(line).collect()
    }

    fn json(service: &str, operation: &str, body: &str) -> Vec<String> {
        let target = format!("{}.{operation}", find(service).unwrap().target.unwrap());
        let fields = [("content-type", "application/x-amz-json-1.1"), ("x-amz-target", &target)];
        lines(&head(service, operation, &fields), body)
    }

    fn query(service: &str, body: &str) -> Vec<String> {
        let fields = [("content-type", "application/x-www-form-urlencoded")];
        lines(&head(service, "", &fields), body)
    }

    #[test]
    fn resources_are_those_that_the_request_names() {
        for (service, operation, body, due) in [
            ("dynamodb", "GetItem", r#"{"TableName":"t","Key":{}}"#, "dynamodb:GetItem table/t"),
            (
                "dynamodb",
                "Query",
                r#"{"TableName":"t","IndexName":"i"}"#,
                "dynamodb:Query table/t/index/i",
            ),
            (
                "dynamodb",
                "PutItem",
                r#"{"TableName":"arn:aws:dynamodb:eu-west-1:7:table/t"}"#,
                "dynamodb:PutItem table/t 7",
            ),
            (
                "sqs",
                "SendMessageBatch",
                r#"{"QueueUrl":"http://h:1/123/q.fifo"}"#,
                "sqs:SendMessage q.fifo 123",
            ),
            ("sqs", "CreateQueue", r#"{"QueueName":"q"}"#, "sqs:CreateQueue q"),
            (
                "secretsmanager",
                "GetSecretValue",
                r#"{"SecretId":"a/b"}"#,
                "secretsmanager:GetSecretValue secret:a/b",
            ),
            (
                "secretsmanager",
                "GetSecretValue",
                r#"{"SecretId":"arn:aws:secretsmanager:eu-west-1:7:secret:a-AbCdEf"}"#,
                "secretsmanager:GetSecretValue secret:a-AbCdEf 7",
            ),
            ("ssm", "GetParameter", r#"{"Name":"/a/b:3"}"#, "ssm:GetParameter parameter/a/b"),
            (
                "ssm",
                "GetParametersByPath",
                r#"{"Path":"/a"}"#,
                "ssm:GetParametersByPath parameter/a",
            ),
            ("kinesis", "PutRecord", r#"{"StreamName":"s"}"#, "kinesis:PutRecord stream/s"),
            (
                "events",
                "PutEvents",
                r#"{"Entries":[{"Detail":"{}"}]}"#,
                "events:PutEvents event-bus/default",
            ),
            (
                "events",
                "PutTargets",
                r#"{"Rule":"r","EventBusName":"b"}"#,
                "events:PutTargets rule/b/r",
            ),
            (
                "logs",
                "PutLogEvents",
                r#"{"logGroupName":"/aws/lambda/f","logStreamName":"s"}"#,
                "logs:PutLogEvents log-group:/aws/lambda/f",
            ),
            (
                "logs",
                "FilterLogEvents",
                r#"{"logGroupIdentifier":"arn:aws:logs:eu-west-1:7:log-group:/a/f:*"}"#,
                "logs:FilterLogEvents log-group:/a/f 7",
            ),
        ] {
            assert_eq!(json(service, operation, body), [due], "{body}");
        }
        for (service, body, due) in [
            (
                "sns",
                "Action=Publish&TopicArn=arn%3Aaws%3Asns%3Aeu-west-1%3A7%3At",
                "sns:Publish t 7",
            ),
            ("sns", "Action=CreateTopic&Name=t", "sns:CreateTopic t"),
            ("sts", "Action=AssumeRole&RoleArn=arn:aws:iam::7:role/x", "sts:AssumeRole role/x 7"),
            ("sts", "Action=GetCallerIdentity", "sts:GetCallerIdentity *"),
        ] {
            assert_eq!(query(service, body), [due], "{body}");
        }
    }

    #[test]
    fn every_resource_of_a_batch_is_asked_for() {
        let body = r#"{"RequestItems":{"a":[{"PutRequest":{}}],"b":[]}}"#;
        let due = ["dynamodb:BatchWriteItem table/a", "dynamodb:BatchWriteItem table/b"];
        assert_eq!(json("dynamodb", "BatchWriteItem", body), due);
        let body = r#"{"TransactItems":[{"Put":{"TableName":"a","Item":{}}},
            {"ConditionCheck":{"TableName":"b"}}]}"#;
        let due = ["dynamodb:PutItem table/a", "dynamodb:ConditionCheckItem table/b"];
        assert_eq!(json("dynamodb", "TransactWriteItems", body), due);
        let due = ["ssm:GetParameters parameter/a", "ssm:GetParameters parameter/b"];
        assert_eq!(json("ssm", "GetParameters", r#"{"Names":["a","/b"]}"#), due);
        let both = r#"{"StreamName":"a","StreamARN":"arn:aws:kinesis:eu-west-1:7:stream/b"}"#;
        let due = ["kinesis:PutRecord stream/a", "kinesis:PutRecord stream/b 7"];
        assert_eq!(json("kinesis", "PutRecord", both), due);
        let entries = r#"{"Entries":[{"EventBusName":"a"},{"EventBusName":"b"}]}"#;
        assert_eq!(json("events", "PutEvents", entries).len(), 2);
        let statement = json("dynamodb", "ExecuteStatement", r#"{"Statement":"x"}"#);
        assert!(statement.contains(&"dynamodb:PartiQLDelete *".to_owned()), "{statement:?}");
    }

    #[test]
    fn what_is_not_plain_is_unknown() {
        for (service, operation, body) in [
            ("dynamodb", "GetItem", "{}"),
            ("dynamodb", "GetItem", r#"{"TableName":"a*"}"#),
            ("dynamodb", "GetItem", r#"{"TableName":["a"]}"#),
            ("dynamodb", "GetItem", r#"{"TableName":"arn:aws:sqs:eu-west-1:7:a"}"#),
            ("dynamodb", "ListTables", "{}"),
            ("dynamodb", "RestoreTableFromBackup", r#"{"TableName":"a"}"#),
            ("dynamodb", "BatchGetItem", r#"{"RequestItems":{}}"#),
            ("sqs", "SendMessage", r#"{"QueueUrl":"http://h/1/a/../b"}"#),
            ("sqs", "SendMessage", r#"{"QueueUrl":"http://h/1/a?x=/2/b"}"#),
            ("sqs", "SendMessage", r#"{"QueueUrl":"a"}"#),
            ("sqs", "ListQueues", "{}"),
            ("sqs", "ListQueues", r#"{"QueueUrl":"http://h/1/q"}"#),
            ("sqs", "StartMessageMoveTask", r#"{"QueueUrl":"http://h/1/q","SourceArn":"x"}"#),
            ("sqs", "SendMessage", r#"{"QueueUrl":"http://h//q"}"#),
            ("dynamodb", "DeleteTable", r#"{"TableName":"a","IndexName":"b"}"#),
            ("ssm", "GetParameter", r#"{"Name":"arn:aws:ssm:r:7:parameter/a:3"}"#),
            ("kinesis", "GetRecords", r#"{"ShardIterator":"x","StreamName":"a"}"#),
            ("events", "PutEvents", r#"{"EndpointId":"x.y","Entries":[{}]}"#),
            ("events", "PutEvents", r#"{"Entries":[{"EventBusName":7}]}"#),
            ("ssm", "GetParametersByPath", r#"{"Path":"/"}"#),
            ("logs", "StartQuery", r#"{"logGroupName":"a"}"#),
        ] {
            let all = json(service, operation, body);
            assert_eq!(all, [format!("{service}:{operation} *")], "{body}");
        }
        for body in [
            "Action=Publish&PhoneNumber=1&TopicArn=arn:aws:sns:r:7:t",
            "Action=Publish&TopicArn=arn:aws:sns:r:7:t&TopicArn=arn:aws:sns:r:7:u",
            "Action=Publish&TopicArn=arn:aws:sns:r:7:t&TargetArn=arn:aws:sns:r:7:u",
            "Action=Publish&TopicArn=t",
        ] {
            assert_eq!(query("sns", body), ["sns:Publish *"], "{body}");
        }
        let items = r#"{"TransactItems":[{"Delete":{"TableName":"a"},"Put":null}]}"#;
        let all = json("dynamodb", "TransactWriteItems", items);
        assert_eq!(all.len(), 4, "{all:?}");
        assert!(all.contains(&"dynamodb:DeleteItem *".to_owned()), "{all:?}");
        let filtered = json("secretsmanager", "BatchGetSecretValue", r#"{"Filters":null}"#);
        assert!(filtered.contains(&"secretsmanager:GetSecretValue *".to_owned()), "{filtered:?}");
        let long = format!("{{\"TableName\":\"{}\"}}", "a".repeat(NAME_BYTES_MAX + 1));
        assert_eq!(json("dynamodb", "GetItem", &long), ["dynamodb:GetItem *"]);
        let many: Vec<_> = (0..=RESOURCES_MAX).map(|n| format!("\"{n}\"")).collect();
        let body = format!("{{\"Names\":[{}]}}", many.join(","));
        assert_eq!(json("ssm", "GetParameters", &body), ["ssm:GetParameters *"]);
    }

    #[test]
    fn a_function_is_named_in_its_path() {
        let invoke = |name: &str, query: &str| {
            let mut head = head("lambda", "Invoke", &[]);
            head.path = format!("/2015-03-31/functions/{name}/invocations");
            head.query = query.into();
            lines(&head, "{}")[0].clone()
        };
        for (name, query, due) in [
            ("f", "", "lambda:InvokeFunction function:f"),
            ("f%3Ap", "", "lambda:InvokeFunction function:f:p"),
            ("f", "Qualifier=p", "lambda:InvokeFunction function:f:p"),
            ("7%3Afunction%3Af", "", "lambda:InvokeFunction function:f 7"),
            ("arn%3Aaws%3Alambda%3Ar%3A7%3Afunction%3Af", "", "lambda:InvokeFunction function:f 7"),
            ("f%2F..%2Fg", "", "lambda:InvokeFunction *"),
            ("f%20g", "", "lambda:InvokeFunction *"),
            ("f%3Ap", "Qualifier=q", "lambda:InvokeFunction *"),
            ("f", "Qualifier=p&Qualifier=q", "lambda:InvokeFunction *"),
            ("function%3Af", "", "lambda:InvokeFunction *"),
            ("7%3Af", "", "lambda:InvokeFunction *"),
            // Names that another reader decodes.
            ("f", "%51ualifier=p", "lambda:* *"),
            ("f", "%51ualifier=p&Qualifier=q", "lambda:* *"),
        ] {
            assert_eq!(invoke(name, query), due, "{name}?{query}");
        }
        let mut list = head("lambda", "ListFunctions", &[]);
        (list.method, list.path) = (RequestMethod::Get, "/2015-03-31/functions".into());
        assert_eq!(lines(&list, ""), ["lambda:ListFunctions *"]);
        // A server of the operator may serve any region and account as its own.
        let service = find("lambda").unwrap();
        let mut named = head("lambda", "Invoke", &[]);
        named.path = "/2015-03-31/functions/7%3Afunction%3Af/invocations".into();
        let told = tell(service, &named, b"{}").unwrap();
        let all = asked(service, false, &named, &told);
        let Resource::Named { region, account, .. } = &all[0].resource else { panic!("{all:?}") };
        assert_eq!((region.as_str(), account), ("", &None));
        let mut other = head("apigateway", "GetRestApis", &[]);
        other.path = "/restapis".into();
        assert_eq!(lines(&other, ""), ["apigateway:* *"]);
    }
}
