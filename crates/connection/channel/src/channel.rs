//! A control channel: frames over mutual TLS over TCP, many in flight both ways.
//!
//! One task owns the connection and runs [`Channel::serve`]; everyone else on the same thread
//! writes into the [`Outbox`]. What is written before the task has its turn leaves in one record
//! and one system call; answers to what was received leave at once.

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
/// Bytes that may wait in an outbox before the peer counts as stuck.
pub const OUTBOX_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes in an outbox from which on snapshots wait until some have left.
pub const OUTBOX_BYTES_CROWDED: usize = 16 * 1024 * 1024;
/// Plaintext taken from TLS at once.
const READ_BYTES: usize = 64 * 1024;
/// A peer that says nothing for so long is asked; and after as long again it counts as gone.
pub const QUIET_MAX: Duration = Duration::from_millis(1000);

/// A silence longer than this is one that the peer has drawn its conclusions from: a quiet one is
/// asked, and answers, after little more than half of it.
const LONG_SILENCE: Duration = Duration::from_millis(2 * QUIET_MAX.as_millis() as u64 + 500);
/// How long a silence that is over is remembered.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Why a channel ended.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// The transport.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer is not of the pool, or breaks TLS.
    #[error(
        "TLS: {0}; both ends need a certificate of the pool's CA, the balancer's with its role"
    )]
    Tls(rustls::Error),
    /// The peer is of the pool, and may not do what it wants to.
    #[error("{0}")]
    Role(Arc<dyn std::error::Error + Send + Sync>),
    /// It took too long.
    #[error("no connection within {ESTABLISH_TIMEOUT:?}")]
    Establish,
    /// The peer sent something that is no frame.
    #[error("the peer breaks the protocol: {0}")]
    Frame(#[from] DecodeError),
    /// The peer sent a frame that has no place there.
    #[error("the peer breaks the protocol: {0}")]
    Protocol(&'static str),
    /// The peer closed it.
    #[error("closed by the peer")]
    Closed,
    /// The peer does not read, or does not answer.
    #[error("the peer is silent")]
    Silent,
}

impl ChannelError {
    /// True where the peer is not trusted, or its certificate is no good.
    pub fn is_untrusted(&self) -> bool {
        matches!(self, ChannelError::Tls(_) | ChannelError::Role(_))
    }

    /// True where this end does not trust the peer; false where it is the other way round.
    pub fn is_distrust(&self) -> bool {
        let certificate =
            |error: &rustls::Error| matches!(error, rustls::Error::InvalidCertificate(_));
        match self {
            ChannelError::Tls(error) => certificate(error),
            ChannelError::Role(_) => true,
            _ => false,
        }
    }

    /// True where the peer was heard before, and is not any more.
    pub fn is_silence(&self) -> bool {
        matches!(self, ChannelError::Silent)
    }
}

impl From<rustls::Error> for ChannelError {
    fn from(error: rustls::Error) -> ChannelError {
        match error {
            // What our own verifier has said.
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => {
                ChannelError::Role(why)
            }
            other => ChannelError::Tls(other),
        }
    }
}

/// Frames on their way to the peer. Cheap to clone; all clones are one outbox.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    inner: Rc<OutboxInner>,
}

#[derive(Debug, Default)]
struct OutboxInner {
    bytes: RefCell<Vec<u8>>,
    notify: Notify,
    /// Frames are taken, because a channel serves the outbox.
    open: Cell<bool>,
    /// When the peer was heard last on the channel that serves the outbox, or served it.
    heard: Cell<Option<Instant>>,
    /// The longest silence of late: how long, and when it ended.
    silent: Cell<Option<(Duration, Instant)>>,
    /// The number of the last PING that [`Outbox::settled`] has sent, and of the last PONG to one.
    asked: Cell<u64>,
    answered: Cell<u64>,
    /// Wakes those who wait in [`Outbox::settled`]: a PONG came, or the channel has ended.
    changed: Notify,
    /// Channels that have ended.
    ended: Cell<u64>,
}

impl OutboxInner {
    /// A PONG: all that was sent before its PING has been handled by the peer.
    fn note_pong(&self, number: u64) {
        if number <= self.asked.get() && number > self.answered.get() {
            self.answered.set(number);
            self.changed.notify_waiters();
        }
    }

