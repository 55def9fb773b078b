//! The decision about a request of S3: each action that it needs, on each of its resources, must be
//! allowed.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::facts::{Environment, Facts};
use super::implied::{self, Need, On, VERSIONS, of_version};
use super::pattern::{self, Resolved, Token};
use super::services::{Action, Asked, NotAllowed, Resource};
use super::statement::{self, ResourcePattern, Sure};
use super::{Decision, Policy, STORE_ARN};
use crate::copy_source::{self, COPY_SOURCE, Version};
use crate::operation::{Operation, Target};

/// Longest text that is compared with patterns, in bytes: more than any name of S3, percent-encoded.
pub(super) const NAME_BYTES_MAX: usize = 4096;
/// The key of an object's version.
const VERSION_KEY: &str = "s3:VersionId";

/// The reason why a request of S3 is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A parameter that names a bucket, a key or a version is not text, too long, or an ARN.
    Name,
    /// An action that it needs is not allowed.
    Action(Box<NotAllowed>),
}

/// An action on a resource of a store.
#[derive(Debug)]
pub(super) struct Question<'a> {
    pub(super) action: &'a str,
    /// The bucket, with a slash and the key; or the start of all of them.
    pub(super) resource: String,
    /// True if others will choose the end of the resource.
    pub(super) is_start: bool,
    /// For a list: the common prefix of its keys, after the bucket and a slash.
    pub(super) covers: Option<String>,
    /// The version of the object.
    pub(super) version: Version,
    pub(super) need: Need,
}

/// A parameter is no name.
pub(super) struct NoName;

impl Policy {
    /// Decides about an operation with these parameters: every action that it needs must be
    /// allowed, on every object that it reads or changes. A name that is not text is refused.
    ///
    /// # Errors
    /// The first action that is not allowed.
    pub fn decide(
        &self,
        operation: &Operation,
        parameters: &Map<String, Value>,
        environment: &Environment,
    ) -> Result<(), Refused> {
        let questions = questions(operation, parameters, environment.is_deferred);
        let questions = questions.map_err(|NoName| Refused::Name)?;
        self.decide_all(&questions, &self.facts_of(operation, parameters, environment))
    }

    /// Decides about uploads to all keys that begin with `start`, by a form that others will send.
    ///
    /// # Errors
    /// As [`Policy::decide`].
    pub fn decide_uploads(
        &self,
        operation: &Operation,
        parameters: &Map<String, Value>,
        (bucket, start): (&str, &str),
        environment: &Environment,
    ) -> Result<(), Refused> {
        let questions = questions(operation, parameters, environment.is_deferred);
        let resource = format!("{bucket}/{start}");
        let with_start = |own| Question { is_start: true, resource: resource.clone(), ..own };
        let questions = questions.map_err(|NoName| Refused::Name)?;
        let questions: Vec<_> = questions.into_iter().map(with_start).collect();
        self.decide_all(&questions, &self.facts_of(operation, parameters, environment))
    }

    pub(super) fn facts_of(
        &self,
        operation: &Operation,
        parameters: &Map<String, Value>,
        environment: &Environment,
    ) -> Facts {
        let facts = self.facts.clone().in_environment(environment);
        facts.of_operation(operation, parameters, environment.is_deferred)
    }

    fn decide_all(&self, questions: &[Question<'_>], facts: &Facts) -> Result<(), Refused> {
        for question in questions {
            let answer = self.answer_need(question, &question.facts(facts));
            if answer.0 != Decision::Allowed {
                let not = self.not_allowed(question.asked(), answer.0, answer.2);
                return Err(Refused::Action(Box::new(not)));
            }
        }
        Ok(())
    }

    /// As [`Policy::answer`]: an action that the request need not have is allowed if nothing denies
    /// it.
    pub(super) fn answer_need(
        &self,
        question: &Question<'_>,
        facts: &Facts,
    ) -> (Decision, Option<usize>, bool) {
        if question.need != Need::Possible {
            return self.answer(question, facts);
        }
        let own = [(&self.statements, false)];
        let all = own.into_iter().chain(self.boundary.iter().map(|boundary| (boundary, true)));
        for (statements, is_boundary) in all {
            if let (Decision::Denied, by) = statement::judge(statements, question, facts) {
                return (Decision::Denied, by, is_boundary);
            }
        }
        (Decision::Allowed, None, false)
    }
}

impl statement::Question for Question<'_> {
    fn is_action(&self, pattern: &[Token], _: Sure) -> bool {
        pattern::matches(pattern, &self.action.to_ascii_lowercase())
    }

