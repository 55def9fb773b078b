//! The names of a resource in policies, where they are others than those of requests.
//!
//! The ARN of a secret ends with a hyphen and six characters, which a request by its name, or by an
//! incomplete ARN, does not tell. A group of logs has `:*` behind its name, or not. In a document a
//! secret is what it is for AWS, its ARN; a statement in TOML may also have its name.

use super::pattern::{self, Token};
use super::statement::Sure;

/// Characters behind the name of a secret in its ARN, after a hyphen.
const SUFFIX_CHARS: usize = 6;
/// The pattern of all of them.
const ANY_SUFFIX: &str = "-??????";

/// The kind of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One in TOML.
    Plain,
    /// One of a document.
    Document,
}

/// The last part of an ARN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name<'a> {
    pub(super) service: &'a str,
    pub(super) text: &'a str,
    /// True if a request names the resource by an ARN.
    pub(super) by_arn: bool,
}

/// Returns true if the last part of a pattern matches a name of a resource.
pub(super) fn is_named(name: Name<'_>, own: &[Token], form: Form, sure: Sure) -> bool {
    let Name { service, text: name, by_arn } = name;
    let possibly = sure == Sure::Possibly;
    let is_name = |name: &str| pattern::matches(own, name);
    if is_secret(service, name) {
        let suffix = suffix(name).filter(|_| by_arn);
        return match (possibly, suffix) {
            (true, suffix) => {
                // An incomplete ARN may look like a complete one.
                is_name(name)
                    || suffix.is_some_and(|(start, _)| is_name(start))
                    || is_with_suffix(own, name, true)
            }
            (false, Some(_)) => is_name(name),
            (false, None) => {
                // A pattern of suffixes is about ARNs, also where the name has the form of one.
                let is_plain = form == Form::Plain && !own.ends_with(&pattern::tokens(ANY_SUFFIX));
                (is_plain && is_name(name)) || is_with_suffix(own, name, false)
            }
        };
    }
    if service == "logs" && name.starts_with("log-group:") {
        let name = name.strip_suffix(":*").unwrap_or(name);
        // A denial of a stream denies its group.
        return is_name(name)
            || is_name(&format!("{name}:*"))
            || (possibly && pattern::may_match(own, &format!("{name}:")));
    }
    is_name(name)
}

/// The name that a permission of a document has, which is about this resource only.
pub(super) fn in_document(name: Name<'_>) -> String {
    let Name { service, text: name, by_arn } = name;
    let is_whole = by_arn && suffix(name).is_some();
    let end = if is_secret(service, name) && !is_whole { ANY_SUFFIX } else { "" };
    format!("{name}{end}")
}

fn is_secret(service: &str, name: &str) -> bool {
    service == "secretsmanager" && name.starts_with("secret:")
}

