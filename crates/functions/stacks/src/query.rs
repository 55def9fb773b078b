//! The query protocol: the form of a request as a typed request.

use std::collections::{BTreeMap, BTreeSet};

use unlade_http::percent;

use crate::error::{Failure, Kind};
use crate::operation::Object;
use crate::parameters::Given;
use crate::request::{ChangeSetName, ChangeSetRequest, Request, Source, Submission};
use crate::status::{OnFailure, Status};

/// Most bytes of a form: a template of 50 KiB, percent-encoded, with parameters and tags.
pub const FORM_BYTES_MAX: usize = 1 << 20;
/// Most members of a form.
const MEMBERS_MAX: usize = 2_000;
/// Most bytes of a template in a form, as in CloudFormation.
pub const BODY_BYTES_MAX: usize = 51_200;
/// Most tags of a stack.
const TAGS_MAX: usize = 50;

/// The members of a form.
struct Form(BTreeMap<String, String>);

/// Decodes a form: the body of a request, or its query.
///
/// # Errors
/// It is no form, its operation is unknown, or a member is missing or invalid.
pub fn decode(form: &[u8]) -> Result<Request, Failure> {
    let mut form = Form::parse(form)?;
    let missing = || Failure::new(Kind::MissingAction, "the request has no Action");
    let action = form.take("Action").ok_or_else(missing)?;
    form.take("Version");
    let request = read(&action, &mut form)?;
    // Members that change nothing here.
    for ignored in ["CallAs", "IncludeNestedStacks", "IncludePropertyValues", "StackSetName"] {
        form.take(ignored);
    }
    form.take_all("ResourceTypes.");
    form.take_all("TemplateSummaryConfig.");
    match form.0.keys().next() {
        None => Ok(request),
        Some(unknown) => Err(Failure::invalid(format!(
            "{action} with {unknown} is not supported by this server; leave it out"
        ))),
    }
}

fn read(action: &str, form: &mut Form) -> Result<Request, Failure> {
    Ok(match action {
        "CreateStack" => Request::CreateStack(form.submission(false)?),
        "UpdateStack" => Request::UpdateStack(form.submission(true)?),
        "DeleteStack" => {
            form.take("RoleARN");
            form.mode()?;
            if form.take("DeletionMode").is_some_and(|mode| mode != "STANDARD") {
                let why = "DeletionMode must be STANDARD; use RetainResources for those that stay";
                return Err(Failure::invalid(why));
            }
            let retained = form.list("RetainResources")?;
            Request::DeleteStack(form.required("StackName")?, retained, form.token())
        }
        "DescribeStacks" => Request::DescribeStacks(form.take("StackName"), form.page()),
        "ListStacks" => {
            let statuses = form.list("StackStatusFilter")?;
            let status = |text: &String| {
                let found = Status::ALL.iter().find(|status| status.as_str() == text);
                // A status that no stack here has.
                found.copied().unwrap_or(Status::DeleteSkipped)
            };
            Request::ListStacks(statuses.iter().map(status).collect(), form.page())
        }
        "DescribeStackEvents" => {
            Request::DescribeStackEvents(form.required("StackName")?, form.page())
        }
        "DescribeStackResource" => {
            let resource = form.required("LogicalResourceId")?;
            Request::DescribeStackResource(form.required("StackName")?, resource)
        }
        "DescribeStackResources" => Request::DescribeStackResources(
            form.take("StackName"),
            form.take("PhysicalResourceId"),
            form.take("LogicalResourceId"),
        ),
        "ListStackResources" => {
            Request::ListStackResources(form.required("StackName")?, form.page())
        }
        "GetTemplate" => {
            let stack = form.take("StackName");
            let change_set = form.take("ChangeSetName");
            let change_set = change_set.map(|name| ChangeSetName { name, stack: stack.clone() });
            let is_processed = form.take("TemplateStage").is_some_and(|stage| stage == "Processed");
            Request::GetTemplate(stack, change_set, is_processed)
        }
        "GetTemplateSummary" => match form.take("StackName") {
            Some(stack) => Request::GetStackSummary(stack),
            None => Request::GetTemplateSummary(form.source(false)?),
        },
        "ValidateTemplate" => Request::ValidateTemplate(form.source(false)?),
        "CreateChangeSet" => Request::CreateChangeSet(form.change_set()?),
        "DescribeChangeSet" => Request::DescribeChangeSet(form.change_set_name()?, form.page()),
        "ExecuteChangeSet" => {
            let is_left = form.flag("DisableRollback")?;
            form.take("RetainExceptOnCreate");
            let on_failure = is_left.then_some(OnFailure::DoNothing);
            Request::ExecuteChangeSet(form.change_set_name()?, form.token(), on_failure)
        }
        "DeleteChangeSet" => Request::DeleteChangeSet(form.change_set_name()?),
        "ListChangeSets" => Request::ListChangeSets(form.required("StackName")?, form.page()),
        "ListExports" => Request::ListExports(form.page()),
        "UpdateTerminationProtection" => {
            let is_protected = form.flag("EnableTerminationProtection")?;
            Request::UpdateTerminationProtection(form.required("StackName")?, is_protected)
        }
        other => {
            let why = format!("Could not find operation {other} for version 2010-05-15");
            return Err(Failure::new(Kind::InvalidAction, why));
        }
    })
}

