//! Both machines against a model of the world: three servers, ordered channels that break and
//! come back, servers that crash, clients whose packets reach frozen sockets, a clock.
//!
//! The oracle knows what no machine knows: where sockets are, and how much each has seen of the
//! connection. It demands that no two sockets are ever live, that a socket that becomes live has
//! seen everything, and that in the end the connection is somewhere or over, and nothing is left.

use std::collections::VecDeque;

use handoff::giver::{self, Choice, Giver, Timing};
use handoff::taker::{self, Taker};
use handoff::{Millis, ServerId};
use proptest::prelude::*;
use wire::frame::{CloseReason, Epoch, RefuseReason, ReturnReason};

const SERVERS: usize = 3;
const TIMING: Timing = Timing { deadline_ms: 100, lease_ms: 1000 };
const SILENT_MS: u32 = 500;

/// What a socket has seen of the connection.
type Seen = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Socket {
    Frozen(Seen),
    Silent(Seen),
    Live(Seen),
}

#[derive(Clone, Debug)]
enum ToServer {
    Offer(Epoch, Seen),
    Go(Epoch),
    Cancel(Epoch),
    Taken(Epoch),
    Stay(Epoch),
}

#[derive(Clone, Debug)]
enum ToBalancer {
    Ready(Epoch),
    Refuse(Epoch),
    Return(Epoch, Seen),
    Done(Epoch, Option<Seen>),
    Closed(Epoch, CloseReason),
}

#[derive(Default)]
struct Server {
    taker: Option<Taker>,
    socket: Option<Socket>,
    /// What its RETURN carried.
    returned: Seen,
}

struct World {
    now: Millis,
    giver: Giver,
    home: Option<Socket>,
    /// What the balancer's newest snapshot carries.
    snapshot: Seen,
    servers: [Server; SERVERS],
    up: [bool; SERVERS],
    down_lane: [VecDeque<ToServer>; SERVERS],
    up_lane: [VecDeque<ToBalancer>; SERVERS],
    choices: VecDeque<u8>,
    /// The most that any socket has seen.
    truth: Seen,
    /// A server ended the connection, or a fault may have cost it.
    may_be_lost: bool,
    /// The machine said that the connection is over and gone.
    gone: bool,
}

