//! Requests that are signed with keys of the function's own. Their signature covers the address of
//! this endpoint, and init does not have the secret: they cannot be passed on as they were signed. To
//! sign them with the keys of the host would give them other rights and another account, so they are
//! refused.

use std::collections::BTreeMap;

/// The access key in the environment of every function. The stub for Node.js has it, too.
pub const PLACEHOLDER: &str = "UNLADE";
/// The variable with the choice of the function's manifest, which a function cannot set.
const CHOICE: &str = "UNLADE_KEYS";
const IGNORE: &str = "ignore";
/// The code of the refusal.
pub const CODE: &str = "ForeignCredentials";
/// Most characters of an access key in a message.
const SHOWN_CHARS_MAX: usize = 128;

/// Returns true if the manifest says that keys in code are ignored.
pub fn are_ignored(environment: &BTreeMap<String, String>) -> bool {
    environment.get(CHOICE).is_some_and(|choice| choice == IGNORE)
}

/// Returns true for an access key that the function has not from its environment.
pub fn is_own(key: &str) -> bool {
    key != PLACEHOLDER
}

/// The refusal of a request that is signed with an access key of the function's own.
pub fn message(key: &str) -> String {
    let key: String = key.chars().take(SHOWN_CHARS_MAX).collect();
    format!(
        "the request is signed with keys of the function's own ({key}), and the host would sign it \
         with the rights of the function's role. Leave the keys out of the code to use these, or \
         deploy the function with `keys = \"ignore\"` in function.toml"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_manifests_word_ignores_keys() {
        let of = |value: &str| BTreeMap::from([(CHOICE.to_owned(), value.to_owned())]);
        assert!(are_ignored(&of("ignore")));
        assert!(!are_ignored(&of("refuse")) && !are_ignored(&BTreeMap::new()));
        assert!(is_own("AKIA") && is_own("") && !is_own(PLACEHOLDER));
    }

    #[test]
    fn a_refusal_names_the_key_and_says_what_to_do() {
        let said = message(&"K".repeat(1000));
        assert!(said.contains("KKK") && said.len() < 500, "{said}");
        assert!(said.contains("`keys = \"ignore\"` in function.toml"), "{said}");
    }
}
