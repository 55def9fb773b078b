//! One connection as the balancer sees it, from the first offer until it is home or over.
//!
//! ```text
//!            start                 ready                  return
//!  (home) ─────────► Offering ───────────────► Owned ───────────────► Returning
//!     ▲    refuse     │  │ ▲                    │ ▲                     │    │
//!     ├───────────────┘  │ │                    │ │ channel down, up    │    │
//!     │  nobody has it   ▼ │ channel up,        ▼ │                     │    │
//!     ├──────────────── Doubt  server has it   Orphan ──► reset         │    │
//!     │  lease over        └──────► (Owned)                             │    │
//!     │                    ▲ relay: the same snapshot, next epoch       │    │
//!     │                    └────────────────────────────────────────────┘    │
//!     └───────────────────────── home: rebuilt ─────────────────────────────┘
//! ```
//! A server owns the connection from the moment it sends READY; until READY is here, the old
//! owner's state is kept, so that it can go on as if nothing had happened. Where the channel
//! breaks in between, nobody can know: the connection is in doubt until the server says what it
//! has, or until its lease is surely over (a server gives connections up after half the time).

use unlade_handoff_protocol::frame::{CloseReason, Epoch, RefuseReason, ReturnReason};

use crate::{Millis, ServerId};

/// Durations of one connection's migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From OFFER to READY, milliseconds; a server that takes longer is suspected dead.
    pub deadline_ms: u32,
    /// How long a connection outlives the channel to its owner, milliseconds. The servers'
    /// lease ([`server_lease_ms`]) is shorter.
    pub lease_ms: u32,
}

/// The lease of a server whose balancer has `lease_ms`: half of it, so that a server that was cut
/// off has given a connection up before the balancer goes on with it.
pub fn server_lease_ms(lease_ms: u32) -> u32 {
    lease_ms / 2
}

/// Why a connection is not, or no longer, offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setback {
    /// The server does not take it.
    Refused(RefuseReason),
    /// The channel to the server is down, and the server does not have the connection.
    ChannelDown,
    /// The server did not answer the offer in time; it does not have the connection.
    Deadline,
}

impl Setback {
    /// True where the server may have carried out the request that came with the connection.
    pub fn leaves_doubt(self) -> bool {
        matches!(self, Setback::ChannelDown | Setback::Deadline)
    }

    /// The setback of an offer without an answer: the channel broke, or was closed because the
    /// answer was `late`.
    fn of_silence(late: bool) -> Setback {
        if late { Setback::Deadline } else { Setback::ChannelDown }
    }
}

/// What the runtime is to do, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Hold the flow's packets.
    Hold,
    /// Send OFFER with the newest snapshot.
    Offer(ServerId, Epoch),
    /// Redirect the flow to the server and replay what waits.
    Redirect(ServerId),
    /// Forward what the frozen local socket received late, and close it silently.
    CloseLocal,
    /// Thaw the frozen local socket, give the flow back to the local stack and replay; go on
    /// with the connection here.
    ThawLocal(Setback),
    /// Choose where the returned connection goes: answer with [`Giver::choose`].
    Choose(ReturnReason),
    /// Rebuild the socket here from the newest snapshot, give the flow back to the local stack
    /// and replay; `None`: as wanted, otherwise why the relay failed.
    Rebuild(Option<Setback>),
    /// The server does not answer: close the channel to it, which settles everything with it.
    Suspect(ServerId),
    /// Reset the connection towards the client: its owner is gone.
    Reset,
    /// The connection ended at its owner. Let the flow linger, then forget it.
    Forget(CloseReason),
}

/// What becomes of a returned connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A server gets it; where it is the one that gave it back, that thaws it.
    Relay(ServerId),
    /// It comes home.
    Home,
}

