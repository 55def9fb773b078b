//! A control channel: frames over mutual TLS over TCP, with many frames in flight both ways.
//!
//! One task owns the connection and runs [`Channel::serve`]; other tasks of the same thread write
//! into the [`Outbox`]. Frames that are written before the task runs leave in one record and one
//! system call; replies to received frames leave at once.

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, OtherError, ServerConfig,
    ServerConnection,
};
use thiserror::Error;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use unlade_bytes::DecodeError;
use unlade_handoff_protocol::frame::{Deframer, Frame};
use zeroize::Zeroize;

use crate::role::PeerIdentity;
use unlade_runtime::ticker;

/// Longest wait for TCP and TLS to be established.
pub const ESTABLISH_TIMEOUT: Duration = Duration::from_secs(3);
/// Most bytes in an outbox; a peer with more counts as stuck.
pub const OUTBOX_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes in an outbox above which snapshots wait until some have left.
pub const OUTBOX_BYTES_CROWDED: usize = 16 * 1024 * 1024;
/// Plaintext read from TLS per call.
pub(crate) const READ_BYTES: usize = 64 * 1024;
/// A peer that sends nothing for this long is pinged; after the same time again it counts as gone.
pub const QUIET_MAX: Duration = Duration::from_millis(1000);

/// A peer has acted on a silence longer than this: a peer that is only quiet is pinged, and
/// answers, after little more than half of it.
const LONG_SILENCE: Duration = Duration::from_millis(2 * QUIET_MAX.as_millis() as u64 + 500);
/// How long a past silence is remembered.
const SILENCE_KEPT: Duration = Duration::from_secs(60);

/// Reason for the end of a channel.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// Error of the transport.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer is not a member of the pool, or violates TLS.
    #[error(
        "TLS: {0}; both ends need a certificate of the pool's CA, the balancer's with its role"
    )]
    Tls(rustls::Error),
    /// The peer is a member of the pool without the role that it needs.
    #[error("{0}")]
    Role(Arc<dyn std::error::Error + Send + Sync>),
    /// The channel was not established in time.
    #[error("no connection within {ESTABLISH_TIMEOUT:?}")]
    Establish,
    /// The peer sent bytes that are not a frame.
    #[error("the peer violates the protocol: {0}")]
    Frame(#[from] DecodeError),
    /// The peer sent a frame that is not allowed at this point.
    #[error("the peer violates the protocol: {0}")]
    Protocol(&'static str),
    /// The peer closed the channel.
    #[error("closed by the peer")]
    Closed,
    /// The peer does not read, or does not answer.
    #[error("the peer is silent")]
    Silent,
}

impl ChannelError {
    /// Returns true if the peer has sent something else than the protocol allows.
    pub fn is_violation(&self) -> bool {
        matches!(self, ChannelError::Frame(_) | ChannelError::Protocol(_))
    }

    /// Returns true if the peer is not trusted, or its certificate is invalid.
    pub fn is_untrusted(&self) -> bool {
        matches!(self, ChannelError::Tls(_) | ChannelError::Role(_))
    }

    /// Returns true if this end does not trust the peer; false in the opposite direction.
    pub fn is_distrust(&self) -> bool {
        let certificate =
            |error: &rustls::Error| matches!(error, rustls::Error::InvalidCertificate(_));
        match self {
            ChannelError::Tls(error) => certificate(error),
            ChannelError::Role(_) => true,
            _ => false,
        }
    }

    /// Returns true if the peer was heard before and has become silent.
    pub fn is_silence(&self) -> bool {
        matches!(self, ChannelError::Silent)
    }
}

impl From<rustls::Error> for ChannelError {
    fn from(error: rustls::Error) -> ChannelError {
        match error {
            // An error of our own verifier.
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => {
                ChannelError::Role(why)
            }
            other => ChannelError::Tls(other),
        }
    }
}

/// Frames to be sent to the peer. Cheap to clone; all clones are one outbox.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    inner: Rc<OutboxInner>,
}

