//! Where the service is: in this process, or behind shared memory.

use unlade_copy_scheduler::admit::Costs;
use unlade_copy_service::Attachment;
use unlade_shm::{Queue, Task, Ticket};

use crate::fork::OfProcess;
use crate::remote::Remote;

/// A queue and whoever serves it; see [`Copier::new`](crate::Copier::new).
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

    /// What copies cost on this machine, as far as it is known.
    pub(crate) fn costs(&self) -> Costs {
        match &self.0 {
            Server::Local(attachment) => attachment.costs(),
            Server::Remote(_) => Costs::default(),
        }
    }

    /// Whether somebody serves the queue; where not, nothing is claimed any more but by a daemon
    /// that is dead. A system call with a daemon.
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

    /// Whether the threads that serve are the parent's, and this is a child.
    #[inline]
    pub(crate) fn is_orphan(&self) -> bool {
        match &self.0 {
            Server::Local(local) => local.is_orphan(),
            Server::Remote(_) => false,
        }
    }

    /// The service of this process, if that is who serves.
    #[inline]
    pub(crate) fn local(&self) -> Option<&Attachment> {
        match &self.0 {
            Server::Local(attachment) => Some(attachment),
            Server::Remote(_) => None,
        }
    }

    /// The daemon, if that is who serves.
    #[inline]
    pub(crate) fn remote(&self) -> Option<&Remote> {
        match &self.0 {
            Server::Local(_) => None,
            Server::Remote(remote) => Some(remote),
        }
    }

    /// Whether the service can reach both ranges of a copy.
    #[inline]
    pub(crate) fn reaches(&self, dst: usize, src: usize, len: usize) -> bool {
        match &self.0 {
            Server::Local(local) => !local.is_orphan(),
            Server::Remote(remote) => remote.reaches(dst, src, len),
        }
    }

    /// Turns a task of this process's addresses into one that the service understands, and keeps
    /// what is not for others.
    #[inline]
    pub(crate) fn translate(&self, ticket: Ticket, task: &mut Task) {
        if let Server::Remote(remote) = &self.0 {
            remote.translate(ticket, task);
        }
    }

    /// Claims what nobody has of `wanted`.
    #[inline]
    pub(crate) fn claim(&self, ticket: Ticket, wanted: u32) -> u32 {
        let progress = self.queue().progress(ticket);
        match &self.0 {
            Server::Local(_) => progress.claim(wanted),
            Server::Remote(remote) => remote.ledger().claim(ticket, progress, wanted),
        }
    }
}