    fn is_covered(&self, pattern: &[Token]) -> bool {
        let Need::Covered(by) = self.need else { return false };
        let is_version = VERSIONS.iter().any(|(_, of_version)| *of_version == self.action);
        let by = if is_version { of_version(by) } else { by };
        pattern::matches(pattern, &by.to_ascii_lowercase())
    }

    fn is_resource(&self, pattern: &ResourcePattern, facts: &Facts, sure: Sure) -> bool {
        match pattern {
            ResourcePattern::Every => true,
            ResourcePattern::Plain(text) => {
                let tokens = pattern::tokens(text.strip_prefix(STORE_ARN).unwrap_or(text));
                let covers = self.covers.as_deref().filter(|_| sure != Sure::Possibly);
                self.is_name(&tokens, sure)
                    || covers.is_some_and(|all| pattern::covers(&tokens, all))
            }
            ResourcePattern::Arn(own) => {
                let is_place = own.service.is_text("s3")
                    && [&own.region, &own.account].iter().all(|part| part.matches("", facts, true));
                is_place
                    && match own.name.resolve(facts) {
                        Resolved::Pattern(tokens) => self.is_name(&tokens, sure),
                        Resolved::Absent => false,
                        Resolved::Unknown => sure == Sure::Possibly,
                    }
            }
        }
    }
}

impl<'a> Question<'a> {
    pub(super) fn of(action: &'a str, resource: String) -> Question<'a> {
        let (version, need) = (Version::None, Need::Certain);
        Question { action, resource, is_start: false, covers: None, version, need }
    }

    /// The facts, with the version of the object.
    pub(super) fn facts<'f>(&self, facts: &'f Facts) -> Cow<'f, Facts> {
        match &self.version {
            Version::None => Cow::Borrowed(facts),
            Version::Named(version) => Cow::Owned(facts.clone().with(VERSION_KEY, version)),
            Version::Unknown => Cow::Owned(facts.clone().with_unknown(VERSION_KEY)),
        }
    }

    /// The action and the resource, for a message.
    pub(super) fn asked(&self) -> Asked {
        let star = if self.is_start { "*" } else { "" };
        let resource = Resource::Named {
            service: "s3".to_owned(),
            region: String::new(),
            account: Some(String::new()),
            name: format!("{}{star}", self.resource),
            by_arn: false,
        };
        Asked { action: Action::Named(self.action.to_owned()), resource }
    }

    fn is_name(&self, pattern: &[Token], sure: Sure) -> bool {
        match (self.is_start, sure) {
            (false, _) => pattern::matches(pattern, &self.resource),
            (true, Sure::Possibly) => pattern::may_match(pattern, &self.resource),
            (true, Sure::Almost | Sure::Certainly) => pattern::covers(pattern, &self.resource),
        }
    }
}

/// Returns the text of a parameter that names something; empty if it is absent.
fn name_of(value: Option<&Value>) -> Result<&str, NoName> {
    match value {
        None | Some(Value::Null) => Ok(""),
        Some(value) => value.as_str().filter(|text| text.len() <= NAME_BYTES_MAX).ok_or(NoName),
    }
}

/// A resource, and a version of it.
type Place = (String, Version);

/// The resources of a request by their role in it.
struct Places {
    targets: Vec<Place>,
    /// For a list.
    covers: Option<String>,
    /// The objects that stores could read.
    sources: Vec<String>,
    source: String,
    output: Option<String>,
}

