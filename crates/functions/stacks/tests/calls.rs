//! Whole requests and answers, as tools send and read them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use unlade_fn_stacks::{Action, Given, Object, Outcome, Place, Request, Stacks, Work, query};

const PLACE: &str = "arn:aws:cloudformation:us-east-1:000000000000";

struct Host {
    stacks: Stacks,
    now_ms: u64,
    actions: Vec<Action>,
    /// The logical name of the resource that fails next.
    failing: Option<&'static str>,
}

impl Host {
    fn new() -> Host {
        let place = Place { region: "us-east-1".into(), account: "000000000000".into() };
        Host { stacks: Stacks::new(place, []), now_ms: 0, actions: Vec::new(), failing: None }
    }

    /// Sends a request, and carries out all actions of the stack that it changes.
    fn call(&mut self, members: &[(&str, &str)]) -> Result<String, String> {
        let (xml, changed) = self.send(members)?;
        if let Some(changed) = changed {
            self.run(&changed);
        }
        Ok(xml)
    }

    fn send(&mut self, members: &[(&str, &str)]) -> Result<(String, Option<String>), String> {
        self.now_ms += 1;
        let encoded =
            |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
        let form: Vec<_> =
            members.iter().map(|(key, value)| format!("{key}={}", encoded(value))).collect();
        let request =
            query::decode(form.join("&").as_bytes()).map_err(|failure| failure.message)?;
        let unique = format!("{:08}", self.now_ms);
        let template = request.template_url().map(|_| QUEUE);
        let given = Given { now_ms: self.now_ms, unique: &unique, template };
        let reply = self.stacks.call(&request, given);
        let reply = reply.map_err(|one| format!("{}: {}", one.kind.code(), one.message))?;
        let document = roxmltree::Document::parse(&reply.xml).unwrap();
        let root = document.root_element();
        assert_eq!(root.tag_name().name(), format!("{}Response", members[0].1));
        assert!(root.descendants().any(|node| node.has_tag_name((NAMESPACE, "RequestId"))));
        Ok((reply.xml, reply.changed))
    }

    fn run(&mut self, id: &str) {
        while let Some(action) = self.stacks.next(id, self.now_ms) {
            self.now_ms += 1;
            let outcome = match &action.work {
                _ if self.failing == Some(action.logical_id.as_str()) => {
                    self.failing = None;
                    Outcome::Failed { reason: "no <room>".to_owned(), physical_id: None }
                }
                Work::Create { name, .. } | Work::Update { physical_id: name, .. } => {
                    let attributes = json!({"Arn": format!("arn:{name}"), "QueueName": name});
                    let attributes: Map<String, Value> = attributes.as_object().unwrap().clone();
                    Outcome::Done { physical_id: name.clone(), attributes }
                }
                Work::Delete { .. } => {
                    Outcome::Done { physical_id: String::new(), attributes: Map::new() }
                }
            };
            self.stacks.outcome(id, action.step, outcome, self.now_ms).unwrap();
            self.actions.push(action);
        }
    }

    fn status(&mut self, stack: &str) -> String {
        let xml = self.call(&[("Action", "DescribeStacks"), ("StackName", stack)]).unwrap();
        first(&xml, "StackStatus")
    }
}

const NAMESPACE: &str = "http://cloudformation.amazonaws.com/doc/2010-05-15/";
const QUEUE: &str = "Resources: {Q: {Type: AWS::SQS::Queue}}";
const TWO: &str = "
Description: two queues
Parameters:
  Secret: {Type: String, NoEcho: true, Default: hush}
Resources:
  Dead: {Type: AWS::SQS::Queue}
  Q:
    Type: AWS::SQS::Queue
    Properties: {RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 3}}
Outputs:
  Url: {Value: !Ref Q, Description: 'the <queue>', Export: {Name: !Sub '${AWS::StackName}-url'}}
";

/// The texts of all elements of a name.
fn all(xml: &str, name: &str) -> Vec<String> {
    let document = roxmltree::Document::parse(xml).unwrap();
    let found = document.descendants().filter(|node| node.has_tag_name((NAMESPACE, name)));
    found.map(|node| node.text().unwrap_or_default().to_owned()).collect()
}

fn first(xml: &str, name: &str) -> String {
    all(xml, name).into_iter().next().unwrap_or_else(|| panic!("{xml} has no {name}"))
}

fn create<'a>(stack: &'a str, body: &'a str) -> [(&'a str, &'a str); 3] {
    [("Action", "CreateStack"), ("StackName", stack), ("TemplateBody", body)]
}

