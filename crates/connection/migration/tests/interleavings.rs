//! Both state machines against a model of the world: three servers, ordered channels that break
//! and come back, servers that crash, clients whose packets reach frozen sockets, a clock.
//!
//! The oracle has information that no machine has: the places of the sockets, and the packets that
//! each has seen. It demands that no two sockets are ever live, that in the end the connection is
//! somewhere or over, that its owner has seen every packet that was ever acknowledged, and that
//! nothing is left.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;
use unlade_handoff_protocol::frame::{CloseReason, Epoch, RefuseReason, ReturnReason};
use unlade_migration::exporter::{self, Choice, Exporter, Timing, server_lease_ms};
use unlade_migration::importer::{self, Importer, Offered};
use unlade_migration::{Millis, ServerId};

const SERVERS: usize = 3;
const TIMING: Timing = Timing { deadline_ms: 100, lease_ms: 1000 };

/// The packets that a socket has seen.
type Seen = BTreeSet<u32>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Socket {
    Frozen(Seen),
    Live(Seen),
}

#[derive(Clone, Debug)]
enum ToBalancer {
    Ready(Epoch),
    Refuse(Epoch),
    Return(Epoch, Seen),
    Closed(Epoch, CloseReason),
}

#[derive(Default)]
struct Server {
    importer: Option<Importer>,
    socket: Option<Socket>,
    /// Packets in the snapshot of its RETURN.
    returned: Seen,
}

struct World {
    now: Millis,
    exporter: Exporter,
    home: Option<Socket>,
    /// Packets in the balancer's newest snapshot.
    snapshot: Seen,
    servers: [Server; SERVERS],
    up: [bool; SERVERS],
    down_lane: [VecDeque<(Epoch, Seen)>; SERVERS],
    up_lane: [VecDeque<ToBalancer>; SERVERS],
    choices: VecDeque<u8>,
    /// Every packet that any socket has acknowledged.
    truth: Seen,
    /// Packets in transit to the owner of the connection.
    forwarded: Seen,
    /// A server ended the connection, or a fault may have cost it.
    may_be_lost: bool,
    /// The machine reported that the connection is over and gone.
    gone: bool,
}

/// One event; numbers select among the possible ones.
#[derive(Clone, Copy, Debug)]
enum Step {
    ToServer(usize),
    ToBalancer(usize),
    WantReturn(usize),
    End(usize),
    Packet(usize),
    PacketHome,
    Break(usize),
    Repair(usize),
    Crash(usize),
    Wait(u32),
}

fn any_step() -> impl Strategy<Value = Step> {
    let server = 0..SERVERS;
    prop_oneof![
        8 => server.clone().prop_map(Step::ToServer),
        8 => server.clone().prop_map(Step::ToBalancer),
        4 => server.clone().prop_map(Step::WantReturn),
        1 => server.clone().prop_map(Step::End),
        4 => server.clone().prop_map(Step::Packet),
        2 => Just(Step::PacketHome),
        1 => server.clone().prop_map(Step::Break),
        2 => server.clone().prop_map(Step::Repair),
        1 => server.prop_map(Step::Crash),
        2 => (1u32..400).prop_map(Step::Wait),
    ]
}

impl World {
    fn new(choices: Vec<u8>) -> World {
        let (exporter, actions) = Exporter::start(ServerId(0), TIMING, Millis(0));
        let mut world = World {
            now: Millis(0),
            exporter,
            home: Some(Socket::Frozen(Seen::new())),
            snapshot: Seen::new(),
            servers: Default::default(),
            up: [true; SERVERS],
            down_lane: Default::default(),
            up_lane: Default::default(),
            choices: choices.into(),
            truth: Seen::new(),
            forwarded: Seen::new(),
            may_be_lost: false,
            gone: false,
        };
        world.balance(actions);
        world
    }

