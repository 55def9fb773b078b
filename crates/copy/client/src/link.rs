//! Connection to the service: in this process, or through shared memory.

use unlade_copy_scheduler::admit::Costs;
use unlade_copy_service::Attachment;
use unlade_shm::{Queue, Task, Ticket};

use crate::fork::OfProcess;
use crate::remote::Remote;

/// A queue and its service; see [`Copier::new`](crate::Copier::new).
pub struct Link(Server);

enum Server {
    /// Threads of this process, or, in a child after a fork, of its parent.
    Local(OfProcess<Attachment>),
    /// A daemon.
    Remote(Box<Remote>),
}

impl From<Attachment> for Link {
    fn from(attachment: Attachment) -> Link {
        Link(Server::Local(OfProcess::new(attachment)))
    }
}

impl From<Remote> for Link {
    fn from(remote: Remote) -> Link {
        Link(Server::Remote(Box::new(remote)))
    }
}

impl Link {
    #[inline]
    pub(crate) fn queue(&self) -> &Queue {
        match &self.0 {
            Server::Local(attachment) => attachment.queue(),
            Server::Remote(remote) => remote.queue(),
        }
    }

    #[inline]
    pub(crate) fn is_awake(&self) -> bool {
        match &self.0 {
            Server::Local(local) => !local.is_orphan() && local.is_awake(),
            Server::Remote(remote) => remote.is_awake(),
        }
    }

    /// Measured costs of copies on this machine.
    pub(crate) fn costs(&self) -> Costs {
        match &self.0 {
            Server::Local(attachment) => attachment.costs(),
            Server::Remote(_) => Costs::default(),
        }
    }

    /// Returns true if a service serves the queue. Otherwise no service claims segments any more,
    /// though a dead daemon may have left claims. This is a system call with a daemon.
    pub(crate) fn is_served(&self) -> bool {
        match &self.0 {
            Server::Local(local) => !local.is_orphan() && local.is_served(),
            Server::Remote(remote) => remote.is_served(),
        }
    }

    pub(crate) fn ring(&self) {
        match &self.0 {
            Server::Local(local) if local.is_orphan() => {}
            Server::Local(local) => local.ring(),
            Server::Remote(remote) => remote.ring(),
        }
    }

    /// Returns true if this process is a child, and the service's threads are the parent's.
    #[inline]
    pub(crate) fn is_orphan(&self) -> bool {
        match &self.0 {
            Server::Local(local) => local.is_orphan(),
            Server::Remote(_) => false,
        }
    }

    /// The service of this process, or `None` if a daemon serves.
    #[inline]
    pub(crate) fn local(&self) -> Option<&Attachment> {
        match &self.0 {
            Server::Local(attachment) => Some(attachment),
            Server::Remote(_) => None,
        }
    }

    /// The connection to the daemon, or `None` if this process serves.
    #[inline]
    pub(crate) fn remote(&self) -> Option<&Remote> {
        match &self.0 {
            Server::Local(_) => None,
            Server::Remote(remote) => Some(remote),
        }
    }

    /// Returns true if the service can access both ranges of a copy.
    #[inline]
    pub(crate) fn reaches(&self, dst: usize, src: usize, len: usize) -> bool {
        match &self.0 {
            Server::Local(local) => !local.is_orphan(),
            Server::Remote(remote) => remote.reaches(dst, src, len),
        }
    }

    /// Converts the addresses of a task for the service, and removes private data from it.
    #[inline]
    pub(crate) fn translate(&self, ticket: Ticket, task: &mut Task) {
        if let Server::Remote(remote) = &self.0 {
            remote.translate(ticket, task);
        }
    }

    /// Returns the number of bytes of a receive or send that a daemon had moved before it was killed.
    pub(crate) fn moved(&self, ticket: Ticket) -> u32 {
        self.remote().map_or(0, |remote| remote.tasks().moved(ticket))
    }

    /// Claims all of `bits`, or nothing if one of them is claimed.
    pub(crate) fn claim_all_or_none(&self, ticket: Ticket, bits: u32) -> bool {
        let progress = self.queue().progress(ticket);
        match &self.0 {
            Server::Local(_) => progress.claim_all_or_none(bits),
            Server::Remote(remote) => remote.tasks().claim_all_or_none(ticket, progress, bits),
        }
    }

    /// Claims the segments of `wanted` that are not claimed.
    #[inline]
    pub(crate) fn claim(&self, ticket: Ticket, wanted: u32) -> u32 {
        let progress = self.queue().progress(ticket);
        match &self.0 {
            Server::Local(_) => progress.claim(wanted),
            Server::Remote(remote) => remote.tasks().claim(ticket, progress, wanted),
        }
    }
}