impl Form {
    fn parse(form: &[u8]) -> Result<Form, Failure> {
        if form.len() > FORM_BYTES_MAX {
            let why = format!("the request is longer than {FORM_BYTES_MAX} bytes; use TemplateURL");
            return Err(Failure::invalid(why));
        }
        let no_form = || Failure::invalid("the request is no form of UTF-8 text");
        let text = std::str::from_utf8(form).map_err(|_| no_form())?;
        let mut members = BTreeMap::new();
        for member in text.trim_end().split('&').filter(|member| !member.is_empty()) {
            let (key, value) = member.split_once('=').unwrap_or((member, ""));
            let decoded = |text: &str| {
                let bytes = percent::decoded(&text.replace('+', " ")).ok_or_else(no_form)?;
                String::from_utf8(bytes).map_err(|_| no_form())
            };
            let key = decoded(key)?;
            if members.len() == MEMBERS_MAX {
                let why = format!("the request has more than {MEMBERS_MAX} members");
                return Err(Failure::invalid(why));
            }
            if members.insert(key.clone(), decoded(value)?).is_some() {
                return Err(Failure::invalid(format!("the request has {key} twice")));
            }
        }
        Ok(Form(members))
    }

    fn take(&mut self, key: &str) -> Option<String> {
        self.0.remove(key)
    }

    fn take_all(&mut self, prefix: &str) {
        self.0.retain(|key, _| !key.starts_with(prefix));
    }

    fn required(&mut self, key: &str) -> Result<String, Failure> {
        let missing = || {
            let name = lower_first(key);
            let null = "failed to satisfy constraint: Member must not be null";
            Failure::invalid(format!("1 validation error detected: Value null at '{name}' {null}"))
        };
        self.take(key).filter(|value| !value.is_empty()).ok_or_else(missing)
    }

    fn flag(&mut self, key: &str) -> Result<bool, Failure> {
        match self.take(key).as_deref() {
            None | Some("false" | "False") => Ok(false),
            Some("true" | "True") => Ok(true),
            Some(other) => {
                Err(Failure::invalid(format!("{key} must be true or false, not {other:?}")))
            }
        }
    }

    fn page(&mut self) -> Option<String> {
        self.take("NextToken")
    }

    fn token(&mut self) -> Option<String> {
        self.take("ClientRequestToken")
    }

