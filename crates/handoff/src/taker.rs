//! One connection as a server sees it, from the offer until it is given back or over.
//!
//! ```text
//!  offer ──► Silent ──go──► Live ──want return──► Frozen ──taken──► (gone: DONE)
//!              │ cancel,      ▲                     │ │ channel down: waits, frozen
//!              ▼ channel down └────────stay─────────┘ ▼
//!           (dropped)                               lease over ──► abort
//! ```

use wire::frame::{CloseReason, Epoch, ReturnReason};

use crate::Millis;

/// What the runtime is to do, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take the restored socket out of repair mode and answer the client.
    Activate,
    /// Close the restored or frozen socket silently.
    Drop,
    /// Freeze the socket, take a snapshot and send RETURN with it.
    Return(Epoch, ReturnReason),
    /// Look whether the frozen socket changed; bounce the flow's packets to the balancer, close
    /// the socket silently and send DONE.
    Done(Epoch),
    /// Thaw the frozen socket and go on under the new terms.
    Thaw,
    /// Close the socket with a RST: nobody sends the client's packets here any more.
    Abort,
    /// Send CLOSED.
    Closed(Epoch, CloseReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Silent { until: Millis },
    Live,
    Frozen(ReturnReason),
    Over,
}

/// The server's side of one connection.
#[derive(Clone, Debug)]
pub struct Taker {
    state: State,
    epoch: Epoch,
    /// Set while the channel is down: when the lease ends.
    orphan_until: Option<Millis>,
}

type Actions = Vec<Action>;

impl Taker {
    /// A connection was restored for an offer; it stays silent until GO, but not for longer than
    /// `silent_ms`: a balancer that lives would have said something by then.
    pub fn offered(epoch: Epoch, silent_ms: u32, now: Millis) -> Taker {
        Taker { state: State::Silent { until: now + silent_ms }, epoch, orphan_until: None }
    }

    /// The epoch of the adoption.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The connection is gone: the value has no more use.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// The server answers the client.
    pub fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// The connection counts as owned: it is listed when the channel comes back.
    pub fn is_owned(&self) -> bool {
        matches!(self.state, State::Live | State::Frozen(_))
    }

    /// When [`Taker::handle_tick`] has something to do.
    pub fn deadline(&self) -> Option<Millis> {
        match self.state {
            State::Silent { until } => Some(until),
            State::Live | State::Frozen(_) => self.orphan_until,
            State::Over => None,
        }
    }

    /// A newer offer of the same connection: what was restored is replaced. False where the
    /// offer is not newer, or the connection has gone live: then it is a protocol error.
    pub fn handle_offer(&mut self, epoch: Epoch, silent_ms: u32, now: Millis) -> bool {
        match self.state {
            State::Silent { .. } if epoch > self.epoch => {
                *self = Taker::offered(epoch, silent_ms, now);
                true
            }
            _ => false,
        }
    }

    /// GO.
    pub fn handle_go(&mut self, epoch: Epoch) -> Actions {
        match self.state {
            State::Silent { .. } if epoch == self.epoch => {
                self.state = State::Live;
                vec![Action::Activate]
            }
            _ => Vec::new(),
        }
    }

    /// CANCEL.
    pub fn handle_cancel(&mut self, epoch: Epoch) -> Actions {
        match self.state {
            State::Silent { .. } if epoch == self.epoch => self.finish(vec![Action::Drop]),
            _ => Vec::new(),
        }
    }

    fn finish(&mut self, actions: Actions) -> Actions {
        self.state = State::Over;
        actions
    }

    /// The runtime wants to give the connection back, at a pause between requests. While the
    /// channel is down the connection is frozen and waits for it.
    pub fn handle_want_return(&mut self, reason: ReturnReason) -> Actions {
        if self.state != State::Live {
            return Vec::new();
        }
        self.state = State::Frozen(reason);
        match self.orphan_until {
            None => vec![Action::Return(self.epoch, reason)],
            Some(_) => Vec::new(),
        }
    }

    /// The socket could not be frozen or read, so RETURN was not sent: the connection stays.
    pub fn handle_return_failed(&mut self) {
        if let State::Frozen(_) = self.state {
            self.state = State::Live;
        }
    }

    /// TAKEN.
    pub fn handle_taken(&mut self, epoch: Epoch) -> Actions {
        match self.state {
            State::Frozen(_) if epoch == self.epoch && self.orphan_until.is_none() => {
                self.finish(vec![Action::Done(epoch)])
            }
            _ => Vec::new(),
        }
    }

    /// STAY.
    pub fn handle_stay(&mut self, epoch: Epoch) -> Actions {
        match self.state {
            State::Frozen(_) if epoch == self.epoch => {
                self.state = State::Live;
                vec![Action::Thaw]
            }
            _ => Vec::new(),
        }
    }

    /// The connection ended here: the client closed it, the server did, or it broke.
    pub fn handle_ended(&mut self, reason: CloseReason) -> Actions {
        match self.state {
            State::Live | State::Frozen(_) => {
                let epoch = self.epoch;
                self.finish(vec![Action::Closed(epoch, reason)])
            }
            State::Silent { .. } | State::Over => Vec::new(),
        }
    }

    /// The channel to the balancer broke.
    pub fn handle_channel_down(&mut self, lease_ms: u32, now: Millis) -> Actions {
        match self.state {
            // The balancer had no word that it may rely on: it keeps or resets the connection.
            State::Silent { .. } => self.finish(vec![Action::Drop]),
            State::Live | State::Frozen(_) => {
                self.orphan_until = Some(now + lease_ms);
                Vec::new()
            }
            State::Over => Vec::new(),
        }
    }

    /// The channel is back, and the connection was listed in OWNED.
    pub fn handle_channel_up(&mut self) -> Actions {
        if self.orphan_until.take().is_none() {
            return Vec::new();
        }
        match self.state {
            State::Frozen(reason) => vec![Action::Return(self.epoch, reason)],
            _ => Vec::new(),
        }
    }

    /// Time passed.
    pub fn handle_tick(&mut self, now: Millis) -> Actions {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        match self.state {
            State::Silent { .. } => self.finish(vec![Action::Drop]),
            State::Live | State::Frozen(_) => self.finish(vec![Action::Abort]),
            State::Over => Vec::new(),
        }
    }
}
