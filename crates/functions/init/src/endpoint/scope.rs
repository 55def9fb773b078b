//! The scope of a request's placeholder signature: the service and the region that the SDK means.

/// The scope that a signature names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Signature Version 4.
    Signed {
        /// The access key.
        key: String,
        /// The service's name in signatures.
        service: String,
        /// The region.
        region: String,
    },
    /// No signature.
    Unsigned,
    /// A signature of another kind: its name.
    Other(String),
}

/// The scheme of Signature Version 4.
const V4: &str = "AWS4-HMAC-SHA256";
/// Longest name of a service or region.
const WORD_BYTES_MAX: usize = 128;

/// Reads the scope from the `Authorization` field, or from the query of a presigned URL.
pub fn of(authorization: Option<&str>, query: &str) -> Scope {
    match authorization {
        Some(authorization) => of_field(authorization),
        None => of_query(query),
    }
}

fn of_field(authorization: &str) -> Scope {
    let (scheme, rest) = authorization.trim().split_once(' ').unwrap_or((authorization, ""));
    if scheme != V4 {
        return Scope::Other(scheme.chars().take(WORD_BYTES_MAX).collect());
    }
    let credential = rest.split(',').find_map(|part| part.trim().strip_prefix("Credential="));
    credential.and_then(of_credential).unwrap_or_else(|| Scope::Other(V4.to_owned()))
}

fn of_query(query: &str) -> Scope {
    let named = |name: &str| {
        query.split('&').find_map(|field| {
            let (found, value) = field.split_once('=')?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    };
    match (named("X-Amz-Algorithm"), named("X-Amz-Credential")) {
        (None, None) => Scope::Unsigned,
        (Some(V4), Some(credential)) => {
            let decoded = unlade_s3::encode::unpercent(credential, false);
            of_credential(&decoded).unwrap_or_else(|| Scope::Other(V4.to_owned()))
        }
        (scheme, _) => Scope::Other(scheme.unwrap_or_default().chars().take(64).collect()),
    }
}

/// `KEY/DATE/REGION/SERVICE/aws4_request`; a key may have slashes.
fn of_credential(credential: &str) -> Option<Scope> {
    let mut parts = credential.rsplitn(5, '/');
    let (end, service, region, _date, key) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_word = |word: &str| {
        (1..=WORD_BYTES_MAX).contains(&word.len())
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let is_scope = end == "aws4_request" && is_word(service) && is_word(region);
    is_scope.then(|| Scope::Signed {
        key: key.to_owned(),
        service: service.to_owned(),
        region: region.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(key: &str, service: &str, region: &str) -> Scope {
        Scope::Signed { key: key.into(), service: service.into(), region: region.into() }
    }

    #[test]
    fn the_scope_is_in_the_field_or_in_the_query() {
        let field = "AWS4-HMAC-SHA256 Credential=AK/20260102/eu-west-1/dynamodb/aws4_request, \
                     SignedHeaders=host;x-amz-date, Signature=00";
        assert_eq!(of(Some(field), ""), signed("AK", "dynamodb", "eu-west-1"));
        let tight =
            "AWS4-HMAC-SHA256 SignedHeaders=host,Credential=A/B/1/r/s3/aws4_request,Signature=0";
        assert_eq!(of(Some(tight), ""), signed("A/B", "s3", "r"));
        let query =
            "a=b&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AK%2F1%2Fr%2Fs3%2Faws4_request";
        assert_eq!(of(None, query), signed("AK", "s3", "r"));
        assert_eq!(of(None, "list-type=2"), Scope::Unsigned);
    }

    #[test]
    fn other_signatures_are_named() {
        for (field, name) in [
            ("AWS4-ECDSA-P256-SHA256 Credential=A/1/s3/aws4_request", "AWS4-ECDSA-P256-SHA256"),
            ("Bearer token", "Bearer"),
            ("AWS4-HMAC-SHA256", V4),
            ("AWS4-HMAC-SHA256 Credential=A/1/r/s 3/aws4_request", V4),
            ("AWS4-HMAC-SHA256 Credential=A/1/r/../aws4_request/x", V4),
        ] {
            assert_eq!(of(Some(field), ""), Scope::Other(name.to_owned()), "{field}");
        }
        assert_eq!(of(None, "X-Amz-Algorithm=x"), Scope::Other("x".to_owned()));
    }
}