    fn hear(&self) {
        let now = Instant::now();
        let gap = self.heard.replace(Some(now)).map_or(Duration::ZERO, |before| now - before);
        let longest = self.silent.get().filter(|(_, ended)| ended.elapsed() < REMEMBERED);
        if gap > longest.map_or(LONG_SILENCE, |(length, _)| length) {
            self.silent.set(Some((gap, now)));
        }
    }
}

impl Outbox {
    /// Queues a frame. False where there is no channel: the frame is dropped, and the machines
    /// hear of it by the channel's end.
    pub fn push(&self, frame: &Frame) -> bool {
        if !self.inner.open.get() {
            return false;
        }
        let mut bytes = self.inner.bytes.borrow_mut();
        let first = bytes.is_empty();
        frame.encode(&mut bytes);
        if first {
            self.inner.notify.notify_one();
        }
        true
    }

    /// Takes frames from now on, for a channel that is about to be served, until the value is
    /// dropped.
    pub fn open(&self) -> Opened {
        self.inner.bytes.borrow_mut().zeroize();
        self.inner.open.set(true);
        self.inner.hear();
        Opened(self.clone())
    }

    /// How long the peer has been silent; nothing where there never was a channel. Time passes here
    /// also while this process is stopped.
    pub fn silence(&self) -> Option<Duration> {
        self.inner.heard.get().map(|heard| heard.elapsed())
    }

    /// Whether the peer has been silent for longer than `limit`, now or at some time after `since`:
    /// a peer that is heard again has not forgotten that.
    pub fn was_silent(&self, limit: Duration, since: Instant) -> bool {
        let past = |(length, ended)| length > limit && ended >= since;
        self.silence().is_none_or(|silence| silence > limit)
            || self.inner.silent.get().is_some_and(past)
    }

    /// True while a channel serves the outbox.
    pub fn is_open(&self) -> bool {
        self.inner.open.get()
    }

    /// True where nothing waits to be encrypted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until the peer has handled every frame that was queued before. False where the channel
    /// ends first, or there is none.
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

    /// True where another snapshot may be queued. An outbox that is crowded empties as the peer
    /// reads, and its channel ends where the peer does not.
    pub fn has_room(&self) -> bool {
        self.len() <= OUTBOX_BYTES_CROWDED
    }

    fn len(&self) -> usize {
        self.inner.bytes.borrow().len()
    }
}

/// Keeps an outbox open, and empties it afterwards.
#[derive(Debug)]
pub struct Opened(Outbox);

impl Drop for Opened {
    fn drop(&mut self) {
        let inner = &self.0.inner;
        inner.open.set(false);
        inner.ended.set(inner.ended.get() + 1);
        inner.changed.notify_waiters();
        self.0.inner.bytes.borrow_mut().zeroize();
    }
}

/// An established channel.
pub struct Channel {
    tcp: TcpStream,
    tls: Connection,
    deframer: Deframer,
    peer: SocketAddr,
    /// Plaintext on its way from TLS to the deframer.
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

