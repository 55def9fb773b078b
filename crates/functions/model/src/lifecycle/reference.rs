//! Names of functions in requests: a name, or a partial or full ARN, with or without a qualifier.

use std::fmt;

use super::Version;
use crate::lambda::Refusal;
use crate::manifest::is_name;

/// The account in ARNs. A gateway has no accounts; tenants are told apart by their keys.
pub const ACCOUNT: &str = "000000000000";
/// Longest name of an alias, as Lambda's.
const ALIAS_BYTES_MAX: usize = 128;

/// The ARN of a function, a version of it, or an alias.
pub fn arn(region: &str, name: &str, qualifier: Option<&str>) -> String {
    let tail = qualifier.map(|qualifier| format!(":{qualifier}")).unwrap_or_default();
    format!("arn:aws:lambda:{region}:{ACCOUNT}:function:{name}{tail}")
}

/// A version or an alias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Qualifier {
    /// A version.
    Version(Version),
    /// The name of an alias.
    Alias(String),
}

impl Qualifier {
    /// Parses a qualifier.
    ///
    /// # Errors
    /// It is neither a version nor the name of an alias.
    pub fn parse(text: &str) -> Result<Qualifier, Refusal> {
        match text.parse() {
            Ok(version) => Ok(Qualifier::Version(version)),
            Err(_) if is_alias(text) => Ok(Qualifier::Alias(text.to_owned())),
            Err(_) => Err(Refusal::Parameter(format!(
                "{text:?} is no qualifier: $LATEST, a number, or an alias of letters, digits, - \
                 and _ that is not a number"
            ))),
        }
    }
}

impl fmt::Display for Qualifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Qualifier::Version(version) => version.fmt(f),
            Qualifier::Alias(name) => f.write_str(name),
        }
    }
}

/// Returns true if a text is a valid name of an alias.
pub fn is_alias(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=ALIAS_BYTES_MAX).contains(&text.len())
        && text.chars().all(allowed)
        && !text.chars().all(|c| c.is_ascii_digit())
}

/// A function in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its name.
    pub name: String,
    /// The qualifier, if there is one.
    pub qualifier: Option<Qualifier>,
}

impl Reference {
    /// Parses a name or an ARN, and the qualifier of the request.
    ///
    /// # Errors
    /// The name or the qualifier is invalid, or the name has another qualifier than the request.
    pub fn parse(text: &str, qualifier: Option<&str>) -> Result<Reference, Refusal> {
        let wrong = || {
            Refusal::Parameter(format!(
                "{text:?} is no function: NAME, NAME:QUALIFIER or \
                 arn:aws:lambda:REGION:ACCOUNT:function:NAME"
            ))
        };
        let parts: Vec<&str> = text.split(':').collect();
        let (name, own) = match parts.as_slice() {
            [name] => (*name, None),
            [name, own] => (*name, Some(*own)),
            ["arn", _, "lambda", _, _, "function", name] | [_, "function", name] => (*name, None),
            ["arn", _, "lambda", _, _, "function", name, own] | [_, "function", name, own] => {
                (*name, Some(*own))
            }
            _ => return Err(wrong()),
        };
        if !is_name(name) {
            return Err(wrong());
        }
        if let (Some(own), Some(asked)) = (own, qualifier)
            && own != asked
        {
            let why = format!(
                "The derived qualifier from the function name ({own}) does not match the \
                 specified qualifier ({asked})"
            );
            return Err(Refusal::Parameter(why));
        }
        let qualifier = own.or(qualifier).map(Qualifier::parse).transpose()?;
        Ok(Reference { name: name.to_owned(), qualifier })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_arns() {
        for (text, qualifier) in [
            ("f-1", None),
            ("f-1:$LATEST", Some("$LATEST")),
            ("f-1:7", Some("7")),
            ("arn:aws:lambda:us-east-1:123456789012:function:f-1", None),
            ("arn:aws:lambda:us-east-1:123456789012:function:f-1:prod", Some("prod")),
            ("123456789012:function:f-1", None),
        ] {
            let found = Reference::parse(text, None).unwrap();
            let own = found.qualifier.map(|own| own.to_string());
            assert_eq!((found.name.as_str(), own.as_deref()), ("f-1", qualifier), "{text}");
        }
        for text in ["", "../etc", "a:b:c", "arn:aws:s3:::bucket", "f/1", "f:", "f:a b", "f:0"] {
            assert_eq!(Reference::parse(text, None).unwrap_err().status(), 400, "{text}");
        }
        assert_eq!(Reference::parse("f:7", Some("7")).unwrap().name, "f");
        assert_eq!(Reference::parse("f:7", Some("8")).unwrap_err().status(), 400);
        assert_eq!(arn("eu-west-1", "f", Some("7")).split(':').count(), 8);
    }

    #[test]
    fn an_alias_is_no_number() {
        assert!(is_alias("prod") && is_alias("v1"));
        for wrong in ["", "1", "a b", "a:b", &"x".repeat(129)] {
            assert!(!is_alias(wrong), "{wrong}");
        }
    }
}
