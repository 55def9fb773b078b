//! The means to move connections: a worker's flows, its channels, its clock.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use handoff::giver::Timing;
use meter::Fallback;
use service::Stream;
use service::trust;

use crate::channel::Identity;
use crate::fallback::Declined;
use crate::flows::{Assignment, Flows};
use crate::machine::Machine;
use crate::offload::{Candidate, HandOver, LocalBoxFuture};
use crate::plan::{Plan, trust_files};
use crate::pool::Server;
use crate::worker::Worker;

/// How often a drain looks whether every connection is home.
const HOME_CHECK: Duration = Duration::from_millis(20);

/// One worker's means to move connections.
pub(crate) struct Mover {
    flows: Rc<Flows>,
    identity: Identity,
    /// Agents that have a channel.
    known: std::cell::RefCell<HashSet<SocketAddr>>,
}

impl Mover {
    /// Makes connections of `worker` movable: opens a channel to every agent of the plan.
    pub(crate) fn install(worker: &Rc<Worker>, machine: Machine) -> Rc<Mover> {
        let plan = worker.plan();
        let offload = &plan.config.offload;
        let ms = |duration: Duration| duration.as_millis().min(u32::MAX.into()) as u32;
        let timing = Timing { deadline_ms: ms(offload.deadline), lease_ms: ms(offload.lease) };
        let flows = Flows::new(Rc::clone(worker), machine, timing, offload.linger);
        let index = worker.info.index;
        let identity =
            Identity { instance: instance(index), name: format!("{}/{index}", std::process::id()) };
        let mover = Rc::new(Mover { flows, identity, known: Default::default() });
        mover.open_channels(&plan);
        worker.offload.install(Rc::clone(&mover) as Rc<dyn HandOver>);
        let flows = Rc::clone(&mover.flows);
        tokio::task::spawn_local(async move {
            let mut tick = service::beat::every(service::beat::BEAT);
            loop {
                tick.tick().await;
                flows.tick();
            }
        });
        mover
    }

    /// Opens channels to agents that have none yet.
    pub(crate) fn open_channels(&self, plan: &Plan) {
        for pool in &plan.pools {
            let Some(files) = &pool.trust else { continue };
            let tls = match trust::client_config(&trust_files(files)) {
                Ok(tls) => tls,
                Err(error) => {
                    // Loaded once already when the plan was made; the files changed since.
                    tracing::error!(pool = pool.name, %error, "no channels to this pool");
                    continue;
                }
            };
            for agent in pool.servers.iter().filter_map(|server| server.agent) {
                if !self.known.borrow_mut().insert(agent) {
                    continue;
                }
                let remote = self.flows.remote(agent);
                let flows = Rc::clone(&self.flows);
                let channel = flows.keep_channel(remote, Arc::clone(&tls), self.identity.clone());
                tokio::task::spawn_local(channel);
            }
        }
    }

    /// Calls every connection home and waits until none is away. The caller bounds the wait.
    pub(crate) async fn drain(&self) {
        self.flows.recall_all();
        while self.flows.away() > 0 {
            tokio::time::sleep(HOME_CHECK).await;
        }
    }
}

impl HandOver for Mover {
    fn ready(&self, server: &Server) -> Result<(), Fallback> {
        match self.flows.is_ready(server) {
            true => Ok(()),
            false => Err(Fallback::ChannelDown),
        }
    }

    fn hand_over(
        &self,
        stream: Stream,
        candidate: Candidate,
    ) -> LocalBoxFuture<'_, Result<(), (Box<Stream>, Declined)>> {
        Box::pin(async move {
            match Assignment::new(candidate) {
                Some(assignment) => self.flows.move_away(stream, assignment).await,
                None => Err((Box::new(stream), Fallback::NoAgent.into())),
            }
        })
    }
}

/// A number that no other run of a balancer worker has.
fn instance(worker: usize) -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_usize(worker);
    hasher.write_u32(std::process::id());
    hasher.finish()
}
