//! The stacks of one tenant: each change is durable before its answer, or before the action that follows
//! from it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use tokio::sync::{Mutex, MutexGuard};
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::reference::ACCOUNT;
use unlade_fn_stacks::error::Kind;
use unlade_fn_stacks::{Action, Failure, Given, Outcome, Place, Request, Stacks, Status};

use super::identities::Identities;
use super::{file, served};
use crate::config::REGION;
use crate::deploy::time_ms;
use crate::host::Host;

/// Most bytes of the files of a tenant's stacks, without deleted ones, before nothing is added. They are in
/// memory, too.
const STATE_BYTES_MAX: usize = 256 << 20;

/// See the [module](self).
pub struct TenantStacks {
    /// The tenant.
    pub tenant: String,
    /// The roles and policies of the stacks.
    pub identities: Identities,
    directory: PathBuf,
    stacks: RefCell<Stacks>,
    /// A change and its write: none comes between.
    turn: Mutex<()>,
    /// The stacks whose operations have a task.
    driven: RefCell<BTreeSet<String>>,
    /// The lengths of the files of stacks that are not deleted, in bytes.
    lengths: RefCell<BTreeMap<String, usize>>,
    bytes_max: usize,
}

fn now_ms() -> u64 {
    time_ms(SystemTime::now())
}

impl TenantStacks {
    /// Reads the stacks of a tenant.
    ///
    /// # Errors
    /// The system call failed, or a file of roles is damaged.
    pub fn load(host: &Host, tenant: &str) -> io::Result<TenantStacks> {
        let directory = file::of_tenant(&host.config.state, tenant);
        let place = Place { region: REGION.to_owned(), account: ACCOUNT.to_owned() };
        let found = file::all(&directory)?;
        let mut lengths = BTreeMap::new();
        for stack in found.iter().filter(|stack| stack.status != Status::DeleteComplete) {
            lengths.insert(stack.id.clone(), serde_json::to_vec(stack)?.len());
        }
        let stacks = Stacks::new(place, found);
        Ok(TenantStacks {
            tenant: tenant.to_owned(),
            identities: Identities::load(host, tenant)?,
            directory,
            stacks: RefCell::new(stacks),
            turn: Mutex::default(),
            driven: RefCell::default(),
            lengths: RefCell::new(lengths),
            bytes_max: STATE_BYTES_MAX,
        })
    }

