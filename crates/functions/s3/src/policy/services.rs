//! Decisions about requests to services other than S3, and the reasons for those that are denied.
//!
//! The semantics are those of the parent. A resource is written as the last part of its ARN
//! (`table/orders`), for every account and region, or as a whole ARN. An account that the request
//! does not name is the role's own, and matches every pattern.

use super::facts::{Environment, Facts};
use super::names::{Form, Name, in_document, is_named};
use super::pattern::{self, Template, Token};
use super::statement::{Question, ResourcePattern, Statement, Sure};
use super::{Decision, Policy};

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
        /// True if the request names it by an ARN.
        by_arn: bool,
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

    /// The resource as a document has it: an ARN, of every account if the request names none.
    pub fn arn(&self) -> String {
        match self {
            Resource::Named { service, region, account, name, by_arn } => {
                let account = account.as_deref().unwrap_or("*");
                let name = in_document(Name { service, text: name, by_arn: *by_arn });
                format!("arn:aws:{service}:{region}:{account}:{name}")
            }
            Resource::Unknown => "*".to_owned(),
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
    /// True if the policy that decides is a document.
    pub is_document: bool,
}

impl Policy {
    /// Decides about a request to a service: each of its actions on its resources must be allowed.
    ///
    /// # Errors
    /// The first one that is not.
    pub fn decide_on(
        &self,
        all: &[Asked],
        environment: &Environment,
    ) -> Result<(), Box<NotAllowed>> {
        let facts = self.facts.clone().in_environment(environment);
        for asked in all {
            let (decision, _, by_boundary) = self.answer(asked, &facts);
            if decision != Decision::Allowed {
                return Err(Box::new(self.not_allowed(asked.clone(), decision, by_boundary)));
            }
        }
        Ok(())
    }

    /// The reason for a decision that is none to allow.
    pub(super) fn not_allowed(
        &self,
        asked: Asked,
        decision: Decision,
        by_boundary: bool,
    ) -> NotAllowed {
        let is_default = self.statements == Policy::of_store().statements;
        let decides = match (by_boundary, &self.boundary) {
            (true, Some(boundary)) => boundary,
            _ => &self.statements,
        };
        let is_document = decides.iter().any(Statement::is_of_document);
        NotAllowed { asked, decision, by_boundary, is_default, is_document }
    }
}

impl Question for Asked {
    /// Of any action of a service: a permission must be about all of them, a denial about one.
    fn is_action(&self, pattern: &[Token], sure: Sure) -> bool {
        match &self.action {
            Action::Named(name) => pattern::matches(pattern, &name.to_ascii_lowercase()),
            Action::Any(service) => {
                let start = format!("{}:", service.to_ascii_lowercase());
                match sure {
                    Sure::Possibly => pattern::may_match(pattern, &start),
                    Sure::Almost | Sure::Certainly => pattern::covers(pattern, &start),
                }
            }
        }
    }

    fn is_resource(&self, pattern: &ResourcePattern, facts: &Facts, sure: Sure) -> bool {
        match (pattern, &self.resource) {
            (ResourcePattern::Every, _) => true,
            (ResourcePattern::Plain(text), _) => is_plain(text, self, sure),
            (
                ResourcePattern::Arn(own),
                Resource::Named { service, region, account, name, by_arn },
            ) => {
                let name = Name { service, text: name, by_arn: *by_arn };
                let is_name = |own: &[Token]| is_named(name, own, Form::Document, sure);
                own.matches((service, region, account.as_deref()), &is_name, facts, sure)
            }
            (ResourcePattern::Arn(own), Resource::Unknown) if sure == Sure::Possibly => {
                // A resource of the store is one of its own requests only.
                !own.service.is_text("s3") || self.action.service() == "s3"
            }
            // Region and account could be others than those of the pattern.
            (ResourcePattern::Arn(own), Resource::Unknown) => {
                own.service.matches(self.action.service(), facts, false)
                    && [&own.region, &own.account, &own.name].into_iter().all(Template::is_all)
            }
        }
    }
}

/// Returns true if a pattern of a statement in TOML is about a resource.
fn is_plain(pattern: &str, asked: &Asked, sure: Sure) -> bool {
    let (parts, allows) = (arn(pattern), sure != Sure::Possibly);
    match &asked.resource {
        Resource::Unknown if allows => match parts {
            None => is_all(pattern),
            // Region and account could be others than those of the pattern.
            Some([_, of_service, region, account, name]) => {
                glob(of_service, asked.action.service())
                    && [region, account, name].into_iter().all(is_all)
            }
        },
        Resource::Unknown => true,
        Resource::Named { service, region, account, name, by_arn } => {
            let name = Name { service, text: name, by_arn: *by_arn };
            let is_name = |own: &str| is_named(name, &pattern::tokens(own), Form::Plain, sure);
            match parts {
                None => is_name(pattern),
                Some([_, of_service, in_region, of_account, named]) => {
                    let is_account =
                        |account: &String| of_account.is_empty() || glob(of_account, account);
                    glob(of_service, service)
                        && (in_region.is_empty() || region.is_empty() || glob(in_region, region))
                        && account.as_ref().is_none_or(is_account)
                        && is_name(named)
                }
            }
        }
    }
}

fn glob(pattern: &str, text: &str) -> bool {
    pattern::matches(&pattern::tokens(pattern), text)
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
        let name = format!("table/{name}");
        Resource::Named { service, region, account: None, name, by_arn: false }
    }

    /// The resource at a server that takes any region for its own.
    fn table_of_all_regions(name: &str) -> Resource {
        let (service, region) = ("dynamodb".to_owned(), String::new());
        let name = format!("table/{name}");
        Resource::Named { service, region, account: None, name, by_arn: false }
    }

    #[test]
    fn a_document_that_names_a_region_is_about_a_server_of_all_regions() {
        let decide = |effects: &[(&str, &str, &str)], resource| {
            let statement = |(effect, member, region): &(&str, &str, &str)| {
                let arn = format!("arn:aws:dynamodb:{region}:000000000000:table/secret");
                json!({"Effect": effect, "Action": "dynamodb:*", *member: arn})
            };
            let mut all: Vec<Value> = effects.iter().map(statement).collect();
            if effects[0].0 == "Deny" {
                all.push(json!({"Effect": "Allow", "Action": "*", "Resource": "*"}));
            }
            let document = json!({"Version": "2012-10-17", "Statement": all});
            decision(&Policy::from_value(&document).unwrap(), &named("dynamodb:GetItem", resource))
        };
        for region in ["eu-west-1", "us-*", "*"] {
            let secret = || table_of_all_regions("secret");
            let other = || table_of_all_regions("other");
            assert_eq!(decide(&[("Deny", "Resource", region)], secret()), Decision::Denied);
            assert_eq!(decide(&[("Deny", "Resource", region)], other()), Decision::Allowed);
            assert_eq!(decide(&[("Allow", "Resource", region)], secret()), Decision::Allowed);
            assert_eq!(decide(&[("Allow", "NotResource", region)], secret()), Decision::NotAllowed);
            assert_eq!(decide(&[("Allow", "NotResource", region)], other()), Decision::Allowed);
            assert_eq!(decide(&[("Deny", "NotResource", region)], other()), Decision::Denied);
            // The resource may be in another region, or of another account.
            assert_eq!(decide(&[("Deny", "NotResource", region)], secret()), Decision::Denied);
        }
    }

    fn named(action: &str, resource: Resource) -> Asked {
        Asked { action: Action::Named(action.to_owned()), resource }
    }

    fn decision(policy: &Policy, asked: &Asked) -> Decision {
        let decided = policy.decide_on(std::slice::from_ref(asked), &Environment::of_tests());
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
        let not = role.decide_on(&both, &Environment::of_tests()).unwrap_err();
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
            by_arn: true,
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
        assert!(
            role.decide_on(&[named("dynamodb:GetItem", table("t"))], &Environment::of_tests())
                .is_ok()
        );
        let not = role
            .decide_on(&[named("dynamodb:PutItem", table("t"))], &Environment::of_tests())
            .unwrap_err();
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
            let action = Action::Any("a".to_owned());
            let any = Asked { action, resource: Resource::Unknown };
            let matching = names.iter().filter(|name| glob(&pattern, name)).count();
            let pattern = pattern::tokens(&pattern);
            if any.is_action(&pattern, Sure::Almost) {
                assert_eq!(matching, names.len(), "{pattern:?}");
            }
            if matching > 0 {
                assert!(any.is_action(&pattern, Sure::Possibly), "{pattern:?}");
            }
        });
    }
}