/// A short template with many long resources: each is within its own limit. It is refused with the request, or
/// as soon as the values of other resources are known.
#[test]
fn the_properties_of_a_stack_are_bounded_together() {
    let of = |word: &str, count: u32| {
        let value = word.repeat(200);
        let one = |number: u32| {
            let properties = format!("{{DisplayName: !Sub '{value}'}}");
            format!("  T{number}: {{Type: AWS::SNS::Topic, Properties: {properties}}}\n")
        };
        let all: String = (0..count).map(one).collect();
        format!(
            "Parameters: {{P: {{Type: String}}}}\nResources:\n  Q: {{Type: AWS::SQS::Queue, Properties: \
             {{QueueName: !Ref P}}}}\n{all}"
        )
    };
    let long = "x".repeat(4096);
    let parameter = [
        ("Parameters.member.1.ParameterKey", "P"),
        ("Parameters.member.1.ParameterValue", long.as_str()),
    ];
    let mut host = Host::new();
    for (stack, word, count, due) in [
        ("fits", "${P}", 10, Ok("CREATE_COMPLETE")),
        ("long", "${P}", 11, Err("put T")),
        ("fits-too", "${Q}", 10, Ok("CREATE_COMPLETE")),
        ("long-too", "${Q}", 11, Ok("ROLLBACK_COMPLETE")),
    ] {
        let body = of(word, count);
        let made = host.call(&[create(stack, &body).as_slice(), &parameter].concat());
        match due {
            Ok(due) => assert_eq!((made.is_ok(), host.status(stack).as_str()), (true, due)),
            Err(due) => assert!(made.as_ref().is_err_and(|why| why.contains(due)), "{made:?}"),
        }
    }
    let events = [("Action", "DescribeStackEvents"), ("StackName", "long-too")];
    let events = host.call(&events).unwrap();
    assert!(events.contains("put T"), "{events}");
}

/// A deleted stack is read for a while. Its secrets are not needed any more.
#[test]
fn a_deleted_stack_has_no_secrets() {
    let mut host = Host::new();
    let body = TWO.replace(
        "Dead: {Type: AWS::SQS::Queue}",
        "Dead: {Type: AWS::SQS::Queue, Properties: {QueueName: !Sub 'n-${Secret}'}}",
    );
    let secret = [
        ("Parameters.member.1.ParameterKey", "Secret"),
        ("Parameters.member.1.ParameterValue", "quiet"),
    ];
    let xml = host.call(&[create("app", &body).as_slice(), &secret].concat()).unwrap();
    let id = first(&xml, "StackId");
    let kept = |host: &Host| serde_json::to_string(host.stacks.get(&id).unwrap()).unwrap();
    assert!(kept(&host).contains("\"quiet\""));
    host.call(&[("Action", "DeleteStack"), ("StackName", "app")]).unwrap();
    assert_eq!(host.status(&id), "DELETE_COMPLETE");
    let kept = kept(&host);
    assert!(!kept.contains("\"quiet\"") && !kept.contains("maxReceiveCount\":\"3"), "{kept}");
    let xml = host.call(&[("Action", "DescribeStacks"), ("StackName", &id)]).unwrap();
    assert_eq!(first(&xml, "ParameterValue"), "****");
}

