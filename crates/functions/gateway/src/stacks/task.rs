//! One action of a stack, as the code of its resource sees it: the gateway, the tenant, what the creation
//! found before it began, and notes for the user.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::Record;
use unlade_fn_stacks::{Action, Work};

use super::file;
use super::identities::Identities;
use super::outcome::Failed;
use super::properties::tags;
use crate::behalf::{self, CallError};
use crate::host::Host;
use crate::lambda_api::{self, OperationKind, Order};
use crate::service_request::ServiceRequest;

/// The state in which a creation found its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Intent {
    token: String,
    before: Value,
}

fn labels(
    of_stack: &BTreeMap<String, String>,
    properties: &Value,
) -> Result<BTreeMap<String, String>, Failed> {
    let mut all = of_stack.clone();
    all.extend(tags(properties.get("Tags"))?);
    Ok(all)
}

/// See the [module](self).
pub struct Task<'a> {
    /// The gateway.
    pub host: &'a Rc<Host>,
    /// The tenant.
    pub tenant: &'a str,
    /// The action.
    pub action: &'a Action,
    /// The roles and policies of the tenant.
    pub identities: &'a Identities,
    /// The directory of the stack.
    pub directory: PathBuf,
    notes: RefCell<Vec<String>>,
}

impl<'a> Task<'a> {
    /// Creates the task of an action.
    pub fn new(
        (host, tenant): (&'a Rc<Host>, &'a str),
        action: &'a Action,
        identities: &'a Identities,
        directory: PathBuf,
    ) -> Task<'a> {
        Task { host, tenant, action, identities, directory, notes: RefCell::default() }
    }

    /// Notes what the user has to know: it becomes an event of the stack.
    pub fn note(&self, text: impl Into<String>) {
        self.notes.borrow_mut().push(text.into());
    }

    /// Takes the notes.
    pub fn notes(&self) -> Vec<String> {
        self.notes.take()
    }

    /// Makes the state durable in which a creation finds its place, before it changes anything; returns
    /// the state that was found when the creation began, perhaps by a gateway that was killed.
    ///
    /// # Errors
    /// It cannot be stored.
    pub async fn begin(&self, found: Value) -> Result<Value, Failed> {
        let (directory, token) = (self.directory.clone(), self.action.token.clone());
        let work = move || {
            if let Some(intent) = file::read::<Intent>(&directory, file::INTENT)?
                && intent.token == token
            {
                return Ok(intent.before);
            }
            let intent = Intent { token, before: found };
            file::write(&directory, file::INTENT, &intent)?;
            Ok(intent.before)
        };
        let stored = tokio::task::spawn_blocking(work).await;
        let stored = stored.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        stored.map_err(|error| Failed::of_state(&error))
    }

    /// Claims a name: there was nothing when the creation began. What is there now is then its own.
    ///
    /// # Errors
    /// Something else has the name, or the claim cannot be stored.
    pub async fn claim(&self, name: &str, is_there: bool) -> Result<(), Failed> {
        let had_been = self.begin(is_there.into()).await?;
        match had_been == Value::Bool(false) {
            true => Ok(()),
            false => Err(Failed::new(format!(
                "{name} already exists, and is not of this stack; choose another name, or remove it"
            ))),
        }
    }

    /// Returns true if the name was free when the creation began.
    ///
    /// # Errors
    /// The state cannot be read.
    pub async fn is_claimed(&self) -> Result<bool, Failed> {
        let (directory, token) = (self.directory.clone(), self.action.token.clone());
        let look = move || {
            let intent = file::read::<Intent>(&directory, file::INTENT)?;
            Ok(intent.is_some_and(|own| own.token == token && own.before == Value::Bool(false)))
        };
        let found = tokio::task::spawn_blocking(look).await;
        let found = found.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        found.map_err(|error| Failed::of_state(&error))
    }

    /// The record of a function of the tenant. Those of others are absent.
    pub fn record(&self, name: &str) -> Option<Rc<Record>> {
        self.host.registry.get(name).filter(|record| record.tenant == self.tenant)
    }

    /// The tags of a resource: those of the stack, and its own, which have precedence.
    ///
    /// # Errors
    /// The property `Tags` has another form.
    pub fn labels(&self, properties: &Value) -> Result<BTreeMap<String, String>, Failed> {
        labels(&self.action.tags, properties)
    }

    /// The keys of the tags that a change takes away from a resource.
    ///
    /// # Errors
    /// The property `Tags` has another form.
    pub fn labels_gone(&self, before: &Value, after: &Value) -> Result<Vec<String>, Failed> {
        let Work::Update { tags_before, .. } = &self.action.work else { return Ok(Vec::new()) };
        let after = self.labels(after)?;
        let before = labels(tags_before, before)?.into_keys();
        Ok(before.filter(|key| !after.contains_key(key)).collect())
    }

    /// Calls a service with the tenant's own rights.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call(&self, request: ServiceRequest) -> Result<Vec<u8>, CallError> {
        let tenant = self.host.tenants.get(self.tenant);
        let absent = || CallError::Failed(format!("the tenant {} is not in fn.toml", self.tenant));
        let tenant = tenant.ok_or_else(absent)?;
        let role = self.host.own_rights(&tenant);
        behalf::call_as(&tenant, role, request).await
    }

    /// Performs an operation on a version or an alias, named in the query.
    ///
    /// # Errors
    /// As for a request.
    pub async fn lambda_of(
        &self,
        kind: OperationKind,
        name: &str,
        qualifier: &str,
        parameters: Map<String, Value>,
    ) -> Result<Value, Refusal> {
        let query = [("Qualifier", qualifier)];
        let order = Order { kind: Some(kind), target: name, item: "", query: &query, parameters };
        lambda_api::perform(self.host, self.tenant, order).await
    }

    /// Performs an operation of Lambda's API as the tenant.
    ///
    /// # Errors
    /// As for a request.
    pub async fn lambda(
        &self,
        kind: OperationKind,
        (target, item): (&str, &str),
        parameters: Map<String, Value>,
    ) -> Result<Value, Refusal> {
        let order = Order { kind: Some(kind), target, item, query: &[], parameters };
        lambda_api::perform(self.host, self.tenant, order).await
    }
}
