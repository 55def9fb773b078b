//! The sending end of a channel.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use unlade_copy_service::daemon::socket;
use unlade_shm::{Arena, Queue, Task, Ticket, segment};

use super::wire::{ChannelMessage, ReplyBytes, TaskPlace, WireError};
use super::{ChannelError, SLOTS_MAX};
use crate::admission::MESSAGE_BYTES_MIN;
use crate::copier::{Copier, CopyOptions, TASK_BYTES_MAX};
use crate::pending::Kind;
use crate::remote::Remote;

/// A sleeping daemon is woken after this number of bytes was copied without it.
const WAKE_BYTES: usize = 256 << 10;

/// State of a message slot.
#[derive(Clone, Copy, Debug)]
enum SlotState {
    Free,
    Sent(Option<Ticket>, u32),
    Replied(ReplyBytes),
}

/// Identifies a sent message, for [`MessageSender::wait`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the receiver's reply is waited for by it; until then its slot is taken"]
pub struct Reply(u32);

/// Sends messages.
pub struct MessageSender {
    copier: Copier,
    outbox: Arc<Arena>,
    inbox: Arc<Arena>,
    slot_bytes: usize,
    slots: Vec<SlotState>,
    socket: OwnedFd,
    is_offloading: bool,
    missed_bytes: usize,
}

impl MessageSender {
    /// Opens a channel on a connected socket (`SOCK_SEQPACKET`). `remote` is a connection to the
    /// daemon that is used for nothing else, because the receiver sees its queue.
    ///
    /// Up to `slots` messages of up to `slot_bytes` bytes may be in flight: 1 to [`SLOTS_MAX`]
    /// messages, and 1 byte to 1 MiB.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn connect(
        remote: Remote,
        socket: impl Into<OwnedFd>,
        slots: u32,
        slot_bytes: u32,
    ) -> Result<MessageSender, ChannelError> {
        let socket = socket.into();
        let is_allowed = (1..=SLOTS_MAX).contains(&slots)
            && (1..=TASK_BYTES_MAX).contains(&(slot_bytes as usize));
        if !is_allowed {
            return Err(ChannelError::Shape { slots, bytes: slot_bytes });
        }
        let area_bytes = slots as usize * slot_bytes as usize;
        let (outbox, inbox) = (remote.arena(area_bytes)?, remote.arena(area_bytes)?);
        let queue = remote.queue().memory().fd().ok_or(ChannelError::Closed)?;
        let hello = ChannelMessage::Hello { slots, slot_bytes };
        socket::send(socket.as_fd(), hello.encode().as_slice(), &[queue, inbox.fd()])?;
        Ok(MessageSender {
            copier: Copier::new(remote),
            outbox,
            inbox,
            slot_bytes: slot_bytes as usize,
            slots: vec![SlotState::Free; slots as usize],
            socket,
            is_offloading: true,
            missed_bytes: 0,
        })
    }

    /// Selects whether the daemon copies messages (the default), or this thread copies them before
    /// it sends them.
    pub fn set_offloading(&mut self, is_offloading: bool) {
        self.is_offloading = is_offloading;
    }

    /// The connection to the daemon.
    pub fn remote(&self) -> Option<&Remote> {
        self.copier.remote()
    }

    /// Begins a message; waits for the receiver if all slots are taken.
    ///
    /// # Errors
    /// [`ChannelError`]; also if all slots hold replies that were not waited for.
    pub fn draft(&mut self) -> Result<Draft<'_>, ChannelError> {
        loop {
            if let Some(slot) = self.slots.iter().position(|slot| matches!(slot, SlotState::Free)) {
                return Ok(Draft { sender: self, slot, len: 0 });
            }
            if !self.slots.iter().any(|slot| matches!(slot, SlotState::Sent(..))) {
                let (slots, bytes) = (self.slots.len() as u32, self.slot_bytes as u32);
                return Err(ChannelError::Shape { slots, bytes });
            }
            self.process_message()?;
        }
    }

    /// Waits until the receiver has released a message, and returns its reply.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn wait(&mut self, reply: Reply) -> Result<ReplyBytes, ChannelError> {
        loop {
            if let SlotState::Replied(bytes) = self.slots[reply.0 as usize] {
                self.slots[reply.0 as usize] = SlotState::Free;
                return Ok(bytes);
            }
            self.process_message()?;
        }
    }

    /// Processes one message from the receiver.
    fn process_message(&mut self) -> Result<(), ChannelError> {
        let received = match socket::receive(self.socket.as_fd()) {
            // The receiver has closed without reading everything that was sent to it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => None,
            received => received?,
        };
        let received = received.ok_or(ChannelError::Closed)?;
        let (slot, reply) = match ChannelMessage::decode(received.bytes())? {
            ChannelMessage::Stalled { slot } => (slot, None),
            ChannelMessage::Released { slot, reply } => (slot, Some(reply)),
            ChannelMessage::Hello { .. } | ChannelMessage::Sent { .. } => {
                return Err(WireError::Order("a message of a sender").into());
            }
        };
        let Some(&SlotState::Sent(ticket, len)) = self.slots.get(slot as usize) else {
            let is_late = reply.is_none() && (slot as usize) < self.slots.len();
            // The stall report crossed the release of the message.
            return if is_late { Ok(()) } else { Err(WireError::Order("RELEASED").into()) };
        };
        let completed = match ticket {
            Some(ticket) => {
                let shift = segment::granule_shift_for(len);
                self.copier.complete(ticket, segment::bits_for(len, shift))
            }
            None => Ok(()),
        };
        if let Some(reply) = reply {
            self.slots[slot as usize] = SlotState::Replied(reply);
        }
        Ok(completed?)
    }

    fn send(&mut self, slot: usize, len: usize) -> Result<Reply, ChannelError> {
        let at = slot * self.slot_bytes;
        // SAFETY: slots are within both areas, see `connect`.
        let (dst, src) =
            unsafe { (self.inbox.as_ptr().add(at), self.outbox.as_ptr().add(at).cast_const()) };
        let ticket = self.queue(dst, src, len);
        if ticket.is_none() {
            // SAFETY: both areas are mapped as long as this value lives, and are two mappings. No
            // copy of the slot is pending, since the last one was completed when the slot was
            // released. The copy allows other processes to write both areas.
            unsafe { unlade_copy_kernels::copy(dst, src, len, unlade_copy_kernels::Hint::Reuse) };
            self.missed_bytes += len;
            if self.is_offloading && self.missed_bytes >= WAKE_BYTES && !self.copier.is_awake() {
                self.missed_bytes = 0;
                self.copier.ring();
            }
        }
        let task = ticket.map(|ticket| TaskPlace {
            ticket: ticket.0,
            granule_shift: segment::granule_shift_for(len as u32),
        });
        self.slots[slot] = SlotState::Sent(ticket, len as u32);
        let sent = ChannelMessage::Sent { slot: slot as u32, len: len as u32, task };
        socket::send(self.socket.as_fd(), sent.encode().as_slice(), &[])?;
        Ok(Reply(slot as u32))
    }

    /// Queues the copy for the daemon, if the daemon is awake and the copy is large enough.
    fn queue(&self, dst: *mut u8, src: *const u8, len: usize) -> Option<Ticket> {
        let is_worth_it = self.is_offloading && len >= MESSAGE_BYTES_MIN && self.copier.is_awake();
        let remote = self.copier.remote().filter(|_| is_worth_it)?;
        if !remote.reaches(dst.addr(), src.addr(), len) || is_next_kept(self.copier.queue()) {
            return None;
        }
        let ticket = self.copier.queue().try_acquire()?;
        let (dst, src) = (dst.expose_provenance(), src.expose_provenance());
        let task = Task::copy(dst as u64, src as u64, len as u32);
        let _token = self.copier.publish(ticket, Kind::Copy, task, &CopyOptions::default());
        Some(ticket)
    }
}

