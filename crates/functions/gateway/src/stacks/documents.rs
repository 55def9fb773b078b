//! Policy documents of stacks: several of a role as one, and the trust of a role.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use unlade_s3::Policy;
use unlade_s3::policy::document::DOCUMENT_BYTES_MAX;

/// The version with policy variables.
const WITH_VARIABLES: &str = "2012-10-17";
/// The principal of functions.
const LAMBDA: &str = "lambda.amazonaws.com";

/// Refuses a document that the host cannot evaluate.
///
/// # Errors
/// The reason.
pub fn check(name: &str, document: &Value) -> Result<(), String> {
    if document.to_string().len() > DOCUMENT_BYTES_MAX {
        return Err(format!("{name}: a policy document has {DOCUMENT_BYTES_MAX} bytes at most"));
    }
    if document.get("Statement").is_none() {
        return Err(format!("{name}: the policy document has no Statement"));
    }
    Policy::from_value(document).map(|_| ()).map_err(|error| format!("{name}: {error}"))
}

/// The statements of checked documents as one document, in their order.
///
/// # Errors
/// A document of the version without variables has text that looks like one: it would get another meaning.
pub fn merged<'a>(documents: impl IntoIterator<Item = &'a Value>) -> Result<Value, String> {
    let (mut statements, mut sids) = (Vec::new(), BTreeSet::new());
    for document in documents {
        let has_variables = document.get("Version").and_then(Value::as_str) == Some(WITH_VARIABLES);
        if !has_variables && document.to_string().contains("${") {
            let why =
                format!("a policy document with ${{…}} needs \"Version\": \"{WITH_VARIABLES}\"");
            return Err(why);
        }
        for mut statement in listed(document.get("Statement")) {
            let sid = statement.get("Sid").and_then(Value::as_str).map(str::to_owned);
            // Names are unique within a document only.
            if sid.is_some_and(|sid| !sids.insert(sid)) {
                statement.as_object_mut().and_then(|members| members.remove("Sid"));
            }
            statements.push(statement);
        }
    }
    Ok(match statements.is_empty() {
        true => json!({"statements": []}),
        false => json!({"Version": WITH_VARIABLES, "Statement": statements}),
    })
}

/// A value as a list: itself, if it is one.
fn listed(value: Option<&Value>) -> Vec<Value> {
    match value {
        None => Vec::new(),
        Some(Value::Array(items)) => items.clone(),
        Some(one) => vec![one.clone()],
    }
}

/// The rest of a role's trust, beside that functions may have it; `None` if there is none.
///
/// # Errors
/// It does not say that.
pub fn beside_functions(trust: &Value) -> Result<Option<String>, String> {
    let statements = listed(trust.get("Statement"));
    let services =
        |statement: &Value| listed(statement.get("Principal").and_then(|p| p.get("Service")));
    let is_of_functions = |statement: &Value| {
        let assumes = listed(statement.get("Action")).iter().any(|action| {
            action.as_str().is_some_and(|text| text.eq_ignore_ascii_case("sts:AssumeRole"))
        });
        statement["Effect"] == "Allow" && assumes && services(statement).iter().any(|s| s == LAMBDA)
    };
    if !statements.iter().any(is_of_functions) {
        return Err(format!(
            "AssumeRolePolicyDocument must allow sts:AssumeRole to {LAMBDA}: roles are those of \
             functions on this server"
        ));
    }
    let is_more = |statement: &Value| {
        let principals = statement["Principal"].as_object().map_or(0, serde_json::Map::len);
        !is_of_functions(statement)
            || principals > 1
            || services(statement).len() > 1
            || statement.get("Condition").is_some()
    };
    let more = statements.iter().filter(|statement| is_more(statement));
    let more: Vec<String> = more.map(ToString::to_string).collect();
    Ok((!more.is_empty()).then(|| more.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(sid: &str, action: &str) -> Value {
        json!({"Version": WITH_VARIABLES, "Statement": [
            {"Sid": sid, "Effect": "Allow", "Action": action, "Resource": "arn:aws:s3:::b/*"}]})
    }

    #[test]
    fn documents_are_one_and_names_in_it_are_unique() {
        let (one, other) = (document("A", "s3:GetObject"), document("A", "s3:PutObject"));
        let both = merged([&one, &other]).unwrap();
        assert_eq!(both["Statement"][0]["Sid"], "A");
        assert_eq!(both["Statement"][1].get("Sid"), None);
        assert_eq!(both["Statement"][1]["Action"], "s3:PutObject");
        Policy::from_value(&both).unwrap();
        Policy::from_value(&merged([]).unwrap()).unwrap();
        let single = json!({"Version": WITH_VARIABLES, "Statement": one["Statement"][0]});
        assert_eq!(merged([&single]).unwrap(), one);
    }

    #[test]
    fn a_document_keeps_its_meaning_or_is_refused() {
        let old = json!({"Statement": [
            {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/${aws:username}/*"}]});
        assert!(merged([&old]).unwrap_err().contains(WITH_VARIABLES));
        check("p", &document("A", "s3:GetObject")).unwrap();
        for wrong in [
            json!({"statements": []}),
            json!({"Statement": [{"Effect": "Perhaps", "Action": "*", "Resource": "*"}]}),
            json!({"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "x".repeat(30_000)}]}),
        ] {
            assert!(check("p", &wrong).unwrap_err().starts_with("p: "), "{wrong}");
        }
    }

    #[test]
    fn the_trust_of_a_role_is_that_of_functions() {
        let of = |statement: Value| beside_functions(&json!({"Statement": statement}));
        let plain = json!({"Effect": "Allow", "Action": ["sts:AssumeRole"],
                           "Principal": {"Service": ["lambda.amazonaws.com"]}});
        assert_eq!(of(plain.clone()), Ok(None));
        assert_eq!(of(json!([plain])), Ok(None));
        let two = json!({"Effect": "Allow", "Action": "sts:AssumeRole",
                         "Principal": {"Service": ["edgelambda.amazonaws.com", "lambda.amazonaws.com"]}});
        assert!(of(two).unwrap().unwrap().contains("edgelambda"));
        let other = json!({"Effect": "Allow", "Action": "sts:AssumeRole",
                           "Principal": {"Service": "states.amazonaws.com"}});
        assert!(of(other.clone()).unwrap_err().contains(LAMBDA));
        assert!(of(json!([plain, other])).unwrap().unwrap().contains("states"));
        let denied = json!({"Effect": "Deny", "Action": "sts:AssumeRole",
                            "Principal": {"Service": "lambda.amazonaws.com"}});
        assert!(of(denied).is_err());
    }
}
