//! The roles and policies that the stacks of a tenant have made. Each role is one policy document, beside
//! the roles of the operator and within the operator's limit of the tenant.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Mutex;
use unlade_s3::Policy;

use super::outcome::Failed;
use super::{documents, file, managed};
use crate::host::Host;

/// Most roles of a tenant.
const ROLES_MAX: usize = 1000;
/// Most policies of a tenant.
const POLICIES_MAX: usize = 500;
/// Most bytes of the rights of all roles of a tenant: all are computed with each change.
const RIGHTS_BYTES_MAX: usize = 4 << 20;

/// A role.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Role {
    /// Its own documents, by name.
    pub inline: BTreeMap<String, Value>,
    /// The ARNs of its managed policies.
    pub managed: BTreeSet<String>,
}

/// A document that is attached to roles: a managed policy, or `AWS::IAM::Policy`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attached {
    /// The document.
    pub document: Value,
    /// The names of roles that have it.
    pub roles: BTreeSet<String>,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Content {
    /// Roles, by name.
    pub roles: BTreeMap<String, Role>,
    /// Managed policies, by ARN; policies of roles, by the identifier of their resource.
    pub policies: BTreeMap<String, Attached>,
}

impl Content {
    /// The rights of a role.
    fn rights_of(&self, name: &str, role: &Role) -> Result<Value, String> {
        let known = |arn: &String| managed::document(arn);
        let of_aws: Vec<Value> = role.managed.iter().filter_map(known).collect();
        let own = role.managed.iter().filter_map(|arn| Some(&self.policies.get(arn)?.document));
        let attached = self
            .policies
            .iter()
            .filter(|(key, policy)| policy.roles.contains(name) && !role.managed.contains(*key));
        let attached = attached.map(|(_, policy)| &policy.document);
        let all = role.inline.values().chain(&of_aws).chain(own).chain(attached);
        let rights = documents::merged(all)?;
        Policy::from_value(&rights).map_err(|error| error.to_string())?;
        Ok(rights)
    }

    fn check_counts(&self) -> Result<(), Failed> {
        for (what, count, most) in [
            ("roles", self.roles.len(), ROLES_MAX),
            ("policies", self.policies.len(), POLICIES_MAX),
        ] {
            if count > most {
                return Err(Failed::new(format!(
                    "the stacks of a tenant have {most} {what} at most"
                )));
            }
        }
        Ok(())
    }

    /// The rights of all roles, by name.
    ///
    /// # Errors
    /// A role that the host cannot evaluate, or rights that are too long together.
    pub fn rights(&self) -> Result<BTreeMap<String, Value>, String> {
        let (mut all, mut bytes) = (BTreeMap::new(), 0);
        for (name, role) in &self.roles {
            let rights = self.rights_of(name, role);
            let rights = rights.map_err(|why| format!("the role {name}: {why}"))?;
            bytes += rights.to_string().len();
            if bytes > RIGHTS_BYTES_MAX {
                return Err(format!(
                    "the rights of all roles of a tenant's stacks have {RIGHTS_BYTES_MAX} bytes at most"
                ));
            }
            all.insert(name.clone(), rights);
        }
        Ok(all)
    }
}

/// See the [module](self).
pub struct Identities {
    tenant: String,
    directory: PathBuf,
    content: RefCell<Content>,
    turn: Mutex<()>,
}

impl Identities {
    /// Reads those of a tenant, and tells the host their rights.
    ///
    /// # Errors
    /// The file cannot be read, or has a role that the host cannot evaluate.
    pub fn load(host: &Host, tenant: &str) -> io::Result<Identities> {
        let directory = file::of_tenant(&host.config.state, tenant);
        let content: Content = file::read(&directory, file::IDENTITIES)?.unwrap_or_default();
        host.set_stack_roles(tenant, content.rights().map_err(io::Error::other)?);
        let (tenant, content) = (tenant.to_owned(), RefCell::new(content));
        Ok(Identities { tenant, directory, content, turn: Mutex::default() })
    }

    /// Reads something.
    pub fn see<T>(&self, look: impl FnOnce(&Content) -> T) -> T {
        look(&self.content.borrow())
    }

