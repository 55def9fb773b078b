//! The connection to a worker: sends messages and dispatches the replies.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};
use unlade_guest_protocol::control::{ControlHead, FailedWrite, Message, PerformEnd};
use unlade_guest_protocol::{HandlerStatus, RequestHead};
use unlade_runtime::descriptors::send_with;

/// A message of a worker about an instance.
#[derive(Debug)]
pub enum InstanceEvent {
    /// The instance has greeted.
    Ready,
    /// The handler has returned.
    Replied(Reply),
    /// The channel has ended.
    Gone(String),
    /// A request was refused.
    Refused(String),
}

/// The result of a handler.
#[derive(Debug)]
pub struct Reply {
    /// The invocation.
    pub invocation: String,
    /// The status of the handler.
    pub status: HandlerStatus,
    /// The end of its output.
    pub log_tail: String,
    /// Receives the failed writes once all writes have ended; `None` if none was pending.
    pub settled: Option<oneshot::Receiver<Vec<FailedWrite>>>,
    /// Duration of its prefetches in microseconds, and the part that its GETs waited for.
    pub prefetch_us: (u64, u64),
    /// Bytes of texts and bodies that its calls have brought, and of those in its calls.
    pub carried_bytes: (u64, u64),
    /// The result.
    pub result: Vec<u8>,
}

/// The end of a request on behalf of a function, and the body of its answer.
pub type Performed = (PerformEnd, Vec<u8>);

/// Limit of the bytes that are written together in one batch.
const BATCH_BYTES: usize = 64 << 10;

struct Outgoing {
    message: Message,
    descriptors: Vec<OwnedFd>,
}

/// The connection to one worker.
pub struct Link {
    outgoing: mpsc::UnboundedSender<Outgoing>,
    instances: RefCell<HashMap<u64, mpsc::UnboundedSender<InstanceEvent>>>,
    /// Receivers of the results of pending writes, by invocation.
    settles: RefCell<HashMap<String, oneshot::Sender<Vec<FailedWrite>>>>,
    /// Receivers of the ends of requests on behalf of functions, by number.
    performs: RefCell<HashMap<u64, oneshot::Sender<Performed>>>,
    next_perform: Cell<u64>,
    is_lost: Cell<bool>,
    closed: Notify,
}

impl Link {
    /// Creates a link over a connected control socket; it is served until either end closes.
    pub fn new(stream: UnixStream) -> Rc<Link> {
        let (outgoing, queue) = mpsc::unbounded_channel();
        let link = Rc::new(Link {
            outgoing,
            instances: RefCell::default(),
            settles: RefCell::default(),
            performs: RefCell::default(),
            next_perform: Cell::new(1),
            is_lost: Cell::new(false),
            closed: Notify::new(),
        });
        let (reading, writing) = stream.into_split();
        let own = Rc::downgrade(&link);
        let writer = tokio::task::spawn_local(write(writing, queue));
        tokio::task::spawn_local(async move {
            let why = match read(reading, &own).await {
                Ok(()) => "it has closed".to_owned(),
                Err(error) => error.to_string(),
            };
            writer.abort();
            if let Some(link) = own.upgrade() {
                link.lose(&why);
            }
        });
        link
    }

    /// Waits until the worker has disconnected.
    pub async fn closed(&self) {
        let closed = self.closed.notified();
        if !self.is_lost.get() {
            closed.await;
        }
    }

    /// Returns true if the worker has disconnected.
    pub fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    fn lose(&self, why: &str) {
        self.is_lost.set(true);
        let instances = std::mem::take(&mut *self.instances.borrow_mut());
        for heard in instances.into_values() {
            let _ = heard.send(InstanceEvent::Gone(format!("the I/O worker is gone: {why}")));
        }
        self.settles.borrow_mut().clear();
        self.performs.borrow_mut().clear();
        self.closed.notify_waiters();
    }

    /// Sends a message. If the worker has disconnected, the waiting receivers are notified of
    /// that.
    pub fn say(&self, said: ControlHead) {
        self.say_with(said, Vec::new(), Vec::new());
    }

