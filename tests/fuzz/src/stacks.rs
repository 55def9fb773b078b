//! Templates of CloudFormation and requests of its API.

use unlade_fn_stacks::request::{Source, Submission};
use unlade_fn_stacks::status::OnFailure;
use unlade_fn_stacks::{Given, Outcome, Place, Request, Stacks, Status, Work, kinds, query};

/// Most actions: each resource is made, restored and deleted once at most.
const ACTIONS_MAX: usize = 3 * 500;

fn account() -> Stacks {
    let place = Place { region: "us-east-1".to_owned(), account: "000000000000".to_owned() };
    Stacks::new(place, [])
}

fn given(number: u64) -> Given<'static> {
    const UNIQUE: [&str; 4] = ["0", "1", "2", "3"];
    Given { now_ms: number, unique: UNIQUE[(number % 4) as usize], template: Some("{}") }
}

/// Carries out every action; a creation must not repeat a name that exists.
fn run(stacks: &mut Stacks, id: &str) -> Status {
    for _ in 0..ACTIONS_MAX {
        let Some(action) = stacks.next(id, 1) else { break };
        let attribute = |name: &&str| ((*name).to_owned(), format!("{name} of it").into());
        let kind = kinds::find(&action.kind).expect("a known type");
        let physical_id = match &action.work {
            Work::Create { name, .. } => name.clone(),
            Work::Update { physical_id, .. } | Work::Delete { physical_id, .. } => {
                physical_id.clone()
            }
        };
        let attributes = kind.attributes.iter().map(attribute).collect();
        let outcome = Outcome::Done { physical_id, attributes };
        stacks.outcome(id, action.step, outcome, 1).expect("the step that was told");
    }
    let stack = stacks.get(id).expect("it is known");
    assert!(stack.operation.is_none(), "an operation ends");
    stack.status
}

/// An accepted template becomes a stack that needs no update and goes without a rest; a refused one has a
/// reason.
pub fn stack_template(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let submission = Submission {
        stack: "app".to_owned(),
        source: Source::Body(text.to_owned()),
        parameters: Vec::new(),
        tags: None,
        capabilities: vec!["CAPABILITY_NAMED_IAM".to_owned(), "CAPABILITY_AUTO_EXPAND".to_owned()],
        role_arn: None,
        notification_arns: Vec::new(),
        on_failure: OnFailure::Rollback,
        deletes_new: false,
        timeout_minutes: None,
        is_protected: false,
        token: None,
    };
    let mut stacks = account();
    let summary = stacks.call(&Request::ValidateTemplate(submission.source.clone()), given(0));
    let reply = match stacks.call(&Request::CreateStack(submission.clone()), given(1)) {
        Ok(reply) => reply,
        Err(failure) => {
            assert!(!failure.message.is_empty());
            assert!(stacks.all().next().is_none(), "a refused request changes nothing");
            return;
        }
    };
    assert!(summary.is_ok(), "{summary:?}");
    let id = reply.changed.expect("a new stack");
    if run(&mut stacks, &id) == Status::CreateComplete {
        let same = stacks.call(&Request::UpdateStack(submission), given(2));
        let message = same.map_err(|failure| failure.message).expect_err("nothing changes");
        assert_eq!(message, "No updates are to be performed.");
    }
    let delete = Request::DeleteStack("app".to_owned(), Vec::new(), None);
    stacks.call(&delete, given(3)).expect("it can be deleted");
    assert_eq!(run(&mut stacks, &id), Status::DeleteComplete);
    assert_eq!(stacks.get(&id).expect("it is known").instances().count(), 0);
}

/// A decoded request is answered or refused with a reason.
pub fn stack_request(data: &[u8]) {
    let request = match query::decode(data) {
        Ok(request) => request,
        Err(failure) => return assert!(!failure.message.is_empty()),
    };
    let mut stacks = account();
    match stacks.call(&request, given(1)) {
        Ok(reply) => {
            assert!(reply.xml.starts_with('<') && !reply.xml.contains('\0'));
            for id in stacks.running() {
                run(&mut stacks, &id);
            }
        }
        Err(failure) => assert!(!failure.message.is_empty()),
    }
}

/// The seeds: the target, the name, the content.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let all = [
        ("stack_template", "functions", FUNCTIONS),
        ("stack_template", "json", JSON),
        ("stack_template", "sam", SAM),
        ("stack_template", "circle", "Resources: {A: {Type: AWS::SQS::Queue, DependsOn: A}}"),
        ("stack_request", "create-stack", CREATE),
        ("stack_request", "create-change-set", CHANGE_SET),
        ("stack_request", "describe-stacks", "Action=DescribeStacks&Version=2010-05-15"),
        ("stack_request", "member-twice", "Action=DeleteStack&StackName=a&StackName=a"),
    ];
    all.map(|(target, name, text)| (target, name, text.as_bytes().to_vec())).into()
}

const FUNCTIONS: &str = "\
Parameters: {P: {Type: CommaDelimitedList, Default: 'a,b'}}
Mappings: {M: {a: {b: c}}}
Conditions: {C: !Equals [!Select [0, !Ref P], a]}
Resources:
  Q: &q {Type: AWS::SQS::Queue, Properties: {N: !If [C, !FindInMap [M, a, b], !Ref AWS::NoValue]}}
  R: *q
  T:
    Type: AWS::SNS::Topic
    DeletionPolicy: Retain
    DependsOn: [R]
    Properties: {A: !GetAtt Q.Arn, B: !Sub '${Q.QueueName}-${!x}', C: !Join ['', !Split ['/', a/b]]}
Outputs: {O: {Value: !Ref T, Export: {Name: !Sub '${AWS::StackName}-t'}}}
";
const JSON: &str = r#"{"Resources": {"L": {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": {"Fn::Base64": "x"}}}}}"#;
const SAM: &str = "\
Transform: AWS::Serverless-2016-10-31
Globals: {Function: {Timeout: 3, Environment: {Variables: {A: b}}}}
Resources:
  F:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: s3://bucket/key?versionId=1
      Handler: app.h
      Runtime: python3.12
      AutoPublishAlias: live
      Policies: [{S3ReadPolicy: {BucketName: b}}]
      Events: {E: {Type: SQS, Properties: {Queue: !GetAtt Q.Arn}}}
  Q: {Type: AWS::SQS::Queue}
Outputs: {V: {Value: !Ref F.Version}}
";
const CREATE: &str = "Action=CreateStack&StackName=app&TemplateBody=Resources%3A+%7BQ%3A+%7BType%3A+\
                      AWS%3A%3ASQS%3A%3AQueue%7D%7D&Tags.member.1.Key=a&Tags.member.1.Value=b\
                      &OnFailure=DELETE&TimeoutInMinutes=5&ClientRequestToken=t";
const CHANGE_SET: &str = "Action=CreateChangeSet&StackName=app&ChangeSetName=c&ChangeSetType=CREATE\
                          &TemplateURL=https%3A%2F%2Fs3.amazonaws.com%2Fb%2Fk&Parameters.member.1.\
                          ParameterKey=P&Parameters.member.1.ParameterValue=v&Capabilities.member.1=\
                          CAPABILITY_IAM";
