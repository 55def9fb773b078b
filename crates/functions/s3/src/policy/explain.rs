//! The explanation of a decision, for operators and authors: the statement that decides.

use serde_json::{Map, Value};

use super::facts::{Environment, Facts};
use super::implied::Need;
use super::needed::{Question, questions};
use super::services::{Action, Asked, Resource, arn};
use super::{Decision, Policy, STORE_ARN, statement};
use crate::operation::Operation;

/// The policy whose statement decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The role itself.
    Role,
    /// The operator's boundary.
    Boundary,
}

/// A decision with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The decision.
    pub decision: Decision,
    /// The policy that decides.
    pub whose: Whose,
    /// The number of the statement that decides, from 1, and its `Sid`; `None` if none is about the
    /// request.
    pub statement: Option<(usize, Option<String>)>,
}

/// An action that a request needs, with its resource and the decision about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The action.
    pub action: String,
    /// The bucket, or the bucket, a slash and the key.
    pub resource: String,
    /// True if the host cannot tell whether the request needs it.
    pub is_possible: bool,
    /// The decision.
    pub explanation: Explanation,
}

impl Policy {
    /// Explains the decision about an action (`s3:GetObject`, `dynamodb:GetItem`) on a resource: for
    /// S3 a bucket, or a bucket, a slash and a key; for others the last part of its ARN; an ARN; or
    /// `*` for a resource that the host cannot tell. `more` are condition keys of the request.
    pub fn explain(
        &self,
        action: &str,
        resource: &str,
        environment: &Environment,
        more: &[(String, String)],
    ) -> Explanation {
        let facts = self.facts.clone().in_environment(environment);
        let with = |facts: Facts, (key, value): &(String, String)| facts.with(key, value);
        let facts = more.iter().fold(facts, with);
        let service = action.split(':').next().unwrap_or_default();
        let of_store;
        let of_service;
        let question: &dyn statement::Question = if service.eq_ignore_ascii_case("s3") {
            let name = resource.strip_prefix(STORE_ARN).unwrap_or(resource).to_owned();
            of_store = Question::of(action, name);
            &of_store
        } else {
            let action = Action::Named(action.to_owned());
            let resource = self::resource(service, resource, &environment.region);
            of_service = Asked { action, resource };
            &of_service
        };
        self.explanation(self.answer(question, &facts))
    }

    /// Explains the decision about every action that an operation needs; `more` are condition keys
    /// of the request. Empty if a name in the parameters is none.
    pub fn explain_operation(
        &self,
        operation: &Operation,
        parameters: &Map<String, Value>,
        environment: &Environment,
        more: &[(String, String)],
    ) -> Vec<Explained> {
        let facts = self.facts_of(operation, parameters, environment);
        let with = |facts: Facts, (key, value): &(String, String)| facts.with(key, value);
        let facts = more.iter().fold(facts, with);
        let all = questions(operation, parameters, environment.is_deferred).unwrap_or_default();
        let explain = |question: &Question<'_>| {
            let answer = self.answer_need(question, &question.facts(&facts));
            Explained {
                action: question.action.to_owned(),
                resource: question.asked().resource.text().to_owned(),
                is_possible: question.need == Need::Possible,
                explanation: self.explanation(answer),
            }
        };
        all.iter().map(explain).collect()
    }

    /// The explanation of an answer ([`Policy::answer`]).
    pub(super) fn explanation(&self, answer: (Decision, Option<usize>, bool)) -> Explanation {
        let (decision, number, by_boundary) = answer;
        let (whose, statements) = match (by_boundary, &self.boundary) {
            (true, Some(boundary)) => (Whose::Boundary, boundary),
            _ => (Whose::Role, &self.statements),
        };
        let sid = |number: usize| statements.get(number).and_then(|own| own.sid.clone());
        let statement = number.map(|number| (number + 1, sid(number)));
        Explanation { decision, whose, statement }
    }
}

/// A resource of a service other than S3: the last part of its ARN, its ARN, or `*` for one that the
/// host cannot tell.
pub fn resource(service: &str, text: &str, region: &str) -> Resource {
    match (arn(text), text) {
        (_, "*") => Resource::Unknown,
        (Some([_, service, region, account, name]), _) => Resource::Named {
            service: service.to_owned(),
            region: region.to_owned(),
            account: Some(account.to_owned()),
            name: name.to_owned(),
            by_arn: true,
        },
        (None, name) => Resource::Named {
            service: service.to_ascii_lowercase(),
            region: region.to_owned(),
            account: None,
            name: name.to_owned(),
            by_arn: false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_decision_names_its_statement() {
        let value = json!({
            "Version": "2012-10-17",
            "Statement": [
                {"Sid": "Read", "Effect": "Allow", "Action": ["s3:Get*", "dynamodb:*"],
                 "Resource": "*"},
                {"Effect": "Deny", "Action": "*", "Resource": "arn:aws:s3:::b/secret/*",
                 "Condition": {"StringNotEquals": {"s3:VersionId": "7"}}}],
            "boundary": {"statements": [
                {"effect": "allow", "actions": ["s3:*"], "resources": ["b/*"]},
                {"effect": "deny", "actions": ["dynamodb:*"], "resources": ["table/t"]}]}});
        let policy = Policy::from_value(&value).unwrap();
        let environment = Environment::of_tests();
        let of = |action: &str, resource: &str, more: &[(String, String)]| {
            let Explanation { decision, whose, statement } =
                policy.explain(action, resource, &environment, more);
            (decision, whose, statement)
        };
        let read = Some((1, Some("Read".to_owned())));
        let plain = of("s3:GetObject", "b/k", &[]);
        assert_eq!(plain, (Decision::Allowed, Whose::Role, read.clone()));
        let arn = of("s3:GetObject", "arn:aws:s3:::b/k", &[]);
        assert_eq!(arn, plain);
        let secret = of("s3:GetObject", "b/secret/k", &[]);
        assert_eq!(secret, (Decision::Denied, Whose::Role, Some((2, None))));
        let version = [("s3:VersionId".to_owned(), "7".to_owned())];
        assert_eq!(of("s3:GetObject", "b/secret/k", &version).2, read);
        let none = of("s3:PutObject", "b/k", &[]);
        assert_eq!(none, (Decision::NotAllowed, Whose::Role, None));
        let outside = of("s3:GetObject", "c/k", &[]);
        assert_eq!(outside, (Decision::NotAllowed, Whose::Boundary, None));
        let table = of("dynamodb:GetItem", "table/t", &[]);
        assert_eq!(table, (Decision::Denied, Whose::Boundary, Some((2, None))));
        let unknown = of("dynamodb:ListTables", "*", &[]);
        assert_eq!(unknown, (Decision::Denied, Whose::Boundary, Some((2, None))));
        let whole = of("dynamodb:GetItem", "arn:aws:dynamodb:eu-west-1:1:table/t", &[]);
        assert_eq!(whole, table);
    }
}
