//! Where the service is: in this process, or behind shared memory.

use copyd::Attachment;
use copyplan::admit::Costs;
use ring::{Queue, Task, Ticket};

use crate::remote::Remote;

/// A queue and whoever serves it; see [`Copier::new`](crate::Copier::new).
pub enum Link {
    /// Threads of this process.
    Local(Attachment),
    /// A daemon.
    Remote(Box<Remote>),
}

impl From<Attachment> for Link {
    fn from(attachment: Attachment) -> Link {
        Link::Local(attachment)
    }
}

impl From<Remote> for Link {
    fn from(remote: Remote) -> Link {
        Link::Remote(Box::new(remote))
    }
}

impl Link {
    #[inline]
    pub(crate) fn queue(&self) -> &Queue {
        match self {
            Link::Local(attachment) => attachment.queue(),
            Link::Remote(remote) => remote.queue(),
        }
    }

    #[inline]
    pub(crate) fn is_awake(&self) -> bool {
        match self {
            Link::Local(attachment) => attachment.is_awake(),
            Link::Remote(remote) => remote.is_awake(),
        }
    }

    /// What copies cost on this machine, as far as it is known.
    pub(crate) fn costs(&self) -> Costs {
        match self {
            Link::Local(attachment) => attachment.costs(),
            Link::Remote(_) => Costs::default(),
        }
    }

    /// Whether somebody serves the queue; where not, nothing is claimed any more but by a daemon
    /// that is dead. A system call with a daemon.
    pub(crate) fn is_served(&self) -> bool {
        match self {
            Link::Local(attachment) => attachment.is_served(),
            Link::Remote(remote) => remote.is_served(),
        }
    }

    pub(crate) fn ring(&self) {
        match self {
            Link::Local(attachment) => attachment.ring(),
            Link::Remote(remote) => remote.ring(),
        }
    }

    /// The service of this process, if that is who serves.
    #[inline]
    pub(crate) fn local(&self) -> Option<&Attachment> {
        match self {
            Link::Local(attachment) => Some(attachment),
            Link::Remote(_) => None,
        }
    }

    /// The daemon, if that is who serves.
    #[inline]
    pub(crate) fn remote(&self) -> Option<&Remote> {
        match self {
            Link::Local(_) => None,
            Link::Remote(remote) => Some(remote),
        }
    }

    /// Whether the service can reach both ranges of a copy.
    #[inline]
    pub(crate) fn reaches(&self, dst: usize, src: usize, len: usize) -> bool {
        self.remote().is_none_or(|remote| remote.reaches(dst, src, len))
    }

    /// Turns a task of this process's addresses into one that the service understands, and keeps
    /// what is not for others.
    #[inline]
    pub(crate) fn translate(&self, ticket: Ticket, task: &mut Task) {
        if let Link::Remote(remote) = self {
            remote.translate(ticket, task);
        }
    }

    /// Claims what nobody has of `wanted`.
    #[inline]
    pub(crate) fn claim(&self, ticket: Ticket, wanted: u32) -> u32 {
        let progress = self.queue().progress(ticket);
        match self {
            Link::Local(_) => progress.claim(wanted),
            Link::Remote(remote) => remote.ledger().claim(ticket, progress, wanted),
        }
    }
}