#[derive(Debug, Default)]
struct OutboxInner {
    bytes: RefCell<Vec<u8>>,
    /// Frames that wait for another one, and the time since which they do; empty if there are
    /// bytes.
    waiting: RefCell<Vec<(Instant, Frame)>>,
    /// Time at which they leave in any case.
    due: Cell<Option<Instant>>,
    notify: Notify,
    /// True while a channel serves the outbox; only then are frames accepted.
    open: Cell<bool>,
    /// Time of the last bytes from the peer, or of the last opening of the outbox.
    heard: Cell<Option<Instant>>,
    /// The longest recent silence: its length, and its end.
    silent: Cell<Option<(Duration, Instant)>>,
    /// The numbers of the last PING that [`Outbox::settled`] has sent, and of the last PONG to
    /// one.
    asked: Cell<u64>,
    answered: Cell<u64>,
    /// Wakes the tasks that wait in [`Outbox::settled`]: a PONG came, or the channel has ended.
    changed: Notify,
    /// Number of channels that have ended.
    ended: Cell<u64>,
}

impl OutboxInner {
    /// Handles a PONG: the peer has handled all frames that were sent before its PING.
    fn handle_pong(&self, number: u64) {
        if number <= self.asked.get() && number > self.answered.get() {
            self.answered.set(number);
            self.changed.notify_waiters();
        }
    }

    /// Appends the frames that wait.
    fn take_waiting(&self, bytes: &mut Vec<u8>) {
        self.due.set(None);
        for (since, mut frame) in self.waiting.borrow_mut().drain(..) {
            if let Frame::Ready { held_ns, .. } = &mut frame {
                *held_ns = since.elapsed().as_nanos().min(u32::MAX.into()) as u32;
            }
            frame.encode(bytes);
        }
    }

    fn clear(&self) {
        self.bytes.borrow_mut().zeroize();
        self.waiting.borrow_mut().clear();
        self.due.set(None);
    }

    fn note_heard(&self) {
        let now = Instant::now();
        let gap = self.heard.replace(Some(now)).map_or(Duration::ZERO, |before| now - before);
        let longest = self.silent.get().filter(|(_, ended)| ended.elapsed() < SILENCE_KEPT);
        if gap > longest.map_or(LONG_SILENCE, |(length, _)| length) {
            self.silent.set(Some((gap, now)));
        }
    }
}

impl Outbox {
    /// Queues a frame. Returns false if there is no channel: the frame is dropped, and the state
    /// machines handle the end of the channel.
    pub fn push(&self, frame: &Frame) -> bool {
        if !self.inner.open.get() {
            return false;
        }
        let mut bytes = self.inner.bytes.borrow_mut();
        let first = bytes.is_empty();
        self.inner.take_waiting(&mut bytes);
        frame.encode(&mut bytes);
        if first {
            self.inner.notify.notify_one();
        }
        true
    }

    /// As [`Outbox::push`], for a frame that need not leave before `limit`: it leaves with the next
    /// other frame, in one record, or then. Frames keep their order. Only for a handler of received
    /// frames: the timer is set after it.
    pub fn push_within(&self, frame: Frame, limit: Duration) -> bool {
        let inner = &self.inner;
        if !inner.open.get() || !inner.bytes.borrow().is_empty() {
            return self.push(&frame);
        }
        let now = Instant::now();
        inner.waiting.borrow_mut().push((now, frame));
        if inner.due.get().is_none() {
            inner.due.set(Some(now + limit));
        }
        true
    }

    /// Accepts frames, for a channel that is about to be served, until the value is dropped.
    pub fn open(&self) -> OpenOutbox {
        self.inner.clear();
        self.inner.open.set(true);
        self.inner.note_heard();
        OpenOutbox(self.clone())
    }

    /// Returns how long the peer has been silent; `None` if there never was a channel. The time in
    /// which this process is stopped counts.
    pub fn silence(&self) -> Option<Duration> {
        self.inner.heard.get().map(|heard| heard.elapsed())
    }