    /// Changes them. The change is durable when this returns, and decides about the next call of each
    /// function with a changed role.
    ///
    /// # Errors
    /// `act` refuses, the host cannot evaluate a role then, or the change cannot be stored.
    pub async fn change<T>(
        &self,
        host: &Host,
        act: impl FnOnce(&mut Content) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        let _turn = self.turn.lock().await;
        let mut content = self.content.borrow().clone();
        let result = act(&mut content)?;
        content.check_counts()?;
        let rights = content.rights().map_err(Failed::new)?;
        let (directory, written) = (self.directory.clone(), content.clone());
        let write = move || file::write(&directory, file::IDENTITIES, &written);
        let stored = tokio::task::spawn_blocking(write).await;
        let stored = stored.unwrap_or_else(|error| Err(io::Error::other(error)));
        stored.map_err(|error| Failed::new(format!("the roles cannot be stored: {error}")))?;
        *self.content.borrow_mut() = content;
        host.set_stack_roles(&self.tenant, rights);
        Ok(result)
    }
}

/// The tenants that have stacks.
///
/// # Errors
/// The system call failed.
pub fn tenants(state: &Path) -> io::Result<Vec<String>> {
    file::directories(&file::home(state))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(action: &str) -> Value {
        json!({"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Action": action, "Resource": "*"}]})
    }

    #[test]
    fn roles_and_policies_of_a_tenant_are_bounded() {
        let mut content = Content::default();
        let long = json!({"Version": "2012-10-17", "Statement": [{"Effect": "Allow",
            "Action": "s3:GetObject", "Resource": format!("arn:aws:s3:::b/{}", "x".repeat(1000))}]});
        let policy = || Attached { document: long.clone(), roles: BTreeSet::new() };
        for number in 0..POLICIES_MAX {
            content.policies.insert(number.to_string(), policy());
        }
        assert_eq!(content.check_counts(), Ok(()));
        content.policies.insert("more".to_owned(), policy());
        assert!(content.check_counts().unwrap_err().reason.contains("policies"));
        // Few long policies at many roles: their rights are long.
        let all: BTreeSet<String> = (0..10).map(|number| number.to_string()).collect();
        for number in 0..300 {
            let role = Role { managed: all.clone(), ..Role::default() };
            content.roles.insert(number.to_string(), role);
        }
        assert_eq!(content.rights().map(|all| all.len()), Ok(300));
        for number in 300..500 {
            let role = Role { managed: all.clone(), ..Role::default() };
            content.roles.insert(number.to_string(), role);
        }
        assert!(content.rights().unwrap_err().contains("bytes at most"));
        for number in 0..=ROLES_MAX {
            content.roles.insert(number.to_string(), Role::default());
        }
        content.policies.clear();
        assert!(content.check_counts().unwrap_err().reason.contains("roles"));
    }

    #[test]
    fn a_role_has_all_documents_that_are_its_own_or_attached() {
        let mut content = Content::default();
        let basic = "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole";
        let own = "arn:aws:iam::000000000000:policy/p";
        let role = Role {
            inline: BTreeMap::from([("i".to_owned(), document("s3:GetObject"))]),
            managed: [basic, own].map(str::to_owned).into(),
        };
        content.roles.insert("r".to_owned(), role);
        content.roles.insert("none".to_owned(), Role::default());
        let attached = |action: &str, roles: &[&str]| {
            let roles = roles.iter().map(|name| (*name).to_owned()).collect();
            Attached { document: document(action), roles }
        };
        // Attached by both sides: once.
        content.policies.insert(own.to_owned(), attached("s3:PutObject", &["r"]));
        content.policies.insert("x".to_owned(), attached("sqs:SendMessage", &["r", "gone"]));
        content.policies.insert("y".to_owned(), attached("sqs:DeleteMessage", &["other"]));
        let rights = content.rights().unwrap();
        let statements = rights["r"]["Statement"].as_array().unwrap();
        let first = |statement: &Value| match &statement["Action"] {
            Value::Array(all) => all[0].clone(),
            one => one.clone(),
        };
        let actions: Vec<Value> = statements.iter().map(first).collect();
        assert_eq!(
            actions,
            ["s3:GetObject", "logs:CreateLogGroup", "s3:PutObject", "sqs:SendMessage"]
        );
        assert_eq!(rights["none"], json!({"statements": []}));
    }
}
