//! Statements: their actions, resources and conditions. A permission applies only if all that it
//! says is certain, a denial also if the host cannot tell.

use super::condition::Condition;
use super::error::Decision;
use super::facts::Facts;
use super::operator::Is;
use super::pattern::{self, Resolved, Template, Token};

/// The effect of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allow,
    Deny,
}

/// The certainty with which a pattern must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sure {
    /// Certainly, except that an account that the request does not name is the role's own.
    Almost,
    /// Certainly.
    Certainly,
    /// As far as the host can tell.
    Possibly,
}

/// Patterns, of which one must match; or, negated, none may.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Selection<P> {
    pub(super) patterns: Vec<P>,
    pub(super) is_negated: bool,
}

/// A pattern of resources.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ResourcePattern {
    /// That of a statement in TOML: a name, or an ARN.
    Plain(String),
    /// That of a document: every resource.
    Every,
    /// That of a document: an ARN, without its partition.
    Arn(Box<ArnPattern>),
}

/// An ARN with patterns.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ArnPattern {
    pub(super) service: Template,
    pub(super) region: Template,
    pub(super) account: Template,
    pub(super) name: Template,
}

/// The principals that a statement of a resource policy is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Principals {
    /// All of them.
    Every,
    /// These accounts and ARNs, and these services.
    Some { aws: Vec<String>, services: Vec<String> },
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statement {
    pub(super) sid: Option<String>,
    pub(super) effect: Verdict,
    /// Patterns in small letters.
    pub(super) actions: Selection<Vec<Token>>,
    pub(super) resources: Selection<ResourcePattern>,
    pub(super) conditions: Vec<Condition>,
    /// `None` in a policy of a role.
    pub(super) principals: Option<Principals>,
}

impl<P> Selection<P> {
    fn holds(&self, sure: Sure, matches: impl Fn(&P, Sure) -> bool) -> bool {
        let sure = match (self.is_negated, sure) {
            (false, sure) => sure,
            (true, Sure::Possibly) => Sure::Certainly,
            (true, Sure::Almost | Sure::Certainly) => Sure::Possibly,
        };
        self.patterns.iter().any(|pattern| matches(pattern, sure)) != self.is_negated
    }
}

/// A question that statements answer.
pub(super) trait Question {
    /// Returns true if a pattern, in small letters, is about the action.
    fn is_action(&self, pattern: &[Token], sure: Sure) -> bool;
    /// Returns true if a pattern of a permission in TOML covers the action, though it has another
    /// name.
    fn is_covered(&self, _: &[Token]) -> bool {
        false
    }
    /// Returns true if a pattern is about the resource.
    fn is_resource(&self, pattern: &ResourcePattern, facts: &Facts, sure: Sure) -> bool;
}

impl Statement {
    /// Returns true if it is one of a document.
    pub(super) fn is_of_document(&self) -> bool {
        let is_plain = |pattern: &ResourcePattern| matches!(pattern, ResourcePattern::Plain(_));
        !self.resources.patterns.iter().all(is_plain)
    }

    /// Returns true if it decides about a question.
    pub(super) fn applies(&self, question: &dyn Question, facts: &Facts) -> bool {
        let allows = self.effect == Verdict::Allow;
        let sure = if allows { Sure::Almost } else { Sure::Possibly };
        let covers = allows && !self.is_of_document();
        let is_action = |pattern: &Vec<Token>, sure| {
            question.is_action(pattern, sure) || (covers && question.is_covered(pattern))
        };
        self.actions.holds(sure, is_action)
            && self.resources.holds(sure, |own, sure| question.is_resource(own, facts, sure))
            && match Is::all(self.conditions.iter().map(|condition| condition.holds(facts))) {
                Is::Yes => true,
                Is::No => false,
                Is::Unknown => !allows,
            }
    }
}

/// Decides about a question: the decision, and the number of the statement that made it. A denial
/// overrides every permission; the default is denial.
pub(super) fn judge<'a>(
    statements: impl IntoIterator<Item = &'a Statement>,
    question: &dyn Question,
    facts: &Facts,
) -> (Decision, Option<usize>) {
    let mut found = (Decision::NotAllowed, None);
    for (number, statement) in statements.into_iter().enumerate() {
        match (statement.applies(question, facts), statement.effect) {
            (true, Verdict::Deny) => return (Decision::Denied, Some(number)),
            (true, Verdict::Allow) if found.1.is_none() => {
                found = (Decision::Allowed, Some(number));
            }
            _ => {}
        }
    }
    found
}

impl ArnPattern {
    /// Returns true if it is about a resource; `account` is `None` if the request does not name
    /// it, and `is_name` tells whether a pattern is about its last part. Without a region the
    /// resource is in all regions, or has none.
    pub(super) fn matches(
        &self,
        (service, region, account): (&str, &str, Option<&str>),
        is_name: &dyn Fn(&[Token]) -> bool,
        facts: &Facts,
        sure: Sure,
    ) -> bool {
        let is = |own: &Template, text: &str| own.matches(text, facts, sure == Sure::Possibly);
        let is_account = match (account, sure) {
            (Some(account), _) => is(&self.account, account),
            (None, Sure::Almost | Sure::Possibly) => true,
            (None, Sure::Certainly) => self.account.is_all(),
        };
        let is_region = match (region, sure) {
            ("", Sure::Almost | Sure::Possibly) => true,
            ("", Sure::Certainly) => self.region.is_all() || is(&self.region, region),
            (region, _) => is(&self.region, region),
        };
        is(&self.service, service)
            && is_region
            && is_account
            && match self.name.resolve(facts) {
                Resolved::Pattern(pattern) => is_name(&pattern),
                Resolved::Absent => false,
                Resolved::Unknown => sure == Sure::Possibly,
            }
    }
}

/// The patterns of a statement in TOML, in small letters.
pub(super) fn actions(patterns: &[String]) -> Selection<Vec<Token>> {
    let lower = patterns.iter().map(|text| pattern::tokens(&text.to_ascii_lowercase()));
    Selection { patterns: lower.collect(), is_negated: false }
}