    /// Returns true if the peer has been silent for longer than `limit`, now or at some time after
    /// `since`: a peer that is heard again may have acted on its silence.
    pub fn was_silent(&self, limit: Duration, since: Instant) -> bool {
        let past = |(length, ended)| length > limit && ended >= since;
        self.silence().is_none_or(|silence| silence > limit)
            || self.inner.silent.get().is_some_and(past)
    }

    /// Returns true while a channel serves the outbox.
    pub fn is_open(&self) -> bool {
        self.inner.open.get()
    }

    /// Returns true if no frame waits to be encrypted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.inner.waiting.borrow().is_empty()
    }

    /// Waits until the peer has handled every frame that was queued before. Returns false if the
    /// channel ends first, or there is none.
    pub async fn settled(&self) -> bool {
        let inner = &self.inner;
        let (number, ended) = (inner.asked.get() + 1, inner.ended.get());
        inner.asked.set(number);
        if !self.push(&Frame::Ping(number)) {
            return false;
        }
        loop {
            let changed = inner.changed.notified();
            if inner.answered.get() >= number {
                return true;
            }
            if inner.ended.get() != ended {
                return false;
            }
            changed.await;
        }
    }

    /// Returns true if another snapshot may be queued. A crowded outbox empties as the peer reads;
    /// if the peer does not read, its channel ends.
    pub fn has_room(&self) -> bool {
        self.len() <= OUTBOX_BYTES_CROWDED
    }

    fn len(&self) -> usize {
        self.inner.bytes.borrow().len()
    }
}

/// Keeps an outbox open; closes and empties it when dropped.
#[derive(Debug)]
pub struct OpenOutbox(Outbox);

impl Drop for OpenOutbox {
    fn drop(&mut self) {
        let inner = &self.0.inner;
        inner.open.set(false);
        inner.ended.set(inner.ended.get() + 1);
        inner.changed.notify_waiters();
        inner.clear();
    }
}

/// An established channel.
pub struct Channel {
    tcp: TcpStream,
    tls: Connection,
    deframer: Deframer,
    peer: SocketAddr,
    /// Plaintext between TLS and the deframer.
    buffer: Box<[u8]>,
}

impl core::fmt::Debug for Channel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Channel {{ peer: {} }}", self.peer)
    }
}

