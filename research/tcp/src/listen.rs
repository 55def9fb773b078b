//! Who asks for a connection, and who has not been accepted: as many as the backlog, no more.

use std::collections::VecDeque;
use std::net::SocketAddr;

use thiserror::Error;

use crate::stack::Id;

/// Why nobody can be listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ListenError {
    /// Somebody listens there already.
    #[error("the address is listened to already")]
    InUse,
    /// There are as many listeners as there may be.
    #[error("there are too many listeners; stop one, or raise the limit")]
    TooMany,
}

/// Those who have asked at one address.
#[derive(Debug)]
pub(crate) struct Listener {
    address: SocketAddr,
    backlog_max: usize,
    /// Asked, and not accepted by the caller: established or not.
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

    /// Whether what comes for `local` is for this listener: for its address, or any.
    pub(crate) fn hears(&self, local: SocketAddr) -> bool {
        let ip = self.address.ip();
        let any = ip.is_unspecified() && ip.is_ipv4() == local.is_ipv4();
        self.address.port() == local.port() && (any || ip == local.ip())
    }

    /// One more asks. False where too many do: it will ask again.
    pub(crate) fn ask(&mut self) -> bool {
        let room = self.waiting < self.backlog_max;
        if room {
            self.waiting += 1;
        } else {
            self.refused += 1;
        }
        room
    }

    /// There is no room in the stack for one that has asked.
    pub(crate) fn refuse(&mut self) {
        self.waiting -= 1;
        self.refused += 1;
    }

    /// One that has asked is established.
    pub(crate) fn establish(&mut self, id: Id) {
        self.established.push_back(id);
    }

    /// One that has asked is gone.
    pub(crate) fn lose(&mut self, id: Id) {
        self.waiting -= 1;
        self.established.retain(|&other| other != id);
    }

    /// The one that was established first.
    pub(crate) fn accept(&mut self) -> Option<Id> {
        let id = self.established.pop_front()?;
        self.waiting -= 1;
        Some(id)
    }
}
