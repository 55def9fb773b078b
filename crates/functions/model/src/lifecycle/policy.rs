//! Resource policies: the statements that `AddPermission` adds, as an IAM policy document.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::lambda::Refusal;

/// Longest name of a statement, as in Lambda.
const SID_BYTES_MAX: usize = 100;

/// A statement: the permission of a principal to invoke.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// Its name.
    pub sid: String,
    /// `lambda:InvokeFunction` and others.
    pub action: String,
    /// A service, an account, an ARN, or `*`.
    pub principal: String,
    /// Conditions: operator, key, value.
    #[serde(default)]
    pub conditions: Vec<(String, String, String)>,
}

impl Statement {
    /// The statement in an IAM policy document, for a resource's ARN.
    pub fn document(&self, resource: &str) -> Value {
        let principal = match self.principal.as_str() {
            "*" => json!("*"),
            arn if arn.starts_with("arn:") => json!({ "AWS": arn }),
            account if account.bytes().all(|byte| byte.is_ascii_digit()) => {
                json!({ "AWS": format!("arn:aws:iam::{account}:root") })
            }
            service => json!({ "Service": service }),
        };
        let mut statement = json!({
            "Sid": self.sid,
            "Effect": "Allow",
            "Principal": principal,
            "Action": self.action,
            "Resource": resource,
        });
        if !self.conditions.is_empty() {
            let mut condition = Map::new();
            for (operator, key, value) in &self.conditions {
                condition.entry(operator).or_insert_with(|| json!({}))[key] = json!(value);
            }
            statement["Condition"] = Value::Object(condition);
        }
        statement
    }

    /// Refuses an invalid statement.
    ///
    /// # Errors
    /// The invalid part.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let name = self.action.strip_prefix("lambda:");
        let is_action = self.action == "*"
            || name.is_some_and(|name| {
                name == "*" || !name.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic())
            });
        let wrong = |key: &str, value: &str| {
            Err(Refusal::Parameter(format!("{key}: {value:?} is invalid")))
        };
        if !(1..=SID_BYTES_MAX).contains(&self.sid.len()) || !self.sid.chars().all(is_word) {
            return wrong("StatementId", &self.sid);
        }
        if !is_action {
            return wrong("Action", &self.action);
        }
        if self.principal.is_empty() || self.principal.contains(char::is_whitespace) {
            return wrong("Principal", &self.principal);
        }
        Ok(())
    }
}

/// The policy of a function, a version or an alias.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourcePolicy {
    /// Its statements, in the order of their addition.
    pub statements: Vec<Statement>,
    /// The identifier of this state.
    pub revision: String,
}

impl ResourcePolicy {
    /// The IAM policy document, for a resource's ARN.
    pub fn document(&self, resource: &str) -> Value {
        let statements = self.statements.iter().map(|statement| statement.document(resource));
        json!({
            "Version": "2012-10-17",
            "Id": "default",
            "Statement": statements.collect::<Vec<_>>(),
        })
    }
}
