//! Decisions about requests to services other than S3.
//!
//! The semantics are those of the parent. A resource is written as the last part of its ARN
//! (`table/orders`), for every account and region, or as a whole ARN. An account that the request
//! does not name is the role's own, and matches every pattern.

use super::{Decision, Policy, Statement, Verdict, covers, matches};

/// An action that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// This one: `dynamodb:GetItem`.
    Named(String),
    /// Any of a service, because the request does not tell which one: `apigateway`.
    Any(String),
}

/// A resource that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// This one.
    Named {
        /// The service in its ARN.
        service: String,
        /// Its region; empty if its ARN has none.
        region: String,
        /// Its account, if the request names it.
        account: Option<String>,
        /// The last part of its ARN.
        name: String,
    },
    /// None that the host can tell: an action on it must be allowed on everything, and denied on
    /// nothing.
    Unknown,
}

/// An action on a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The action.
    pub action: Action,
    /// The resource.
    pub resource: Resource,
}

impl Action {
    /// The action as a policy has it.
    pub fn text(&self) -> String {
        match self {
            Action::Named(name) => name.clone(),
            Action::Any(service) => format!("{service}:*"),
        }
    }

    /// The service of the action.
    fn service(&self) -> &str {
        match self {
            Action::Named(name) => name.split(':').next().unwrap_or_default(),
            Action::Any(service) => service,
        }
    }
}

impl Resource {
    /// The resource as a policy has it.
    pub fn text(&self) -> &str {
        match self {
            Resource::Named { name, .. } => name,
            Resource::Unknown => "*",
        }
    }
}

/// The reason why a request is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAllowed {
    /// The action on the resource that is not allowed.
    pub asked: Asked,
    /// The decision.
    pub decision: Decision,
    /// True if the operator's boundary decides, not the role itself.
    pub by_boundary: bool,
    /// True if the role is that of a manifest without one.
    pub is_default: bool,
}

impl Policy {
    /// Decides about a request to a service: each of its actions on its resources must be allowed.
    ///
    /// # Errors
    /// The first one that is not.
    pub fn decide_on(&self, all: &[Asked]) -> Result<(), Box<NotAllowed>> {
        for asked in all {
            let own = decide(&self.statements, asked);
            let bounds = self.boundary.as_ref().map(|boundary| decide(&boundary.statements, asked));
            let (decision, by_boundary) = match bounds {
                Some(bound) if own == Decision::Allowed => (bound, true),
                _ => (own, false),
            };
            if decision != Decision::Allowed {
                let is_default = self.statements == Policy::of_store().statements;
                let asked = asked.clone();
                return Err(Box::new(NotAllowed { asked, decision, by_boundary, is_default }));
            }
        }
        Ok(())
    }
}

fn decide(statements: &[Statement], asked: &Asked) -> Decision {
    let mut decision = Decision::NotAllowed;
    for statement in statements {
        let allows = statement.effect == Verdict::Allow;
        let is_action = |pattern: &String| is_action(pattern, &asked.action, allows);
        let is_resource = |pattern: &String| is_resource(pattern, asked, allows);
        let is_about =
            statement.actions.iter().any(is_action) && statement.resources.iter().any(is_resource);
        match (is_about, allows) {
            (true, false) => return Decision::Denied,
            (true, true) => decision = Decision::Allowed,
            (false, _) => {}
        }
    }
    decision
}

/// True if a pattern is about an action. Of any action of a service: a permission must be about all
/// of them, a denial about one.
fn is_action(pattern: &str, action: &Action, allows: bool) -> bool {
    let pattern = pattern.to_ascii_lowercase();
    match action {
        Action::Named(name) => matches(&pattern, &name.to_ascii_lowercase()),
        Action::Any(service) => {
            let start = format!("{}:", service.to_ascii_lowercase());
            if allows { covers(&pattern, &start) } else { may_match(&pattern, &start) }
        }
    }
}

/// True if a pattern could match a text that begins with `start`.
fn may_match(pattern: &str, start: &str) -> bool {
    let literal = pattern.split(['*', '?']).next().unwrap_or_default();
    let has_wildcard = literal.len() < pattern.len();
    literal.starts_with(start) || (has_wildcard && start.starts_with(literal))
}