    /// The numbers of a list's members, in order.
    fn numbers(&self, key: &str) -> Result<Vec<usize>, Failure> {
        let prefix = format!("{key}.member.");
        let number = |key: &String| {
            let rest = key.strip_prefix(&prefix)?;
            Some(rest.split('.').next().unwrap_or_default().parse::<usize>())
        };
        let numbers: Result<BTreeSet<usize>, _> = self.0.keys().filter_map(number).collect();
        let wrong =
            |_| Failure::invalid(format!("{key} must be a list: {prefix}1, {prefix}2 and so on"));
        Ok(numbers.map_err(wrong)?.into_iter().collect())
    }

    fn list(&mut self, key: &str) -> Result<Vec<String>, Failure> {
        // An empty list is a member without a value.
        self.0.remove(key);
        let numbers = self.numbers(key)?;
        Ok(numbers.into_iter().filter_map(|n| self.take(&format!("{key}.member.{n}"))).collect())
    }

    fn source(&mut self, may_be_previous: bool) -> Result<Source, Failure> {
        let is_previous = may_be_previous && self.flag("UsePreviousTemplate")?;
        let body = self.take("TemplateBody").filter(|body| !body.is_empty());
        let url = self.take("TemplateURL").filter(|url| !url.is_empty());
        match (body, url, is_previous) {
            (Some(body), None, false) if body.len() > BODY_BYTES_MAX => {
                Err(Failure::invalid(format!(
                    "1 validation error detected: Value at 'templateBody' failed to satisfy constraint: \
                     Member must have length less than or equal to {BODY_BYTES_MAX}; use TemplateURL"
                )))
            }
            (Some(body), None, false) => Ok(Source::Body(body)),
            (None, Some(url), false) => {
                object_of(&url)?;
                Ok(Source::Url(url))
            }
            (None, None, true) => Ok(Source::Previous),
            (None, None, false) => {
                Err(Failure::invalid("Either Template URL or Template Body must be specified."))
            }
            _ => Err(Failure::invalid(
                "Only one of TemplateBody, TemplateURL and UsePreviousTemplate may be specified.",
            )),
        }
    }

    fn parameters(&mut self) -> Result<Vec<Given>, Failure> {
        self.0.remove("Parameters");
        let mut found = Vec::new();
        for number in self.numbers("Parameters")? {
            let at = format!("Parameters.member.{number}.");
            self.take(&format!("{at}ResolvedValue"));
            found.push(Given {
                key: self.required(&format!("{at}ParameterKey"))?,
                value: self.take(&format!("{at}ParameterValue")),
                is_previous: self.flag(&format!("{at}UsePreviousValue"))?,
            });
        }
        Ok(found)
    }

    fn tags(&mut self) -> Result<Option<BTreeMap<String, String>>, Failure> {
        let numbers = self.numbers("Tags")?;
        if numbers.is_empty() {
            // An empty list removes the tags, no list keeps them.
            return Ok(self.0.remove("Tags").map(|_| BTreeMap::new()));
        }
        if numbers.len() > TAGS_MAX {
            return Err(Failure::invalid(format!("a stack has at most {TAGS_MAX} tags")));
        }
        let mut tags = BTreeMap::new();
        for number in numbers {
            let key = self.required(&format!("Tags.member.{number}.Key"))?;
            let value = self.take(&format!("Tags.member.{number}.Value")).unwrap_or_default();
            if key.starts_with("aws:") {
                let why = format!("the tag {key} begins with aws:, which is reserved; rename it");
                return Err(Failure::invalid(why));
            }
            if tags.insert(key.clone(), value).is_some() {
                return Err(Failure::invalid(format!("Duplicate tag key {key}")));
            }
        }
        Ok(Some(tags))
    }

    /// Takes the mode of an operation. Both end when the resources are ready, which is the standard one.
    fn mode(&mut self) -> Result<(), Failure> {
        match self.take("DeploymentConfig.Mode").as_deref() {
            None | Some("STANDARD" | "EXPRESS") => Ok(()),
            Some(other) => Err(Failure::invalid(format!(
                "DeploymentConfig.Mode must be STANDARD or EXPRESS, not {other:?}"
            ))),
        }
    }

