//! Moves connections: the flows, channels and clock of one worker.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use unlade_channel::trust::Membership;
use unlade_migration::exporter::Timing;
use unlade_runtime::Stream;

use crate::channel::{Identity, Wanted};
use crate::fallback::Declined;
use crate::flows::{Assignment, Flows, Home};
use crate::machine::Machine;
use crate::offload::{Candidate, HandOver, Kept, LocalBoxFuture};
use crate::plan::{Plan, Routing};
use crate::server::Server;
use crate::worker::Worker;

/// Interval at which a drain checks if every connection is home.
const HOME_CHECK: Duration = Duration::from_millis(20);
/// Number of checks after which a drain also recalls connections whose handover had begun before
/// it.
const RECALL_EVERY: u32 = 5;

/// Moves the connections of one worker.
pub(crate) struct MigrationManager {
    flows: Rc<Flows>,
    identity: Identity,
    /// Channels by agent.
    channels: RefCell<HashMap<SocketAddr, ChannelTask>>,
    routing: RefCell<Arc<Routing>>,
    linger: Cell<Duration>,
}

/// A channel that is kept connected.
struct ChannelTask {
    wanted: watch::Sender<Wanted>,
    task: JoinHandle<()>,
}

impl MigrationManager {
    /// Makes the connections of `worker` movable, and opens a channel to every agent of the plan.
    /// `home` receives the connections that come home.
    pub(crate) fn install(
        worker: &Rc<Worker>,
        machine: Machine,
        home: Home,
    ) -> Rc<MigrationManager> {
        let plan = worker.plan();
        let linger = plan.config.offload.linger;
        let flows = Flows::new(Rc::clone(worker), machine, timing(&plan), linger, home);
        let index = worker.info.index;
        let identity =
            Identity { instance: instance(index), name: format!("{}/{index}", std::process::id()) };
        let mover = Rc::new(MigrationManager {
            flows,
            identity,
            channels: RefCell::default(),
            routing: RefCell::new(Arc::clone(&plan.routing)),
            linger: Cell::new(linger),
        });
        mover.keep_channels(&plan);
        worker.offload.install(Rc::clone(&mover) as Rc<dyn HandOver>);
        let flows = Rc::clone(&mover.flows);
        tokio::task::spawn_local(async move {
            let mut tick = unlade_runtime::ticker::every(unlade_runtime::ticker::TICK);
            loop {
                tick.tick().await;
                flows.tick();
            }
        });
        mover
    }

    /// Applies another plan. Connections that are away under removed routes come home, to be
    /// routed anew.
    pub(crate) fn follow(&self, plan: &Plan) {
        self.flows.timing.set(timing(plan));
        self.flows.set_linger(plan.config.offload.linger);
        self.linger.set(plan.config.offload.linger);
        self.keep_channels(plan);
        if !Arc::ptr_eq(&self.routing.replace(Arc::clone(&plan.routing)), &plan.routing) {
            self.flows.request_recall(|_| true);
        }
    }

    /// Opens channels to new agents, passes new identities of the pools to the other channels, and
    /// retires the channels to removed agents.
    fn keep_channels(&self, plan: &Plan) {
        let mut agents: HashMap<SocketAddr, Arc<Membership>> = HashMap::new();
        for pool in &plan.pools {
            let Some(trust) = &pool.trust else { continue };
            for agent in pool.servers.iter().filter_map(|server| server.agent) {
                agents.entry(agent).or_insert_with(|| Arc::clone(trust));
            }
        }
        let mut channels = self.channels.borrow_mut();
        channels.retain(|_, kept| !kept.task.is_finished());
        for (agent, kept) in channels.iter() {
            if !agents.contains_key(agent) {
                kept.wanted.send_replace(None);
                let gone = self.flows.remote(*agent).id;
                self.flows.request_recall(|flow| flow.exporter.server() == Some(gone));
            }
        }
        for (agent, trust) in agents {
            match channels.get(&agent) {
                Some(kept) => {
                    kept.wanted.send_if_modified(|wanted| {
                        let same = wanted.as_ref().is_some_and(|known| known.mark == trust.mark);
                        *wanted = Some(trust);
                        !same
                    });
                }
                None => {
                    let (wanted, receiver) = watch::channel(Some(Arc::clone(&trust)));
                    let (flows, remote) = (Rc::clone(&self.flows), self.flows.remote(agent));
                    let channel = flows.keep_channel(remote, receiver, self.identity.clone());
                    let task = tokio::task::spawn_local(channel);
                    channels.insert(agent, ChannelTask { wanted, task });
                }
            }
        }
    }

    /// Recalls every connection and waits until none is away, including those that were on their
    /// way to a server when the drain began. The caller bounds the wait.
    pub(crate) async fn drain(&self) {
        for round in 0.. {
            if self.flows.away() == 0 {
                return;
            }
            if u32::is_multiple_of(round, RECALL_EVERY) {
                self.flows.request_recall(|_| true);
            }
            tokio::time::sleep(HOME_CHECK).await;
        }
    }

    /// Waits for a limited time until the flows of connections that ended at a server are quiet:
    /// after that their clients' last packets would not be redirected, and would be answered with
    /// a RST.
    pub(crate) async fn wait_until_quiet(&self) {
        let begin = Instant::now();
        while self.flows.is_lingering() && begin.elapsed() < 2 * self.linger.get() {
            tokio::time::sleep(HOME_CHECK).await;
        }
    }
}

fn timing(plan: &Plan) -> Timing {
    let offload = &plan.config.offload;
    let ms = |duration: Duration| duration.as_millis().min(u32::MAX.into()) as u32;
    Timing { deadline_ms: ms(offload.deadline), lease_ms: ms(offload.lease) }
}

impl HandOver for MigrationManager {
    fn ready(&self, server: &Server) -> Result<(), Declined> {
        match self.flows.is_ready(server) {
            true => Ok(()),
            false => Err(Declined::channel_down()),
        }
    }

    fn hand_over(
        &self,
        stream: Stream,
        candidate: Candidate,
    ) -> LocalBoxFuture<'_, Result<(), Kept>> {
        Box::pin(async move {
            match Assignment::new(candidate) {
                Some(assignment) => self.flows.move_away(stream, assignment).await,
                None => Err(Kept::new(stream, Declined::channel_down())),
            }
        })
    }
}

/// Returns a number that no other run of a balancer worker has.
fn instance(worker: usize) -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_usize(worker);
    hasher.write_u32(std::process::id());
    hasher.finish()
}