    /// Performs the actions of the balancer's machine.
    fn balance(&mut self, actions: Vec<exporter::Action>) {
        use exporter::Action;
        for action in actions {
            match action {
                Action::Hold | Action::Redirect(_) => {}
                Action::Offer(to, epoch) => {
                    let to = usize::from(to.0);
                    if self.up[to] {
                        self.down_lane[to].push_back((epoch, self.snapshot.clone()));
                    } else {
                        // The runtime offers only where the channel is up; but it may break in
                        // the same turn.
                        self.break_again(to);
                    }
                }
                Action::CloseLocal => {
                    let Some(Socket::Frozen(seen)) = self.home.take() else {
                        panic!("nothing to close")
                    };
                    self.forwarded.extend(seen.difference(&self.snapshot));
                }
                Action::ThawLocal(_) => {
                    let Some(Socket::Frozen(seen)) = self.home.take() else {
                        panic!("nothing to thaw")
                    };
                    self.home = Some(Socket::Live(seen));
                }
                Action::Rebuild(_) => {
                    assert!(self.home.is_none());
                    self.home = Some(Socket::Live(self.snapshot.clone()));
                }
                Action::Suspect(server) => self.break_channel(usize::from(server.0)),
                Action::Choose(_) => {
                    let current = usize::from(self.exporter.server().unwrap().0);
                    let choice = self.choices.pop_front().unwrap_or(0) % 8;
                    let to = (current + usize::from(choice)) % SERVERS;
                    let choice = match choice {
                        0 | 1 => Choice::Home,
                        _ if !self.up[to] => Choice::Home,
                        _ => Choice::Relay(ServerId(to as u16)),
                    };
                    let actions = self.exporter.choose(choice, self.now);
                    self.balance(actions);
                }
                Action::Reset => {
                    assert!(self.may_be_lost, "a reset without a cause");
                    self.gone = true;
                }
                Action::Forget(_) => self.gone = true,
            }
        }
    }

    fn break_again(&mut self, at: usize) {
        let actions = self.exporter.handle_channel_down(ServerId(at as u16), self.now);
        self.balance(actions);
    }

    /// Performs the actions of a server's machine.
    fn serve(&mut self, at: usize, actions: Vec<importer::Action>) {
        use importer::Action;
        for action in actions {
            let server = &mut self.servers[at];
            let answer = match action {
                Action::Abort => {
                    server.socket = None;
                    // The client got a RST, whatever becomes of the rest.
                    self.may_be_lost = true;
                    None
                }
                Action::Discard => {
                    self.discard(at);
                    None
                }
                Action::Return(epoch, _) => {
                    let Some(Socket::Frozen(seen)) = &server.socket else { panic!("not frozen") };
                    server.returned = seen.clone();
                    Some(ToBalancer::Return(epoch, seen.clone()))
                }
                Action::Thaw => unreachable!("thawed where the offer is handled"),
                Action::Closed(epoch, reason) => {
                    server.socket = None;
                    Some(ToBalancer::Closed(epoch, reason))
                }
            };
            if let Some(answer) = answer.filter(|_| self.up[at]) {
                self.up_lane[at].push_back(answer);
            }
        }
        if self.servers[at].importer.as_ref().is_some_and(Importer::is_over) {
            self.servers[at].importer = None;
        }
    }

    fn discard(&mut self, at: usize) {
        let server = &mut self.servers[at];
        let Some(Socket::Frozen(seen)) = server.socket.take() else { panic!("nothing to discard") };
        self.forwarded.extend(seen.difference(&server.returned));
    }

    fn at_server(&mut self, at: usize, event: impl FnOnce(&mut Importer) -> Vec<importer::Action>) {
        if let Some(importer) = &mut self.servers[at].importer {
            let actions = event(importer);
            self.serve(at, actions);
        }
    }

