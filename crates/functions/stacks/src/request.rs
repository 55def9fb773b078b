//! The typed requests of CloudFormation's API.

use std::collections::BTreeMap;

use crate::parameters::Given;
use crate::status::{OnFailure, Status};

/// The place of a template's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The text itself.
    Body(String),
    /// A URL of an object in S3, which the caller reads.
    Url(String),
    /// The template that the stack has.
    Previous,
}

/// A template with parameters and settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The name of the stack; its ARN too, if it exists.
    pub stack: String,
    /// The template.
    pub source: Source,
    /// The parameters.
    pub parameters: Vec<Given>,
    /// The tags; `None` if the request says nothing about them.
    pub tags: Option<BTreeMap<String, String>>,
    /// The acknowledgements of the request.
    pub capabilities: Vec<String>,
    /// The role.
    pub role_arn: Option<String>,
    /// Topics.
    pub notification_arns: Vec<String>,
    /// The end of a failure.
    pub on_failure: OnFailure,
    /// Resources that are retained are deleted if their creation is undone.
    pub deletes_new: bool,
    /// Longest time of a creation, in minutes.
    pub timeout_minutes: Option<u64>,
    /// A deletion is refused.
    pub is_protected: bool,
    /// The token of the request.
    pub token: Option<String>,
}

/// A request for a change set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeSetRequest {
    /// The target.
    pub submission: Submission,
    /// The name.
    pub name: String,
    /// The description.
    pub description: Option<String>,
    /// It makes a new stack.
    pub is_creation: bool,
}

/// A change set in a request: its ARN, or its name and that of its stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeSetName {
    /// Its name or ARN.
    pub name: String,
    /// The stack.
    pub stack: Option<String>,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `CreateStack`.
    CreateStack(Submission),
    /// `UpdateStack`.
    UpdateStack(Submission),
    /// `DeleteStack`: the stack, the resources that stay, and the token.
    DeleteStack(String, Vec<String>, Option<String>),
    /// `DescribeStacks`: the stack or all of them, and the page.
    DescribeStacks(Option<String>, Option<String>),
    /// `ListStacks`: the statuses or all of them, and the page.
    ListStacks(Vec<Status>, Option<String>),
    /// `DescribeStackEvents`: the stack and the page.
    DescribeStackEvents(String, Option<String>),
    /// `DescribeStackResource`: the stack and the resource.
    DescribeStackResource(String, String),
    /// `DescribeStackResources`: the stack, or the identifier of a resource; the logical name of one.
    DescribeStackResources(Option<String>, Option<String>, Option<String>),
    /// `ListStackResources`: the stack and the page.
    ListStackResources(String, Option<String>),
    /// `GetTemplate`: the stack, or a change set; true for the text after transforms.
    GetTemplate(Option<String>, Option<ChangeSetName>, bool),
    /// `GetTemplateSummary` of a template.
    GetTemplateSummary(Source),
    /// `GetTemplateSummary` of a stack.
    GetStackSummary(String),
    /// `ValidateTemplate`.
    ValidateTemplate(Source),
    /// `CreateChangeSet`.
    CreateChangeSet(ChangeSetRequest),
    /// `DescribeChangeSet`: the change set and the page.
    DescribeChangeSet(ChangeSetName, Option<String>),
    /// `ExecuteChangeSet`: the change set, the token, and the end of a failure if it differs.
    ExecuteChangeSet(ChangeSetName, Option<String>, Option<OnFailure>),
    /// `DeleteChangeSet`.
    DeleteChangeSet(ChangeSetName),
    /// `ListChangeSets`: the stack and the page.
    ListChangeSets(String, Option<String>),
    /// `ListExports`: the page.
    ListExports(Option<String>),
    /// `UpdateTerminationProtection`: the stack, and true if a deletion is refused.
    UpdateTerminationProtection(String, bool),
}

impl Request {
    /// The template that the request names.
    pub fn source(&self) -> Option<&Source> {
        match self {
            Request::CreateStack(submission) | Request::UpdateStack(submission) => {
                Some(&submission.source)
            }
            Request::CreateChangeSet(request) => Some(&request.submission.source),
            Request::GetTemplateSummary(source) | Request::ValidateTemplate(source) => Some(source),
            _ => None,
        }
    }

    /// The URL of the template, which the caller reads before it carries out the request.
    pub fn template_url(&self) -> Option<&str> {
        match self.source() {
            Some(Source::Url(url)) => Some(url),
            _ => None,
        }
    }
}
