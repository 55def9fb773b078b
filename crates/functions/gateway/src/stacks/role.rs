//! `AWS::IAM::Role`, `AWS::IAM::Policy`, `AWS::IAM::ManagedPolicy`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use unlade_fn_model::lifecycle::reference::ACCOUNT;

use super::identities::{Attached, Content, Role};
use super::outcome::{Done, Failed};
use super::properties::{only, required, text_of};
use super::task::Task;
use super::{documents, managed};
use crate::auth::sha256;
use crate::config::DEFAULT_ROLE;

pub const ROLE: &[&str] = &[
    "AssumeRolePolicyDocument",
    "Description",
    "ManagedPolicyArns",
    "MaxSessionDuration",
    "Path",
    "Policies",
    "RoleName",
    "Tags",
];
pub const POLICY: &[&str] = &["PolicyDocument", "PolicyName", "Roles"];
pub const MANAGED: &[&str] =
    &["Description", "ManagedPolicyName", "Path", "PolicyDocument", "Roles"];
pub const ADVICE: &str = "The operator limits a tenant by `role` in fn.toml";

/// Texts of a list.
fn texts(properties: &Value, name: &str) -> Result<BTreeSet<String>, Failed> {
    let wrong = || Failed::new(format!("{name} must be a list of texts"));
    match properties.get(name) {
        None | Some(Value::Null) => Ok(BTreeSet::new()),
        Some(Value::Array(all)) => all.iter().map(text_of).collect::<Option<_>>().ok_or_else(wrong),
        Some(_) => Err(wrong()),
    }
}

/// The path in an ARN, with a slash at both ends.
fn path(properties: &Value) -> Result<String, Failed> {
    let path = properties.get("Path").and_then(text_of).unwrap_or_else(|| "/".to_owned());
    let is_plain = |c: char| c.is_ascii_graphic();
    match path.starts_with('/') && path.ends_with('/') && path.chars().all(is_plain) {
        true => Ok(path),
        false => Err(Failed::new(format!("Path: {path:?} must begin and end with a slash"))),
    }
}

/// Most bytes of a name.
const NAME_BYTES_MAX: usize = 128;

fn check_name(name: &str) -> Result<(), Failed> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "+=,.@_-".contains(c);
    let is_long = name.len() > NAME_BYTES_MAX;
    match !name.is_empty() && !is_long && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(Failed::new(format!(
            "{name:.200?} must be letters, digits and +=,.@_-, at most {NAME_BYTES_MAX} of them"
        ))),
    }
}

fn document(properties: &Value, name: &str) -> Result<Value, Failed> {
    let absent = || Failed::new("PolicyDocument is missing");
    let document = properties.get("PolicyDocument").ok_or_else(absent)?;
    documents::check(name, document).map_err(Failed::new)?;
    Ok(document.clone())
}

/// The role of properties. A managed policy is AWS's, or one of a stack of the tenant.
fn role(task: &Task<'_>, properties: &Value) -> Result<Role, Failed> {
    only("AWS::IAM::Role", properties, ROLE, ADVICE)?;
    let trust = properties.get("AssumeRolePolicyDocument").unwrap_or(&Value::Null);
    if let Some(more) = documents::beside_functions(trust).map_err(Failed::new)? {
        task.note(format!(
            "AssumeRolePolicyDocument: functions of the tenant may have the role; this part has no \
             effect on this server: {more:.500}"
        ));
    }
    for name in ["MaxSessionDuration", "Tags"] {
        if properties.get(name).is_some() {
            task.note(format!("{name} of a role has no effect on this server"));
        }
    }
    let mut inline = BTreeMap::new();
    for own in properties.get("Policies").and_then(Value::as_array).into_iter().flatten() {
        let name = required(own, "PolicyName")?;
        let document = document(own, &name)?;
        if inline.insert(name.clone(), document).is_some() {
            return Err(Failed::new(format!("Policies: {name} is there twice")));
        }
    }
    let managed = texts(properties, "ManagedPolicyArns")?;
    for arn in &managed {
        let is_known = match managed::is_of_aws(arn) {
            true => managed::document(arn).is_some(),
            false => task.identities.see(|content| content.policies.contains_key(arn)),
        };
        if !is_known {
            return Err(Failed::new(format!(
                "ManagedPolicyArns: {arn} is not known here; write its statements into Policies. Known \
                 are policies of stacks, and of AWS: {}",
                managed::KNOWN.join(", ")
            )));
        }
    }
    Ok(Role { inline, managed })
}

fn role_done(task: &Task<'_>, name: &str, properties: &Value) -> Result<Done, Failed> {
    let arn = format!("arn:aws:iam::{ACCOUNT}:role{}{name}", path(properties)?);
    let id = sha256(task.action.token.as_bytes())[..17].to_ascii_uppercase();
    Ok(Done::new(name).with("Arn", arn).with("RoleId", format!("AROA{id}")))
}