impl Places {
    fn of(operation: &Operation, parameters: &Map<String, Value>) -> Result<Places, NoName> {
        let text = |name: &str| name_of(parameters.get(name));
        let named = |version: &str| match version {
            "" => Version::None,
            version => Version::Named(version.to_owned()),
        };
        let bucket = text("Bucket")?;
        let mut covers = None;
        let targets = match operation.target {
            Target::Service => vec![("*".to_owned(), Version::None)],
            Target::Object => {
                vec![(format!("{bucket}/{}", text("Key")?), named(text("VersionId")?))]
            }
            Target::Bucket if operation.name == "DeleteObjects" => {
                let objects = parameters.get("Delete").and_then(|delete| delete.get("Objects"));
                let objects = objects.and_then(Value::as_array).into_iter().flatten();
                let place = |object: &Value| {
                    let key = name_of(object.get("Key"))?;
                    Ok((format!("{bucket}/{key}"), named(name_of(object.get("VersionId"))?)))
                };
                objects.map(place).collect::<Result<_, _>>()?
            }
            Target::Bucket => {
                if operation.field("Prefix").is_some() {
                    covers = Some(format!("{bucket}/{}", text("Prefix")?));
                }
                vec![(bucket.to_owned(), Version::None)]
            }
        };
        let (mut sources, mut source) = (Vec::new(), "");
        if operation.field(COPY_SOURCE).is_some() {
            source = text(COPY_SOURCE)?;
            // That of an access point, whose bucket the host cannot tell.
            if copy_source::bucket(source).starts_with("arn:") {
                return Err(NoName);
            }
            sources = copy_source::readings(source);
        }
        let output = match implied::found(parameters, "RestoreRequest.OutputLocation.S3") {
            None => None,
            Some(place) => {
                let bucket = name_of(place.get("BucketName"))?;
                Some(format!("{bucket}/{}", name_of(place.get("Prefix"))?))
            }
        };
        Ok(Places { targets, covers, sources, source: source.to_owned(), output })
    }

    /// Adds the questions about an action.
    fn ask(&self, action: &'static str, on: On, need: Need, all: &mut Vec<Question<'_>>) {
        let of =
            |action, resource: &String| Question { need, ..Question::of(action, resource.clone()) };
        match on {
            On::Target => all.extend(self.targets.iter().map(|(resource, version)| {
                let action = if *version == Version::None { action } else { of_version(action) };
                Question { version: version.clone(), ..of(action, resource) }
            })),
            On::Source => {
                // Stores differ in the part of the source that they read as a version.
                let has_version = copy_source::has_version(&self.source);
                let of_object = (!has_version).then_some(action);
                let of_one = copy_source::has_query(&self.source).then(|| of_version(action));
                let version = copy_source::version(&self.source);
                for resource in &self.sources {
                    all.extend([of_object, of_one].into_iter().flatten().map(|action| Question {
                        version: version.clone(),
                        ..of(action, resource)
                    }));
                }
            }
            On::Output => all.extend(
                self.output.iter().map(|start| Question { is_start: true, ..of(action, start) }),
            ),
        }
    }
}

/// Every action that a request needs, that of its operation first.
pub(super) fn questions(
    operation: &Operation,
    parameters: &Map<String, Value>,
    is_deferred: bool,
) -> Result<Vec<Question<'static>>, NoName> {
    let places = Places::of(operation, parameters)?;
    let mut all: Vec<Question<'static>> = Vec::new();
    places.ask(operation.action, On::Target, Need::Certain, &mut all);
    if let (Some(covers), Some(first)) = (&places.covers, all.first_mut()) {
        first.covers = Some(covers.clone());
    }
    for row in implied::of(operation) {
        if let Some(need) = row.need(operation, parameters, is_deferred) {
            places.ask(row.action, row.on, need, &mut all);
        }
    }
    Ok(all)
}
