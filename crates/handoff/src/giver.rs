//! One connection as the balancer sees it, from the first offer until it is home or over.
//!
//! ```text
//!            start                ready [+ done]                return
//!  (home) ─────────► Offering ───────────────────► Owned ───────────────► Returning
//!     ▲    refuse,      │  ▲                        │ ▲ │ channel down       │ │ │
//!     ├─── deadline ────┘  │ relay: the same        │ │ ▼           stay ────┘ │ │
//!     │                    │ snapshot, next epoch   │ │ Orphan ──► reset       │ │
//!     │                    └────────────────────────┼─┴────────────────────────┘ │
//!     └──────────────────── Reclaiming ◄────────────┴─────── home ───────────────┘
//! ```
//! The owner changes at one event each way: to a server when the balancer has READY (and, in a
//! relay, DONE from the old owner); away from a server when the balancer has its DONE. Before
//! that event the old owner can go on as if nothing had happened; after it, it cannot.

use wire::frame::{CloseReason, Epoch, RefuseReason, ReturnReason};

use crate::{Millis, ServerId};

/// Durations of one connection's migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From OFFER to READY, and from TAKEN to DONE, milliseconds.
    pub deadline_ms: u32,
    /// How long a connection outlives the channel to its owner, milliseconds.
    pub lease_ms: u32,
}

/// Why a connection is not, or no longer, offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setback {
    /// The server does not take it.
    Refused(RefuseReason),
    /// No answer in time.
    Deadline,
    /// The channel to the server is down.
    ChannelDown,
}

/// What the runtime is to do, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Hold the flow's packets.
    Hold,
    /// Send OFFER with the newest snapshot.
    Offer(ServerId, Epoch),
    /// Send CANCEL.
    Cancel(ServerId, Epoch),
    /// Send TAKEN.
    Taken(ServerId, Epoch),
    /// Send STAY with the terms of the choice.
    Stay(ServerId, Epoch),
    /// Redirect the flow to the server and replay what waits.
    Redirect(ServerId),
    /// Send GO.
    Go(ServerId, Epoch),
    /// Close the frozen local socket silently.
    CloseLocal,
    /// Thaw the frozen local socket, give the flow back to the local stack and replay; go on
    /// with the connection here.
    ThawLocal(Setback),
    /// Take the changed state of the frozen local socket as the newest snapshot.
    SnapshotAgain,
    /// Choose where the returned connection goes: answer with [`Giver::choose`].
    Choose(ReturnReason),
    /// Rebuild the socket here from the newest snapshot, give the flow back to the local stack
    /// and replay; `None`: as wanted, otherwise why the relay failed.
    Rebuild(Option<Setback>),
    /// Reset the connection towards the client: its owner is gone.
    Reset,
    /// The connection ended at its owner. Let the flow linger, then forget it.
    Forget(CloseReason),
}

/// What becomes of a returned connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The same server goes on under new terms.
    Stay,
    /// Another server (or the same one, afresh) gets it.
    Relay(ServerId),
    /// It comes home.
    Home,
}

/// Who has the connection's socket while an offer is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// This host, frozen.
    Here,
    /// A server, frozen, until its DONE.
    Server(ServerId, Epoch),
    /// Nobody: the snapshot is the connection.
    Snapshot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Offering { to: ServerId, epoch: Epoch, source: Source, ready: bool, deadline: Millis },
    Owned { by: ServerId, epoch: Epoch },
    Returning { from: ServerId, epoch: Epoch },
    Reclaiming { from: ServerId, epoch: Epoch, setback: Option<Setback>, deadline: Millis },
    Orphan { by: ServerId, epoch: Epoch, until: Millis },
    Over,
}

/// The balancer's side of one connection that is away from home or on its way.
#[derive(Clone, Debug)]
pub struct Giver {
    state: State,
    /// The newest epoch handed out.
    epoch: Epoch,
    timing: Timing,
}

type Actions = Vec<Action>;

impl Giver {
    /// Starts the migration of a connection whose socket is frozen here.
    pub fn start(to: ServerId, timing: Timing, now: Millis) -> (Giver, Actions) {
        Giver::resume(Epoch(0), to, timing, now)
    }

    /// As [`Giver::start`] for a connection that was away before; `last` is its newest epoch.
    pub fn resume(
        last: Epoch,
        to: ServerId,
        timing: Timing,
        now: Millis,
    ) -> (Giver, Actions) {
        let mut giver = Giver { state: State::Over, epoch: last, timing };
        let offer = giver.offer(to, Source::Here, now);
        (giver, vec![Action::Hold, offer])
    }

