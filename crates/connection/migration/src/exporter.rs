//! State machine of one connection at the balancer, from the first offer until it is home or over.
//!
//! ```text
//!            start                 ready                  return
//!  (home) ─────────► Offering ───────────────► Owned ───────────────► Returning
//!     ▲    refuse     │  │ ▲                    │ ▲                     │    │
//!     ├───────────────┘  │ │                    │ │ channel down, up    │    │
//!     │  not at a server ▼ │ channel up,        ▼ │                     │    │
//!     ├──────────── Ambiguous  server has it   Orphaned ► reset         │    │
//!     │  lease over        └──────► (Owned)                             │    │
//!     │                    ▲ relay: the same snapshot, next epoch       │    │
//!     │                    └────────────────────────────────────────────┘    │
//!     └───────────────────────── home: rebuilt ─────────────────────────────┘
//! ```
//! A server owns the connection from the moment it sends READY. Until READY arrives, the old
//! owner's state is kept, so that the old owner can continue unchanged. If the channel breaks in
//! between, the owner is unknown: the delivery is ambiguous until the server reports its
//! connections, or until its lease is surely over (a server gives connections up after half the
//! time).

use unlade_handoff_protocol::frame::{CloseReason, Epoch, RefuseReason, ReturnReason};

use crate::{Millis, ServerId};

/// Durations of one connection's migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Longest time from OFFER to READY, milliseconds; a server that takes longer is suspected
    /// dead.
    pub deadline_ms: u32,
    /// Lifetime of a connection without the channel to its owner, milliseconds. The servers' lease
    /// ([`server_lease_ms`]) is shorter.
    pub lease_ms: u32,
}

/// Returns the lease of a server whose balancer has `lease_ms`: half of it, so that a server that
/// was cut off has given a connection up before the balancer continues it.
pub fn server_lease_ms(lease_ms: u32) -> u32 {
    lease_ms / 2
}

/// Failure of a migration: the reason why a connection is not, or no longer, offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationFailure {
    /// The server does not take it.
    Refused(RefuseReason),
    /// The channel to the server is down, and the server does not have the connection.
    ChannelDown,
    /// The server did not answer the offer in time; it does not have the connection.
    Deadline,
}

impl MigrationFailure {
    /// Returns true if the delivery is ambiguous: the server may have carried out the request that
    /// came with the connection.
    pub fn is_ambiguous(self) -> bool {
        matches!(self, MigrationFailure::ChannelDown | MigrationFailure::Deadline)
    }

    /// Returns the failure of an offer without an answer: the channel broke, or was closed because
    /// the answer was `late`.
    fn of_silence(late: bool) -> MigrationFailure {
        if late { MigrationFailure::Deadline } else { MigrationFailure::ChannelDown }
    }
}

/// An instruction to the runtime. A list of them is in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Hold the flow's packets.
    Hold,
    /// Send OFFER with the newest snapshot.
    Offer(ServerId, Epoch),
    /// Redirect the flow to the server and replay the held packets.
    Redirect(ServerId),
    /// Forward what the frozen local socket received after its snapshot, and close it silently.
    CloseLocal,
    /// Thaw the frozen local socket, give the flow back to the local stack and replay; continue
    /// the connection here.
    ThawLocal(MigrationFailure),
    /// Choose the destination of the returned connection: answer with [`Exporter::choose`].
    Choose(ReturnReason),
    /// Rebuild the socket here from the newest snapshot, give the flow back to the local stack and
    /// replay; `None`: as intended, otherwise the failure of the relay.
    Rebuild(Option<MigrationFailure>),
    /// The server does not answer: close the channel to it, which resolves the state of all
    /// connections with it.
    Suspect(ServerId),
    /// Reset the connection towards the client: its owner is gone.
    Reset,
    /// The connection ended at its owner. Let the flow linger, then forget it.
    Forget(CloseReason),
}

/// Destination of a returned connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A server gets it. If that is the one that returned the connection, it thaws its socket.
    Relay(ServerId),
    /// It comes home.
    Home,
}

/// Place of the connection's state during an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// This host's socket, frozen.
    Here,
    /// The newest snapshot.
    Snapshot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExporterState {
    Offering { to: ServerId, epoch: Epoch, source: Source, deadline: Millis, late: bool },
    Ambiguous { to: ServerId, epoch: Epoch, source: Source, until: Millis, late: bool },
    Owned { by: ServerId, epoch: Epoch },
    Returning { from: ServerId },
    Orphaned { by: ServerId, epoch: Epoch, until: Millis },
    Over,
}

/// State machine of one connection that is away from home or moving, at the balancer.
#[derive(Clone, Debug)]
pub struct Exporter {
    state: ExporterState,
    /// The newest epoch assigned.
    epoch: Epoch,
    timing: Timing,
}

