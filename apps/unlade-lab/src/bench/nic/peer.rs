//! The far end of the kernel's connections, on a thread of its own in another namespace: it throws
//! away what it gets, or sends what was made beforehand.

use super::super::cpu::stay_on;
use super::room::PEER_IP;
use anyhow::{Context, Result, anyhow, ensure};
use rustix::net::RecvFlags;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use unlade_command::namespace::inside;

/// Bytes that are taken at once.
const AT_ONCE_BYTES: usize = 1 << 20;
/// How long the other end may be silent.
const PATIENCE: Duration = Duration::from_secs(30);

/// Purpose of the next connection.
pub enum Ask {
    /// Receives this number of bytes and drops them.
    Swallow { bytes: usize },
    /// The first `bytes` of `stream` come, and nothing else.
    Compare { stream: Arc<Vec<u8>>, bytes: usize },
    /// They are sent.
    Give { stream: Arc<Vec<u8>>, bytes: usize },
}

type Asked = (Ask, oneshot::Sender<Result<()>>);

/// A running peer; dropping it ends it.
pub struct Peer {
    /// Where it listens.
    pub address: SocketAddr,
    asks: Option<Sender<Asked>>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    /// Starts one in a namespace, on `core`.
    ///
    /// # Errors
    /// The namespace cannot be entered, or there is no port or no thread.
    pub fn start(namespace: &str, core: Option<usize>) -> Result<Peer> {
        let listener = inside(namespace, || {
            TcpListener::bind((PEER_IP, 0)).context("listening behind the wire")
        })?;
        let address = listener.local_addr()?;
        let (asks, asked) = channel();
        let thread = std::thread::Builder::new().name("nic-peer".to_owned()).spawn(move || {
            if let Some(core) = core {
                // Anywhere is as good, but for the throughput.
                let _ = stay_on(core);
            }
            serve(&listener, &asked);
        })?;
        Ok(Peer { address, asks: Some(asks), thread: Some(thread) })
    }

    /// Says what the next connection is for, which is established. The answer comes when it is done.
    ///
    /// # Errors
    /// The peer has ended.
    pub fn ask(&self, ask: Ask) -> Result<oneshot::Receiver<Result<()>>> {
        let (reply, done) = oneshot::channel();
        let asks = self.asks.as_ref().context("the peer has ended")?;
        asks.send((ask, reply)).map_err(|_| anyhow!("the peer has ended"))?;
        Ok(done)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits for what was asked.
///
/// # Errors
/// The peer's.
pub async fn wait(done: oneshot::Receiver<Result<()>>) -> Result<()> {
    done.await.context("the peer has ended")?.context("the peer")
}

fn serve(listener: &TcpListener, asked: &Receiver<Asked>) {
    for (ask, reply) in asked {
        // The requester may have given up.
        let _ = reply.send(answer(listener, &ask));
    }
}

fn answer(listener: &TcpListener, ask: &Ask) -> Result<()> {
    let (mut tcp, _) = listener.accept().context("accepting")?;
    tcp.set_read_timeout(Some(PATIENCE))?;
    tcp.set_write_timeout(Some(PATIENCE))?;
    match ask {
        Ask::Swallow { bytes } => swallow(&tcp, *bytes),
        Ask::Compare { stream, bytes } => {
            let mut got = vec![0; *bytes];
            tcp.read_exact(&mut got).context("reading")?;
            ensure!(got == stream[..*bytes], "what came is not what was to come");
            Ok(())
        }
        Ask::Give { stream, bytes } => {
            tcp.write_all(&stream[..*bytes]).context("writing")?;
            Ok(())
        }
    }
}

/// Takes bytes without having them copied (MSG_TRUNC, tcp(7)).
fn swallow(tcp: &TcpStream, bytes: usize) -> Result<()> {
    let mut left = bytes;
    let mut room = vec![0_u8; AT_ONCE_BYTES];
    while left > 0 {
        let most = left.min(AT_ONCE_BYTES);
        let (_, got) = rustix::net::recv(tcp, &mut room[..most], RecvFlags::TRUNC)?;
        ensure!(got > 0, "the stream has ended, with {left} bytes to come");
        left -= got.min(left);
    }
    Ok(())
}