#[test]
fn a_stack_lives_from_creation_to_deletion() {
    let mut host = Host::new();
    let xml = host.call(&create("app", TWO)).unwrap();
    let id = first(&xml, "StackId");
    assert_eq!(id, format!("{PLACE}:stack/app/00000001"));
    let order: Vec<_> = host.actions.iter().map(|action| action.logical_id.as_str()).collect();
    assert_eq!(order, ["Dead", "Q"]);
    let Work::Create { properties, .. } = &host.actions[1].work else { panic!("not created") };
    let dead = properties["RedrivePolicy"]["deadLetterTargetArn"].as_str().unwrap();
    assert!(dead.starts_with("arn:app-Dead-"), "{dead}");

    let xml = host.call(&[("Action", "DescribeStacks"), ("StackName", "app")]).unwrap();
    assert_eq!(first(&xml, "StackStatus"), "CREATE_COMPLETE");
    assert_eq!(first(&xml, "ParameterValue"), "****");
    assert!(first(&xml, "OutputValue").starts_with("app-Q-"));
    assert_eq!(first(&xml, "ExportName"), "app-url");
    assert_eq!(all(&xml, "Description"), ["two queues", "the <queue>"]);

    let update = |body| [("Action", "UpdateStack"), ("StackName", "app"), ("TemplateBody", body)];
    let message = host.call(&update(TWO)).unwrap_err();
    assert_eq!(message, "ValidationError: No updates are to be performed.");
    let changed = TWO.replace("maxReceiveCount: 3", "maxReceiveCount: 4");
    host.actions.clear();
    host.call(&update(&changed)).unwrap();
    assert_eq!(host.status("app"), "UPDATE_COMPLETE");
    assert!(matches!(&host.actions[..], [Action { work: Work::Update { .. }, .. }]));

    let tag = [("Tags.member.1.Key", "team"), ("Tags.member.1.Value", "a")];
    host.call(&[update(&changed).as_slice(), &tag].concat()).unwrap();
    host.actions.clear();
    host.call(&[update(&changed).as_slice(), &[("Tags", "")]].concat()).unwrap();
    let labels = |action: &Action| match &action.work {
        Work::Update { tags_before, .. } => (tags_before.clone(), action.tags.clone()),
        other => panic!("{other:?}"),
    };
    let team = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
    assert_eq!(
        host.actions.iter().map(labels).collect::<Vec<_>>(),
        vec![(team, BTreeMap::new()); 2]
    );

    let xml = host.call(&[("Action", "GetTemplate"), ("StackName", "app")]).unwrap();
    assert_eq!(first(&xml, "TemplateBody"), changed);
    let xml = host.call(&[("Action", "ListStackResources"), ("StackName", &id)]).unwrap();
    assert_eq!(all(&xml, "LogicalResourceId"), ["Dead", "Q"]);
    let one =
        [("Action", "DescribeStackResource"), ("StackName", "app"), ("LogicalResourceId", "Q")];
    assert_eq!(first(&host.call(&one).unwrap(), "ResourceStatus"), "UPDATE_COMPLETE");
    let none =
        [("Action", "DescribeStackResource"), ("StackName", "app"), ("LogicalResourceId", "X")];
    assert!(host.call(&none).unwrap_err().contains("Resource X does not exist for stack app"));

    host.actions.clear();
    host.call(&[("Action", "DeleteStack"), ("StackName", "app")]).unwrap();
    let order: Vec<_> = host.actions.iter().map(|action| action.logical_id.as_str()).collect();
    assert_eq!(order, ["Q", "Dead"], "users go first");
    assert_eq!(host.status(&id), "DELETE_COMPLETE");
    let message = host.call(&[("Action", "DescribeStacks"), ("StackName", "app")]).unwrap_err();
    assert_eq!(message, "ValidationError: Stack with id app does not exist");
    let message = host.call(&update(TWO)).unwrap_err();
    assert_eq!(message, "ValidationError: Stack [app] does not exist");
    host.call(&[("Action", "DeleteStack"), ("StackName", "app")]).unwrap();

    let xml = host.call(&[("Action", "DescribeStackEvents"), ("StackName", &id)]).unwrap();
    let statuses = all(&xml, "ResourceStatus");
    assert_eq!(statuses.first().unwrap(), "DELETE_COMPLETE");
    assert_eq!(statuses.last().unwrap(), "CREATE_IN_PROGRESS");
    let xml = host.call(&[("Action", "ListStacks")]).unwrap();
    assert_eq!(all(&xml, "StackStatus"), ["DELETE_COMPLETE"]);
    let filter = [("Action", "ListStacks"), ("StackStatusFilter.member.1", "CREATE_COMPLETE")];
    assert!(all(&host.call(&filter).unwrap(), "StackStatus").is_empty());
}