impl std::fmt::Debug for MessageSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageSender").field("slots", &self.slots).finish_non_exhaustive()
    }
}

/// A message being written, in memory that the daemon copies from.
#[derive(Debug)]
#[must_use = "it is sent by `send`"]
pub struct Draft<'a> {
    sender: &'a mut MessageSender,
    slot: usize,
    len: usize,
}

impl Draft<'_> {
    /// Number of bytes written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if nothing is written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sends the message. Returns the handle to wait for its reply.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn send(self) -> Result<Reply, ChannelError> {
        self.sender.send(self.slot, self.len)
    }
}

/// Returns true if the next task would reuse the slot of a failed one. The receiver may still have
/// that message, and reads the error only from this slot. From then on messages are copied
/// synchronously.
fn is_next_kept(queue: &Queue) -> bool {
    let before = Ticket(queue.head().0.wrapping_sub(queue.slots().into()));
    queue.progress(before).error().is_some()
}

/// Appends to the message. More bytes than fit are [`ChannelError::TooLong`], and the draft is
/// unchanged.
impl Write for Draft<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = self.sender.slot_bytes;
        if bytes.len() > most - self.len {
            let bytes = self.len.saturating_add(bytes.len());
            return Err(ChannelError::TooLong { bytes, most }.into());
        }
        let at = self.slot * most + self.len;
        // SAFETY: within the slot, hence within the area, which is mapped. No reference into it
        // exists, and no copy of the slot is pending. The daemon, or a receiver that tampers with
        // the queue, can write there too: that only corrupts the message.
        unsafe {
            let dst = self.sender.outbox.as_ptr().add(at);
            unlade_copy_kernels::copy(
                dst,
                bytes.as_ptr(),
                bytes.len(),
                unlade_copy_kernels::Hint::Reuse,
            );
        }
        self.len += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU16;
    use unlade_shm::Memory;

    #[test]
    fn the_slot_of_a_message_that_failed_is_kept() {
        let memory = Memory::heap(Queue::bytes_for(16).unwrap()).unwrap();
        let queue = Queue::create(memory, 16).unwrap();
        for number in 0..16 + 5 {
            assert!(!is_next_kept(&queue), "{number}");
            let ticket = queue.try_acquire().unwrap();
            queue.publish(ticket, &Task::copy(0x1000, 0x9000, 100));
            let progress = queue.progress(ticket);
            match progress.claim(1) {
                bits if number == 5 => progress.fail(NonZeroU16::new(22).unwrap(), bits),
                bits => progress.finish(bits),
            };
            queue.retire(ticket.next());
        }
        assert!(is_next_kept(&queue));
    }
}
