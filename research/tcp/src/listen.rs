//! Listeners, with a bounded backlog of connections that are not accepted.

use std::collections::VecDeque;
use std::net::SocketAddr;

use thiserror::Error;

use crate::id::Id;

/// Reason why an address cannot be listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ListenError {
    /// The address already has a listener.
    #[error("the address is listened to already")]
    InUse,
    /// The maximum number of listeners is reached.
    #[error("there are too many listeners; stop one, or raise the limit")]
    TooMany,
}

/// The backlog of one address.
#[derive(Debug)]
pub(crate) struct Listener {
    address: SocketAddr,
    backlog_max: usize,
    /// Connections that were not accepted by the caller, established or not.
    waiting: usize,
    established: VecDeque<Id>,
    pub(crate) refused: u64,
}

impl Listener {
    pub(crate) fn new(address: SocketAddr, backlog_max: usize) -> Listener {
        Listener { address, backlog_max, waiting: 0, established: VecDeque::new(), refused: 0 }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns true if the listener's address, possibly unspecified, covers `local`.
    pub(crate) fn matches(&self, local: SocketAddr) -> bool {
        let ip = self.address.ip();
        let any = ip.is_unspecified() && ip.is_ipv4() == local.is_ipv4();
        self.address.port() == local.port() && (any || ip == local.ip())
    }

    /// Reserves a place for a request. Returns false if the backlog is full; the peer retries.
    pub(crate) fn ask(&mut self) -> bool {
        let room = self.waiting < self.backlog_max;
        if room {
            self.waiting += 1;
        } else {
            self.refused += 1;
        }
        room
    }

    /// Releases the place of a request, because the stack is full.
    pub(crate) fn refuse(&mut self) {
        self.waiting -= 1;
        self.refused += 1;
    }

    /// Adds an established connection.
    pub(crate) fn establish(&mut self, id: Id) {
        self.established.push_back(id);
    }

    /// Removes a connection that has ended.
    pub(crate) fn lose(&mut self, id: Id) {
        self.waiting -= 1;
        self.established.retain(|&other| other != id);
    }

    /// The oldest established connection.
    pub(crate) fn accept(&mut self) -> Option<Id> {
        let id = self.established.pop_front()?;
        self.waiting -= 1;
        Some(id)
    }
}