#[test]
fn change_sets_are_made_described_and_executed() {
    let mut host = Host::new();
    let make = |name, kind, body| {
        [
            ("Action", "CreateChangeSet"),
            ("StackName", "app"),
            ("ChangeSetName", name),
            ("ChangeSetType", kind),
            ("TemplateBody", body),
        ]
    };
    let message = host.call(&make("c1", "UPDATE", TWO)).unwrap_err();
    assert_eq!(message, "ValidationError: Stack [app] does not exist");
    let id = first(&host.call(&make("c1", "CREATE", TWO)).unwrap(), "Id");
    assert!(id.starts_with(&format!("{PLACE}:changeSet/c1/")), "{id}");
    assert_eq!(host.status("app"), "REVIEW_IN_PROGRESS");
    let describe =
        |name| [("Action", "DescribeChangeSet"), ("StackName", "app"), ("ChangeSetName", name)];
    let xml = host.call(&describe("c1")).unwrap();
    assert_eq!(first(&xml, "Status"), "CREATE_COMPLETE");
    assert_eq!(first(&xml, "ExecutionStatus"), "AVAILABLE");
    assert_eq!(all(&xml, "Action"), ["Add", "Add"]);
    assert!(host.actions.is_empty());

    let execute =
        |name| [("Action", "ExecuteChangeSet"), ("StackName", "app"), ("ChangeSetName", name)];
    host.call(&execute("c1")).unwrap();
    assert_eq!(host.status("app"), "CREATE_COMPLETE");
    let message = host.call(&execute("c1")).unwrap_err();
    assert!(message.starts_with("InvalidChangeSetStatus: "), "{message}");
    assert!(message.ends_with("current status of [EXECUTE_COMPLETE]"), "{message}");

    host.call(&make("same", "UPDATE", TWO)).unwrap();
    let xml = host.call(&describe("same")).unwrap();
    assert_eq!(first(&xml, "Status"), "FAILED");
    assert!(first(&xml, "StatusReason").contains("didn't contain changes"), "{xml}");
    assert!(host.call(&execute("same")).unwrap_err().contains("current status of [FAILED]"));

    let fifo = TWO.replace(
        "Dead: {Type: AWS::SQS::Queue}",
        "Dead: {Type: AWS::SQS::Queue, Properties: \
                            {FifoQueue: true}}",
    );
    host.call(&make("fifo", "UPDATE", &fifo)).unwrap();
    let message = host.call(&make("fifo", "UPDATE", &fifo)).unwrap_err();
    assert_eq!(message, "AlreadyExistsException: ChangeSet [fifo] already exists");
    let xml = host.call(&describe("fifo")).unwrap();
    assert_eq!(all(&xml, "Replacement"), ["True", "False"]);
    assert_eq!(all(&xml, "Name"), ["FifoQueue", "RedrivePolicy"]);
    host.call(&make("other", "UPDATE", QUEUE)).unwrap();
    assert_eq!(all(&host.call(&describe("other")).unwrap(), "Action"), ["Modify", "Remove"]);
    host.call(&execute("fifo")).unwrap();
    assert_eq!(host.status("app"), "UPDATE_COMPLETE");
    let xml = host.call(&describe("other")).unwrap();
    assert_eq!(first(&xml, "ExecutionStatus"), "OBSOLETE");
    let delete = [("Action", "DeleteChangeSet"), ("StackName", "app"), ("ChangeSetName", "other")];
    host.call(&delete).unwrap();
    let message = host.call(&describe("other")).unwrap_err();
    assert_eq!(message, "ChangeSetNotFound: ChangeSet [other] does not exist");
    let xml = host.call(&[("Action", "ListChangeSets"), ("StackName", "app")]).unwrap();
    assert_eq!(all(&xml, "ChangeSetName").len(), 3);
}

#[test]
fn a_failed_creation_rolls_back_and_says_why() {
    let mut host = Host::new();
    host.failing = Some("Q");
    host.call(&create("app", TWO)).unwrap();
    assert_eq!(host.status("app"), "ROLLBACK_COMPLETE");
    let xml = host.call(&[("Action", "DescribeStackEvents"), ("StackName", "app")]).unwrap();
    assert!(all(&xml, "ResourceStatusReason").contains(&"no <room>".to_owned()), "{xml}");
    let why = "The following resource(s) failed to create: [Q]. Rollback requested by user.";
    assert!(all(&xml, "ResourceStatusReason").contains(&why.to_owned()), "{xml}");
    let deleted =
        all(&xml, "ResourceStatus").iter().filter(|one| *one == "DELETE_COMPLETE").count();
    assert_eq!(deleted, 1, "the queue for dead letters goes");
    let update = [("Action", "UpdateStack"), ("StackName", "app"), ("TemplateBody", QUEUE)];
    let message = host.call(&update).unwrap_err();
    assert!(
        message.ends_with("is in ROLLBACK_COMPLETE state and can not be updated."),
        "{message}"
    );
    host.call(&[("Action", "DeleteStack"), ("StackName", "app")]).unwrap();

    host.failing = Some("Q");
    let kept: Vec<_> =
        create("kept", TWO).into_iter().chain([("OnFailure", "DO_NOTHING")]).collect();
    host.call(&kept).unwrap();
    assert_eq!(host.status("kept"), "CREATE_FAILED");
    let xml = host.call(&[("Action", "ListStackResources"), ("StackName", "kept")]).unwrap();
    assert_eq!(all(&xml, "LogicalResourceId"), ["Dead"]);

    host.failing = Some("Q");
    let gone: Vec<_> = create("gone", TWO).into_iter().chain([("OnFailure", "DELETE")]).collect();
    let id = first(&host.call(&gone).unwrap(), "StackId");
    assert_eq!(host.status(&id), "DELETE_COMPLETE");
}