fn is_resource(pattern: &str, asked: &Asked, allows: bool) -> bool {
    let parts = arn(pattern);
    match &asked.resource {
        Resource::Unknown if allows => match parts {
            None => is_all(pattern),
            // Region and account could be others than those of the pattern.
            Some([_, of_service, region, account, name]) => {
                matches(of_service, asked.action.service())
                    && [region, account, name].into_iter().all(is_all)
            }
        },
        Resource::Unknown => true,
        Resource::Named { service, region, account, name } => match parts {
            None => matches(pattern, name),
            Some([_, of_service, in_region, of_account, named]) => {
                let is_account =
                    |account: &String| of_account.is_empty() || matches(of_account, account);
                matches(of_service, service)
                    && (in_region.is_empty() || region.is_empty() || matches(in_region, region))
                    && account.as_ref().is_none_or(is_account)
                    && matches(named, name)
            }
        },
    }
}

/// True for a pattern that matches every text.
fn is_all(pattern: &str) -> bool {
    pattern.is_empty() || pattern.bytes().all(|byte| byte == b'*')
}

/// The parts of an ARN after its first word: partition, service, region, account, name.
pub fn arn(text: &str) -> Option<[&str; 5]> {
    let mut parts = text.strip_prefix("arn:")?.splitn(5, ':');
    let found = [parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use unlade_testkit::{Random, cases};

    fn policy(statements: Value) -> Policy {
        Policy::from_value(&json!({ "statements": statements })).unwrap()
    }

    fn table(name: &str) -> Resource {
        let (service, region) = ("dynamodb".to_owned(), "eu-west-1".to_owned());
        Resource::Named { service, region, account: None, name: format!("table/{name}") }
    }

    fn named(action: &str, resource: Resource) -> Asked {
        Asked { action: Action::Named(action.to_owned()), resource }
    }

    fn decision(policy: &Policy, asked: &Asked) -> Decision {
        let decided = policy.decide_on(std::slice::from_ref(asked));
        decided.map_or_else(|not| not.decision, |()| Decision::Allowed)
    }

    #[test]
    fn what_is_not_allowed_is_denied_and_a_denial_is_final() {
        let role = policy(json!([
            {"effect": "allow", "actions": ["dynamodb:Get*", "DynamoDB:query"],
             "resources": ["table/orders", "arn:aws:dynamodb:eu-*:123:table/a*"]},
            {"effect": "deny", "actions": ["dynamodb:*"], "resources": ["table/abc"]},
            {"effect": "allow", "actions": ["s3:*"], "resources": ["*"]}]));
        for (action, name, due) in [
            ("dynamodb:GetItem", "orders", Decision::Allowed),
            ("dynamodb:Query", "orders", Decision::Allowed),
            ("dynamodb:PutItem", "orders", Decision::NotAllowed),
            ("dynamodb:GetItem", "order", Decision::NotAllowed),
            ("dynamodb:GetItem", "ab", Decision::Allowed),
            ("dynamodb:GetItem", "abc", Decision::Denied),
            ("sqs:GetItem", "orders", Decision::NotAllowed),
        ] {
            assert_eq!(decision(&role, &named(action, table(name))), due, "{action} {name}");
        }
        let both =
            [named("dynamodb:GetItem", table("orders")), named("dynamodb:GetItem", table("b"))];
        let not = role.decide_on(&both).unwrap_err();
        assert_eq!((&not.asked, not.by_boundary), (&both[1], false));
        assert_eq!(decision(&Policy::default(), &both[0]), Decision::NotAllowed);
        assert_eq!(decision(&Policy::everything(), &both[0]), Decision::Allowed);
    }

    #[test]
    fn an_arn_is_of_its_service_region_and_account() {
        let other = |region: &str, account: Option<&str>| Resource::Named {
            service: "dynamodb".to_owned(),
            region: region.to_owned(),
            account: account.map(str::to_owned),
            name: "table/t".to_owned(),
        };
        let allows = |pattern: &str, resource: Resource| {
            let role = policy(json!([
                {"effect": "allow", "actions": ["*"], "resources": [pattern]}]));
            decision(&role, &named("dynamodb:GetItem", resource)) == Decision::Allowed
        };
        let arn = "arn:aws:dynamodb:eu-west-1:123:table/t";
        assert!(allows(arn, other("eu-west-1", Some("123"))));
        assert!(allows(arn, other("eu-west-1", None)), "its own account");
        assert!(!allows(arn, other("eu-west-1", Some("124"))));
        assert!(!allows(arn, other("us-east-1", Some("123"))));
        assert!(!allows("arn:aws:sqs:*:*:table/t", other("eu-west-1", None)));
        assert!(allows("arn:aws:dynamodb:::table/*", other("eu-west-1", Some("1"))));
        assert!(allows("table/t", other("eu-west-1", Some("1"))));
    }

    #[test]
    fn what_the_host_cannot_tell_needs_every_right() {
        let any = Asked { action: Action::Any("apigateway".to_owned()), resource: table("t") };
        let unknown = named("dynamodb:ListTables", Resource::Unknown);
        for (actions, resources, of_any, of_unknown) in [
            (json!(["*"]), json!(["*"]), true, true),
            (json!(["apigateway:*", "dynamodb:*"]), json!(["*"]), true, true),
            (json!(["apigateway:Get*", "dynamodb:List*"]), json!(["*"]), false, true),
            (json!(["apigateway:*", "dynamodb:*"]), json!(["table/*"]), true, false),
            (json!(["dynamodb:*"]), json!(["arn:aws:dynamodb:*:*:*"]), false, true),
            (json!(["dynamodb:*"]), json!(["arn:aws:dynamodb:eu-west-1:*:*"]), false, false),
        ] {
            let role = policy(json!([
                {"effect": "allow", "actions": actions, "resources": resources}]));
            let is = |asked: &Asked| decision(&role, asked) == Decision::Allowed;
            assert_eq!((is(&any), is(&unknown)), (of_any, of_unknown), "{actions} {resources}");
        }
        for denied in ["apigateway:Delete*", "api*", "*", "apigateway:?"] {
            let role = policy(json!([
                {"effect": "allow", "actions": ["*"], "resources": ["*"]},
                {"effect": "deny", "actions": [denied], "resources": ["*"]}]));
            assert_eq!(decision(&role, &any), Decision::Denied, "{denied}");
        }
        let role = policy(json!([
            {"effect": "allow", "actions": ["*"], "resources": ["*"]},
            {"effect": "deny", "actions": ["dynamodb:*", "api"], "resources": ["table/secret"]}]));
        assert_eq!(decision(&role, &unknown), Decision::Denied);
        assert_eq!(decision(&role, &any), Decision::Allowed);
    }

    #[test]
    fn everything_of_a_service_is_nothing_of_another() {
        let role = policy(json!([
            {"effect": "allow", "actions": ["*"], "resources": ["arn:aws:s3:::*"]}]));
        let unknown = |action: Action| Asked { action, resource: Resource::Unknown };
        let list = unknown(Action::Named("dynamodb:ListTables".into()));
        assert_eq!(decision(&role, &list), Decision::NotAllowed);
        let any = unknown(Action::Any("iam".into()));
        assert_eq!(decision(&role, &any), Decision::NotAllowed);
        let role = policy(json!([
            {"effect": "allow", "actions": ["*"], "resources": ["arn:aws:dynamodb:*:*:*"]}]));
        assert_eq!(decision(&role, &list), Decision::Allowed);
        assert_eq!(decision(&role, &any), Decision::NotAllowed);
    }

    #[test]
    fn a_boundary_allows_nothing_that_its_policy_does_not() {
        let value = json!({
            "statements": [{"effect": "allow", "actions": ["*"], "resources": ["*"]}],
            "boundary": {"statements": [
                {"effect": "allow", "actions": ["dynamodb:GetItem"], "resources": ["table/t"]}]}});
        let role = Policy::from_value(&value).unwrap();
        assert!(role.decide_on(&[named("dynamodb:GetItem", table("t"))]).is_ok());
        let not = role.decide_on(&[named("dynamodb:PutItem", table("t"))]).unwrap_err();
        assert!(not.by_boundary);
    }

    /// Compares with a list of all actions of a small service, each asked for by its name.
    #[test]
    fn any_action_is_as_every_action() {
        let letters = ['a', 'b', ':', '*', '?'];
        let word = |random: &mut Random| -> String {
            let count = 1 + random.below(4);
            (0..count).map(|_| letters[random.below(letters.len() as u64) as usize]).collect()
        };
        cases(3000, |random| {
            let pattern = word(random);
            let longer = ["", "a", "b", "aa", "ab", "ba", "bb", ":", "*", "?", "aba", "bab"];
            let names: Vec<_> = longer.iter().map(|end| format!("a:{end}")).collect();
            let any = Action::Any("a".to_owned());
            let matching = names.iter().filter(|name| matches(&pattern, name)).count();
            if is_action(&pattern, &any, true) {
                assert_eq!(matching, names.len(), "{pattern}");
            }
            if matching > 0 {
                assert!(is_action(&pattern, &any, false), "{pattern}");
            }
        });
    }
}
