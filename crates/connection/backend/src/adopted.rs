//! The service on adopted connections: serves requests until one belongs to another server.

use std::rc::Rc;
use std::time::Duration;

use unlade_handoff_protocol::frame::{CloseReason, ReturnReason};
use unlade_http::RequestHead;
use unlade_metrics::Event;

use crate::agent::Agent;
use crate::context::Context;
use crate::listener::{Handoff, HandoffError};
use crate::release::{GivenBack, Lease};
use crate::sealing;
use crate::serve::{self, Next};
use crate::session::{ConnectionOrigin, Session};
use crate::transfer;

/// Next action on a connection between two requests.
enum Step {
    Serve(RequestHead),
    GiveBack(ReturnReason),
    Refuse(Next),
    Close(CloseReason),
}

/// Starts adopting connections as worker `worker` on the current thread, and serves each. Returns the
/// agent.
///
/// # Errors
/// [`HandoffError`].
pub(crate) fn start(
    handoff: &Handoff,
    worker: usize,
    context: &Rc<Context>,
) -> Result<Rc<Agent>, HandoffError> {
    let mut listener = handoff.listen(worker)?;
    let (agent, context) = (Rc::clone(listener.agent()), Rc::clone(context));
    if let Some(channels) = listener.take_sealing() {
        tokio::task::spawn_local(sealing::serve(channels, Rc::clone(&context)));
    }
    tokio::task::spawn_local(async move {
        loop {
            let lease = listener.accept_lease().await;
            let (agent, context) = (Rc::clone(listener.agent()), Rc::clone(&context));
            tokio::task::spawn_local(serve_adopted(lease, agent, context));
        }
    });
    Ok(agent)
}

/// Guard that counts and logs the remaining connections if a drain is cut short.
pub(crate) struct Unfinished {
    pub(crate) context: Rc<Context>,
    pub(crate) agent: Option<Rc<Agent>>,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let adopted = self.agent.as_ref().map_or(0, |agent| agent.live());
        let connections = self.context.gate.sessions().max(adopted);
        if connections > 0 {
            self.context.meter.add_n(Event::DrainDropped, connections as u64);
            tracing::warn!(connections, adopted, "dropped, because the drain took too long");
        }
    }
}

/// Serves one adopted connection until it ends or is given back.
pub async fn serve_adopted(mut lease: Lease, agent: Rc<Agent>, context: Rc<Context>) {
    let mut session = Session::new(&context, ConnectionOrigin::Adopted);
    lease.offload(&context).await;
    loop {
        let aborted = lease.aborted();
        let ended = tokio::select! {
            biased;
            () = aborted => None,
            step = until_pause(&mut lease, &mut session, &context) => Some(step),
        };
        let reason = match ended {
            None => return lease.abort(),
            Some(Err(_)) if lease.is_over() => return lease.expire(&agent),
            Some(Err(reason)) => return lease.close(&agent, reason),
            Some(Ok(reason)) => reason,
        };
        match lease.give_back(&agent, reason).await {
            GivenBack::Gone => return,
            GivenBack::Stay(same) => lease = *same,
        }
    }
}

/// Serves requests until the connection must be given back.
///
/// # Errors
/// The reason why the connection ended.
async fn until_pause(
    lease: &mut Lease,
    session: &mut Session,
    context: &Rc<Context>,
) -> Result<ReturnReason, CloseReason> {
    loop {
        let step = next_step(lease, session).await;
        if lease.is_over() {
            return Err(CloseReason::Broken);
        }
        match step {
            Step::Serve(head) => match serve::serve_head(lease.stream(), session, head).await {
                Ok(served) => {
                    lease.count_request();
                    if !served.keep_alive {
                        transfer::finish(lease.stream(), session).await;
                        return Err(CloseReason::ByServer);
                    }
                }
                Err(error) => {
                    serve::count_failure(context, &error);
                    return Err(CloseReason::Broken);
                }
            },
            Step::GiveBack(reason) => return Ok(reason),
            Step::Refuse(next) => {
                // Best effort: the connection is closed in any case.
                let _ = serve::refuse(lease.stream(), session, &next).await;
                transfer::finish(lease.stream(), session).await;
                return Err(CloseReason::ByServer);
            }
            Step::Close(reason) => {
                if reason == CloseReason::ByClient {
                    transfer::finish(lease.stream(), session).await;
                }
                return Err(reason);
            }
        }
    }
}

async fn next_step(lease: &mut Lease, session: &mut Session) -> Step {
    let idle = lease.idle_return().max(Duration::from_millis(1));
    let recalled = lease.recalled();
    let next = tokio::select! {
        biased;
        next = serve::next_head(lease.stream(), session, idle) => next,
        reason = recalled => return Step::GiveBack(reason),
    };
    match next {
        Ok(Next::Request(head)) => match lease.admits(&head, lease.stream_ref().input()) {
            Ok(()) => Step::Serve(head),
            Err(reason) => Step::GiveBack(reason),
        },
        Ok(Next::Idle) => Step::GiveBack(ReturnReason::Idle),
        Ok(Next::Draining) => Step::GiveBack(ReturnReason::Draining),
        Ok(Next::Ended | Next::Truncated) => Step::Close(CloseReason::ByClient),
        Ok(refused @ (Next::Slow | Next::Invalid(_))) => Step::Refuse(refused),
        Err(_) => Step::Close(CloseReason::Broken),
    }
}