#[test]
fn exports_in_use_stay() {
    let mut host = Host::new();
    host.call(&create("app", TWO)).unwrap();
    let user = "Resources: {Q: {Type: AWS::SQS::Queue, Properties: {Tags: [{Key: u, Value: !ImportValue \
                app-url}]}}}";
    host.call(&create("user", user)).unwrap();
    let xml = host.call(&[("Action", "ListExports")]).unwrap();
    assert_eq!(all(&xml, "Name"), ["app-url"]);
    let message = host.call(&[("Action", "DeleteStack"), ("StackName", "app")]).unwrap_err();
    assert!(
        message.contains("Export app-url cannot be deleted as it is in use by user"),
        "{message}"
    );
    let update = [("Action", "UpdateStack"), ("StackName", "app"), ("TemplateBody", QUEUE)];
    host.call(&update).unwrap();
    assert_eq!(host.status("app"), "UPDATE_ROLLBACK_COMPLETE");
    let message = host.call(&create(
        "third",
        "Resources: {Q: {Type: AWS::SQS::Queue, Properties: {X: \
                                              !ImportValue nothing}}}",
    ));
    assert!(message.unwrap_err().contains("No export named nothing found."));
    let twice = TWO.replace("${AWS::StackName}-url", "app-url");
    host.call(&create("twice", &twice)).unwrap();
    assert_eq!(host.status("twice"), "ROLLBACK_COMPLETE");
    host.call(&[("Action", "DeleteStack"), ("StackName", "user")]).unwrap();
    host.call(&[("Action", "DeleteStack"), ("StackName", "app")]).unwrap();
    assert!(all(&host.call(&[("Action", "ListExports")]).unwrap(), "Name").is_empty());
}

#[test]
fn tokens_repeat_nothing() {
    let mut host = Host::new();
    let with = |token, members: &[(&'static str, &'static str)]| -> Vec<_> {
        members.iter().copied().chain([("ClientRequestToken", token)]).collect()
    };
    let id = first(&host.call(&with("t1", &create("app", TWO))).unwrap(), "StackId");
    let count = host.actions.len();
    assert_eq!(first(&host.call(&with("t1", &create("app", TWO))).unwrap(), "StackId"), id);
    assert_eq!(host.actions.len(), count);
    let message = host.call(&with("t2", &create("app", TWO))).unwrap_err();
    assert_eq!(message, "AlreadyExistsException: Stack [app] already exists");
    let delete = [("Action", "DeleteStack"), ("StackName", "app")];
    let message = host.call(&with("t1", &delete)).unwrap_err();
    assert!(message.starts_with("TokenAlreadyExistsException: "), "{message}");
    let xml = host.call(&[("Action", "DescribeStackEvents"), ("StackName", "app")]).unwrap();
    assert_eq!(first(&xml, "ClientRequestToken"), "t1");
    host.call(&with("t3", &delete)).unwrap();
    assert_eq!(host.status(&id), "DELETE_COMPLETE");
}

#[test]
fn one_operation_of_a_stack_runs_at_a_time() {
    let mut host = Host::new();
    let (_, changed) = host.send(&create("app", TWO)).unwrap();
    let id = changed.unwrap();
    assert!(host.stacks.next(&id, 1).is_some());
    assert_eq!(host.stacks.running(), std::slice::from_ref(&id));
    let update = [("Action", "UpdateStack"), ("StackName", "app"), ("TemplateBody", QUEUE)];
    let message = host.call(&update).unwrap_err();
    assert!(
        message.ends_with("is in CREATE_IN_PROGRESS state and can not be updated."),
        "{message}"
    );
    let message = host.call(&[("Action", "DeleteStack"), ("StackName", "app")]).unwrap_err();
    assert!(message.contains("while in status CREATE_IN_PROGRESS"), "{message}");
    host.run(&id);
    assert_eq!(host.status("app"), "CREATE_COMPLETE");
    assert!(host.stacks.running().is_empty());
}

#[test]
fn lists_have_pages() {
    let mut host = Host::new();
    for number in 0..120 {
        host.call(&create(&format!("s{number:03}"), QUEUE)).unwrap();
    }
    let (mut names, mut token) = (Vec::new(), None::<String>);
    for page in 0.. {
        let mut members = vec![("Action", "DescribeStacks")];
        members.extend(token.as_deref().map(|token| ("NextToken", token)));
        let xml = host.call(&members).unwrap();
        names.extend(all(&xml, "StackName"));
        token = all(&xml, "NextToken").pop();
        if token.is_none() {
            assert_eq!(page, 1);
            break;
        }
    }
    names.sort();
    assert_eq!(names.len(), 120);
    assert_eq!((names[0].as_str(), names[119].as_str()), ("s000", "s119"));
    let wrong = [("Action", "DescribeStacks"), ("NextToken", "x")];
    assert!(host.call(&wrong).unwrap_err().contains("NextToken is invalid"));
}