    /// Answers a balancer's connection.
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
        // Frames are latency: never wait for a fuller segment.
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
        // A frame is mostly answered by a frame, which carries the acknowledgement.
        unlade_sys::sockopt::delay_acknowledgements(&channel.tcp)?;
        Ok(channel)
    }

    /// Takes the channel off this thread's runtime, to go on with it on another one.
    ///
    /// # Errors
    /// The socket's.
    pub fn detach(self) -> io::Result<Detached> {
        let Channel { tcp, tls, deframer, peer, .. } = self;
        Ok(Detached { tcp: tcp.into_std()?, tls, deframer, peer })
    }

    /// The certificates that the peer has shown, its own first.
    pub fn peer_certificates(&self) -> Vec<CertificateDer<'static>> {
        self.tls.peer_certificates().unwrap_or_default().to_vec()
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Who the peer is, by its certificate.
    pub fn peer_identity(&self) -> Option<PeerIdentity> {
        PeerIdentity::of(self.tls.peer_certificates()?.first()?)
    }

    /// This end's address.
    ///
    /// # Errors
    /// The socket's.
    pub fn local(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// The next frame, while nobody serves the channel (the HELLO).
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

    /// Sends one frame, while nobody serves the channel.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub async fn send(&mut self, frame: &Frame) -> Result<(), ChannelError> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.tls.writer().write_all(&bytes)?;
        self.write_out().await
    }

    /// Serves the channel until it ends: every frame received goes to `handle`, everything in the
    /// (opened) outbox to the peer. A quiet peer is pinged. `late` says what becomes of frames that are read
    /// only after the peer has closed the channel.
    ///
    /// # Errors
    /// Always: why the channel ended.
    pub async fn serve(
        &mut self,
        outbox: &Outbox,
        late: Late,
        mut handle: impl FnMut(Frame) -> Result<(), ChannelError>,
    ) -> ChannelError {
        let mut heard = Instant::now();
        let mut asked = false;
        let quiet = tokio::time::sleep_until(ticker::after(QUIET_MAX));
        tokio::pin!(quiet);
        loop {
            if let Err(error) = self.deliver(outbox, late, &mut handle) {
                return error;
            }
            if let Err(error) = self.flush(outbox) {
                return error;
            }
            let blocked = self.tls.wants_write();
            tokio::select! {
                ready = self.tcp.ready(Interest::READABLE) => match ready {
                    Ok(ready) if late == Late::Drop && ready.is_read_closed() => {
                        return ChannelError::Closed;
                    }
                    Ok(_) => match self.read_in() {
                        Ok(0) => {}
                        // This process was stopped, and what said that the socket is readable is
                        // from before.
                        Ok(_) if late == Late::Drop && heard.elapsed() > LONG_SILENCE => {
                            return ChannelError::Silent;
                        }
                        Ok(_) => {
                            (heard, asked) = (Instant::now(), false);
                            outbox.inner.hear();
                        }
                        Err(error) => return error,
                    },
                    Err(error) => return error.into(),
                },
                () = outbox.inner.notify.notified() => {}
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
                    // From when the peer was heard last, so that it is asked in time.
                    let rest = QUIET_MAX.saturating_sub(heard.elapsed());
                    quiet.as_mut().reset(ticker::after(if rest.is_zero() { QUIET_MAX } else { rest }));
                }
            }
        }
    }

    fn deliver(
        &mut self,
        outbox: &Outbox,
        late: Late,
        handle: &mut impl FnMut(Frame) -> Result<(), ChannelError>,
    ) -> Result<(), ChannelError> {
        while let Some(frame) = self.deframer.next_frame()? {
            // Read before this process was stopped.
            let age = outbox.silence().unwrap_or_default();
            if late == Late::Drop && age > QUIET_MAX / 2 {
                return Err(ChannelError::Silent);
            }
            match frame {
                Frame::Ping(nonce) => drop(outbox.push(&Frame::Pong(nonce))),
                Frame::Pong(number) => outbox.inner.note_pong(number),
                frame => handle(frame)?,
            }
        }
        Ok(())
    }

    /// Encrypts the outbox and writes as much as the socket takes now.
    fn flush(&mut self, outbox: &Outbox) -> Result<(), ChannelError> {
        if outbox.len() > OUTBOX_BYTES_MAX {
            return Err(ChannelError::Silent);
        }
        // What TLS could not write yet keeps the outbox closed: so the limit holds.
        if !self.tls.wants_write() {
            let mut bytes = outbox.inner.bytes.borrow_mut();
            if !bytes.is_empty() {
                self.tls.writer().write_all(&bytes)?;
                // Snapshots with secrets among them.
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

    /// Reads what the socket has, decrypts it, and hands it to the deframer. Bytes read from the
    /// socket; 0 where there were none yet.
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
                // The alert tells the peer why; whether it arrives does not matter.
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

/// What becomes of frames whose sender has closed the channel since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// They count: what a server said of its connections before it ended is so.
    Handle,
    /// They do not: a balancer that has closed a channel has taken back what it offered.
    Drop,
}

/// An established channel between two runtimes.
pub struct Detached {
    tcp: std::net::TcpStream,
    tls: Connection,
    deframer: Deframer,
    peer: SocketAddr,
}

impl Detached {
    /// Puts the channel on the current thread's runtime.
    ///
    /// # Errors
    /// The runtime's.
    pub fn attach(self) -> io::Result<Channel> {
        let Detached { tcp, tls, deframer, peer } = self;
        let buffer = vec![0; READ_BYTES].into_boxed_slice();
        Ok(Channel { tcp: TcpStream::from_std(tcp)?, tls, deframer, peer, buffer })
    }
}

/// The socket as rustls wants it. A short read tells the runtime that there is no more, which
/// saves the read that would say so.
struct Transport<'a>(&'a TcpStream);

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
    use super::*;

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
        // A shorter one does not hide it.
        tokio::time::advance(short).await;
        let _third = outbox.open();
        assert!(outbox.was_silent(short, begun) && !outbox.was_silent(short, later));
    }
}
