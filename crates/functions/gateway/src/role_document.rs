//! Roles that name a policy document in AWS's JSON: `document = "reader.json"` in `fn.toml` or
//! `function.toml` stands for the content of the file.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path};

use serde_json::Value;
use unlade_s3::policy::document::{DOCUMENT_BYTES_MAX, from_text};

/// The member that names the file.
const DOCUMENT: &str = "document";

/// Replaces a role of the operator by its document, if it names one: a path, relative to the
/// directory of the configuration.
///
/// # Errors
/// The file cannot be read, or is no such JSON.
pub fn of_operator(role: &mut Value, directory: &Path) -> Result<(), String> {
    let Some(name) = named(role)? else { return Ok(()) };
    *role = read(&directory.join(name))?;
    Ok(())
}

/// Replaces a role of a manifest by its document, if it names one: a file of the function's
/// directory.
///
/// # Errors
/// The file cannot be read, is none of the directory, or is no such JSON.
pub fn of_author(role: &mut Value, code: &Path) -> Result<(), String> {
    let Some(name) = named(role)? else { return Ok(()) };
    let mut parts = Path::new(&name).components();
    let is_plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    if !is_plain {
        return Err(format!("{DOCUMENT} = {name:?} must be a file beside the manifest"));
    }
    *role = read(&code.join(name))?;
    Ok(())
}

fn named(role: &Value) -> Result<Option<String>, String> {
    let Some(document) = role.get(DOCUMENT) else { return Ok(None) };
    match (document.as_str(), role.as_object().map_or(0, serde_json::Map::len)) {
        (Some(name), 1) => Ok(Some(name.to_owned())),
        (None, _) => Err(format!("{DOCUMENT} must be the name of a file")),
        (Some(_), _) => {
            Err(format!("a role has either {DOCUMENT} or statements of its own; remove one"))
        }
    }
}

/// Reads a file that is neither a link nor longer than a document may be.
fn read(path: &Path) -> Result<Value, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(|error| failed(&error))?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| failed(&error))?;
    if !file.metadata().map_err(|error| failed(&error))?.is_file() {
        return Err(failed(&"is no regular file"));
    }
    let mut text = String::new();
    // One byte more than allowed shows that the file is too long.
    let bytes = file.take(DOCUMENT_BYTES_MAX as u64 + 1).read_to_string(&mut text);
    bytes.map_err(|error| failed(&error))?;
    from_text(&text).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TEXT: &str = r#"{"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/*"}]}"#;

    #[test]
    fn a_document_stands_for_its_content() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("roles")).unwrap();
        std::fs::write(dir.path().join("roles/r.json"), TEXT).unwrap();
        std::fs::write(dir.path().join("r.json"), TEXT).unwrap();
        let mut role = json!({"document": "roles/r.json"});
        of_operator(&mut role, dir.path()).unwrap();
        assert_eq!(role["Statement"][0]["Action"], "s3:GetObject");
        assert!(unlade_s3::Policy::from_value(&role).is_ok());
        let mut own = json!({"document": "r.json"});
        of_author(&mut own, dir.path()).unwrap();
        assert_eq!(own, role);
        let mut plain = json!({"statements": []});
        of_author(&mut plain, dir.path()).unwrap();
        assert_eq!(plain, json!({"statements": []}));
    }

    #[test]
    fn an_author_reads_no_file_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let code = dir.path().join("code");
        std::fs::create_dir(&code).unwrap();
        std::fs::write(dir.path().join("secret.json"), TEXT).unwrap();
        std::os::unix::fs::symlink("../secret.json", code.join("link.json")).unwrap();
        std::fs::create_dir(code.join("dir")).unwrap();
        std::fs::write(code.join("long.json"), " ".repeat(DOCUMENT_BYTES_MAX + 1)).unwrap();
        let absolute = dir.path().join("secret.json").display().to_string();
        for name in
            ["../secret.json", absolute.as_str(), "link.json", "dir", "none", "", "long.json"]
        {
            assert!(of_author(&mut json!({ "document": name }), &code).is_err(), "{name}");
        }
        for wrong in [json!({"document": 7}), json!({"document": "a", "statements": []})] {
            assert!(of_author(&mut wrong.clone(), &code).is_err(), "{wrong}");
        }
    }
}