type Actions = Vec<Action>;

impl Exporter {
    /// Starts the migration of a connection whose socket is frozen here.
    pub fn start(to: ServerId, timing: Timing, now: Millis) -> (Exporter, Actions) {
        let mut exporter = Exporter { state: ExporterState::Over, epoch: Epoch(0), timing };
        let offer = exporter.offer(to, Source::Here, now);
        (exporter, vec![Action::Hold, offer])
    }

    fn offer(&mut self, to: ServerId, source: Source, now: Millis) -> Action {
        self.epoch = self.epoch.next();
        let (epoch, deadline) = (self.epoch, now + self.timing.deadline_ms);
        self.state = ExporterState::Offering { to, epoch, source, deadline, late: false };
        Action::Offer(to, epoch)
    }

    /// Returns the server that owns the connection, or is about to.
    pub fn server(&self) -> Option<ServerId> {
        match self.state {
            ExporterState::Offering { to: server, .. }
            | ExporterState::Ambiguous { to: server, .. }
            | ExporterState::Owned { by: server, .. }
            | ExporterState::Returning { from: server }
            | ExporterState::Orphaned { by: server, .. } => Some(server),
            ExporterState::Over => None,
        }
    }

    /// Returns true if, as far as is known, `server` has the connection under this epoch.
    pub fn has(&self, server: ServerId, epoch: Epoch) -> bool {
        self.server() == Some(server) && self.epoch == epoch && !self.is_over()
    }

    /// Returns the newest epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns true if the connection is home, reset or closed: the value has no more use.
    pub fn is_over(&self) -> bool {
        self.state == ExporterState::Over
    }

    /// Returns true while a server answers the client.
    pub fn is_owned(&self) -> bool {
        matches!(self.state, ExporterState::Owned { .. })
    }

    /// Returns true while a server owns the connection, also while the channel to it is down.
    pub fn is_with_server(&self) -> bool {
        matches!(self.state, ExporterState::Owned { .. } | ExporterState::Orphaned { .. })
    }

    /// Returns the time at which [`Exporter::handle_tick`] has something to do.
    pub fn deadline(&self) -> Option<Millis> {
        match self.state {
            ExporterState::Offering { deadline, .. } => Some(deadline),
            ExporterState::Ambiguous { until, .. } | ExporterState::Orphaned { until, .. } => {
                Some(until)
            }
            ExporterState::Owned { .. } | ExporterState::Returning { .. } | ExporterState::Over => {
                None
            }
        }
    }

    /// Handles READY.
    pub fn handle_ready(&mut self, from: ServerId, of: Epoch) -> Actions {
        match self.state {
            ExporterState::Offering { to, epoch, source, .. } if to == from && epoch == of => {
                self.commit(to, epoch, source)
            }
            _ => Vec::new(),
        }
    }

    /// Makes the server the owner.
    fn commit(&mut self, to: ServerId, epoch: Epoch, source: Source) -> Actions {
        self.state = ExporterState::Owned { by: to, epoch };
        match source {
            // The redirection comes first, so that the new owner gets what the frozen socket
            // forwards.
            Source::Here => vec![Action::Redirect(to), Action::CloseLocal],
            Source::Snapshot => vec![Action::Redirect(to)],
        }
    }

    /// Handles REFUSE.
    pub fn handle_refuse(&mut self, from: ServerId, of: Epoch, reason: RefuseReason) -> Actions {
        match self.state {
            ExporterState::Offering { to, epoch, source, .. } if to == from && epoch == of => {
                self.give_up(source, MigrationFailure::Refused(reason))
            }
            _ => Vec::new(),
        }
    }

    /// Continues the connection here, because no server has it.
    fn give_up(&mut self, source: Source, failure: MigrationFailure) -> Actions {
        self.state = ExporterState::Over;
        match source {
            Source::Here => vec![Action::ThawLocal(failure)],
            Source::Snapshot => vec![Action::Rebuild(Some(failure))],
        }
    }

    /// Returns true if a RETURN of this origin is for the present ownership, and not one that was
    /// sent again after a channel came back.
    pub fn expects_return(&self, from: ServerId, of: Epoch) -> bool {
        matches!(self.state, ExporterState::Owned { by, epoch } if by == from && epoch == of)
    }

    /// Handles RETURN. The runtime keeps the snapshot as the newest one (if
    /// [`Exporter::expects_return`]), and answers [`Action::Choose`] with
    /// [`Exporter::choose`] at once.
    pub fn handle_return(&mut self, from: ServerId, of: Epoch, reason: ReturnReason) -> Actions {
        if !self.expects_return(from, of) {
            return Vec::new();
        }
        self.state = ExporterState::Returning { from };
        vec![Action::Hold, Action::Choose(reason)]
    }