    fn on_failure(&mut self, key: &str) -> Result<OnFailure, Failure> {
        // `sam sync` sends the second form.
        let (first, second) =
            (self.flag("DisableRollback")?, self.flag("DeploymentConfig.DisableRollback")?);
        let is_left = first || second;
        match (self.take(key).as_deref(), is_left) {
            (None, false) | (Some("ROLLBACK"), false) => Ok(OnFailure::Rollback),
            (None, true) | (Some("DO_NOTHING"), _) => Ok(OnFailure::DoNothing),
            (Some("DELETE"), false) => Ok(OnFailure::Delete),
            (Some(_), true) => Err(Failure::invalid(format!(
                "You can specify either DisableRollback or {key} but not both."
            ))),
            (Some(other), _) => Err(Failure::invalid(format!(
                "{key} must be ROLLBACK, DO_NOTHING or DELETE, not {other:?}"
            ))),
        }
    }

    fn submission(&mut self, may_be_previous: bool) -> Result<Submission, Failure> {
        self.mode()?;
        for unsupported in ["StackPolicyBody", "StackPolicyURL", "StackPolicyDuringUpdateBody"] {
            if self.take(unsupported).is_some_and(|text| !text.is_empty()) {
                let why = format!("{unsupported} is not supported by this server; leave it out");
                return Err(Failure::invalid(why));
            }
        }
        let triggers = "RollbackConfiguration.RollbackTriggers.member.";
        if self.0.keys().any(|key| key.starts_with(triggers)) {
            return Err(Failure::invalid("rollback triggers are not supported; leave them out"));
        }
        self.take_all("RollbackConfiguration.");
        self.take("RollbackConfiguration");
        let timeout = self.take("TimeoutInMinutes");
        let wrong = |_| Failure::invalid("TimeoutInMinutes must be a number of minutes");
        Ok(Submission {
            stack: self.required("StackName")?,
            source: self.source(may_be_previous)?,
            parameters: self.parameters()?,
            tags: self.tags()?,
            capabilities: self.list("Capabilities")?,
            role_arn: self.take("RoleARN"),
            notification_arns: self.list("NotificationARNs")?,
            on_failure: self.on_failure("OnFailure")?,
            deletes_new: self.flag("RetainExceptOnCreate")?,
            timeout_minutes: timeout.map(|text| text.parse()).transpose().map_err(wrong)?,
            is_protected: self.flag("EnableTerminationProtection")?,
            token: self.token(),
        })
    }

    fn change_set(&mut self) -> Result<ChangeSetRequest, Failure> {
        let kind = self.take("ChangeSetType");
        let is_creation = match kind.as_deref() {
            None | Some("UPDATE") => false,
            Some("CREATE") => true,
            Some(other) => {
                let why = format!("ChangeSetType must be CREATE or UPDATE, not {other}");
                return Err(Failure::invalid(why));
            }
        };
        for unsupported in ["ImportExistingResources", "DeploymentMode"] {
            if self.take(unsupported).is_some_and(|text| text != "false") {
                let why = format!("{unsupported} is not supported by this server; leave it out");
                return Err(Failure::invalid(why));
            }
        }
        let (name, description) = (self.required("ChangeSetName")?, self.take("Description"));
        let token = self.take("ClientToken");
        let on_failure = self.on_failure("OnStackFailure")?;
        let submission = self.submission(true)?;
        Ok(ChangeSetRequest {
            submission: Submission { token, on_failure, ..submission },
            name,
            description,
            is_creation,
        })
    }

    fn change_set_name(&mut self) -> Result<ChangeSetName, Failure> {
        Ok(ChangeSetName { name: self.required("ChangeSetName")?, stack: self.take("StackName") })
    }
}

