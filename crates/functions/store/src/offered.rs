//! Header fields that ask for what the store does not have.

use hyper::HeaderMap;

use crate::fault::Fault;

/// Beginnings of the names of such fields: encryption by the store, and locks of objects. The object
/// would be stored without, and its writer would believe that it is protected.
const NOT_OFFERED: [&str; 3] = [
    "x-amz-server-side-encryption",
    "x-amz-copy-source-server-side-encryption",
    "x-amz-object-lock-",
];
/// Encryption with keys of the store. S3 does it for every object, so tools ask for it always (SAM CLI does):
/// it is accepted, and no answer says that the object is encrypted. The disk is to encrypt.
const BY_STORE: (&str, &str) = ("x-amz-server-side-encryption", "AES256");
/// The field for a bucket with locks has a value: false asks for nothing.
const BUCKET_LOCK: &str = "x-amz-bucket-object-lock-enabled";

/// Checks that a request asks for nothing that is not offered.
///
/// # Errors
/// It has such a field. The message begins as that of S3, by which clients recognise it, and names the
/// first one by name: the order of fields is the client's.
pub fn offered(fields: &HeaderMap) -> Result<(), Fault> {
    let is_missing = |name: &str, value: &[u8]| {
        NOT_OFFERED.iter().any(|start| name.starts_with(start))
            && (name, value) != (BY_STORE.0, BY_STORE.1.as_bytes())
    };
    let all = fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let found = all.filter(|(name, value)| is_missing(name, value)).map(|(name, _)| name).min();
    let locks =
        fields.get(BUCKET_LOCK).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"true"));
    match found.or_else(|| locks.then_some(BUCKET_LOCK)) {
        None => Ok(()),
        Some(name) => Err(not_offered(name)),
    }
}

/// Returns true for encryption by the store that is accepted: see [`BY_STORE`].
pub fn is_by_store(algorithm: &str) -> bool {
    algorithm == BY_STORE.1
}

/// The refusal of a request for its field of this name.
pub fn not_offered(name: &str) -> Fault {
    Fault::Unsupported(format!(
        "A header you provided implies functionality that is not implemented: {name}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encryption_and_locks_are_refused_by_name() {
        let check = |name: &'static str, value: &'static str| {
            offered(&HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]))
        };
        for name in [
            "x-amz-server-side-encryption",
            "x-amz-server-side-encryption-customer-algorithm",
            "x-amz-copy-source-server-side-encryption-customer-key",
            "x-amz-object-lock-mode",
            "x-amz-object-lock-legal-hold",
        ] {
            let refused = check(name, "x").unwrap_err().to_string();
            assert!(
                refused.starts_with("A header you provided implies functionality"),
                "{refused}"
            );
            assert!(refused.ends_with(name), "{refused}");
        }
        assert!(check(BUCKET_LOCK, "true").is_err());
        let names = ["x-amz-server-side-encryption-customer-key", "x-amz-object-lock-mode"];
        for names in [names, [names[1], names[0]]] {
            let fields = names.map(|name| (name.parse().unwrap(), "x".parse().unwrap()));
            let refused = offered(&HeaderMap::from_iter(fields)).unwrap_err().to_string();
            assert!(refused.ends_with("x-amz-object-lock-mode"), "{refused}");
        }
        assert!(check(BY_STORE.0, "aws:kms").is_err());
        assert!(check("x-amz-copy-source-server-side-encryption", BY_STORE.1).is_err());
        for (name, value) in
            [(BUCKET_LOCK, "false"), ("x-amz-acl", "private"), ("x-amz-meta-a", ""), BY_STORE]
        {
            assert!(check(name, value).is_ok(), "{name}");
        }
    }
}