    /// Sends a message with a payload and descriptors.
    pub fn say_with(&self, said: ControlHead, bytes: Vec<u8>, descriptors: Vec<OwnedFd>) {
        let message = Message { said, bytes };
        let _ = self.outgoing.send(Outgoing { message, descriptors });
    }

    /// Has a request performed with the rights of a role and the worker's keys; returns its end, and
    /// the body of its answer. A lost connection is a failure: whether the service has got the request
    /// is unknown then.
    pub async fn perform(&self, role: u64, request: RequestHead, body: Vec<u8>) -> Performed {
        let lost = || {
            let why = "the I/O worker is gone".to_owned();
            (PerformEnd::Failed { why }, Vec::new())
        };
        if self.is_lost.get() {
            return lost();
        }
        let call = self.next_perform.get();
        self.next_perform.set(call + 1);
        let (sender, performed) = oneshot::channel();
        self.performs.borrow_mut().insert(call, sender);
        self.say_with(ControlHead::Perform { call, role, request }, body, Vec::new());
        performed.await.unwrap_or_else(|_| lost())
    }

    /// Receives the messages about an instance from now on.
    pub fn listen(&self, instance: u64) -> mpsc::UnboundedReceiver<InstanceEvent> {
        let (sender, receiver) = mpsc::unbounded_channel();
        if self.is_lost.get() {
            let _ = sender.send(InstanceEvent::Gone("the I/O worker is gone".to_owned()));
        }
        self.instances.borrow_mut().insert(instance, sender);
        receiver
    }

    /// Removes the receiver of an instance.
    pub fn forget(&self, instance: u64) {
        self.instances.borrow_mut().remove(&instance);
    }

    fn hear(&self, message: Message) {
        let Message { said, bytes } = message;
        let tell = |instance: u64, heard: InstanceEvent| {
            let send =
                |listener: &mpsc::UnboundedSender<InstanceEvent>| listener.send(heard).is_err();
            let is_left = self.instances.borrow().get(&instance).is_some_and(send);
            if is_left {
                // The start was cancelled.
                self.forget(instance);
            }
        };
        match said {
            ControlHead::Ready { instance, .. } => tell(instance, InstanceEvent::Ready),
            ControlHead::Replied {
                instance,
                invocation,
                status,
                log_tail,
                pending_writes,
                prefetch_us,
                prefetch_waited_us,
                received_bytes,
                sent_bytes,
            } => {
                let carried_bytes = (received_bytes, sent_bytes);
                let prefetch_us = (prefetch_us, prefetch_waited_us);
                let result = bytes;
                let settled = (pending_writes > 0).then(|| {
                    let (sender, settled) = oneshot::channel();
                    self.settles.borrow_mut().insert(invocation.clone(), sender);
                    settled
                });
                let reply = Reply {
                    invocation,
                    status,
                    log_tail,
                    settled,
                    prefetch_us,
                    carried_bytes,
                    result,
                };
                tell(instance, InstanceEvent::Replied(reply));
            }
            ControlHead::Gone { instance, reason } => tell(instance, InstanceEvent::Gone(reason)),
            ControlHead::Settled { invocation, failed } => {
                if let Some(sender) = self.settles.borrow_mut().remove(&invocation) {
                    let _ = sender.send(failed);
                }
            }
            ControlHead::Performed { call, end } => {
                if let Some(sender) = self.performs.borrow_mut().remove(&call) {
                    // The end of a request that nobody waits for any more is dropped.
                    let _ = sender.send((end, bytes));
                }
            }
            ControlHead::Refused { instance: Some(instance), reason, .. } => {
                tell(instance, InstanceEvent::Refused(reason));
            }
            ControlHead::Refused { reason, .. } => tracing::warn!(%reason, "the worker refused"),
            _ => tracing::warn!("the worker says what only a gateway says"),
        }
    }
}

async fn read(mut socket: OwnedReadHalf, link: &std::rc::Weak<Link>) -> io::Result<()> {
    let mut input = Vec::new();
    loop {
        let mut taken = 0;
        while let Some((message, bytes)) =
            Message::decode(&input[taken..]).map_err(io::Error::other)?
        {
            taken += bytes;
            let Some(link) = link.upgrade() else { return Ok(()) };
            link.hear(message);
        }
        input.drain(..taken);
        if socket.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
    }
}