    /// Sets the most bytes of the files, for a test.
    #[cfg(test)]
    pub(crate) fn limit_bytes(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// The directory of a stack.
    pub fn directory(&self, id: &str) -> PathBuf {
        file::of_stack(&self.directory, id)
    }

    /// The stacks with an operation in progress.
    pub fn running(&self) -> Vec<String> {
        self.stacks.borrow().running()
    }

    /// Returns true if the operation of a stack has got no task yet; it has one from now on.
    pub fn take(&self, id: &str) -> bool {
        self.driven.borrow_mut().insert(id.to_owned())
    }

    /// Notes that the task of a stack ends; returns true if there is something to do again.
    pub fn leave(&self, id: &str) -> bool {
        self.driven.borrow_mut().remove(id);
        self.stacks.borrow().get(id).is_some_and(|stack| stack.operation.is_some())
    }

    /// Makes the state of a stack durable, within the caller's turn. If that fails, the stack is what the
    /// disk has.
    async fn store(&self, _turn: &MutexGuard<'_, ()>, id: &str) -> io::Result<()> {
        let stack = self.stacks.borrow().get(id).cloned();
        let Some(stack) = stack else { return Ok(()) };
        let is_deleted = stack.status == Status::DeleteComplete;
        let directory = self.directory.clone();
        let write = move || file::write_stack(&directory, &stack);
        let stored = tokio::task::spawn_blocking(write).await;
        let stored = stored.unwrap_or_else(|error| Err(io::Error::other(error)));
        if stored.is_err()
            && let Ok(durable) = file::read_stack(&self.directory, id)
        {
            self.stacks.borrow_mut().put_back(id, durable);
        }
        let length_bytes = stored?;
        let mut lengths = self.lengths.borrow_mut();
        match is_deleted {
            true => lengths.remove(id),
            false => lengths.insert(id.to_owned(), length_bytes),
        };
        Ok(())
    }

    /// Refuses a request that adds something if there is too much already.
    fn check_room(&self, request: &Request) -> Result<(), Failure> {
        let adds = matches!(
            request,
            Request::CreateStack(_) | Request::UpdateStack(_) | Request::CreateChangeSet(_)
        );
        let bytes: usize = self.lengths.borrow().values().sum();
        match adds && bytes > self.bytes_max {
            true => Err(Failure::new(
                Kind::LimitExceeded,
                format!(
                    "the stacks of the tenant have more than {} bytes; delete stacks or change sets",
                    self.bytes_max
                ),
            )),
            false => Ok(()),
        }
    }

    /// Carries out a request; returns the answer, or the refusal of the engine.
    ///
    /// # Errors
    /// The change cannot be stored.
    pub async fn call(
        &self,
        request: &Request,
        (unique, template): (&str, Option<&str>),
    ) -> Result<Result<String, Failure>, Refusal> {
        let turn = self.turn.lock().await;
        if let Err(failure) = self.check_room(request) {
            return Ok(Err(failure));
        }
        let given = Given { now_ms: now_ms(), unique, template };
        let called = self.stacks.borrow_mut().call(request, given);
        let reply = match called {
            Ok(reply) => reply,
            Err(failure) => return Ok(Err(failure)),
        };
        if let Some(id) = &reply.changed {
            if let Some(why) = self.unserved(request, id) {
                let durable = file::read_stack(&self.directory, id).map_err(|error| {
                    Refusal::Service(format!("the stack cannot be read: {error}"))
                })?;
                self.stacks.borrow_mut().put_back(id, durable);
                return Ok(Err(Failure::invalid(why)));
            }
            let failed = |error| Refusal::Service(format!("the stack cannot be stored: {error}"));
            self.store(&turn, id).await.map_err(failed)?;
            self.forget();
        }
        Ok(Ok(reply.xml))
    }

    /// The part of a request's template that would have no effect.
    fn unserved(&self, request: &Request, id: &str) -> Option<String> {
        let stacks = self.stacks.borrow();
        let stack = stacks.get(id)?;
        let target = match request {
            Request::CreateStack(_) | Request::UpdateStack(_) => stack.operation.as_ref()?.target(),
            Request::CreateChangeSet(request) => {
                let mut sets = stack.change_sets.values();
                &sets.find(|set| set.name == request.name)?.target
            }
            _ => return None,
        };
        served::first_unserved(&target.template)
    }

    /// Removes the files of deleted stacks that are too many.
    fn forget(&self) {
        let gone = self.stacks.borrow_mut().forget();
        for id in gone {
            if let Err(error) = file::remove(&self.directory, &id) {
                tracing::warn!(%error, stack = id, "is left behind");
            }
        }
    }

    /// Takes the outcome of the action before, and gives the next one, which is durable. `None` is the end
    /// of the operation.
    ///
    /// # Errors
    /// It cannot be stored: the stack is what the disk has, and the action comes again.
    pub async fn advance(
        &self,
        id: &str,
        carried_out: Option<(Action, Outcome, Vec<String>)>,
    ) -> io::Result<Option<Action>> {
        let turn = self.turn.lock().await;
        let next = {
            let mut stacks = self.stacks.borrow_mut();
            if let Some((action, outcome, notes)) = carried_out {
                for note in notes {
                    stacks.note(id, &action, note, now_ms());
                }
                if let Err(error) = stacks.outcome(id, action.step, outcome, now_ms()) {
                    tracing::error!(%error, stack = id, "the outcome of an action is lost");
                }
            }
            stacks.next(id, now_ms())
        };
        self.store(&turn, id).await?;
        if next.is_none()
            && let Err(error) = file::remove_intent(&self.directory, id)
        {
            tracing::warn!(%error, stack = id, "a file is left behind");
        }
        Ok(next)
    }
}