    fn offer(&mut self, to: ServerId, source: Source, now: Millis) -> Action {
        self.epoch = self.epoch.next();
        let (epoch, deadline) = (self.epoch, now + self.timing.deadline_ms);
        self.state = State::Offering { to, epoch, source, ready: false, deadline };
        Action::Offer(to, epoch)
    }

    /// The server that owns the connection, or is about to.
    pub fn server(&self) -> Option<ServerId> {
        match self.state {
            State::Offering { to: server, .. }
            | State::Owned { by: server, .. }
            | State::Returning { from: server, .. }
            | State::Reclaiming { from: server, .. }
            | State::Orphan { by: server, .. } => Some(server),
            State::Over => None,
        }
    }

    /// The newest epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The connection is home, reset or closed: the value has no more use.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// True while a server answers the client.
    pub fn is_owned(&self) -> bool {
        matches!(self.state, State::Owned { .. })
    }

    /// When [`Giver::handle_tick`] has something to do.
    pub fn deadline(&self) -> Option<Millis> {
        match self.state {
            State::Offering { deadline, .. } | State::Reclaiming { deadline, .. } => Some(deadline),
            State::Orphan { until, .. } => Some(until),
            State::Owned { .. } | State::Returning { .. } | State::Over => None,
        }
    }

    /// READY. `late` says that the frozen local socket changed since its snapshot (false where
    /// the socket is not here).
    pub fn handle_ready(
        &mut self,
        from: ServerId,
        of: Epoch,
        late: bool,
        now: Millis,
    ) -> Actions {
        match self.state {
            State::Offering { to, epoch, source, deadline, .. } if to == from && epoch == of => {
                if late && source == Source::Here {
                    return vec![Action::SnapshotAgain, self.offer(to, source, now)];
                }
                self.state = State::Offering { to, epoch, source, ready: true, deadline };
                self.commit()
            }
            // Of an offer that was given up: CANCEL is on its way.
            _ => Vec::new(),
        }
    }

    /// Moves the ownership, once everybody said what it takes.
    fn commit(&mut self) -> Actions {
        let State::Offering { to, epoch, source, ready: true, .. } = self.state else {
            return Vec::new();
        };
        let mut actions = match source {
            Source::Here => vec![Action::CloseLocal],
            Source::Snapshot => Vec::new(),
            Source::Server(..) => return Vec::new(),
        };
        self.state = State::Owned { by: to, epoch };
        actions.extend([Action::Redirect(to), Action::Go(to, epoch)]);
        actions
    }

    /// REFUSE.
    pub fn handle_refuse(
        &mut self,
        from: ServerId,
        of: Epoch,
        reason: RefuseReason,
        now: Millis,
    ) -> Actions {
        match self.state {
            State::Offering { to, epoch, .. } if to == from && epoch == of => {
                self.give_up(Setback::Refused(reason), now)
            }
            _ => Vec::new(),
        }
    }

    /// The offer came to nothing: the connection goes on here.
    fn give_up(&mut self, setback: Setback, now: Millis) -> Actions {
        let State::Offering { source, .. } = self.state else { return Vec::new() };
        match source {
            Source::Here => {
                self.state = State::Over;
                vec![Action::ThawLocal(setback)]
            }
            Source::Snapshot => {
                self.state = State::Over;
                vec![Action::Rebuild(Some(setback))]
            }
            Source::Server(from, epoch) => {
                let deadline = now + self.timing.deadline_ms;
                let setback = Some(setback);
                self.state = State::Reclaiming { from, epoch, setback, deadline };
                Vec::new()
            }
        }
    }

    /// RETURN. The runtime keeps the snapshot as the newest one, and answers
    /// [`Action::Choose`] with [`Giver::choose`].
    pub fn handle_return(
        &mut self,
        from: ServerId,
        of: Epoch,
        reason: ReturnReason,
    ) -> Actions {
        match self.state {
            State::Owned { by, epoch } if by == from && epoch == of => {
                self.state = State::Returning { from, epoch };
                vec![Action::Hold, Action::Choose(reason)]
            }
            _ => Vec::new(),
        }
    }

    /// Where the returned connection goes.
    pub fn choose(&mut self, choice: Choice, now: Millis) -> Actions {
        let State::Returning { from, epoch } = self.state else { return Vec::new() };
        match choice {
            Choice::Stay => {
                self.state = State::Owned { by: from, epoch };
                vec![Action::Redirect(from), Action::Stay(from, epoch)]
            }
            Choice::Relay(to) => {
                let offer = self.offer(to, Source::Server(from, epoch), now);
                vec![Action::Taken(from, epoch), offer]
            }
            Choice::Home => {
                let deadline = now + self.timing.deadline_ms;
                self.state = State::Reclaiming { from, epoch, setback: None, deadline };
                vec![Action::Taken(from, epoch)]
            }
        }
    }

