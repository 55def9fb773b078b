//! The store, as the experiment sees it: inputs are put, outputs are got and compared.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;
use unlade_fn_worker::config::StoreConfig;
use unlade_fn_worker::store::{Body, HttpStore, Transport, read_all};
use unlade_s3::{Request, operation};

use super::catalogue::Subject;
use super::node::Access;
use super::place::Place;

/// Longest object that is read.
const OBJECT_BYTES_MAX: usize = 64 << 20;

/// Bucket and key.
pub type Name = (String, String);

/// A store.
pub struct Objects {
    runtime: Runtime,
    transport: HttpStore,
}

impl Objects {
    /// The store of a node.
    ///
    /// # Errors
    /// It cannot be reached that way.
    pub fn of(access: &Access) -> Result<Objects> {
        let config: StoreConfig = serde_json::from_value(json!({
            "endpoint": access.endpoint,
            "credentials": {"from": "keys", "access_key_id": access.access_key_id,
                "secret_access_key": access.secret_access_key},
        }))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Objects { runtime, transport: HttpStore::new(config.endpoint()?) })
    }

    fn ask(&self, operation: &str, parameters: Value, body: Vec<u8>) -> Result<(u16, Vec<u8>)> {
        let found = operation::find(operation).with_context(|| format!("no {operation}"))?;
        let parameters = parameters.as_object().cloned().unwrap_or_default();
        let request = Rc::new(Request::new(found, &parameters)?);
        let body = Rc::new(Body::from(body));
        self.runtime.block_on(async {
            let mut incoming = self.transport.exchange(request, body).await?;
            let bytes = read_all(&mut *incoming.body, OBJECT_BYTES_MAX).await?;
            Ok((incoming.head.status, bytes.context("the object is too long")?))
        })
    }

    fn done(&self, operation: &str, name: &Name, body: Vec<u8>) -> Result<Vec<u8>> {
        let parameters = json!({"Bucket": name.0, "Key": name.1});
        let (status, bytes) = self.ask(operation, parameters, body)?;
        if !(200..300).contains(&status) {
            bail!("{operation} of {}/{}: status {status}", name.0, name.1);
        }
        Ok(bytes)
    }

    /// Puts the buckets and inputs of subjects.
    ///
    /// # Errors
    /// The store refuses.
    pub fn fill(&self, place: &Place, subjects: &[Subject]) -> Result<()> {
        let inputs: BTreeMap<&Name, ()> =
            subjects.iter().flat_map(|subject| &subject.objects).map(|name| (name, ())).collect();
        let outputs = subjects.iter().filter_map(|it| it.event["output"]["bucket"].as_str());
        let mut buckets: Vec<&str> =
            inputs.keys().map(|name| name.0.as_str()).chain(outputs).collect();
        buckets.sort_unstable();
        buckets.dedup();
        for bucket in buckets {
            let (status, _) = self.ask("CreateBucket", json!({"Bucket": bucket}), Vec::new())?;
            if !(200..300).contains(&status) {
                bail!("CreateBucket of {bucket}: status {status}");
            }
        }
        for name in inputs.keys() {
            self.done("PutObject", name, place.input(&name.0, &name.1)?)?;
        }
        Ok(())
    }

    /// An object's bytes.
    ///
    /// # Errors
    /// It is not there.
    pub fn get(&self, name: &Name) -> Result<Vec<u8>> {
        self.done("GetObject", name, Vec::new())
    }

    /// Removes an object.
    ///
    /// # Errors
    /// The store refuses.
    pub fn remove(&self, name: &Name) -> Result<()> {
        self.done("DeleteObject", name, Vec::new()).map(|_| ())
    }
}

/// The expected outputs: the first of each that was seen and checked.
#[derive(Debug, Default)]
pub struct Expected {
    sums: BTreeMap<(String, String), [u8; 32]>,
    /// Outputs that were compared.
    pub compared: u64,
}

impl Expected {
    /// Takes the outputs of a first invocation of each subject as those that are due, once
    /// `check.py` has found them right.
    ///
    /// # Errors
    /// They are wrong, or not there.
    pub fn learn(
        &mut self,
        objects: &Objects,
        place: &Place,
        directory: &Path,
        made: &[(&Subject, Vec<Name>)],
    ) -> Result<()> {
        for (subject, names) in made {
            for (suffix, name) in subject.outputs.iter().zip(names) {
                let bytes = objects.get(name)?;
                if !subject.is_sized {
                    let file = directory.join(format!("{}{suffix}", subject.workload.name));
                    std::fs::write(file, &bytes)?;
                }
                let key = (subject.name.clone(), suffix.clone());
                self.sums.insert(key, Sha256::digest(&bytes).into());
            }
        }
        let whole = made.iter().filter(|(subject, _)| !subject.is_sized);
        let names: Vec<&str> = whole.map(|(subject, _)| subject.workload.name).collect();
        place.check(directory, &names).context("outputs are wrong")
    }

    /// Compares the outputs of an invocation with those due, and removes them.
    ///
    /// # Errors
    /// They differ: the experiment ends.
    pub fn compare(&mut self, objects: &Objects, subject: &Subject, names: &[Name]) -> Result<()> {
        for (suffix, name) in subject.outputs.iter().zip(names) {
            let sum: [u8; 32] = Sha256::digest(objects.get(name)?).into();
            let due = self.sums.get(&(subject.name.clone(), suffix.clone()));
            if due != Some(&sum) {
                bail!("{}/{} is not what {} has to write", name.0, name.1, subject.name);
            }
            self.compared += 1;
            objects.remove(name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::workload;
    use super::*;

    #[test]
    fn outputs_are_compared_byte_by_byte() {
        let dir = tempfile::tempdir().unwrap();
        let keys =
            unlade_s3_store::Keys { access_key_id: "a".into(), secret_access_key: "b".into() };
        let (told, address) = std::sync::mpsc::channel();
        let root = dir.path().to_owned();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let any = "127.0.0.1:0".parse().unwrap();
                let store = unlade_s3_store::Store::listen(any, &root, Some(keys)).await.unwrap();
                told.send(store.address().unwrap()).unwrap();
                let _ = store.serve().await;
            });
        });
        let endpoint = format!("http://{}", address.recv().unwrap());
        let access = Access { endpoint, access_key_id: "a".into(), secret_access_key: "b".into() };
        let objects = Objects::of(&access).unwrap();
        objects.ask("CreateBucket", json!({"Bucket": "out"}), Vec::new()).unwrap();
        let name = ("out".to_owned(), "k".to_owned());
        let subject = Subject {
            name: "aes".into(),
            workload: workload("aes").unwrap(),
            input_bytes: 1,
            event: Value::Null,
            objects: Vec::new(),
            outputs: vec![String::new()],
            is_sized: false,
        };
        let mut expected = Expected::default();
        expected.sums.insert(("aes".into(), String::new()), Sha256::digest(b"right").into());
        objects.done("PutObject", &name, b"right".to_vec()).unwrap();
        expected.compare(&objects, &subject, std::slice::from_ref(&name)).unwrap();
        assert_eq!(expected.compared, 1);
        assert!(objects.get(&name).unwrap_err().to_string().contains("404"), "it was removed");
        objects.done("PutObject", &name, b"wrong".to_vec()).unwrap();
        let told = expected.compare(&objects, &subject, &[name]).unwrap_err().to_string();
        assert!(told.contains("has to write"), "{told}");
    }
}