fn lower_first(key: &str) -> String {
    let mut chars = key.chars();
    chars
        .next()
        .map_or(String::new(), |first| first.to_ascii_lowercase().to_string() + chars.as_str())
}

/// The object of a URL of S3 (`https://BUCKET.s3.REGION.amazonaws.com/KEY`, or
/// `http://HOST[:PORT]/BUCKET/KEY` of any server), or of `s3://BUCKET/KEY`. The host of a server is not
/// kept: the caller reads from its own store.
///
/// # Errors
/// It is no such URL.
pub fn object_of(url: &str) -> Result<Object, Failure> {
    let wrong = || {
        Failure::invalid(format!(
            "TemplateURL must reference a valid S3 object to which you have access: {url:.200} is no \
             https://HOST/BUCKET/KEY"
        ))
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (host, path) = rest.split_once('/').ok_or_else(wrong)?;
    let text = |text: &str| {
        percent::decoded(text).and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(wrong)
    };
    let virtual_bucket = [".s3.", ".s3-"].iter().find_map(|mark| Some(host.split_once(mark)?.0));
    let (bucket, key) = match (scheme, virtual_bucket) {
        ("s3", _) => (host.to_owned(), path.to_owned()),
        ("http" | "https", Some(bucket)) => (bucket.to_owned(), text(path)?),
        ("http" | "https", None) => {
            let (bucket, key) = path.split_once('/').ok_or_else(wrong)?;
            (text(bucket)?, text(key)?)
        }
        _ => return Err(wrong()),
    };
    let version = query.split('&').find_map(|member| member.strip_prefix("versionId="));
    let version = version.map(text).transpose()?;
    match bucket.is_empty() || key.is_empty() {
        true => Err(wrong()),
        false => Ok(Object { bucket, key, version }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_its_members() {
        let form = b"Action=CreateChangeSet&Version=2010-05-15&StackName=app&ChangeSetName=c1\
            &ChangeSetType=CREATE&TemplateURL=https%3A%2F%2Fs3.us-east-1.amazonaws.com%2Fb%2Fk+1.yaml\
            &Parameters.member.2.ParameterKey=B&Parameters.member.2.UsePreviousValue=true\
            &Parameters.member.1.ParameterKey=A&Parameters.member.1.ParameterValue=1%2B1\
            &Tags.member.1.Key=t&Tags.member.1.Value=v&Capabilities.member.1=CAPABILITY_IAM\
            &Capabilities.member.2=CAPABILITY_AUTO_EXPAND&OnStackFailure=DELETE&ClientToken=x";
        let Request::CreateChangeSet(request) = decode(form).unwrap() else { panic!("another") };
        assert_eq!((request.name.as_str(), request.is_creation), ("c1", true));
        let submission = request.submission;
        let url = "https://s3.us-east-1.amazonaws.com/b/k 1.yaml";
        assert_eq!(submission.source, Source::Url(url.to_owned()));
        let given = |key: &str, value: Option<&str>| Given {
            key: key.to_owned(),
            value: value.map(str::to_owned),
            is_previous: value.is_none(),
        };
        assert_eq!(submission.parameters, [given("A", Some("1+1")), given("B", None)]);
        assert_eq!(submission.tags, Some(BTreeMap::from([("t".to_owned(), "v".to_owned())])));
        assert_eq!(submission.capabilities, ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]);
        assert_eq!(
            (submission.on_failure, submission.token.as_deref()),
            (OnFailure::Delete, Some("x"))
        );
    }

    #[test]
    fn a_failure_ends_as_either_form_says() {
        for (form, expected) in [
            ("", OnFailure::Rollback),
            ("&DisableRollback=true", OnFailure::DoNothing),
            ("&DeploymentConfig.DisableRollback=false", OnFailure::Rollback),
            ("&DeploymentConfig.DisableRollback=true", OnFailure::DoNothing),
            ("&DeploymentConfig.Mode=EXPRESS", OnFailure::Rollback),
        ] {
            let text = format!("Action=CreateStack&StackName=a&TemplateBody=x{form}");
            let Request::CreateStack(made) = decode(text.as_bytes()).unwrap() else {
                panic!("another")
            };
            assert_eq!(made.on_failure, expected, "{form}");
        }
    }

    #[test]
    fn invalid_requests_name_the_member() {
        for (form, part) in [
            ("", "no Action"),
            ("Action=SetStackPolicy", "Could not find operation SetStackPolicy"),
            ("Action=DeleteStack", "Value null at 'stackName'"),
            ("Action=CreateStack&StackName=a", "Either Template URL or Template Body"),
            (
                "Action=CreateStack&StackName=a&TemplateBody=x&TemplateURL=https://h/b/k",
                "Only one of",
            ),
            ("Action=CreateStack&StackName=a&TemplateURL=ftp://x", "valid S3 object"),
            ("Action=DeleteStack&StackName=a&StackName=b", "StackName twice"),
            ("Action=DeleteStack&StackName=a&Foo=b", "with Foo is not supported"),
            ("Action=DeleteStack&StackName=%ff", "no form"),
            (
                "Action=CreateStack&StackName=a&TemplateBody=x&DisableRollback=maybe",
                "true or false",
            ),
            (
                "Action=CreateStack&StackName=a&TemplateBody=x&DeploymentConfig.Mode=FAST",
                "STANDARD or EXPRESS",
            ),
            (
                "Action=CreateStack&StackName=a&TemplateBody=x&DisableRollback=true&OnFailure=DELETE",
                "but not both",
            ),
            (
                "Action=CreateStack&StackName=a&TemplateBody=x&Parameters.member.x.ParameterKey=a",
                "must be a list",
            ),
            ("Action=CreateStack&StackName=a&TemplateBody=x&Tags.member.1.Key=aws:x", "reserved"),
            ("Action=CreateStack&StackName=a&TemplateBody=x&StackPolicyBody={}", "StackPolicyBody"),
        ] {
            let message = decode(form.as_bytes()).unwrap_err().message;
            assert!(message.contains(part), "{form}: {message}");
        }
        let long =
            format!("Action=ValidateTemplate&TemplateBody={}", "x".repeat(BODY_BYTES_MAX + 1));
        assert!(decode(long.as_bytes()).unwrap_err().message.contains("templateBody"));
        let many = "Tags.member.1.Key=a&".repeat(3);
        assert!(decode(many.as_bytes()).unwrap_err().message.contains("twice"));
        let long = "x".repeat(FORM_BYTES_MAX + 1);
        assert!(decode(long.as_bytes()).unwrap_err().message.contains("TemplateURL"));
    }

    #[test]
    fn urls_of_objects_have_several_forms() {
        let object = |bucket: &str, key: &str, version: Option<&str>| Object {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            version: version.map(str::to_owned),
        };
        for (url, expected) in [
            ("https://s3.eu-west-1.amazonaws.com/b/d/k.json", object("b", "d/k.json", None)),
            ("https://b.s3.amazonaws.com/d%2Fk", object("b", "d/k", None)),
            ("https://b.c.s3.eu-west-1.amazonaws.com/k", object("b.c", "k", None)),
            ("https://b.s3-eu-west-1.amazonaws.com/k", object("b", "k", None)),
            ("http://127.0.0.1:9001/b/k?versionId=3", object("b", "k", Some("3"))),
            ("s3://b/d/k", object("b", "d/k", None)),
        ] {
            assert_eq!(object_of(url).unwrap(), expected, "{url}");
        }
        for wrong in ["b/k", "https://host/b", "https://host//k", "file:///b/k"] {
            assert!(object_of(wrong).is_err(), "{wrong}");
        }
    }
}
