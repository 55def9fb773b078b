//! State machine of one connection at a server, from its adoption until it is returned or over.
//!
//! ```text
//!  offer ──► Live ──want return──► Returned ──offer of the next epoch──► Live (thawed)
//!             │                       │ ├──── offer of a later one ────► discarded, adopted anew
//!             ▼ ended                 │ └──── 1 s ─────────────────────► discarded
//!           CLOSED                    ▼ channel down: kept; up: RETURN again
//!                       lease over ──► abort
//! ```
//! A returned connection's socket stays frozen for a moment, so that a relay back can thaw it; its
//! packets are sent to the balancer until it is discarded.

use unlade_handoff_protocol::frame::{CloseReason, Epoch, ReturnReason};

use crate::Millis;

/// How long the state of a returned connection is kept, and its packets are sent back,
/// milliseconds: longer than a busy balancer needs to handle the RETURN, and than a packet is in
/// transit on one link.
pub const RETURNED_KEPT_MS: u32 = 1000;

/// An instruction to the runtime. A list of them is in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take a snapshot of the frozen socket and send RETURN with it.
    Return(Epoch, ReturnReason),
    /// Forward what the frozen socket received after its snapshot, and close it silently.
    Discard,
    /// Thaw the frozen socket and answer the client again.
    Thaw,
    /// Close the socket with a RST: the client's packets do not arrive here any more.
    Abort,
    /// Send CLOSED.
    Closed(Epoch, CloseReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImporterState {
    Live,
    Returned { reason: ReturnReason, since: Millis },
    Over,
}

/// State machine of one connection at the server.
#[derive(Clone, Debug)]
pub struct Importer {
    state: ImporterState,
    epoch: Epoch,
    /// End of the lease; set while the channel is down.
    orphan_until: Option<Millis>,
}

type Actions = Vec<Action>;

/// Result of an offer for a connection that the server has already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offered {
    /// It comes back without another owner in between: [`Action::Thaw`], then READY.
    Thaw,
    /// It had another owner: [`Action::Discard`], then it is adopted from its snapshot.
    Replace,
    /// The server owns it, or the offer is an old one: a protocol error.
    Stale,
}

impl Importer {
    /// Creates the state of a connection that was restored for an offer, and is live.
    pub fn adopted(epoch: Epoch) -> Importer {
        Importer { state: ImporterState::Live, epoch, orphan_until: None }
    }

    /// Returns the epoch of the adoption.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns true if the connection is gone: the value has no more use.
    pub fn is_over(&self) -> bool {
        self.state == ImporterState::Over
    }

    /// Returns true while the server answers the client.
    pub fn is_live(&self) -> bool {
        self.state == ImporterState::Live
    }

    /// Returns the time at which [`Importer::handle_tick`] has something to do.
    pub fn deadline(&self) -> Option<Millis> {
        match self.state {
            ImporterState::Over => None,
            ImporterState::Live => self.orphan_until,
            ImporterState::Returned { since, .. } => {
                Some(self.orphan_until.unwrap_or(since + RETURNED_KEPT_MS))
            }
        }
    }

    /// Handles OFFER for a connection that the server has already. A thawed connection is live
    /// under the new epoch; a replaced one is over.
    pub fn handle_offer(&mut self, epoch: Epoch) -> Offered {
        match self.state {
            ImporterState::Returned { .. } if epoch == self.epoch.next() => {
                self.state = ImporterState::Live;
                self.epoch = epoch;
                Offered::Thaw
            }
            ImporterState::Returned { .. } if epoch > self.epoch => {
                self.state = ImporterState::Over;
                Offered::Replace
            }
            _ => Offered::Stale,
        }
    }

    /// Handles the freeze of the connection at a pause between requests, to return it. While the
    /// channel is down the return waits.
    pub fn handle_want_return(&mut self, reason: ReturnReason, now: Millis) -> Actions {
        if self.state != ImporterState::Live {
            return Vec::new();
        }
        self.state = ImporterState::Returned { reason, since: now };
        match self.orphan_until {
            None => vec![Action::Return(self.epoch, reason)],
            Some(_) => Vec::new(),
        }
    }

    /// Handles the end of the connection here: the client closed it, the server did, or it broke.
    pub fn handle_ended(&mut self, reason: CloseReason) -> Actions {
        match self.state {
            ImporterState::Live => {
                self.state = ImporterState::Over;
                vec![Action::Closed(self.epoch, reason)]
            }
            ImporterState::Returned { .. } | ImporterState::Over => Vec::new(),
        }
    }

    /// Handles the loss of the channel to the balancer.
    pub fn handle_channel_down(&mut self, lease_ms: u32, now: Millis) -> Actions {
        if self.state != ImporterState::Over {
            self.orphan_until = Some(now + lease_ms);
        }
        Vec::new()
    }

    /// Handles the return of the channel, after the connection was listed in OWNED. A RETURN may
    /// have been lost, so it is sent again; the balancer detects a repeated one by its epoch.
    pub fn handle_channel_up(&mut self, now: Millis) -> Actions {
        if self.orphan_until.take().is_none() {
            return Vec::new();
        }
        match self.state {
            ImporterState::Returned { reason, .. } => {
                self.state = ImporterState::Returned { reason, since: now };
                vec![Action::Return(self.epoch, reason)]
            }
            ImporterState::Live | ImporterState::Over => Vec::new(),
        }
    }

    /// Handles the passage of time.
    pub fn handle_tick(&mut self, now: Millis) -> Actions {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        let orphaned = self.orphan_until.is_some();
        match self.state {
            ImporterState::Over => Vec::new(),
            ImporterState::Returned { .. } if !orphaned => {
                self.state = ImporterState::Over;
                vec![Action::Discard]
            }
            ImporterState::Live | ImporterState::Returned { .. } => {
                self.state = ImporterState::Over;
                vec![Action::Abort]
            }
        }
    }
}