/// Who has the connection's state while an offer is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// This host's socket, frozen.
    Here,
    /// The newest snapshot.
    Snapshot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Offering { to: ServerId, epoch: Epoch, source: Source, deadline: Millis, late: bool },
    Doubt { to: ServerId, epoch: Epoch, source: Source, until: Millis, late: bool },
    Owned { by: ServerId, epoch: Epoch },
    Returning { from: ServerId },
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
        let mut giver = Giver { state: State::Over, epoch: Epoch(0), timing };
        let offer = giver.offer(to, Source::Here, now);
        (giver, vec![Action::Hold, offer])
    }

    fn offer(&mut self, to: ServerId, source: Source, now: Millis) -> Action {
        self.epoch = self.epoch.next();
        let (epoch, deadline) = (self.epoch, now + self.timing.deadline_ms);
        self.state = State::Offering { to, epoch, source, deadline, late: false };
        Action::Offer(to, epoch)
    }

    /// The server that owns the connection, or is about to.
    pub fn server(&self) -> Option<ServerId> {
        match self.state {
            State::Offering { to: server, .. }
            | State::Doubt { to: server, .. }
            | State::Owned { by: server, .. }
            | State::Returning { from: server }
            | State::Orphan { by: server, .. } => Some(server),
            State::Over => None,
        }
    }

    /// True where, as far as is known, `server` has the connection under this epoch.
    pub fn has(&self, server: ServerId, epoch: Epoch) -> bool {
        self.server() == Some(server) && self.epoch == epoch && !self.is_over()
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

    /// True while a server owns the connection, also where the channel to it is down.
    pub fn is_with_server(&self) -> bool {
        matches!(self.state, State::Owned { .. } | State::Orphan { .. })
    }

    /// When [`Giver::handle_tick`] has something to do.
    pub fn deadline(&self) -> Option<Millis> {
        match self.state {
            State::Offering { deadline, .. } => Some(deadline),
            State::Doubt { until, .. } | State::Orphan { until, .. } => Some(until),
            State::Owned { .. } | State::Returning { .. } | State::Over => None,
        }
    }

    /// READY.
    pub fn handle_ready(&mut self, from: ServerId, of: Epoch) -> Actions {
        match self.state {
            State::Offering { to, epoch, source, .. } if to == from && epoch == of => {
                self.commit(to, epoch, source)
            }
            _ => Vec::new(),
        }
    }

    /// The server has it.
    fn commit(&mut self, to: ServerId, epoch: Epoch, source: Source) -> Actions {
        self.state = State::Owned { by: to, epoch };
        match source {
            // Redirected first, so that what the frozen socket forwards goes to the new owner.
            Source::Here => vec![Action::Redirect(to), Action::CloseLocal],
            Source::Snapshot => vec![Action::Redirect(to)],
        }
    }

    /// REFUSE.
    pub fn handle_refuse(&mut self, from: ServerId, of: Epoch, reason: RefuseReason) -> Actions {
        match self.state {
            State::Offering { to, epoch, source, .. } if to == from && epoch == of => {
                self.give_up(source, Setback::Refused(reason))
            }
            _ => Vec::new(),
        }
    }

    /// Nobody has it: the connection goes on here.
    fn give_up(&mut self, source: Source, setback: Setback) -> Actions {
        self.state = State::Over;
        match source {
            Source::Here => vec![Action::ThawLocal(setback)],
            Source::Snapshot => vec![Action::Rebuild(Some(setback))],
        }
    }

    /// True where a RETURN of this origin is for the connection as it is now, and not one that
    /// was sent again after a channel came back.
    pub fn expects_return(&self, from: ServerId, of: Epoch) -> bool {
        matches!(self.state, State::Owned { by, epoch } if by == from && epoch == of)
    }

    /// RETURN. The runtime keeps the snapshot as the newest one (if [`Giver::expects_return`]),
    /// and answers [`Action::Choose`] with [`Giver::choose`] at once.
    pub fn handle_return(&mut self, from: ServerId, of: Epoch, reason: ReturnReason) -> Actions {
        if !self.expects_return(from, of) {
            return Vec::new();
        }
        self.state = State::Returning { from };
        vec![Action::Hold, Action::Choose(reason)]
    }

    /// Where the returned connection goes.
    pub fn choose(&mut self, choice: Choice, now: Millis) -> Actions {
        let State::Returning { .. } = self.state else { return Vec::new() };
        match choice {
            Choice::Relay(to) => vec![self.offer(to, Source::Snapshot, now)],
            Choice::Home => {
                self.state = State::Over;
                vec![Action::Rebuild(None)]
            }
        }
    }

    /// CLOSED: the connection ended at its owner.
    pub fn handle_closed(&mut self, from: ServerId, of: Epoch, reason: CloseReason) -> Actions {
        match self.state {
            State::Owned { by, epoch } | State::Orphan { by, epoch, .. }
                if by == from && epoch == of =>
            {
                self.state = State::Over;
                vec![Action::Forget(reason)]
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
            }
            State::Offering { to, epoch, source, late, .. } if to == server => {
                self.state = State::Doubt { to, epoch, source, until, late };
            }
            _ => {}
        }
        Vec::new()
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
            State::Doubt { to, epoch, source, late, .. } if to == server => match owned {
                Some(has) if has == epoch => self.commit(to, epoch, source),
                _ => self.give_up(source, Setback::of_silence(late)),
            },
            _ => Vec::new(),
        }
    }

    /// Time passed.
    pub fn handle_tick(&mut self, now: Millis) -> Actions {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match self.state {
            State::Offering { to, epoch, source, .. } => {
                // The channel's end brings `handle_channel_down`; until then, not again.
                let deadline = now + self.timing.lease_ms;
                self.state = State::Offering { to, epoch, source, deadline, late: true };
                vec![Action::Suspect(to)]
            }
            State::Doubt { source, late, .. } => self.give_up(source, Setback::of_silence(late)),
            State::Orphan { .. } => {
                self.state = State::Over;
                vec![Action::Reset]
            }
            State::Owned { .. } | State::Returning { .. } | State::Over => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServerId = ServerId(3);
    const TIMING: Timing = Timing { deadline_ms: 100, lease_ms: 1000 };

    /// What an offer without an answer comes to, where the channel breaks at `broken_ms`.
    fn setback(broken_ms: u64) -> Setback {
        let (mut giver, _) = Giver::start(SERVER, TIMING, Millis(0));
        let asked = giver.handle_tick(Millis(broken_ms));
        let late = broken_ms >= u64::from(TIMING.deadline_ms);
        assert_eq!(asked.contains(&Action::Suspect(SERVER)), late);
        assert_eq!(giver.handle_channel_down(SERVER, Millis(broken_ms)), []);
        match giver.handle_channel_up(SERVER, None)[..] {
            [Action::ThawLocal(setback)] => setback,
            ref other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_missed_deadline_is_told_from_a_broken_channel() {
        assert_eq!(setback(20), Setback::ChannelDown);
        assert_eq!(setback(100), Setback::Deadline);
        // The same where the channel stays down until the lease is over.
        let (mut giver, _) = Giver::start(SERVER, TIMING, Millis(0));
        giver.handle_tick(Millis(100));
        giver.handle_channel_down(SERVER, Millis(100));
        let over = giver.handle_tick(Millis(1100));
        assert_eq!(over, [Action::ThawLocal(Setback::Deadline)]);
    }
}