impl Channel {
    /// Connects to a server's agent.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub async fn connect(
        address: SocketAddr,
        name: ServerName<'static>,
        config: Arc<ClientConfig>,
    ) -> Result<Channel, ChannelError> {
        let establish = async {
            let tcp = TcpStream::connect(address).await?;
            let tls = ClientConnection::new(config, name)?;
            Channel::establish(tcp, tls.into()).await
        };
        timeout(ESTABLISH_TIMEOUT, establish).await.map_err(|_| ChannelError::Establish)?
    }

    /// Accepts a balancer's connection.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub async fn accept(
        tcp: TcpStream,
        config: Arc<ServerConfig>,
    ) -> Result<Channel, ChannelError> {
        let establish = async {
            let tls = ServerConnection::new(config)?;
            Channel::establish(tcp, tls.into()).await
        };
        timeout(ESTABLISH_TIMEOUT, establish).await.map_err(|_| ChannelError::Establish)?
    }

    async fn establish(tcp: TcpStream, tls: Connection) -> Result<Channel, ChannelError> {
        // Latency counts: a frame never waits for a fuller segment.
        tcp.set_nodelay(true)?;
        let peer = tcp.peer_addr()?;
        let buffer = vec![0; READ_BYTES].into_boxed_slice();
        let mut channel = Channel { tcp, tls, deframer: Deframer::default(), peer, buffer };
        channel.tls.set_buffer_limit(Some(OUTBOX_BYTES_MAX));
        while channel.tls.is_handshaking() {
            channel.write_out().await?;
            if channel.tls.is_handshaking() && channel.tls.wants_read() {
                channel.tcp.readable().await?;
                channel.read_in()?;
            }
        }
        channel.write_out().await?;
        // The answer to a frame is mostly a frame, which carries the acknowledgement.
        unlade_sys::sockopt::delay_acknowledgements(&channel.tcp)?;
        Ok(channel)
    }

    /// Removes the channel from this thread's runtime, to continue it on another one.
    ///
    /// # Errors
    /// The socket's error.
    pub fn detach(self) -> io::Result<DetachedChannel> {
        let Channel { tcp, tls, deframer, peer, .. } = self;
        Ok(DetachedChannel { tcp: tcp.into_std()?, tls, deframer, peer })
    }

    pub(crate) fn into_parts(self) -> (TcpStream, Connection, Deframer) {
        (self.tcp, self.tls, self.deframer)
    }

    /// Returns the certificates of the peer, its own first.
    pub fn peer_certificates(&self) -> Vec<CertificateDer<'static>> {
        self.tls.peer_certificates().unwrap_or_default().to_vec()
    }

    /// Returns the peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the identity of the peer, from its certificate.
    pub fn peer_identity(&self) -> Option<PeerIdentity> {
        PeerIdentity::of(self.tls.peer_certificates()?.first()?)
    }

    /// Returns this end's address.
    ///
    /// # Errors
    /// The socket's error.
    pub fn local(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Receives the next frame of a channel that is not being served (the HELLO).
    ///
    /// # Errors
    /// [`ChannelError`].
    pub async fn receive(&mut self) -> Result<Frame, ChannelError> {
        loop {
            if let Some(frame) = self.deframer.next_frame()? {
                return Ok(frame);
            }
            timeout(ESTABLISH_TIMEOUT, self.tcp.readable())
                .await
                .map_err(|_| ChannelError::Silent)??;
            self.read_in()?;
        }
    }

    /// Sends one frame on a channel that is not being served.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub async fn send(&mut self, frame: &Frame) -> Result<(), ChannelError> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.tls.writer().write_all(&bytes)?;
        self.write_out().await
    }

    /// Serves the channel until it ends: passes every received frame to `handle`, and sends
    /// everything in the (opened) outbox to the peer. A quiet peer is pinged. `late` defines the
    /// treatment of frames that are read only after the peer has closed the channel.
    ///
    /// # Errors
    /// Always: the reason for the end of the channel.
    pub async fn serve(
        &mut self,
        outbox: &Outbox,
        late: LateFrames,
        mut handle: impl FnMut(Frame) -> Result<(), ChannelError>,
    ) -> ChannelError {
        let mut heard = Instant::now();
        let mut asked = false;
        let quiet = tokio::time::sleep_until(ticker::after(QUIET_MAX));
        tokio::pin!(quiet);
        let due = tokio::time::sleep(QUIET_MAX);
        tokio::pin!(due);
        loop {
            if let Err(error) = self.deliver(outbox, late, &mut handle) {
                return error;
            }
            if let Err(error) = self.flush(outbox) {
                return error;
            }
            // The frames that handlers have queued are gone.
            if outbox.inner.bytes.borrow().is_empty() {
                let _ = std::pin::pin!(outbox.inner.notify.notified()).enable();
            }
            let blocked = self.tls.wants_write();
            let is_waiting = outbox.inner.due.get().inspect(|at| due.as_mut().reset(*at)).is_some();
            tokio::select! {
                ready = self.tcp.ready(Interest::READABLE) => match ready {
                    Ok(ready) if late == LateFrames::Drop && ready.is_read_closed() => {
                        return ChannelError::Closed;
                    }
                    Ok(_) => match self.read_in() {
                        Ok(0) => {}
                        // This process was stopped: the readiness of the socket is from before.
                        Ok(_) if late == LateFrames::Drop && heard.elapsed() > LONG_SILENCE => {
                            return ChannelError::Silent;
                        }
                        Ok(_) => {
                            (heard, asked) = (Instant::now(), false);
                            outbox.inner.note_heard();
                        }
                        Err(error) => return error,
                    },
                    Err(error) => return error.into(),
                },
                () = outbox.inner.notify.notified() => {}
                () = &mut due, if is_waiting => {}
                writable = self.tcp.writable(), if blocked => {
                    if let Err(error) = writable {
                        return error.into();
                    }
                }
                () = &mut quiet => {
                    if heard.elapsed() >= QUIET_MAX {
                        if asked && heard.elapsed() >= 2 * QUIET_MAX {
                            return ChannelError::Silent;
                        }
                        asked = true;
                        outbox.push(&Frame::Ping(0));
                    }
                    // The time runs from the last bytes of the peer, so that it is pinged in time.
                    let rest = QUIET_MAX.saturating_sub(heard.elapsed());
                    quiet.as_mut().reset(ticker::after(if rest.is_zero() { QUIET_MAX } else { rest }));
                }
            }
        }
    }

    fn deliver(
        &mut self,
        outbox: &Outbox,
        late: LateFrames,
        handle: &mut impl FnMut(Frame) -> Result<(), ChannelError>,
    ) -> Result<(), ChannelError> {
        while let Some(frame) = self.deframer.next_frame()? {
            // The frame was read before this process was stopped.
            let age = outbox.silence().unwrap_or_default();
            if late == LateFrames::Drop && age > QUIET_MAX / 2 {
                return Err(ChannelError::Silent);
            }
            match frame {
                Frame::Ping(nonce) => drop(outbox.push(&Frame::Pong(nonce))),
                Frame::Pong(number) => outbox.inner.handle_pong(number),
                frame => handle(frame)?,
            }
        }
        Ok(())
    }

    /// Encrypts the outbox and writes as much as the socket accepts now.
    fn flush(&mut self, outbox: &Outbox) -> Result<(), ChannelError> {
        if outbox.len() > OUTBOX_BYTES_MAX {
            return Err(ChannelError::Silent);
        }
        // While TLS has unwritten bytes nothing is taken from the outbox, so the limit holds.
        if !self.tls.wants_write() {
            let mut bytes = outbox.inner.bytes.borrow_mut();
            if outbox.inner.due.get().is_some_and(|due| due <= Instant::now()) {
                outbox.inner.take_waiting(&mut bytes);
            }
            if !bytes.is_empty() {
                self.tls.writer().write_all(&bytes)?;
                // The bytes may contain snapshots with secrets.
                bytes[..].zeroize();
                bytes.clear();
            }
        }
        match self.try_write_out() {
            Err(ChannelError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }

    fn try_write_out(&mut self) -> Result<(), ChannelError> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Transport(&self.tcp))?;
        }
        Ok(())
    }

    async fn write_out(&mut self) -> Result<(), ChannelError> {
        loop {
            match self.try_write_out() {
                Err(ChannelError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.tcp.writable().await?;
                }
                other => return other,
            }
        }
    }

    /// Reads the available bytes of the socket, decrypts them and passes them to the deframer.
    /// Returns the number of bytes read from the socket; 0 if there were none yet.
    fn read_in(&mut self) -> Result<usize, ChannelError> {
        let count = match self.tls.read_tls(&mut Transport(&self.tcp)) {
            Ok(0) => return Err(ChannelError::Closed),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let state = self.tls.process_new_packets();
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                // The alert tells the peer the reason; the channel ends whether it arrives or not.
                let _ = self.try_write_out();
                return Err(error.into());
            }
        };
        let mut left = state.plaintext_bytes_to_read();
        while left > 0 {
            let taken = self.tls.reader().read(&mut self.buffer[..left.min(READ_BYTES)])?;
            self.deframer.push(&self.buffer[..taken]);
            self.buffer[..taken].zeroize();
            left -= taken;
        }
        if state.peer_has_closed() {
            return Err(ChannelError::Closed);
        }
        Ok(count)
    }
}