/// The parts of a name that ends as the ARN of a secret does.
fn suffix(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('-').filter(|(_, suffix)| {
        suffix.len() == SUFFIX_CHARS && suffix.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

fn is_with_suffix(own: &[Token], name: &str, possibly: bool) -> bool {
    let unknown = std::iter::repeat_n(None, SUFFIX_CHARS);
    let text: Vec<_> = name.chars().map(Some).chain([Some('-')]).chain(unknown).collect();
    pattern::matches_partly(own, &text, possibly)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::facts::Environment;
    use super::super::services::{Action, Asked, Resource, arn};
    use super::super::{Decision, Policy};

    fn asked(service: &str, name: String, by_arn: bool) -> Asked {
        let (service, region) = (service.to_owned(), "eu-west-1".to_owned());
        let action = Action::Named(format!("{service}:Read"));
        Asked { action, resource: Resource::Named { service, region, account: None, name, by_arn } }
    }

    fn secret(name: &str, by_arn: bool) -> Asked {
        asked("secretsmanager", format!("secret:{name}"), by_arn)
    }

    fn decision(policy: &Policy, asked: &Asked) -> Decision {
        let decided = policy.decide_on(std::slice::from_ref(asked), &Environment::of_tests());
        decided.map_or_else(|not| not.decision, |()| Decision::Allowed)
    }

    fn plain(statements: Value) -> Policy {
        Policy::from_value(&json!({ "statements": statements })).unwrap()
    }

    fn document(statements: Value) -> Policy {
        let document = json!({"Version": "2012-10-17", "Statement": statements});
        Policy::from_value(&document).unwrap()
    }

    /// A document that allows, or denies, one resource, or all but one.
    fn of_one(effect: &str, member: &str, resource: &str) -> Policy {
        let mut all = vec![json!({"Effect": effect, "Action": "*", member: resource})];
        if effect == "Deny" {
            all.push(json!({"Effect": "Allow", "Action": "*", "Resource": "*"}));
        }
        document(all.into())
    }

    /// For each pattern: true if it denies, if it allows in a document, and if it does in TOML.
    fn of_patterns(start: &str, asked: &Asked, cases: &[(&str, bool, bool, bool)]) {
        let one = |effect: &str, resource: &str| json!({"effect": effect, "actions": ["*"], "resources": [resource]});
        for (own, denies, allows, allows_plain) in cases {
            let whole = format!("{start}{own}");
            let [_, _, _, _, name] = arn(&whole).unwrap();
            let at = format!("{own} {asked:?}");
            let allow = decision(&of_one("Allow", "Resource", &whole), asked);
            assert_eq!(allow == Decision::Allowed, *allows, "{at}");
            let deny = decision(&of_one("Deny", "Resource", &whole), asked);
            assert_eq!(deny == Decision::Denied, *denies, "{at}");
            // All but this one: what could be it has no permission, what is not it is denied.
            let but = decision(&of_one("Allow", "NotResource", &whole), asked);
            assert_eq!(but == Decision::Allowed, !*denies, "{at}");
            let but = decision(&of_one("Deny", "NotResource", &whole), asked);
            assert_eq!(but == Decision::Denied, !*allows, "{at}");
            for name in [name, whole.as_str()] {
                let allow = decision(&plain(json!([one("allow", name)])), asked);
                assert_eq!(allow == Decision::Allowed, *allows_plain, "{at}");
                let deny = plain(json!([one("allow", "*"), one("deny", name)]));
                assert_eq!(decision(&deny, asked) == Decision::Denied, *denies, "{at}");
            }
        }
    }

    #[test]
    fn a_secret_is_denied_by_its_name_and_by_its_arn() {
        let start = "arn:aws:secretsmanager:*:*:secret:";
        let by_name = [
            ("prod/db", true, false, true),
            ("prod/db-??????", true, true, true),
            ("prod/db-*", true, true, true),
            ("prod/db*", true, true, true),
            ("prod/*", true, true, true),
            ("prod/db-AbCdEf", true, false, false),
            ("prod/d?", true, false, true),
            ("prod/db-?????", false, false, false),
            ("prod", false, false, false),
            ("prod/db2", false, false, false),
            ("prod/db2-??????", false, false, false),
        ];
        of_patterns(start, &secret("prod/db", false), &by_name);
        // An incomplete ARN is as a name.
        of_patterns(start, &secret("prod/db", true), &by_name);
        let by_arn = [
            ("prod/db", true, false, false),
            ("prod/db-??????", true, true, true),
            ("prod/db-AbCdEf", true, true, true),
            ("prod/db-AbCdEf-??????", true, false, false),
            ("prod/db-XbCdEf", false, false, false),
            ("prod/d", false, false, false),
        ];
        of_patterns(start, &secret("prod/db-AbCdEf", true), &by_arn);
    }

    /// A name that ends as an ARN does: it is not the secret of the rest.
    #[test]
    fn the_last_word_of_a_name_is_no_suffix() {
        let cases = [
            ("my", false, false, false),
            ("my-??????", true, false, false),
            ("my-secret", true, false, true),
            ("my-secret-??????", true, true, true),
            ("my-*", true, true, true),
        ];
        of_patterns("arn:aws:secretsmanager:*:*:secret:", &secret("my-secret", false), &cases);
    }

    #[test]
    fn a_group_of_logs_is_named_with_a_star_or_without() {
        let cases = [
            ("/app/a", true, true, true),
            ("/app/a:*", true, true, true),
            ("/app/*", true, true, true),
            ("/app/*:*", true, true, true),
            ("/app/a:log-stream:*", true, false, false),
            ("/app/a:log-stream:s", true, false, false),
            ("/app/b:*", false, false, false),
            ("/app/b:log-stream:*", false, false, false),
            ("/app/ab", false, false, false),
        ];
        for (name, by_arn) in [("log-group:/app/a", false), ("log-group:/app/a:*", true)] {
            let asked = asked("logs", name.to_owned(), by_arn);
            of_patterns("arn:aws:logs:*:*:log-group:", &asked, &cases);
        }
    }

    #[test]
    fn other_services_have_the_names_of_requests() {
        let cases = [("secret:a", true, true, true), ("secret:a-??????", false, false, false)];
        of_patterns("arn:aws:sqs:*:*:", &asked("sqs", "secret:a".to_owned(), false), &cases);
    }

    /// The ARN that a denial tells allows the request, and no other secret.
    #[test]
    fn the_arn_for_a_document_allows_the_request() {
        for (name, by_arn) in
            [("db", false), ("my-secret", false), ("db", true), ("db-AbCdEf", true)]
        {
            let own = secret(name, by_arn);
            let policy = of_one("Allow", "Resource", &own.resource.arn());
            assert_eq!(decision(&policy, &own), Decision::Allowed, "{own:?}");
            for other in ["d", "db2", "my", "my-", "db-XbCdEf"] {
                let other = secret(other, false);
                assert_eq!(decision(&policy, &other), Decision::NotAllowed, "{own:?} {other:?}");
            }
        }
    }
}
