//! The driver of one queue: a task that sends, receives and delivers completions.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use unlade_nic_engine::software::pdus::Input;

use super::queue::{Answer, Failure, Queue, QueueError, Refused, Request};

/// An async byte stream: a TCP connection, TLS on one, or anything else.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}

/// Any [`ByteStream`].
pub type BoxStream = Box<dyn ByteStream>;

/// Largest number of bytes of one receive.
const RECEIVE_BYTES: usize = 256 * 1024;
/// Largest number of buffers of one send.
const SLICES_MAX: usize = 64;
/// Interval of the checks for timeouts.
const TICK: Duration = Duration::from_millis(200);
/// How long the transmission of a termination request may take.
const TERMINATE_MAX: Duration = Duration::from_millis(200);
/// Iterations before the task yields.
const ROUNDS_MAX: usize = 32;

/// The reason of a connection's end.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The stream failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The controller closed it.
    #[error("the controller closed the connection")]
    Closed,
    /// The controller violated the protocol, or did not answer in time.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// The error of a command.
#[derive(Clone, Debug, Error)]
pub enum CommandError {
    /// The command failed; the connection goes on.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The connection ended before the answer. The command may or may not have been executed.
    #[error("the connection to the controller was lost: {0}")]
    Lost(Arc<str>),
    /// Its data is longer than the limit of a command.
    #[error("the command has more than {} bytes of data", super::queue::DATA_BYTES_MAX)]
    TooLarge,
}

pub(super) type Reply = oneshot::Sender<Result<Answer, CommandError>>;

/// A command on its way to the queue, with its reply channel.
pub(super) struct Job {
    request: Request,
    reply: Reply,
}

/// A handle of a queue that runs in another task.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    jobs: mpsc::Sender<Job>,
    counts: Arc<Counts>,
}

/// Counters of a queue's task.
#[derive(Debug, Default)]
struct Counts {
    commands: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    data_digest_errors: AtomicU64,
}

/// The answer to a submitted command. Dropping it discards the answer; the command's identifier
/// stays in use until the controller has answered.
#[derive(Debug)]
pub(super) struct Pending(oneshot::Receiver<Result<Answer, CommandError>>);

impl Pending {
    pub(super) async fn answer(self) -> Result<Answer, CommandError> {
        self.0.await.unwrap_or_else(|_| Err(CommandError::Lost("its task has ended".into())))
    }
}

impl Handle {
    /// Submits a command; waits while the queue is full.
    pub(super) async fn submit(&self, request: Request) -> Pending {
        let (reply, answer) = oneshot::channel();
        // If the task has ended, the reply is dropped, and the answer is an error.
        let _ = self.jobs.send(Job { request, reply }).await;
        Pending(answer)
    }

    /// Returns true if no more commands are accepted.
    pub(super) fn is_over(&self) -> bool {
        self.jobs.is_closed()
    }

    /// Submits a command and waits for its answer.
    pub(super) async fn execute(&self, request: Request) -> Result<Answer, CommandError> {
        self.submit(request).await.answer().await
    }

    /// Counters: commands, bytes received, bytes sent, wrong data digests.
    pub(super) fn counts(&self) -> [u64; 4] {
        let counts = &self.counts;
        [&counts.commands, &counts.received_bytes, &counts.sent_bytes, &counts.data_digest_errors]
            .map(|count| count.load(Ordering::Relaxed))
    }
}

/// One queue with its connection.
pub(super) struct Driver {
    stream: BoxStream,
    queue: Queue<Reply>,
    jobs: mpsc::Receiver<Job>,
    counts: Arc<Counts>,
    received: Box<[u8]>,
    started: Instant,
    tick: Interval,
    /// True if all handles are dropped.
    closing: bool,
    unflushed: bool,
}

impl Driver {
    /// Creates the task of `queue`, for [`Driver::run`], and the handle for its commands.
    pub(super) fn new(stream: BoxStream, queue: Queue<Reply>) -> (Handle, Driver) {
        let (sender, jobs) = mpsc::channel(queue.free().max(1));
        let counts = Arc::new(Counts::default());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let driver = Driver {
            stream,
            queue,
            jobs,
            counts: counts.clone(),
            received: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            started: Instant::now(),
            tick,
            closing: false,
            unflushed: false,
        };
        (Handle { jobs: sender, counts }, driver)
    }

