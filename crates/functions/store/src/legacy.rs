//! Import of metadata that earlier releases wrote with `s3s-fs`: objects are at the same paths,
//! and metadata is in files `.bucket-B.object-K.….json` next to the buckets, with B and K in
//! base64.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::about::{About, Version, Versioning};
use crate::disk::{self, Disk, Kind, there};
use crate::names::decoded;
use crate::vault::{SMALL_BYTES_MAX, Vault};

/// Imports the metadata of objects, and removes the old files.
///
/// # Errors
/// The system call failed.
pub fn import<D: Disk>(vault: &Vault<D>, root: &Path) -> io::Result<()> {
    let mut old = Vec::new();
    let mut objects: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (name, kind) in vault.disk.read_dir(root)? {
        let Some(name) = name.to_str().filter(|_| kind == Kind::File) else { continue };
        let is_unfinished = [".upload-", ".upload_id-", ".tmp."];
        let is_unfinished = is_unfinished.iter().any(|prefix| name.starts_with(prefix));
        if let Some(object) = object_of(name) {
            objects.entry(object).or_default().push(name.to_owned());
        }
        if is_unfinished || name.starts_with(".bucket-") {
            old.push(root.join(name));
        }
    }
    for ((bucket, key), names) in &objects {
        if vault.check_bucket(bucket).is_err() {
            continue;
        }
        // Metadata written since is newer.
        if let Some((stat, None)) = vault.listed(bucket, key, Versioning::Off)? {
            let version = Version { stat, about: about(vault, root, names)?, id: None };
            vault.describe(bucket, key, &version, (None, None))?;
        }
    }
    for path in &old {
        vault.disk.remove_file(path)?;
    }
    if !old.is_empty() {
        vault.disk.sync_dir(root)?;
        tracing::info!(objects = objects.len(), "store: objects of an earlier release");
    }
    Ok(())
}

impl<D: Disk> Vault<D> {
    /// Moves the objects at encoded keys of layout 1, `.unlade/odd/BUCKET/…`, to their places in
    /// this layout. It may be repeated after it was interrupted.
    ///
    /// # Errors
    /// The system call failed.
    pub fn encode_again(&self) -> io::Result<()> {
        let old = self.own("odd");
        for (bucket, _) in there(self.disk.read_dir(&old))?.unwrap_or_default() {
            let Some(bucket) = bucket.to_str() else { continue };
            let (top, mut files) = (old.join(bucket), Vec::new());
            let _ = self.walk(&top, &mut |path| {
                files.push(path.to_owned());
                ControlFlow::Continue(())
            })?;
            for path in files {
                let key = path.strip_prefix(&top).ok().and_then(|path| decoded(path, ".object"));
                if let Some(key) = key {
                    self.place(&path, &self.odd_path(bucket, &key))?;
                }
            }
        }
        self.remove_tree(&old)
    }
}

fn object_of(name: &str) -> Option<(String, String)> {
    let name = name.strip_prefix(".bucket-")?;
    let name =
        name.strip_suffix(".metadata.json").or_else(|| name.strip_suffix(".internal.json"))?;
    let (bucket, key) = name.split_once(".object-")?;
    let text = |part: &str| String::from_utf8(URL_SAFE_NO_PAD.decode(part).ok()?).ok();
    // The name for an upload has a suffix, which is not base64.
    Some((text(bucket)?, text(key)?))
}

/// Merges the two files; their members have the names in [`About`].
fn about<D: Disk>(vault: &Vault<D>, root: &Path, names: &[String]) -> io::Result<About> {
    let mut whole = serde_json::Map::new();
    for name in names {
        let text = disk::read(&*vault.disk, &root.join(name), SMALL_BYTES_MAX)?;
        if let Ok(serde_json::Value::Object(part)) = serde_json::from_slice(&text) {
            whole.extend(part);
        }
    }
    Ok(serde_json::from_value(whole.into()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Local;

    #[test]
    fn objects_of_an_earlier_release_are_found_with_what_was_said_of_them() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        std::fs::create_dir_all(dir.path().join("box/a")).unwrap();
        write("box/a/b", "hello");
        write(".bucket-Ym94.object-YS9i.internal.json", r#"{"e_tag":"5d41-1"}"#);
        write(
            ".bucket-Ym94.object-YS9i.metadata.json",
            r#"{"user_metadata":{"who":"me"},"content_type":"text/plain"}"#,
        );
        write(".bucket-Ym94.object-Z29uZQ.internal.json", r#"{"e_tag":"x"}"#);
        write(".upload-0.json", "null");
        let vault = Vault::open(Local, dir.path()).unwrap();
        import(&vault, dir.path()).unwrap();
        let about = vault.open_object("box", "a/b", None).unwrap().about.unwrap();
        assert_eq!(
            (about.e_tag.as_str(), about.content_type.as_deref()),
            ("5d41-1", Some("text/plain"))
        );
        assert_eq!(about.user_metadata.unwrap()["who"], "me");
        let mut keys = crate::list::Keys::new(&vault, "box", Versioning::Off);
        assert_eq!(keys.seek(b"").unwrap().as_deref(), Some("a/b"));
        assert_eq!(keys.seek(b"a/b0").unwrap(), None);
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 2, "the bucket, and the store's own directory");
    }
}