#[test]
fn deleted_stacks_are_forgotten_at_last() {
    let mut host = Host::new();
    for _ in 0..103 {
        host.call(&create("app", QUEUE)).unwrap();
        host.call(&[("Action", "DeleteStack"), ("StackName", "app")]).unwrap();
    }
    let gone = host.stacks.forget();
    assert_eq!(gone.len(), 3);
    assert!(gone[0] < gone[1] && host.stacks.get(&gone[2]).is_none());
    assert_eq!(host.stacks.all().count(), 100);
}

#[test]
fn retained_and_stuck_resources_are_told() {
    let mut host = Host::new();
    let text = "Resources: {Q: {Type: AWS::SQS::Queue, DeletionPolicy: Retain}, D: {Type: AWS::SNS::Topic}}";
    host.call(&create("app", text)).unwrap();
    host.failing = Some("D");
    let delete = [("Action", "DeleteStack"), ("StackName", "app")];
    host.call(&delete).unwrap();
    assert_eq!(host.status("app"), "DELETE_FAILED");
    let xml = host.call(&[("Action", "DescribeStacks"), ("StackName", "app")]).unwrap();
    let reason = first(&xml, "StackStatusReason");
    assert_eq!(reason, "The following resource(s) failed to delete: [D].");
    let xml = host.call(&[("Action", "DescribeStackEvents"), ("StackName", "app")]).unwrap();
    assert!(all(&xml, "ResourceStatus").contains(&"DELETE_SKIPPED".to_owned()));
    let retain = |name| [delete[0], delete[1], ("RetainResources.member.1", name)];
    assert!(host.call(&retain("X")).unwrap_err().contains("[X] of RetainResources does not exist"));
    host.actions.clear();
    let id = host.stacks.alive().next().unwrap().id.clone();
    host.call(&retain("D")).unwrap();
    assert!(host.actions.is_empty(), "{:?}", host.actions);
    assert_eq!(host.status(&id), "DELETE_COMPLETE");
}

