//! The choices that a deployment is allowed: the operator's configuration decides, not the
//! manifest.

use serde_json::{Value, json};
use unlade_fn_model::lifecycle::arn;
use unlade_fn_model::lifecycle::reference::ACCOUNT;
use unlade_fn_model::{Manifest, ManifestError};
use unlade_s3::policy::{BOUNDARY, FACTS, OF_HOST};

use crate::config::{DEFAULT_ROLE, REGION, TenantConfig};

/// Refuses a manifest that chooses something that its tenant may not.
///
/// # Errors
/// The forbidden choice, and the configuration line that would allow it.
pub fn check(
    tenant: &str,
    rules: &TenantConfig,
    manifest: &Manifest,
    role: Option<&str>,
) -> Result<(), ManifestError> {
    let refused = |key: &str, what: String, line: String| {
        let why = format!(
            "tenant {tenant} may not choose {what}; the operator allows it with `{line}` in \
             [tenant.{tenant}] of fn.toml"
        );
        Err(ManifestError { key: key.to_owned(), why })
    };
    let mode = manifest.mode;
    if !rules.modes.contains(&mode) {
        let names = rules.modes.iter().chain([&mode]).map(|mode| format!("{:?}", mode.name()));
        let names = names.collect::<Vec<_>>().join(", ");
        return refused("mode", format!("{:?}", mode.name()), format!("modes = [{names}]"));
    }
    for directory in &manifest.packages {
        let is_in = |allowed: &std::path::PathBuf| directory.starts_with(allowed);
        let is_plain = directory.is_absolute()
            && !directory.components().any(|part| part == std::path::Component::ParentDir);
        if !is_plain || !rules.packages.iter().any(is_in) {
            let path = format!("{:?}", directory.display().to_string());
            let line = format!("packages = [{path}]");
            return refused("packages", format!("the directory {path}"), line);
        }
    }
    if let Some(python) = manifest.python.as_ref().filter(|p| !rules.pythons.contains(p)) {
        let path = format!("{:?}", python.display().to_string());
        let line = format!("pythons = [{path}]");
        return refused("python", format!("the interpreter {path}"), line);
    }
    if let Some(role) = role {
        if !rules.roles.contains_key(role) {
            let line = format!(
                "roles.{role} = {{ statements = [{{ effect = \"allow\", actions = [\"s3:*\"], \
                 resources = [\"BUCKET/*\"] }}] }}"
            );
            return refused("Role", format!("the role {role:?}"), line);
        }
        if manifest.role.is_some() {
            let why =
                format!("the function has the role {role:?}: remove `role` from its manifest");
            return Err(ManifestError { key: "role".to_owned(), why });
        }
    }
    let own = manifest.role.as_ref();
    if let Some(key) = OF_HOST.iter().find(|key| own.is_some_and(|role| role.get(key).is_some())) {
        let why = format!("{key} is the operator's: `role` of the tenant");
        return Err(ManifestError { key: "role".to_owned(), why });
    }
    Ok(())
}

/// The rights of a function: those of its role or in its manifest, limited by those of the
/// operator. With neither it has all of the store and no other service, as [`Policy::of_store`].
///
/// [`Policy::of_store`]: unlade_s3::Policy::of_store
pub fn policy(name: &str, rules: &TenantConfig, manifest: &Manifest, role: Option<&str>) -> Value {
    let of_store =
        json!({"statements": [{"effect": "allow", "actions": ["s3:*"], "resources": ["*"]}]});
    let mut policy = match role {
        // A role that is configured no longer has no rights.
        Some(role) => rules.roles.get(role).cloned().unwrap_or(json!({"statements": []})),
        None => manifest.role.clone().unwrap_or(of_store),
    };
    if let Some(policy) = policy.as_object_mut() {
        if let Some(boundary) = &rules.role {
            policy.insert(BOUNDARY.to_owned(), boundary.clone());
        }
        policy.insert(FACTS.to_owned(), facts(name, role));
    }
    policy
}

/// The rights of a tenant itself: everything within the limit of the operator.
pub fn own_policy(tenant: &str, rules: &TenantConfig) -> Value {
    let mut policy =
        json!({"statements": [{"effect": "allow", "actions": ["*"], "resources": ["*"]}]});
    if let Some(boundary) = &rules.role {
        policy[BOUNDARY] = boundary.clone();
    }
    policy[FACTS] = json!({
        "aws:PrincipalAccount": ACCOUNT,
        "aws:PrincipalArn": tenant_arn(tenant),
        "aws:PrincipalType": "User",
        "aws:username": tenant,
    });
    policy
}

/// The condition keys of a function's principal.
pub fn facts(name: &str, role: Option<&str>) -> Value {
    json!({
        "aws:PrincipalAccount": ACCOUNT,
        "aws:PrincipalArn": role_arn(role.unwrap_or(DEFAULT_ROLE)),
        "aws:PrincipalType": "AssumedRole",
        "lambda:SourceFunctionArn": arn(REGION, name, None),
    })
}

/// The ARN of a tenant as a principal.
pub fn tenant_arn(tenant: &str) -> String {
    format!("arn:aws:iam::{ACCOUNT}:user/{tenant}")
}

/// The ARN of a role.
pub fn role_arn(name: &str) -> String {
    format!("arn:aws:iam::{ACCOUNT}:role/{name}")
}