/// Makes a role.
///
/// # Errors
/// The name is taken, or the host cannot evaluate a document.
pub async fn create_role(task: &Task<'_>, name: &str, properties: &Value) -> Result<Done, Failed> {
    check_name(name)?;
    let done = role_done(task, name, properties)?;
    let role = role(task, properties)?;
    if name == DEFAULT_ROLE || task.host.has_operators_role(task.tenant, name) {
        let why = format!("{name} is a role of the operator (fn.toml); choose another RoleName");
        return Err(Failed::new(why));
    }
    let is_there = task.identities.see(|content| content.roles.contains_key(name));
    task.claim(&format!("the role {name}"), is_there).await?;
    put_role(task, name, role).await?;
    Ok(done)
}

async fn put_role(task: &Task<'_>, name: &str, role: Role) -> Result<(), Failed> {
    let put = |content: &mut Content| {
        content.roles.insert(name.to_owned(), role);
        Ok(())
    };
    task.identities.change(task.host, put).await
}

/// Changes a role.
///
/// # Errors
/// The host cannot evaluate a document.
pub async fn update_role(task: &Task<'_>, name: &str, properties: &Value) -> Result<Done, Failed> {
    let role = role(task, properties)?;
    put_role(task, name, role).await?;
    role_done(task, name, properties)
}

/// Deletes a role. A function that still has it has no rights then.
///
/// # Errors
/// The deletion cannot be stored.
pub async fn delete_role(task: &Task<'_>, name: &str) -> Result<(), Failed> {
    let remove = |content: &mut Content| {
        content.roles.remove(name);
        Ok(())
    };
    task.identities.change(task.host, remove).await
}

/// A policy of properties, whose roles are those of stacks.
fn attached(task: &Task<'_>, properties: &Value, known: &[&str]) -> Result<Attached, Failed> {
    only(&task.action.kind, properties, known, "Only roles have policies")?;
    let document = document(properties, &task.action.logical_id)?;
    let roles = texts(properties, "Roles")?;
    for name in &roles {
        if !task.identities.see(|content| content.roles.contains_key(name)) {
            return Err(Failed::new(format!(
                "Roles: no stack of the tenant has made the role {name}; roles of the operator are not \
                 changed by stacks"
            )));
        }
    }
    Ok(Attached { document, roles })
}

fn known_of(kind: &str) -> &'static [&'static str] {
    if kind == "AWS::IAM::Policy" { POLICY } else { MANAGED }
}

/// The identifier of a new policy, and its attribute.
fn policy_done(kind: &str, name: &str, properties: &Value) -> Result<Done, Failed> {
    if kind == "AWS::IAM::Policy" {
        return Ok(Done::new(name).with("Id", name));
    }
    let arn = format!("arn:aws:iam::{ACCOUNT}:policy{}{name}", path(properties)?);
    Ok(Done::new(arn.clone()).with("PolicyArn", arn))
}

/// Makes a policy, and attaches it to its roles.
///
/// # Errors
/// The host cannot evaluate it, or it names a role that no stack has made.
pub async fn create_policy(
    task: &Task<'_>,
    name: &str,
    properties: &Value,
) -> Result<Done, Failed> {
    check_name(name)?;
    let kind = task.action.kind.as_str();
    let policy = attached(task, properties, known_of(kind))?;
    let done = policy_done(kind, name, properties)?;
    let key = done.physical_id.clone();
    let is_there = task.identities.see(|content| content.policies.contains_key(&key));
    task.claim(&format!("the policy {key}"), is_there).await?;
    put_policy(task, &key, policy).await?;
    Ok(done)
}

async fn put_policy(task: &Task<'_>, key: &str, policy: Attached) -> Result<(), Failed> {
    let put = |content: &mut Content| {
        content.policies.insert(key.to_owned(), policy);
        Ok(())
    };
    task.identities.change(task.host, put).await
}

/// Changes a policy.
///
/// # Errors
/// As [`create_policy`].
pub async fn update_policy(task: &Task<'_>, key: &str, properties: &Value) -> Result<Done, Failed> {
    let kind = task.action.kind.as_str();
    let policy = attached(task, properties, known_of(kind))?;
    put_policy(task, key, policy).await?;
    let attribute = if kind == "AWS::IAM::Policy" { "Id" } else { "PolicyArn" };
    Ok(Done::new(key).with(attribute, key))
}

/// Deletes a policy: roles do not have it then.
///
/// # Errors
/// The deletion cannot be stored, or a role outside of the stack has it by its ARN.
pub async fn delete_policy(task: &Task<'_>, key: &str) -> Result<(), Failed> {
    let remove = |content: &mut Content| {
        let mut users = content.roles.iter().filter(|(_, role)| role.managed.contains(key));
        if let Some((name, _)) = users.next() {
            return Err(Failed::new(format!(
                "the role {name} has the policy {key}: detach it first"
            )));
        }
        content.policies.remove(key);
        Ok(())
    };
    task.identities.change(task.host, remove).await
}
