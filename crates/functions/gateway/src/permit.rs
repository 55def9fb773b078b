//! The choices that a deployment is allowed: the operator's configuration decides, not the
//! manifest.

use serde_json::{Value, json};
use unlade_fn_model::{Manifest, ManifestError};

use crate::config::TenantConfig;

/// Refuses a manifest that chooses something that its tenant may not.
///
/// # Errors
/// The forbidden choice, and the configuration line that would allow it.
pub fn check(tenant: &str, rules: &TenantConfig, manifest: &Manifest) -> Result<(), ManifestError> {
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
    if manifest.role.as_ref().is_some_and(|role| role.get("boundary").is_some()) {
        let why = "the boundary is the operator's: `role` of the tenant".to_owned();
        return Err(ManifestError { key: "role".to_owned(), why });
    }
    Ok(())
}

/// The rights of a function: those in its manifest, limited by those of the operator. Without a
/// role it has all of the store and no other service, as [`Policy::of_store`].
///
/// [`Policy::of_store`]: unlade_s3::Policy::of_store
pub fn policy(rules: &TenantConfig, manifest: &Manifest) -> Value {
    let of_store =
        json!({"statements": [{"effect": "allow", "actions": ["s3:*"], "resources": ["*"]}]});
    let mut policy = manifest.role.clone().unwrap_or(of_store);
    if let (Some(boundary), Some(policy)) = (&rules.role, policy.as_object_mut()) {
        policy.insert("boundary".to_owned(), boundary.clone());
    }
    policy
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
            let why = check("t", &rules(""), &manifest(more)).unwrap_err().to_string();
            assert!(why.starts_with(key) && why.contains(line), "{more}: {why}");
            assert!(why.contains("[tenant.t]"), "{why}");
        }
        assert!(check("t", &rules(""), &manifest("mode = \"sdk\"")).is_ok());
        let wide = rules("modes = [\"stock\"]\npackages = [\"/opt/p\"]\npythons = [\"/opt/py\"]\n");
        let more = "mode = \"stock\"\npackages = [\"/opt/p/x\"]\npython = \"/opt/py\"\n";
        assert!(check("t", &wide, &manifest(more)).is_ok());
        assert!(check("t", &wide, &manifest("")).is_err(), "only what is named");
        for path in ["/opt/pp", "/opt/p/../q", "opt/p"] {
            let more = format!("mode = \"stock\"\npackages = [{path:?}]\n");
            assert!(check("t", &wide, &manifest(&more)).is_err(), "{path}");
        }
    }

    #[test]
    fn a_role_is_within_the_operators() {
        let own = "[[role.statements]]\neffect = \"allow\"\nactions = [\"s3:*\"]\n\
                   resources = [\"a/*\"]\n";
        assert_eq!(policy(&rules(""), &manifest(own)).get("boundary"), None);
        let absent = policy(&rules(""), &manifest(""));
        assert_eq!(unlade_s3::Policy::from_value(&absent).unwrap(), unlade_s3::Policy::of_store());
        let bound = policy(&rules(own), &manifest(""));
        assert_eq!(bound["boundary"]["statements"][0]["resources"][0], "a/*");
        assert_eq!(bound["statements"][0]["resources"][0], "*");
        let widened = manifest("[role]\nstatements = []\n[role.boundary]\nstatements = []\n");
        assert!(check("t", &rules(own), &widened).is_err());
    }
}