/// Treatment of frames that are read after their sender has closed the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateFrames {
    /// They are handled: a server's reports of its connections stay true after its end.
    Handle,
    /// They are dropped: a balancer that has closed a channel has withdrawn its offers.
    Drop,
}

/// An established channel that belongs to no runtime.
pub struct DetachedChannel {
    tcp: std::net::TcpStream,
    tls: Connection,
    deframer: Deframer,
    peer: SocketAddr,
}

impl DetachedChannel {
    /// Puts the channel on the current thread's runtime.
    ///
    /// # Errors
    /// The runtime's error.
    pub fn attach(self) -> io::Result<Channel> {
        let DetachedChannel { tcp, tls, deframer, peer } = self;
        let buffer = vec![0; READ_BYTES].into_boxed_slice();
        Ok(Channel { tcp: TcpStream::from_std(tcp)?, tls, deframer, peer, buffer })
    }
}

/// The socket as rustls needs it. A short read shows the runtime that there is no more data, which
/// saves one more read.
pub(crate) struct Transport<'a>(pub(crate) &'a TcpStream);

impl Read for Transport<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        let read = self.0.try_io(Interest::READABLE, || {
            count = rustix::net::recv(self.0, &mut *buffer, rustix::net::RecvFlags::empty())?.1;
            match count > 0 && count < buffer.len() {
                true => Err(io::ErrorKind::WouldBlock.into()),
                false => Ok(()),
            }
        });
        match read {
            Err(error) if count == 0 => Err(error),
            _ => Ok(count),
        }
    }
}

