//! The task of a stack with an operation in progress: action by action, each durable before it is carried
//! out. A gateway that was killed begins with the action that the disk has.

use std::rc::Rc;
use std::time::Duration;

use super::resource;
use super::task::Task;
use super::tenant_stacks::TenantStacks;
use crate::host::Host;

/// Longest wait for the tenant's worker before an action. At the start of a gateway it starts, too, and may
/// have a journal to read.
const WORKER_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after the state could not be written or read.
const PAUSE: Duration = Duration::from_secs(1);

/// Begins to drive a stack, unless it is driven already.
pub fn drive(host: &Rc<Host>, stacks: &Rc<TenantStacks>, id: &str) {
    if !stacks.take(id) {
        return;
    }
    let (host, stacks, id) = (host.clone(), stacks.clone(), id.to_owned());
    tokio::task::spawn_local(async move {
        loop {
            run(&host, &stacks, &id).await;
            // Another operation may have begun since.
            if !stacks.leave(&id) || !stacks.take(&id) {
                return;
            }
        }
    });
}

async fn run(host: &Rc<Host>, stacks: &TenantStacks, id: &str) {
    let mut carried_out = None;
    loop {
        let action = match stacks.advance(id, carried_out.take()).await {
            Ok(Some(action)) => action,
            Ok(None) => return,
            Err(error) => {
                // The stack is what the disk has: its action is repeated.
                tracing::error!(%error, stack = id, "cannot be stored; tried again");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        tracing::info!(
            stack = action.stack_name,
            resource = action.logical_id,
            step = action.step,
            "an action of a stack"
        );
        if let Some(tenant) = host.tenants.get(&stacks.tenant) {
            // Without a worker the action fails, with the reason.
            let _ = tenant.link(WORKER_TIMEOUT).await;
        }
        let (outcome, notes) = {
            let place = (host, stacks.tenant.as_str());
            let task = Task::new(place, &action, &stacks.identities, stacks.directory(id));
            (resource::act(&task).await, task.notes())
        };
        match outcome {
            Some(outcome) => carried_out = Some((action, outcome, notes)),
            None => tokio::time::sleep(PAUSE).await,
        }
    }
}