    /// Runs until all handles are dropped and all commands answered, or the connection ends.
    /// Commands in flight are lost then.
    ///
    /// # Errors
    /// [`ConnectionError`].
    pub(super) async fn run(mut self) -> Result<(), ConnectionError> {
        let ended = poll_fn(|context| self.poll(context)).await;
        let Err(error) = &ended else { return Ok(()) };
        let reason: Arc<str> = error.to_string().into();
        // First, so that a caller that repeats a command sees the end of this queue.
        self.jobs.close();
        for reply in self.queue.abandon() {
            let _ = reply.send(Err(CommandError::Lost(reason.clone())));
        }
        while let Ok(job) = self.jobs.try_recv() {
            let _ = job.reply.send(Err(CommandError::Lost(reason.clone())));
        }
        if matches!(error, ConnectionError::Queue(_)) {
            self.queue.terminate();
            let leave = poll_fn(|context| self.poll_send(context));
            let _ = tokio::time::timeout(TERMINATE_MAX, leave).await;
        }
        ended
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        for _ in 0..ROUNDS_MAX {
            let submitted = self.take_jobs(context);
            let sent = self.send_some(context)?;
            let received = self.receive_some(context)?;
            self.give_out();
            if self.tick.poll_tick(context).is_ready() {
                self.queue.check_timeouts(self.started.elapsed())?;
                continue;
            }
            if self.closing && self.queue.in_flight() == 0 && !self.queue.wants_to_send() {
                return Poll::Ready(Ok(()));
            }
            if !submitted && !sent && !received {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Accepts commands while there is room. Returns true if one was accepted.
    fn take_jobs(&mut self, context: &mut Context<'_>) -> bool {
        let mut taken = false;
        while self.queue.free() > 0 && !self.closing {
            match self.jobs.poll_recv(context) {
                Poll::Ready(Some(job)) => {
                    taken = true;
                    self.submit(job);
                }
                Poll::Ready(None) => self.closing = true,
                Poll::Pending => break,
            }
        }
        taken
    }

    fn submit(&mut self, job: Job) {
        // The caller is gone.
        if job.reply.is_closed() {
            return;
        }
        let refused = match self.queue.submit(job.request, job.reply, self.started.elapsed()) {
            Ok(()) => return,
            Err(refused) => refused,
        };
        let (reply, error) = match refused {
            Refused::TooLarge(_, reply) => (reply, CommandError::TooLarge),
            Refused::Full(_, reply) => (reply, CommandError::Lost("the queue is full".into())),
            Refused::Over(_, reply) => (reply, CommandError::Lost("the queue has ended".into())),
        };
        let _ = reply.send(Err(error));
    }

    /// Returns true if all pending bytes were sent, and there were some.
    fn send_some(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let waited = self.queue.wants_to_send();
        match self.poll_send(context)? {
            Poll::Ready(()) => Ok(waited),
            Poll::Pending => Ok(false),
        }
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.queue.wants_to_send() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slice, content) in slices.iter_mut().zip(self.queue.outgoing()) {
                *slice = IoSlice::new(content);
                count += 1;
            }
            let written =
                Pin::new(&mut self.stream).poll_write_vectored(context, &slices[..count])?;
            match written {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(bytes) => {
                    self.unflushed = true;
                    self.queue.sent(bytes);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        if self.unflushed {
            match Pin::new(&mut self.stream).poll_flush(context)? {
                Poll::Ready(()) => self.unflushed = false,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns true if bytes were received.
    fn receive_some(&mut self, context: &mut Context<'_>) -> Result<bool, ConnectionError> {
        let mut buffer = ReadBuf::new(&mut self.received);
        match Pin::new(&mut self.stream).poll_read(context, &mut buffer)? {
            Poll::Pending => Ok(false),
            Poll::Ready(()) if buffer.filled().is_empty() => Err(ConnectionError::Closed),
            Poll::Ready(()) => {
                let received = self.queue.receive(&mut Input::plain(buffer.filled()));
                // PDUs that were complete before an error count.
                self.give_out();
                received?;
                Ok(true)
            }
        }
    }

    fn give_out(&mut self) {
        while let Some(completed) = self.queue.completed() {
            // The caller may be gone.
            let _ = completed.tag.send(completed.outcome.map_err(CommandError::Failed));
        }
        let stats = self.queue.stats();
        let counts = &self.counts;
        counts.commands.store(stats.commands, Ordering::Relaxed);
        counts.received_bytes.store(stats.received_bytes, Ordering::Relaxed);
        counts.sent_bytes.store(stats.sent_bytes, Ordering::Relaxed);
        counts.data_digest_errors.store(stats.data_digest_errors, Ordering::Relaxed);
    }
}
