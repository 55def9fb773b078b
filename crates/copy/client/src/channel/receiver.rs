//! The receiving end of a channel.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use unlade_copy_service::TaskFailure;
use unlade_copy_service::daemon::socket;
use unlade_shm::{Arena, Memory, Queue, Ticket, Until, WaitPolicy, Waited, segment};

use super::ChannelError;
use super::wire::{ChannelMessage, ReplyBytes, TaskPlace, WireError};
use crate::error::CopyError;

/// Default limit for a message without progress.
const STALL_MAX_DEFAULT: Duration = Duration::from_secs(10);
/// Spins, then sleeps, before the receiver reports a stall to the sender.
const PATIENCE: WaitPolicy =
    WaitPolicy { until: Until::Done, spins_max: 2_000, slice_us: 1_000, slices_max: 2 };

/// Receives messages.
#[derive(Debug)]
pub struct MessageReceiver {
    socket: OwnedFd,
    queue: Queue,
    inbox: Arena,
    slots: u32,
    slot_bytes: usize,
    /// Bit set of slots whose messages are not released.
    taken: Cell<u32>,
    stall_max: Duration,
}

impl MessageReceiver {
    /// Accepts the channel that [`MessageSender::connect`](super::MessageSender::connect) opens;
    /// waits for it.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn accept(socket: impl Into<OwnedFd>) -> Result<MessageReceiver, ChannelError> {
        let socket = socket.into();
        let received = socket::receive(socket.as_fd())?.ok_or(ChannelError::Closed)?;
        let ChannelMessage::Hello { slots, slot_bytes } = ChannelMessage::decode(received.bytes())?
        else {
            return Err(WireError::Order("a first message that is not HELLO").into());
        };
        let Ok([queue, inbox]) = <[OwnedFd; 2]>::try_from(received.descriptors) else {
            return Err(WireError::Order("HELLO without two descriptors").into());
        };
        let (queue, inbox) = (Memory::from(Arena::attach(queue)?), Arena::attach(inbox)?);
        let slot_bytes = slot_bytes as usize;
        if slots as usize * slot_bytes > inbox.len_bytes() {
            let found = inbox.len_bytes() as u64;
            return Err(WireError::Range { what: "an inbox", found }.into());
        }
        let queue = Queue::attach(queue)?;
        let (taken, stall_max) = (Cell::new(0), STALL_MAX_DEFAULT);
        Ok(MessageReceiver { socket, queue, inbox, slots, slot_bytes, taken, stall_max })
    }

    /// Sets how long a message may make no progress before a read fails. The default is ten
    /// seconds.
    pub fn set_stall_max(&mut self, stall_max: Duration) {
        self.stall_max = stall_max;
    }

    /// Returns the next message, or none if the sender has closed. Its bytes are usually still
    /// being copied.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn receive(&self) -> Result<Option<Message<'_>>, ChannelError> {
        let received = match socket::receive(self.socket.as_fd()) {
            // The sender has closed without reading everything that was sent to it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => None,
            received => received?,
        };
        let Some(received) = received else { return Ok(None) };
        let ChannelMessage::Sent { slot, len, task } = ChannelMessage::decode(received.bytes())?
        else {
            return Err(WireError::Order("a message that is not SENT").into());
        };
        if slot >= self.slots || len as usize > self.slot_bytes {
            let (what, found) = ("a slot's or a message's size", len.into());
            return Err(WireError::Range { what, found }.into());
        }
        let taken = self.taken.get();
        if taken >> slot & 1 != 0 {
            return Err(WireError::Order("a message in a slot that is taken").into());
        }
        self.taken.set(taken | 1 << slot);
        Ok(Some(Message { receiver: self, slot, len, task, is_released: false }))
    }

    fn send(&self, message: &ChannelMessage) -> io::Result<()> {
        socket::send(self.socket.as_fd(), message.encode().as_slice(), &[])
    }

    fn release(&self, slot: u32, reply: ReplyBytes) -> io::Result<()> {
        self.taken.set(self.taken.get() & !(1 << slot));
        self.send(&ChannelMessage::Released { slot, reply })
    }

    /// Returns true if the sender has not closed.
    fn is_open(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let found = poll(&mut polled, Some(&now)).unwrap_or(0);
        found == 0 || !polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

/// A message in the inbox. It is released when dropped, or by [`Message::reply`].
///
/// Its bytes can only be copied out, since the sender can write there at any time.
#[derive(Debug)]
pub struct Message<'a> {
    receiver: &'a MessageReceiver,
    slot: u32,
    len: u32,
    task: Option<TaskPlace>,
    is_released: bool,
}