    /// DONE. `late` says that it brought a newer snapshot, which the runtime keeps.
    pub fn handle_done(
        &mut self,
        from: ServerId,
        of: Epoch,
        late: bool,
        now: Millis,
    ) -> Actions {
        match self.state {
            State::Offering { to, epoch, source, ready, deadline }
                if source == Source::Server(from, of) =>
            {
                if late {
                    // The taker replaces what it restored: same connection, newer epoch.
                    return vec![self.offer(to, Source::Snapshot, now)];
                }
                let source = Source::Snapshot;
                self.state = State::Offering { to, epoch, source, ready, deadline };
                self.commit()
            }
            State::Reclaiming { from: of_server, epoch, setback, .. }
                if of_server == from && epoch == of =>
            {
                self.state = State::Over;
                vec![Action::Rebuild(setback)]
            }
            _ => Vec::new(),
        }
    }

    /// CLOSED: the connection ended at the server that has its socket.
    pub fn handle_closed(
        &mut self,
        from: ServerId,
        of: Epoch,
        reason: CloseReason,
    ) -> Actions {
        match self.state {
            State::Owned { by, epoch } | State::Orphan { by, epoch, .. }
                if by == from && epoch == of =>
            {
                self.state = State::Over;
                match reason {
                    // The server never had it: GO came too late.
                    CloseReason::Discarded => vec![Action::Reset],
                    _ => vec![Action::Forget(reason)],
                }
            }
            State::Returning { from: holder, epoch } | State::Reclaiming { from: holder, epoch, .. }
                if holder == from && epoch == of =>
            {
                self.state = State::Over;
                vec![Action::Redirect(from), Action::Forget(reason)]
            }
            State::Offering { to, epoch, source, .. } if source == Source::Server(from, of) => {
                self.state = State::Over;
                let back = Action::Redirect(from);
                vec![Action::Cancel(to, epoch), back, Action::Forget(reason)]
            }
            _ => Vec::new(),
        }
    }

    /// The channel to a server broke.
    pub fn handle_channel_down(&mut self, server: ServerId, now: Millis) -> Actions {
        let until = now + self.timing.lease_ms;
        match self.state {
            State::Owned { by, epoch } if by == server => {
                self.state = State::Orphan { by, epoch, until };
                Vec::new()
            }
            // Its DONE will not come; a server that hears nothing goes on with the connection.
            State::Returning { from, epoch } | State::Reclaiming { from, epoch, .. }
                if from == server =>
            {
                self.state = State::Orphan { by: from, epoch, until };
                vec![Action::Redirect(from)]
            }
            State::Offering { to, epoch, source: Source::Server(from, of), .. }
                if from == server =>
            {
                self.state = State::Orphan { by: from, epoch: of, until };
                vec![Action::Cancel(to, epoch), Action::Redirect(from)]
            }
            State::Offering { to, .. } if to == server => self.give_up(Setback::ChannelDown, now),
            _ => Vec::new(),
        }
    }

    /// The channel to a server is back; `owned` is the epoch under which the server still has
    /// this connection, if it has.
    pub fn handle_channel_up(&mut self, server: ServerId, owned: Option<Epoch>) -> Actions {
        match self.state {
            State::Orphan { by, epoch, .. } if by == server => {
                if owned == Some(epoch) {
                    self.state = State::Owned { by, epoch };
                    return Vec::new();
                }
                self.state = State::Over;
                vec![Action::Reset]
            }
            _ => Vec::new(),
        }
    }

    /// Time passed.
    pub fn handle_tick(&mut self, now: Millis) -> Actions {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match self.state {
            State::Offering { to, epoch, ready, .. } => {
                if ready {
                    // It is the old owner that is silent; its channel will break, or it answers.
                    self.extend(now);
                    return Vec::new();
                }
                let mut actions = vec![Action::Cancel(to, epoch)];
                actions.extend(self.give_up(Setback::Deadline, now));
                actions
            }
            State::Reclaiming { .. } => {
                self.extend(now);
                Vec::new()
            }
            State::Orphan { .. } => {
                self.state = State::Over;
                vec![Action::Reset]
            }
            State::Owned { .. } | State::Returning { .. } | State::Over => Vec::new(),
        }
    }

    fn extend(&mut self, now: Millis) {
        let later = now + self.timing.deadline_ms;
        if let State::Offering { deadline, .. } | State::Reclaiming { deadline, .. } =
            &mut self.state
        {
            *deadline = later;
        }
    }
}
