//! Decisions about invocations by callers of other tenants and by services: the resource policy of
//! a function, as `AddPermission` makes it.

use serde_json::Value;

use super::document;
use super::facts::{Facts, Vocabulary};
use super::pattern::{self, Token};
use super::statement::{Principals, Question, ResourcePattern, Statement, Sure, judge};
use super::{Decision, PolicyError};

/// The caller of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal<'a> {
    /// An ARN of an account: `arn:aws:iam::ACCOUNT:user/NAME`.
    Identity {
        /// The ARN.
        arn: &'a str,
        /// Its account.
        account: &'a str,
    },
    /// A service: `s3.amazonaws.com`.
    Service(&'a str),
    /// A caller without an identity, at a function URL.
    Anonymous,
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub struct ResourcePolicy {
    statements: Vec<Statement>,
}

/// An action of a principal on a function.
struct Invocation<'a> {
    action: &'a str,
    arn: &'a str,
}

impl ResourcePolicy {
    /// Parses a policy document with principals.
    ///
    /// # Errors
    /// The host cannot evaluate it.
    pub fn from_value(document: &Value) -> Result<ResourcePolicy, PolicyError> {
        let Some(members) = document.as_object() else {
            return Err(PolicyError::Document("it must be an object".to_owned()));
        };
        let statements = document::statements(members, Vocabulary::Invocation)?;
        Ok(ResourcePolicy { statements })
    }

    /// Decides about an action on a function's ARN.
    pub fn decide(
        &self,
        principal: Principal<'_>,
        (action, arn): (&str, &str),
        facts: &Facts,
    ) -> Decision {
        let is_about = |statement: &&Statement| {
            statement.principals.as_ref().is_some_and(|all| all.have(principal))
        };
        let question = Invocation { action, arn };
        judge(self.statements.iter().filter(is_about), &question, facts).0
    }
}

impl Principals {
    fn have(&self, principal: Principal<'_>) -> bool {
        match (self, principal) {
            // Everyone but services, which have to be named.
            (Principals::Every, Principal::Identity { .. } | Principal::Anonymous) => true,
            (Principals::Every, Principal::Service(_)) => false,
            (Principals::Some { .. }, Principal::Anonymous) => false,
            (Principals::Some { services, .. }, Principal::Service(name)) => {
                services.iter().any(|own| own == name)
            }
            (Principals::Some { aws, .. }, Principal::Identity { arn, account }) => {
                let root = format!("arn:aws:iam::{account}:root");
                aws.iter().any(|own| own == arn || own == account || *own == root)
            }
        }
    }
}

impl Question for Invocation<'_> {
    fn is_action(&self, pattern: &[Token], _: Sure) -> bool {
        pattern::matches(pattern, &self.action.to_ascii_lowercase())
    }

    fn is_resource(&self, own: &ResourcePattern, facts: &Facts, sure: Sure) -> bool {
        let parts: Vec<&str> = self.arn.splitn(6, ':').collect();
        match (own, parts.as_slice()) {
            (ResourcePattern::Every, _) => true,
            (ResourcePattern::Arn(own), ["arn", _, service, region, account, name]) => {
                let is_name = |own: &[Token]| pattern::matches(own, name);
                own.matches((service, region, Some(account)), &is_name, facts, sure)
            }
            (ResourcePattern::Arn(_) | ResourcePattern::Plain(_), _) => sure == Sure::Possibly,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ARN: &str = "arn:aws:lambda:us-east-1:000000000000:function:f";
    const SHOP: Principal<'_> =
        Principal::Identity { arn: "arn:aws:iam::000000000000:user/shop", account: "000000000000" };
    const S3: Principal<'_> = Principal::Service("s3.amazonaws.com");

    fn decision(
        principals: Value,
        condition: Value,
        who: Principal<'_>,
        facts: &Facts,
    ) -> Decision {
        let policy = json!({"Version": "2012-10-17", "Id": "default", "Statement": [{
            "Sid": "a", "Effect": "Allow", "Principal": principals,
            "Action": "lambda:InvokeFunction", "Resource": ARN, "Condition": condition}]});
        let policy = ResourcePolicy::from_value(&policy).unwrap();
        policy.decide(who, ("lambda:InvokeFunction", ARN), facts)
    }

    #[test]
    fn a_principal_is_named_by_arn_account_or_service() {
        for (principals, shop, s3, anonymous) in [
            (json!("*"), true, false, true),
            (json!({"AWS": "*"}), true, false, true),
            (json!({"AWS": "arn:aws:iam::000000000000:user/shop"}), true, false, false),
            (json!({"AWS": ["000000000000"]}), true, false, false),
            (json!({"AWS": "arn:aws:iam::000000000000:root"}), true, false, false),
            (json!({"AWS": "arn:aws:iam::000000000000:user/*"}), false, false, false),
            (json!({"AWS": "arn:aws:iam::111111111111:root"}), false, false, false),
            (json!({"Service": "s3.amazonaws.com"}), false, true, false),
            (json!({"Service": ["sns.amazonaws.com"]}), false, false, false),
        ] {
            let none = Facts::default();
            let is = |who| decision(principals.clone(), json!({}), who, &none) == Decision::Allowed;
            let found = (is(SHOP), is(S3), is(Principal::Anonymous));
            assert_eq!(found, (shop, s3, anonymous), "{principals}");
        }
    }

    #[test]
    fn a_service_acts_for_the_source_that_the_statement_names() {
        let s3 = json!({"Service": "s3.amazonaws.com"});
        let condition = json!({
            "ArnLike": {"AWS:SourceArn": "arn:aws:s3:::photos"},
            "StringEquals": {"AWS:SourceAccount": "000000000000"}});
        let of = |arn: &str, account: &str| {
            let facts = Facts::default().with("aws:SourceArn", arn);
            let facts = facts.with("aws:SourceAccount", account);
            decision(s3.clone(), condition.clone(), S3, &facts)
        };
        assert_eq!(of("arn:aws:s3:::photos", "000000000000"), Decision::Allowed);
        assert_eq!(of("arn:aws:s3:::photos2", "000000000000"), Decision::NotAllowed);
        assert_eq!(of("arn:aws:s3:::photos", "000000000001"), Decision::NotAllowed);
        let none = Facts::default();
        assert_eq!(decision(s3.clone(), condition, S3, &none), Decision::NotAllowed);
    }

    #[test]
    fn other_actions_and_functions_are_not_allowed() {
        let policy = json!({"Version": "2012-10-17", "Statement": {
            "Effect": "Allow", "Principal": "*", "Action": "lambda:GetFunction", "Resource": ARN}});
        let policy = ResourcePolicy::from_value(&policy).unwrap();
        let none = Facts::default();
        let of = |action: &str, arn: &str| policy.decide(SHOP, (action, arn), &none);
        assert_eq!(of("lambda:InvokeFunction", ARN), Decision::NotAllowed);
        assert_eq!(of("lambda:GetFunction", ARN), Decision::Allowed);
        assert_eq!(of("lambda:GetFunction", &format!("{ARN}2")), Decision::NotAllowed);
        let missing = json!({"Version": "2012-10-17", "Statement": {
            "Effect": "Allow", "Action": "*", "Resource": "*"}});
        assert!(
            ResourcePolicy::from_value(&missing).unwrap_err().to_string().contains("Principal")
        );
    }
}