    fn deliver_to_server(&mut self, at: usize) -> bool {
        let Some((epoch, seen)) = self.down_lane[at].pop_front() else { return false };
        let answer = match self.servers[at].importer.as_mut().map(|t| t.handle_offer(epoch)) {
            Some(Offered::Thaw) => {
                let Some(Socket::Frozen(seen)) = self.servers[at].socket.take() else {
                    panic!("nothing to thaw")
                };
                self.servers[at].socket = Some(Socket::Live(seen));
                ToBalancer::Ready(epoch)
            }
            Some(Offered::Stale) => ToBalancer::Refuse(epoch),
            replaced => {
                if replaced.is_some() {
                    self.discard(at);
                    self.servers[at].importer = None;
                }
                // A server is sometimes full.
                if self.choices.pop_front().unwrap_or(0) % 16 == 15 {
                    ToBalancer::Refuse(epoch)
                } else {
                    self.servers[at].importer = Some(Importer::adopted(epoch));
                    self.servers[at].socket = Some(Socket::Live(seen));
                    ToBalancer::Ready(epoch)
                }
            }
        };
        self.up_lane[at].push_back(answer);
        true
    }

    fn deliver_to_balancer(&mut self, at: usize) -> bool {
        let Some(message) = self.up_lane[at].pop_front() else { return false };
        let from = ServerId(at as u16);
        let actions = match message {
            ToBalancer::Ready(epoch) => self.exporter.handle_ready(from, epoch),
            ToBalancer::Refuse(epoch) => {
                self.exporter.handle_refuse(from, epoch, RefuseReason::Overloaded)
            }
            ToBalancer::Return(epoch, seen) => {
                if self.exporter.expects_return(from, epoch) {
                    self.snapshot = seen;
                }
                self.exporter.handle_return(from, epoch, ReturnReason::NextRequest)
            }
            ToBalancer::Closed(epoch, reason) => {
                self.may_be_lost = true;
                self.exporter.handle_closed(from, epoch, reason)
            }
        };
        self.balance(actions);
        true
    }

    fn break_channel(&mut self, at: usize) {
        if !std::mem::replace(&mut self.up[at], false) {
            return;
        }
        self.may_be_lost = true;
        self.down_lane[at].clear();
        self.up_lane[at].clear();
        let now = self.now;
        let actions = self.exporter.handle_channel_down(ServerId(at as u16), now);
        self.balance(actions);
        let lease_ms = server_lease_ms(TIMING.lease_ms);
        self.at_server(at, |importer| importer.handle_channel_down(lease_ms, now));
    }

    fn repair_channel(&mut self, at: usize) {
        if std::mem::replace(&mut self.up[at], true) {
            return;
        }
        let owned = self.servers[at].importer.as_ref().map(Importer::epoch);
        let actions = self.exporter.handle_channel_up(ServerId(at as u16), owned);
        self.balance(actions);
        let now = self.now;
        self.at_server(at, |importer| importer.handle_channel_up(now));
    }

    fn wait(&mut self, ms: u32) {
        self.now = self.now + ms;
        let now = self.now;
        // Leases of servers are the shorter ones: they end first.
        for at in 0..SERVERS {
            self.at_server(at, |importer| importer.handle_tick(now));
        }
        let actions = self.exporter.handle_tick(now);
        self.balance(actions);
    }

    /// A packet of the client is acknowledged by a socket that is live, or was live a moment ago.
    fn packet(&mut self, at: Option<usize>) {
        let next = self.truth.len() as u32;
        let owner = at.is_none_or(|at| self.exporter.server() == Some(ServerId(at as u16)));
        let socket = match at {
            Some(at) => &mut self.servers[at].socket,
            None => &mut self.home,
        };
        match socket {
            Some(Socket::Live(seen)) if owner => seen.insert(next),
            Some(Socket::Frozen(seen)) => seen.insert(next),
            _ => return,
        };
        self.truth.insert(next);
    }