/// One thing that happens; numbers choose among what is possible.
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
        let (giver, actions) = Giver::start(ServerId(0), TIMING, Millis(0));
        let mut world = World {
            now: Millis(0),
            giver,
            home: Some(Socket::Frozen(1)),
            snapshot: 1,
            servers: Default::default(),
            up: [true; SERVERS],
            down_lane: Default::default(),
            up_lane: Default::default(),
            choices: choices.into(),
            truth: 1,
            may_be_lost: false,
            gone: false,
        };
        world.balance(actions);
        world
    }

    fn send(&mut self, to: ServerId, message: ToServer) {
        let to = usize::from(to.0);
        if self.up[to] {
            self.down_lane[to].push_back(message);
        }
    }

    fn becomes_live(&self, seen: Seen) -> Option<Socket> {
        assert_eq!(seen, self.truth, "a socket becomes live that has not seen everything");
        Some(Socket::Live(seen))
    }

    /// Does what the balancer's machine says.
    fn balance(&mut self, actions: Vec<giver::Action>) {
        use giver::Action;
        for action in actions {
            match action {
                Action::Hold | Action::Redirect(_) | Action::SnapshotAgain => {}
                Action::Offer(to, epoch) => self.send(to, ToServer::Offer(epoch, self.snapshot)),
                Action::Cancel(to, epoch) => self.send(to, ToServer::Cancel(epoch)),
                Action::Taken(to, epoch) => self.send(to, ToServer::Taken(epoch)),
                Action::Stay(to, epoch) => self.send(to, ToServer::Stay(epoch)),
                Action::Go(to, epoch) => self.send(to, ToServer::Go(epoch)),
                Action::CloseLocal => {
                    assert!(matches!(self.home, Some(Socket::Frozen(_))));
                    self.home = None;
                }
                Action::ThawLocal(_) => {
                    let Some(Socket::Frozen(seen)) = self.home else { panic!("nothing to thaw") };
                    self.home = self.becomes_live(seen);
                }
                Action::Rebuild(_) => {
                    assert!(self.home.is_none());
                    self.home = self.becomes_live(self.snapshot);
                }
                Action::Choose(_) => {
                    let current = self.giver.server().unwrap();
                    let choice = match self.choices.pop_front().unwrap_or(0) % 8 {
                        0 | 1 => Choice::Home,
                        2 => Choice::Stay,
                        other => {
                            let step = 1 + usize::from(other) % (SERVERS - 1);
                            let next = (usize::from(current.0) + step) % SERVERS;
                            Choice::Relay(ServerId(next as u16))
                        }
                    };
                    // A choice falls only on servers whose channel is up.
                    let choice = match choice {
                        Choice::Relay(to) if !self.up[usize::from(to.0)] => Choice::Home,
                        other => other,
                    };
                    let actions = self.giver.choose(choice, self.now);
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

    /// Does what a server's machine says.
    fn serve(&mut self, at: usize, actions: Vec<taker::Action>) {
        use taker::Action;
        for action in actions {
            let answer = match action {
                Action::Activate => {
                    let Some(Socket::Silent(seen)) = self.servers[at].socket else {
                        panic!("nothing to activate")
                    };
                    self.servers[at].socket = self.becomes_live(seen);
                    None
                }
                Action::Drop | Action::Abort => {
                    self.servers[at].socket = None;
                    None
                }
                Action::Return(epoch, _) => {
                    let Some(Socket::Live(seen) | Socket::Frozen(seen)) = self.servers[at].socket
                    else {
                        panic!("nothing to return")
                    };
                    self.servers[at].socket = Some(Socket::Frozen(seen));
                    self.servers[at].returned = seen;
                    Some(ToBalancer::Return(epoch, seen))
                }
                Action::Done(epoch) => {
                    let Some(Socket::Frozen(seen)) = self.servers[at].socket.take() else {
                        panic!("nothing was frozen")
                    };
                    let late = (seen != self.servers[at].returned).then_some(seen);
                    Some(ToBalancer::Done(epoch, late))
                }
                Action::Thaw => {
                    let Some(Socket::Frozen(seen)) = self.servers[at].socket else {
                        panic!("nothing to thaw")
                    };
                    self.servers[at].socket = self.becomes_live(seen);
                    None
                }
                Action::Closed(epoch, reason) => {
                    self.servers[at].socket = None;
                    Some(ToBalancer::Closed(epoch, reason))
                }
            };
            if let Some(answer) = answer.filter(|_| self.up[at]) {
                self.up_lane[at].push_back(answer);
            }
        }
        if self.servers[at].taker.as_ref().is_some_and(Taker::is_over) {
            self.servers[at].taker = None;
        }
    }

    fn at_server(&mut self, at: usize, event: impl FnOnce(&mut Taker) -> Vec<taker::Action>) {
        if let Some(taker) = &mut self.servers[at].taker {
            let actions = event(taker);
            self.serve(at, actions);
        }
    }

    fn deliver_to_server(&mut self, at: usize) -> bool {
        let Some(message) = self.down_lane[at].pop_front() else { return false };
        let now = self.now;
        match message {
            ToServer::Offer(epoch, seen) => {
                let fresh = self.choices.pop_front().unwrap_or(0) % 16 != 15;
                let known = self.servers[at].taker.as_mut();
                let accepted = match known {
                    Some(taker) => taker.handle_offer(epoch, SILENT_MS, now),
                    None if fresh => {
                        let taker = Taker::offered(epoch, SILENT_MS, now);
                        self.servers[at].taker = Some(taker);
                        true
                    }
                    None => false,
                };
                let answer = match accepted {
                    true => {
                        self.servers[at].socket = Some(Socket::Silent(seen));
                        ToBalancer::Ready(epoch)
                    }
                    false => ToBalancer::Refuse(epoch),
                };
                self.up_lane[at].push_back(answer);
            }
            ToServer::Go(epoch) => match self.servers[at].taker {
                Some(_) => self.at_server(at, |taker| taker.handle_go(epoch)),
                None => {
                    let closed = ToBalancer::Closed(epoch, CloseReason::Discarded);
                    self.up_lane[at].push_back(closed);
                }
            },
            ToServer::Cancel(epoch) => self.at_server(at, |taker| taker.handle_cancel(epoch)),
            ToServer::Taken(epoch) => self.at_server(at, |taker| taker.handle_taken(epoch)),
            ToServer::Stay(epoch) => self.at_server(at, |taker| taker.handle_stay(epoch)),
        }
        true
    }

    fn deliver_to_balancer(&mut self, at: usize) -> bool {
        let Some(message) = self.up_lane[at].pop_front() else { return false };
        let (from, now) = (ServerId(at as u16), self.now);
        let actions = match message {
            ToBalancer::Ready(epoch) => {
                let late = match self.home {
                    Some(Socket::Frozen(seen)) if seen != self.snapshot => {
                        self.snapshot = seen;
                        true
                    }
                    _ => false,
                };
                self.giver.handle_ready(from, epoch, late, now)
            }
            ToBalancer::Refuse(epoch) => {
                self.giver.handle_refuse(from, epoch, RefuseReason::Overloaded, now)
            }
            ToBalancer::Return(epoch, seen) => {
                self.snapshot = seen;
                self.giver.handle_return(from, epoch, ReturnReason::NextRequest)
            }
            ToBalancer::Done(epoch, late) => {
                self.snapshot = late.unwrap_or(self.snapshot);
                self.giver.handle_done(from, epoch, late.is_some(), now)
            }
            ToBalancer::Closed(epoch, reason) => {
                self.may_be_lost = true;
                self.giver.handle_closed(from, epoch, reason)
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
        let actions = self.giver.handle_channel_down(ServerId(at as u16), now);
        self.balance(actions);
        self.at_server(at, |taker| taker.handle_channel_down(TIMING.lease_ms, now));
    }

    fn repair_channel(&mut self, at: usize) {
        if std::mem::replace(&mut self.up[at], true) {
            return;
        }
        let owned = self.servers[at].taker.as_ref().filter(|taker| taker.is_owned());
        let owned = owned.map(Taker::epoch);
        let actions = self.giver.handle_channel_up(ServerId(at as u16), owned);
        self.balance(actions);
        self.at_server(at, Taker::handle_channel_up);
    }

    fn wait(&mut self, ms: u32) {
        self.now = self.now + ms;
        let now = self.now;
        let actions = self.giver.handle_tick(now);
        self.balance(actions);
        for at in 0..SERVERS {
            if self.servers[at].taker.as_ref().is_some_and(|t| t.deadline().is_some_and(|d| d <= now)) {
                self.may_be_lost = true;
            }
            self.at_server(at, |taker| taker.handle_tick(now));
        }
    }

    fn packet(&mut self, at: usize) {
        // A packet reaches a socket at a server while that is live, and for a while after it was
        // frozen: until the balancer holds, and what was under way has come.
        let owner = self.giver.server() == Some(ServerId(at as u16));
        match &mut self.servers[at].socket {
            Some(Socket::Live(seen)) if owner => {
                *seen += 1;
                self.truth = *seen;
            }
            Some(Socket::Frozen(seen)) if *seen == self.truth => {
                *seen += 1;
                self.truth = *seen;
            }
            _ => {}
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::ToServer(at) => drop(self.deliver_to_server(at)),
            Step::ToBalancer(at) => drop(self.deliver_to_balancer(at)),
            Step::WantReturn(at) => {
                self.at_server(at, |taker| taker.handle_want_return(ReturnReason::NextRequest));
                let frozen = self.servers[at].taker.as_ref().is_some_and(|t| !t.is_live());
                if let (true, Some(Socket::Live(seen))) = (frozen, self.servers[at].socket) {
                    // Frozen until the channel is back.
                    self.servers[at].socket = Some(Socket::Frozen(seen));
                }
            }
            Step::End(at) => {
                if self.servers[at].taker.as_ref().is_some_and(Taker::is_live) {
                    self.may_be_lost = true;
                    self.at_server(at, |taker| taker.handle_ended(CloseReason::ByClient));
                }
            }
            Step::Packet(at) => self.packet(at),
            Step::PacketHome => {
                if let Some(Socket::Frozen(seen)) = &mut self.home
                    && *seen == self.truth
                {
                    *seen += 1;
                    self.truth = *seen;
                }
            }
            Step::Break(at) => self.break_channel(at),
            Step::Repair(at) => self.repair_channel(at),
            Step::Crash(at) => {
                self.break_channel(at);
                self.servers[at] = Server::default();
            }
            Step::Wait(ms) => self.wait(ms),
        }
        self.check();
    }

    fn check(&self) {
        let sockets = self.servers.iter().map(|server| server.socket).chain([self.home]);
        let live = sockets.filter(|socket| matches!(socket, Some(Socket::Live(_)))).count();
        assert!(live <= 1, "{live} sockets are live");
    }

    /// Everything heals, every message arrives, time passes.
    fn settle(&mut self) {
        for _ in 0..40 {
            for at in 0..SERVERS {
                self.repair_channel(at);
                while self.deliver_to_server(at) || self.deliver_to_balancer(at) {}
            }
            self.wait(200);
            self.check();
        }
        assert!(self.down_lane.iter().all(VecDeque::is_empty), "messages without end");
        let at_servers: Vec<Socket> = self.servers.iter().filter_map(|s| s.socket).collect();
        if self.gone {
            assert!(self.giver.is_over() && self.home.is_none());
            assert!(at_servers.is_empty(), "over, but there is {at_servers:?}");
        } else if self.giver.is_over() {
            assert!(matches!(self.home, Some(Socket::Live(_))), "home is {:?}", self.home);
            assert!(at_servers.is_empty(), "at home, but there is {at_servers:?}");
        } else {
            assert!(self.giver.is_owned(), "neither here nor there: {:?}", self.giver);
            let owner = usize::from(self.giver.server().unwrap().0);
            assert!(matches!(self.servers[owner].socket, Some(Socket::Live(_))));
            assert_eq!((at_servers.len(), self.home), (1, None));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn one_owner_and_nothing_lost(
        steps in proptest::collection::vec(any_step(), 0..120),
        choices in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut world = World::new(choices);
        for step in steps {
            world.step(step);
        }
        world.settle();
    }

    /// Without faults a connection is never lost.
    #[test]
    fn without_faults_nothing_is_reset(
        steps in proptest::collection::vec(any_step(), 0..200),
        choices in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut world = World::new(choices);
        let harmless = |step: &Step| !matches!(
            step, Step::Break(_) | Step::Crash(_) | Step::End(_) | Step::Wait(_)
        );
        for step in steps.into_iter().filter(harmless) {
            world.step(step);
        }
        world.settle();
        prop_assert!(!world.gone);
    }
}