/// The name of the operator's role in an ARN; `None` for [`DEFAULT_ROLE`].
///
/// # Errors
/// It is no ARN of a role.
pub fn role_name(arn: &str) -> Result<Option<&str>, ManifestError> {
    let parts: Vec<&str> = arn.splitn(6, ':').collect();
    let path = match parts.as_slice() {
        ["arn", _, "iam", _, _, path] => path.strip_prefix("role/"),
        _ => None,
    };
    match path.and_then(|path| path.rsplit('/').next()).filter(|name| !name.is_empty()) {
        Some(DEFAULT_ROLE) => Ok(None),
        Some(name) => Ok(Some(name)),
        None => {
            let why = format!("{arn:?} is no role: {}", role_arn("NAME"));
            Err(ManifestError { key: "Role".to_owned(), why })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(more: &str) -> Manifest {
        unlade_config::parse(&format!("handler = \"a.b\"\n{more}"), "function.toml").unwrap()
    }

    fn rules(text: &str) -> TenantConfig {
        unlade_config::parse(text, "fn.toml").unwrap()
    }

    #[test]
    fn what_is_not_allowed_is_refused_with_the_line_that_would_allow_it() {
        for (more, key, line) in [
            ("mode = \"stock\"", "mode", "modes = [\"offload\", \"prefetch\", \"sdk\", \"stock\"]"),
            ("mode = \"tcp\"", "mode", "\"tcp\"]"),
            ("packages = [\"/etc\"]", "packages", "packages = [\"/etc\"]"),
            ("python = \"/tmp/evil\"", "python", "pythons = [\"/tmp/evil\"]"),
        ] {
            let why = check("t", &rules(""), &manifest(more), None).unwrap_err().to_string();
            assert!(why.starts_with(key) && why.contains(line), "{more}: {why}");
            assert!(why.contains("[tenant.t]"), "{why}");
        }
        assert!(check("t", &rules(""), &manifest("mode = \"sdk\""), None).is_ok());
        let wide = rules("modes = [\"stock\"]\npackages = [\"/opt/p\"]\npythons = [\"/opt/py\"]\n");
        let more = "mode = \"stock\"\npackages = [\"/opt/p/x\"]\npython = \"/opt/py\"\n";
        assert!(check("t", &wide, &manifest(more), None).is_ok());
        assert!(check("t", &wide, &manifest(""), None).is_err(), "only what is named");
        for path in ["/opt/pp", "/opt/p/../q", "opt/p"] {
            let more = format!("mode = \"stock\"\npackages = [{path:?}]\n");
            assert!(check("t", &wide, &manifest(&more), None).is_err(), "{path}");
        }
    }

    #[test]
    fn a_role_is_within_the_operators() {
        let own = "[[role.statements]]\neffect = \"allow\"\nactions = [\"s3:*\"]\n\
                   resources = [\"a/*\"]\n";
        assert_eq!(policy("f", &rules(""), &manifest(own), None).get("boundary"), None);
        let absent = policy("f", &rules(""), &manifest(""), None);
        let mut due = serde_json::json!({"statements": [
            {"effect": "allow", "actions": ["s3:*"], "resources": ["*"]}]});
        due[FACTS] = facts("f", None);
        assert_eq!(absent, due);
        assert_eq!(facts("f", Some("r"))["aws:PrincipalArn"], role_arn("r"));
        let bound = policy("f", &rules(own), &manifest(""), None);
        assert_eq!(bound["boundary"]["statements"][0]["resources"][0], "a/*");
        assert_eq!(bound["statements"][0]["resources"][0], "*");
        let widened = manifest("[role]\nstatements = []\n[role.boundary]\nstatements = []\n");
        assert!(check("t", &rules(own), &widened, None).is_err());
        let pretends =
            manifest("[role]\nstatements = []\n[role.facts]\n\"aws:PrincipalArn\" = \"x\"\n");
        assert!(check("t", &rules(own), &pretends, None).is_err());
    }

    #[test]
    fn a_tenant_has_the_rights_of_its_operator() {
        let free = own_policy("t", &rules(""));
        assert_eq!(free.get(BOUNDARY), None);
        assert_eq!(free[FACTS]["aws:PrincipalArn"], tenant_arn("t"));
        let own = "[[role.statements]]\neffect = \"allow\"\nactions = [\"s3:*\"]\n\
                   resources = [\"a/*\"]\n";
        let bound = own_policy("t", &rules(own));
        assert_eq!(bound[BOUNDARY]["statements"][0]["resources"][0], "a/*");
        unlade_s3::Policy::from_value(&bound).unwrap();
    }

    #[test]
    fn a_role_is_one_of_the_operators() {
        let own = rules(
            "[[roles.reader.statements]]\neffect = \"allow\"\nactions = [\"s3:GetObject\"]\n\
             resources = [\"in/*\"]\n",
        );
        assert!(check("t", &own, &manifest(""), Some("reader")).is_ok());
        let narrowed = manifest("[role]\nstatements = []\n");
        assert!(check("t", &own, &narrowed, Some("reader")).is_err(), "one or the other");
        let why = check("t", &own, &manifest(""), Some("writer")).unwrap_err().to_string();
        assert!(why.contains("`roles.writer = {") && why.contains("[tenant.t]"), "{why}");
        let rights = policy("f", &own, &manifest(""), Some("reader"));
        assert_eq!(rights["statements"][0]["resources"][0], "in/*");
        assert_eq!(policy("f", &own, &manifest(""), Some("writer"))["statements"], json!([]));
    }

    #[test]
    fn roles_are_named_by_arns() {
        assert_eq!(role_name(&role_arn("reader")).unwrap(), Some("reader"));
        assert_eq!(role_name("arn:aws:iam::123456789012:role/a/b/reader").unwrap(), Some("reader"));
        assert_eq!(role_name(&role_arn(DEFAULT_ROLE)).unwrap(), None);
        for wrong in ["reader", "arn:aws:iam::1:user/x", "arn:aws:iam::1:role/", ""] {
            assert!(role_name(wrong).is_err(), "{wrong}");
        }
    }
}