impl Write for Transport<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use unlade_handoff_protocol::frame::{ConnectionId, Epoch};

    use super::*;

    fn ready(id: u64) -> Frame {
        let (id, epoch) = (ConnectionId(id), Epoch(1));
        Frame::Ready { id, epoch, restore_tcp_ns: 0, restore_tls_ns: 0, held_ns: 0 }
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_may_wait_leaves_before_the_next_one() {
        let outbox = Outbox::default();
        let limit = Duration::from_millis(1);
        assert!(!outbox.push_within(ready(1), limit), "there is no channel");
        let open = outbox.open();
        assert!(outbox.push_within(ready(1), limit) && outbox.push_within(ready(2), limit));
        assert!(!outbox.is_empty() && outbox.inner.bytes.borrow().is_empty());
        let due = outbox.inner.due.get().unwrap();
        assert_eq!(due, Instant::now() + limit);
        tokio::time::advance(Duration::from_micros(300)).await;
        assert!(outbox.push(&Frame::Drain) && outbox.push_within(ready(3), limit));
        assert_eq!(outbox.inner.due.get(), None, "nothing waits behind bytes");
        let mut deframer = Deframer::default();
        deframer.push(&outbox.inner.bytes.borrow());
        let mut frames = std::iter::from_fn(|| deframer.next_frame().unwrap());
        for number in [1, 2] {
            let Some(Frame::Ready { id, held_ns, .. }) = frames.next() else { panic!("{number}") };
            assert_eq!((id, held_ns), (ConnectionId(number), 300_000));
        }
        assert_eq!(frames.next(), Some(Frame::Drain));
        assert_eq!(frames.next(), Some(ready(3)));
        drop(open);
        assert!(outbox.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silence_is_not_forgotten_when_the_peer_is_heard_again() {
        let outbox = Outbox::default();
        let begun = Instant::now();
        let (short, long) = (Duration::from_secs(3), Duration::from_secs(5));
        assert!(outbox.was_silent(long, begun), "it was never heard");
        let first = outbox.open();
        tokio::time::advance(Duration::from_secs(4)).await;
        assert!(outbox.was_silent(short, begun) && !outbox.was_silent(long, begun));
        drop(first);
        let _second = outbox.open();
        let later = Instant::now() + Duration::from_nanos(1);
        assert_eq!(outbox.silence(), Some(Duration::ZERO));
        assert!(outbox.was_silent(short, begun) && !outbox.was_silent(long, begun));
        assert!(!outbox.was_silent(short, later), "what began afterwards is not concerned");
        // A shorter silence does not replace it.
        tokio::time::advance(short).await;
        let _third = outbox.open();
        assert!(outbox.was_silent(short, begun) && !outbox.was_silent(short, later));
    }
}