impl Message<'_> {
    /// Length of the message in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if the bytes of `range` have been copied; does not wait.
    #[inline]
    pub fn is_ready(&self, range: Range<usize>) -> bool {
        let Some(task) = self.task else { return true };
        self.receiver.queue.progress(Ticket(task.ticket)).is_done(self.bits(task, &range))
    }

    fn bits(&self, task: TaskPlace, range: &Range<usize>) -> u32 {
        let end = range.end.min(self.len()) as u32;
        segment::bits_of_range(
            range.start.min(self.len()) as u32..end,
            self.len,
            task.granule_shift,
        )
    }

    /// Waits for the bytes from `at` on, and copies them out of the message.
    ///
    /// # Errors
    /// [`ChannelError`]: the copy failed or stalled. [`io::ErrorKind::UnexpectedEof`]: the range
    /// is not within the message.
    #[inline]
    pub fn read_at(&self, at: usize, out: &mut [u8]) -> Result<(), ChannelError> {
        let end = at.checked_add(out.len()).filter(|end| *end <= self.len());
        let end = end.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        if let Some(task) = self.task {
            self.wait(task, self.bits(task, &(at..end)))?;
        }
        let start = self.slot as usize * self.receiver.slot_bytes + at;
        // SAFETY: the range is within the slot, hence within the inbox (checked in `accept`),
        // which is mapped; `out` is other memory. The sender may write there during the copy: the
        // result is untrusted bytes.
        unsafe {
            let src = self.receiver.inbox.as_ptr().add(start);
            unlade_copy_kernels::copy(
                out.as_mut_ptr(),
                src,
                out.len(),
                unlade_copy_kernels::Hint::Reuse,
            );
        }
        Ok(())
    }

    #[inline]
    fn wait(&self, task: TaskPlace, bits: u32) -> Result<(), ChannelError> {
        let progress = self.receiver.queue.progress(Ticket(task.ticket));
        if !progress.is_done(bits) {
            self.wait_slowly(task, bits)?;
        }
        match progress.error() {
            None => Ok(()),
            Some(code) => Err(CopyError::Failed(TaskFailure::of(code)).into()),
        }
    }

    #[cold]
    fn wait_slowly(&self, task: TaskPlace, bits: u32) -> Result<(), ChannelError> {
        let progress = self.receiver.queue.progress(Ticket(task.ticket));
        let begin = Instant::now();
        loop {
            match progress.wait(bits, &PATIENCE, || self.receiver.is_open()) {
                Waited::Done => return Ok(()),
                Waited::Stop => return Err(ChannelError::Closed),
                Waited::Free(_) | Waited::TimedOut => {}
            }
            if begin.elapsed() >= self.receiver.stall_max {
                let seconds = self.receiver.stall_max.as_secs();
                return Err(ChannelError::Stalled { seconds });
            }
            self.receiver.send(&ChannelMessage::Stalled { slot: self.slot })?;
        }
    }

    /// Releases the message, with up to [`REPLY_BYTES_MAX`](super::wire::REPLY_BYTES_MAX) bytes
    /// for its sender.
    ///
    /// # Errors
    /// The reply is too long, or the socket's error.
    pub fn reply(mut self, reply: &[u8]) -> Result<(), ChannelError> {
        let most = super::wire::REPLY_BYTES_MAX;
        let too_long = ChannelError::TooLong { bytes: reply.len(), most };
        let reply = ReplyBytes::new(reply).ok_or(too_long)?;
        self.is_released = true;
        Ok(self.receiver.release(self.slot, reply)?)
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        if !self.is_released {
            // A sender that is gone needs no release.
            let _ = self.receiver.release(self.slot, ReplyBytes::default());
        }
    }
}