    /// Sends the returned connection to its destination.
    pub fn choose(&mut self, choice: Choice, now: Millis) -> Actions {
        let ExporterState::Returning { .. } = self.state else { return Vec::new() };
        match choice {
            Choice::Relay(to) => vec![self.offer(to, Source::Snapshot, now)],
            Choice::Home => {
                self.state = ExporterState::Over;
                vec![Action::Rebuild(None)]
            }
        }
    }

    /// Handles CLOSED: the connection ended at its owner.
    pub fn handle_closed(&mut self, from: ServerId, of: Epoch, reason: CloseReason) -> Actions {
        match self.state {
            ExporterState::Owned { by, epoch } | ExporterState::Orphaned { by, epoch, .. }
                if by == from && epoch == of =>
            {
                self.state = ExporterState::Over;
                vec![Action::Forget(reason)]
            }
            _ => Vec::new(),
        }
    }

    /// Handles the loss of the channel to a server.
    pub fn handle_channel_down(&mut self, server: ServerId, now: Millis) -> Actions {
        let until = now + self.timing.lease_ms;
        match self.state {
            ExporterState::Owned { by, epoch } if by == server => {
                self.state = ExporterState::Orphaned { by, epoch, until };
            }
            ExporterState::Offering { to, epoch, source, late, .. } if to == server => {
                self.state = ExporterState::Ambiguous { to, epoch, source, until, late };
            }
            _ => {}
        }
        Vec::new()
    }

    /// Handles the return of the channel to a server. `owned` is the epoch under which the server
    /// still has this connection, if it has it.
    pub fn handle_channel_up(&mut self, server: ServerId, owned: Option<Epoch>) -> Actions {
        match self.state {
            ExporterState::Orphaned { by, epoch, .. } if by == server => {
                if owned == Some(epoch) {
                    self.state = ExporterState::Owned { by, epoch };
                    return Vec::new();
                }
                self.state = ExporterState::Over;
                vec![Action::Reset]
            }
            ExporterState::Ambiguous { to, epoch, source, late, .. } if to == server => match owned
            {
                Some(has) if has == epoch => self.commit(to, epoch, source),
                _ => self.give_up(source, MigrationFailure::of_silence(late)),
            },
            _ => Vec::new(),
        }
    }

    /// Handles the passage of time.
    pub fn handle_tick(&mut self, now: Millis) -> Actions {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match self.state {
            ExporterState::Offering { to, epoch, source, .. } => {
                // The end of the channel causes `handle_channel_down`; the suspicion is not
                // repeated until then.
                let deadline = now + self.timing.lease_ms;
                self.state = ExporterState::Offering { to, epoch, source, deadline, late: true };
                vec![Action::Suspect(to)]
            }
            ExporterState::Ambiguous { source, late, .. } => {
                self.give_up(source, MigrationFailure::of_silence(late))
            }
            ExporterState::Orphaned { .. } => {
                self.state = ExporterState::Over;
                vec![Action::Reset]
            }
            ExporterState::Owned { .. } | ExporterState::Returning { .. } | ExporterState::Over => {
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServerId = ServerId(3);
    const TIMING: Timing = Timing { deadline_ms: 100, lease_ms: 1000 };

    /// Returns the failure of an offer without an answer whose channel breaks at `broken_ms`.
    fn failure(broken_ms: u64) -> MigrationFailure {
        let (mut exporter, _) = Exporter::start(SERVER, TIMING, Millis(0));
        let asked = exporter.handle_tick(Millis(broken_ms));
        let late = broken_ms >= u64::from(TIMING.deadline_ms);
        assert_eq!(asked.contains(&Action::Suspect(SERVER)), late);
        assert_eq!(exporter.handle_channel_down(SERVER, Millis(broken_ms)), []);
        match exporter.handle_channel_up(SERVER, None)[..] {
            [Action::ThawLocal(failure)] => failure,
            ref other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_missed_deadline_is_told_from_a_broken_channel() {
        assert_eq!(failure(20), MigrationFailure::ChannelDown);
        assert_eq!(failure(100), MigrationFailure::Deadline);
        // The result is the same if the channel stays down until the lease is over.
        let (mut exporter, _) = Exporter::start(SERVER, TIMING, Millis(0));
        exporter.handle_tick(Millis(100));
        exporter.handle_channel_down(SERVER, Millis(100));
        let over = exporter.handle_tick(Millis(1100));
        assert_eq!(over, [Action::ThawLocal(MigrationFailure::Deadline)]);
    }
}