async fn write(
    socket: OwnedWriteHalf,
    mut queue: mpsc::UnboundedReceiver<Outgoing>,
) -> io::Result<()> {
    let stream: &UnixStream = socket.as_ref();
    let mut bytes = Vec::new();
    while let Some(first) = queue.recv().await {
        bytes.clear();
        let mut descriptors = Vec::new();
        let mut next = Some(first);
        // Messages that wait as well are sent in the same write, but descriptors only with their
        // own message.
        while let Some(Outgoing { message, descriptors: beside }) = next.take() {
            if let Err(error) = message.encode(&mut bytes) {
                tracing::error!(%error, "a message to the worker is too long");
            } else {
                descriptors = beside;
            }
            if descriptors.is_empty() && bytes.len() < BATCH_BYTES {
                next = queue.try_recv().ok();
            }
        }
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let (mut left, mut beside) = (bytes.as_slice(), borrowed.as_slice());
        while !left.is_empty() {
            let send = || send_with(stream, left, beside);
            let sent = stream.async_io(Interest::WRITABLE, send).await?;
            left = &left[sent..];
            // The descriptors were sent with the first bytes.
            beside = &[];
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;

    use super::*;

    /// A worker that answers requests out of order, and goes away before it has answered all.
    #[tokio::test]
    async fn ends_of_requests_reach_those_who_wait_and_a_lost_worker_is_a_failure() {
        let within = LocalSet::new();
        let (stream, mut worker) = UnixStream::pair().unwrap();
        let test = async {
            let link = Link::new(stream);
            let request = |operation| crate::service_request::queue("us-east-1", operation);
            let first = link.perform(1, request("SendMessage"), b"1".to_vec());
            let second = link.perform(1, request("SendMessage"), b"2".to_vec());
            let third = link.perform(1, request("SendMessage"), b"3".to_vec());
            let answers = async {
                let (mut input, mut asked) = (Vec::new(), Vec::new());
                while asked.len() < 3 {
                    worker.read_buf(&mut input).await.unwrap();
                    while let Some((message, taken)) = Message::decode(&input).unwrap() {
                        input.drain(..taken);
                        let ControlHead::Perform { call, .. } = message.said else { panic!() };
                        asked.push((call, message.bytes));
                    }
                }
                for (call, bytes) in asked.iter().rev().filter(|(_, bytes)| bytes != b"3") {
                    let end = PerformEnd::Answered { http_status: 200 };
                    let said = ControlHead::Performed { call: *call, end };
                    let mut out = Vec::new();
                    Message { said, bytes: bytes.clone() }.encode(&mut out).unwrap();
                    tokio::io::AsyncWriteExt::write_all(&mut worker, &out).await.unwrap();
                }
                drop(worker);
            };
            let (first, second, third, ()) = tokio::join!(first, second, third, answers);
            assert_eq!((first.1.as_slice(), second.1.as_slice()), (&b"1"[..], &b"2"[..]));
            assert!(matches!(third.0, PerformEnd::Failed { .. }), "{third:?}");
            let late = link.perform(1, request("SendMessage"), Vec::new()).await;
            assert!(matches!(late.0, PerformEnd::Failed { .. }), "{late:?}");
            assert!(link.performs.borrow().is_empty());
        };
        within.run_until(test).await;
    }

    #[tokio::test]
    async fn who_does_not_listen_any_more_is_forgotten() {
        let within = LocalSet::new();
        let (stream, _worker) = UnixStream::pair().unwrap();
        let link = within.run_until(async { Link::new(stream) }).await;
        let gone = |instance| {
            let said = ControlHead::Gone { instance, reason: "it has ended".to_owned() };
            link.hear(Message { said, bytes: Vec::new() });
        };
        let (kept, left) = (link.listen(1), link.listen(2));
        drop(left);
        gone(1);
        gone(2);
        assert_eq!(link.instances.borrow().keys().collect::<Vec<_>>(), [&1]);
        drop(kept);
    }
}