    /// Delivers forwarded packets to the owner of the connection.
    fn deliver_forwarded(&mut self) {
        let owner = match self.exporter.is_owned() {
            true => self.exporter.server().map(|server| usize::from(server.0)),
            false => None,
        };
        let socket = match owner {
            Some(at) => &mut self.servers[at].socket,
            None => &mut self.home,
        };
        if let Some(Socket::Live(seen)) = socket {
            seen.append(&mut self.forwarded);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::ToServer(at) => drop(self.deliver_to_server(at)),
            Step::ToBalancer(at) => drop(self.deliver_to_balancer(at)),
            Step::WantReturn(at) => {
                if self.servers[at].importer.as_ref().is_some_and(Importer::is_live) {
                    if let Some(Socket::Live(seen)) = self.servers[at].socket.take() {
                        self.servers[at].returned = seen.clone();
                        self.servers[at].socket = Some(Socket::Frozen(seen));
                    }
                    let now = self.now;
                    self.at_server(at, |t| t.handle_want_return(ReturnReason::NextRequest, now));
                }
            }
            Step::End(at) => {
                if self.servers[at].importer.as_ref().is_some_and(Importer::is_live) {
                    self.may_be_lost = true;
                    self.at_server(at, |importer| importer.handle_ended(CloseReason::ByClient));
                }
            }
            Step::Packet(at) => self.packet(Some(at)),
            Step::PacketHome => self.packet(None),
            Step::Break(at) => self.break_channel(at),
            Step::Repair(at) => self.repair_channel(at),
            Step::Crash(at) => {
                self.break_channel(at);
                self.servers[at] = Server::default();
            }
            Step::Wait(ms) => self.wait(ms),
        }
        self.deliver_forwarded();
        self.check();
    }

    fn check(&self) {
        let sockets = self.servers.iter().map(|server| &server.socket).chain([&self.home]);
        let live = sockets.filter(|socket| matches!(socket, Some(Socket::Live(_)))).count();
        assert!(live <= 1, "{live} sockets are live");
    }

    /// Every fault ends, every message arrives, time passes.
    fn complete(&mut self) {
        for _ in 0..40 {
            for at in 0..SERVERS {
                self.repair_channel(at);
                while self.deliver_to_server(at) || self.deliver_to_balancer(at) {}
            }
            self.wait(250);
            self.deliver_forwarded();
            self.check();
        }
        assert!(self.down_lane.iter().all(VecDeque::is_empty), "messages without end");
        let at_servers: Vec<&Socket> =
            self.servers.iter().filter_map(|s| s.socket.as_ref()).collect();
        let owner = if self.gone {
            assert!(self.exporter.is_over() && self.home.is_none());
            assert!(at_servers.is_empty(), "over, but there is {at_servers:?}");
            return;
        } else if self.exporter.is_over() {
            assert!(at_servers.is_empty(), "at home, but there is {at_servers:?}");
            self.home.clone()
        } else {
            assert!(self.exporter.is_owned(), "neither here nor there: {:?}", self.exporter);
            assert_eq!((at_servers.len(), &self.home), (1, &None));
            self.servers[usize::from(self.exporter.server().unwrap().0)].socket.clone()
        };
        let Some(Socket::Live(seen)) = owner else { panic!("the owner has {owner:?}") };
        if !self.may_be_lost {
            assert_eq!(seen, self.truth, "the owner has not seen everything");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_owner_and_nothing_left(
        steps in proptest::collection::vec(any_step(), 0..120),
        choices in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut world = World::new(choices);
        for step in steps {
            world.step(step);
        }
        world.complete();
    }

    /// Without faults no connection is lost, and no packet of it.
    #[test]
    fn without_faults_nothing_is_lost(
        steps in proptest::collection::vec(any_step(), 0..200),
        choices in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut world = World::new(choices);
        let harmless = |step: &Step| match step {
            Step::Break(_) | Step::Crash(_) | Step::End(_) => false,
            // Too short for an overdue answer.
            Step::Wait(ms) => *ms < 3,
            _ => true,
        };
        for step in steps.into_iter().filter(harmless) {
            world.step(step);
        }
        world.complete();
        prop_assert!(!world.gone);
    }
}