#[test]
fn summaries_tell_parameters_and_capabilities() {
    let mut host = Host::new();
    let text = "
Transform: AWS::Serverless-2016-10-31
Parameters: {Stage: {Type: String, Default: dev, AllowedValues: [dev, live]}}
Globals: {Function: {Timeout: 3}}
Resources:
  F: {Type: AWS::Serverless::Function, Properties: {CodeUri: 's3://b/k', Handler: h, Runtime: python3.12}}
";
    let xml = host.call(&[("Action", "GetTemplateSummary"), ("TemplateBody", text)]).unwrap();
    assert_eq!(first(&xml, "ParameterKey"), "Stage");
    assert_eq!(first(&xml, "DefaultValue"), "dev");
    let document = roxmltree::Document::parse(&xml).unwrap();
    let members = |name: &str| -> Vec<String> {
        let list =
            document.descendants().find(|node| node.has_tag_name((NAMESPACE, name))).unwrap();
        list.children().map(|node| node.text().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(members("Capabilities"), ["CAPABILITY_AUTO_EXPAND", "CAPABILITY_IAM"]);
    assert_eq!(members("DeclaredTransforms"), ["AWS::Serverless-2016-10-31"]);
    assert_eq!(members("ResourceTypes"), ["AWS::Serverless::Function"]);
    assert_eq!(members("AllowedValues"), ["dev", "live"]);

    let capable = |names: &[&'static str]| {
        let keys = ["Capabilities.member.1", "Capabilities.member.2"];
        let mut members = create("app", text).to_vec();
        members.extend(keys.into_iter().zip(names.iter().copied()));
        members
    };
    let message = host.call(&capable(&[])).unwrap_err();
    let lacking = "InsufficientCapabilitiesException: Requires capabilities : ";
    assert_eq!(message, format!("{lacking}[CAPABILITY_AUTO_EXPAND]"));
    let message = host.call(&capable(&["CAPABILITY_AUTO_EXPAND"])).unwrap_err();
    assert_eq!(message, format!("{lacking}[CAPABILITY_IAM]"));
    host.call(&capable(&["CAPABILITY_AUTO_EXPAND", "CAPABILITY_IAM"])).unwrap();
    let names: Vec<_> = host.actions.iter().map(|one| one.logical_id.as_str()).collect();
    assert_eq!(names, ["FRole", "F"]);
    let Work::Create { code, properties, .. } = &host.actions[1].work else {
        panic!("not created")
    };
    let object = Object { bucket: "b".to_owned(), key: "k".to_owned(), version: None };
    assert_eq!(code.as_ref(), Some(&object));
    assert!(properties["Role"].as_str().unwrap().starts_with("arn:app-FRole-"));
    let processed =
        [("Action", "GetTemplate"), ("StackName", "app"), ("TemplateStage", "Processed")];
    let body = first(&host.call(&processed).unwrap(), "TemplateBody");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["Resources"]["F"]["Type"], "AWS::Lambda::Function");
}

#[test]
fn templates_at_urls_are_read_by_the_caller() {
    let url = "https://s3.us-east-1.amazonaws.com/bucket/key.template";
    let mut host = Host::new();
    host.call(&[("Action", "CreateStack"), ("StackName", "app"), ("TemplateURL", url)]).unwrap();
    assert_eq!(host.status("app"), "CREATE_COMPLETE");
    let request =
        query::decode(format!("Action=ValidateTemplate&TemplateURL={url}").as_bytes()).unwrap();
    assert_eq!(request.template_url(), Some(url));
    assert!(matches!(request, Request::ValidateTemplate(_)));
    let given = Given { now_ms: 0, unique: "u", template: None };
    let failure = host.stacks.call(&request, given).unwrap_err();
    assert!(failure.message.contains("was not read"), "{failure}");
}

#[test]
fn wrong_templates_are_refused_in_the_words_of_cloudformation() {
    let of = |resource: &str| format!("Resources: {{X: {resource}}}");
    let queue =
        |properties: &str| of(&format!("{{Type: AWS::SQS::Queue, Properties: {properties}}}"));
    let cases = BTreeMap::from([
        ("a: b".to_owned(), "Template format error: Invalid template property or properties [a]"),
        (
            "Resources: {}".to_owned(),
            "Template format error: At least one Resources member must be defined.",
        ),
        (of("{}"), "[/Resources/X] Every Resources object must contain a Type member."),
        (of("{Type: AWS::EC2::Instance}"), "Unrecognized resource types: [AWS::EC2::Instance]"),
        (of("{Type: 'AWS::CloudFormation::WaitConditionHandle'}"), "Unrecognized resource types"),
        (of("{Type: AWS::SQS::Queue, Foo: 1}"), "[/Resources/X] Invalid property Foo"),
        (of("{Type: AWS::IAM::Role}"), "required key [AssumeRolePolicyDocument] not found"),
        (
            of("{Type: AWS::SQS::Queue, DependsOn: Y}"),
            "Unresolved resource dependencies [Y] in the Resources block of the template",
        ),
        (of("{Type: AWS::SQS::Queue, Condition: C}"), "Unresolved condition dependency C"),
        (
            queue("{A: !Ref Y}"),
            "Template format error: Unresolved resource dependencies [Y] in the Resources block of the \
          template",
        ),
        (
            queue("{A: !GetAtt Y.Arn}"),
            "Template error: instance of Fn::GetAtt references undefined resource Y",
        ),
        (
            queue("{A: !Sub '${Y.Arn}'}"),
            "Template error: instance of Fn::GetAtt references undefined resource Y",
        ),
        (
            queue("{A: !GetAtt X.Foo}"),
            "resource X does not support attribute type Foo in Fn::GetAtt",
        ),
        (queue("{A: !GetAZs ''}"), "Fn::GetAZs is refused"),
        (queue("{A: !Equals [a, b]}"), "stands in Conditions only"),
        (queue("{A: !FindInMap [M, a, b]}"), "Unable to get mapping for M::a::b"),
        (queue("{A: !Join [',', a]}"), "every Fn::Join object requires two parameters"),
        (queue("{A: !Select [3, [a]]}"), "cannot select nonexistent value at index 3"),
        (queue("{A: !Sub '${a b}'}"), "variable names in Fn::Sub syntax"),
        (queue("{A: ~}"), "[/Resources/X/Properties/A] 'null' values are not allowed in templates"),
        (queue("{A: !GetAtt X.Arn}"), "Circular dependency between resources: [X]"),
        ("Transform: Foo\n".to_owned() + &queue("{}"), "No transform named Foo found."),
        ("{\"Resources\": ".to_owned(), "Template format error: JSON not well-formed"),
        ("Resources: [".to_owned(), "Template format error: YAML not well-formed. (line "),
    ]);
    let mut host = Host::new();
    for (text, part) in cases {
        let message = host.call(&create("app", &text)).unwrap_err();
        assert!(
            message.starts_with("ValidationError: ") && message.contains(part),
            "{text}: {message}"
        );
    }
    let message = host.call(&create("9app", QUEUE)).unwrap_err();
    assert!(
        message.contains("Value '9app' at 'stackName' failed to satisfy constraint"),
        "{message}"
    );
    assert!(host.stacks.all().next().is_none());
}

#[test]
fn functions_are_resolved_in_all_places() {
    let text = "
Parameters:
  List: {Type: CommaDelimitedList, Default: 'a,b,c'}
  Stage: {Type: String, Default: live}
Mappings: {M: {live: {Size: 7, All: [x, y]}}}
Conditions:
  IsLive: !Equals [!Ref Stage, live]
  IsOther: !And [!Not [!Condition IsLive], !Or [!Condition IsLive, !Equals [a, a]]]
Resources:
  Not: {Type: AWS::SQS::Queue, Condition: IsOther}
  X:
    Type: AWS::SQS::Queue
    Properties:
      Ref: !Ref AWS::Region
      List: !Ref List
      Join: !Join ['-', [!Ref Stage, !Select [1, !Ref List], !Select ['2', !Split ['/', 'p/q/r']]]]
      Map: !FindInMap [M, !Ref Stage, Size]
      All: !FindInMap [M, live, All]
      If: !If [IsLive, yes, !Ref Not]
      None: !If [IsOther, x, !Ref AWS::NoValue]
      Items: [a, !If [IsOther, b, !Ref AWS::NoValue], c]
      Sub: !Sub ['${!Literal} ${V}/${Stage}/${AWS::Partition}.${AWS::URLSuffix}', {V: !Join ['', [1, true]]}]
      Base64: {'Fn::Base64': !Sub '${AWS::AccountId}'}
      Id: !Select [5, !Split [':', !Ref AWS::StackId]]
Outputs:
  Out: {Value: !GetAtt X.QueueName}
  No: {Value: !Ref Not, Condition: IsOther}
";
    let mut host = Host::new();
    host.call(&create("app", text)).unwrap();
    let Work::Create { properties, .. } = &host.actions[0].work else { panic!("not created") };
    let expected = json!({
        "Ref": "us-east-1",
        "List": ["a", "b", "c"],
        "Join": "live-b-r",
        "Map": 7,
        "All": ["x", "y"],
        "If": "yes",
        "Items": ["a", "c"],
        "Sub": "${Literal} 1true/live/aws.amazonaws.com",
        "Base64": "MDAwMDAwMDAwMDAw",
        "Id": "stack/app/00000001",
    });
    assert_eq!(properties, &expected);
    let xml = host.call(&[("Action", "DescribeStacks"), ("StackName", "app")]).unwrap();
    assert_eq!(all(&xml, "OutputKey"), ["Out"]);
    // A short template that repeats a long parameter.
    let refs = "!Ref P, ".repeat(300);
    let many =
        format!("{QUEUE}, Properties: {{A: [{refs}]}}").replace("Queue}}, ", "Queue, ") + "}}";
    let many =
        format!("Parameters: {{P: {{Type: String, Default: {}}}}}\n{many}", "x".repeat(4096));
    let message = host.call(&create("d", &many)).unwrap_err();
    assert!(message.contains("give more than 1048576 bytes"), "{message}");
    // A circle of conditions, and a resource that is used but does not exist.
    let circle = "Conditions: {A: !Condition B, B: !Condition A}\n".to_owned() + QUEUE;
    assert!(host.call(&create("b", &circle)).unwrap_err().contains("circular condition"));
    let other = text.replace("If: !If [IsLive, yes, !Ref Not]", "If: !Ref Not");
    let message = host.call(&create("c", &other)).unwrap_err();
    assert!(message.contains("Unresolved resource dependencies [Not]"), "{message}");
}

#[test]
fn the_caller_notes_and_takes_back_what_it_cannot_write() {
    let mut host = Host::new();
    let (_, id) = host.send(&create("app", QUEUE)).unwrap();
    let id = id.unwrap();
    let durable = host.stacks.get(&id).cloned();
    let action = host.stacks.next(&id, host.now_ms).unwrap();
    host.stacks.note(&id, &action, "it has no effect".to_owned(), host.now_ms);
    let events = host.send(&[("Action", "DescribeStackEvents"), ("StackName", "app")]).unwrap().0;
    assert!(events.contains("it has no effect"), "{events}");
    host.stacks.put_back(&id, durable);
    let again = host.stacks.next(&id, host.now_ms).unwrap();
    assert_eq!(again, action, "it is handed out again");
    host.stacks.put_back(&id, None);
    assert!(host.stacks.get(&id).is_none() && host.stacks.running().is_empty());
}
