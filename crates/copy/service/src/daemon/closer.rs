//! Close of the descriptors that clients send.
//!
//! A client can make a close wait as long as it likes: that of a full socket with SO_LINGER, of a file
//! of a file system that it serves itself, of a Unix socket in whose queue one of these is. So neither
//! the control thread nor a copy thread closes a descriptor of a client. A [`ClientDescriptor`] is one
//! that goes to the closer of its connection when it is dropped, by whichever thread.
//!
//! Each connection has a closer of its own, a thread that does nothing else, so that a close of one
//! client delays no close of another. It is started before its connection is accepted, and ends when
//! all is closed. Until then the connection keeps its [`Place`] among those that are counted for a
//! limit: there are never more closers than connections.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use rustix::net::{Shutdown, shutdown};
use tokio::sync::Notify;

use crate::daemon::metrics::Sessions;

/// Number of a client's descriptors that are given up and not closed, beyond which the client waits.
const WAITING_MAX: usize = 64;

/// Number of connections of one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places(Arc<AtomicUsize>);

impl Places {
    /// Returns the number of connections whose descriptors are not all closed.
    pub fn taken(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn take(&self) -> Place {
        self.0.fetch_add(1, Ordering::Relaxed);
        Place(Arc::clone(&self.0))
    }
}

/// A connection that is counted while this value lives.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// State of a closer and its thread.
#[derive(Debug)]
struct Shared {
    /// Number of descriptors that are dropped and not closed.
    waiting: AtomicUsize,
    /// One of them is closed.
    closed: Notify,
    place: OnceLock<Place>,
    sessions: Arc<Sessions>,
}

/// The thread that closes the descriptors of one connection. It ends when the last descriptor is
/// closed and this value is dropped.
#[derive(Debug)]
pub(crate) struct Closer {
    queue: Sender<OwnedFd>,
    shared: Arc<Shared>,
}

impl Closer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no threads left.
    pub fn start(sessions: &Arc<Sessions>) -> io::Result<Arc<Closer>> {
        let (queue, closing) = channel();
        let shared = Arc::new(Shared {
            waiting: AtomicUsize::new(0),
            closed: Notify::new(),
            place: OnceLock::new(),
            sessions: Arc::clone(sessions),
        });
        let own = Arc::clone(&shared);
        let run = move || {
            for descriptor in closing {
                drop::<OwnedFd>(descriptor);
                own.waiting.fetch_sub(1, Ordering::Relaxed);
                own.closed.notify_one();
                own.sessions.closing.subtract(1);
            }
        };
        std::thread::Builder::new().name("copyd-closer".to_owned()).spawn(run)?;
        Ok(Arc::new(Closer { queue, shared }))
    }

    /// Counts the connection until all of its descriptors are closed. Only the first call counts.
    pub fn take(&self, places: &Places) {
        self.shared.place.get_or_init(|| places.take());
    }

    /// Has a descriptor closed by this thread when it is dropped.
    pub fn own(self: &Arc<Self>, descriptor: OwnedFd) -> ClientDescriptor {
        ClientDescriptor { descriptor: Some(descriptor), closer: Arc::clone(self) }
    }

    /// Returns true if the client has given up many descriptors that are not closed.
    pub fn is_behind(&self) -> bool {
        self.shared.waiting.load(Ordering::Relaxed) > WAITING_MAX
    }

    /// Waits until enough of them are closed. Only one task may wait.
    pub async fn catch_up(&self) {
        while self.is_behind() {
            self.shared.closed.notified().await;
        }
    }

    fn close(&self, descriptor: OwnedFd) {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        self.shared.sessions.closing.add(1);
        // The thread receives as long as this value lives.
        let _ = self.queue.send(descriptor);
    }
}

/// Descriptor from a client. The drop does not close it, but has the closer do so.
#[derive(Debug)]
pub(crate) struct ClientDescriptor {
    /// Present up to the drop.
    descriptor: Option<OwnedFd>,
    closer: Arc<Closer>,
}

impl AsFd for ClientDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_ref().expect("only the drop takes the descriptor").as_fd()
    }
}

impl AsRawFd for ClientDescriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for ClientDescriptor {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            self.closer.close(descriptor);
        }
    }
}

/// The connection to a client. Its drop ends it for the client, which does not wait for the closer.
/// Messages can be left in its queue, with descriptors: these are closed with it, by the closer.
#[derive(Debug)]
pub(crate) struct Connection(ClientDescriptor);

impl Connection {
    /// Has the closer close the connection when it is dropped.
    pub fn new(socket: OwnedFd, closer: &Arc<Closer>) -> Connection {
        Connection(closer.own(socket))
    }

    /// Returns the closer for all descriptors of this connection.
    pub fn closer(&self) -> &Arc<Closer> {
        &self.0.closer
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The peer may have closed before.
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    fn eventually(mut is_so: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_dropped_is_closed_and_the_place_is_free_after_the_last() {
        let (sessions, places) = (Arc::<Sessions>::default(), Places::default());
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let closer = Closer::start(&sessions).unwrap();
        let connection = Connection::new(socket.into(), &closer);
        closer.take(&places);
        closer.take(&places);
        drop(closer);
        let pairs: Vec<_> = (0..1000).map(|_| UnixStream::pair().unwrap()).collect();
        let (here, there): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let mut owned: Vec<_> =
            here.into_iter().map(|end| connection.closer().own(end.into())).collect();
        assert_eq!((sessions.closing.get(), places.taken()), (0, 1));
        let last = owned.pop();
        drop(owned);
        let (kept, others) = there.split_last().unwrap();
        for mut end in others {
            assert_eq!(end.read(&mut [0; 1]).unwrap(), 0);
        }
        eventually(|| sessions.closing.get() == 0 && !connection.closer().is_behind());
        // The end of the connection is no end of a descriptor that another thread still holds.
        drop(connection);
        assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
        kept.set_nonblocking(true).unwrap();
        assert!((&mut &*kept).read(&mut [0; 1]).is_err());
        assert_eq!(places.taken(), 1);
        drop(last);
        eventually(|| places.taken() == 0);
        assert_eq!((&mut &*kept).read(&mut [0; 1]).unwrap(), 0);
    }
}
