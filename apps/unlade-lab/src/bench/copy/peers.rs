//! A server and a client that cost so little that what is between them is what is measured: the
//! server sends from the page cache, the client throws away what it has received, without a copy.

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most connections of a server.
const CONNECTIONS_MAX: usize = 64;
/// Most bytes of a request.
const REQUEST_BYTES_MAX: usize = 4096;
/// Bytes thrown away at a time.
const DISCARD_BYTES: usize = 1 << 20;
/// How often a thread looks whether it is to end.
const BEAT: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The target of every request.
pub const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n";

/// The server's head for a body of `bytes`.
pub fn head(bytes: usize) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n")
}

/// The body of every answer.
pub fn body(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

/// A server on this machine; ends when dropped.
pub struct Server {
    pub address: SocketAddr,
    end: &'static AtomicBool,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Server {
    /// Starts one that answers every request with `bytes` bytes.
    ///
    /// # Errors
    /// No socket or no memory is to be had.
    pub fn start(bytes: usize) -> Result<Server> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listening on loopback")?;
        let address = listener.local_addr()?;
        let mut file = File::from(memfd_create("unlade-bench", MemfdFlags::CLOEXEC)?);
        file.write_all(&body(bytes)).context("the body of answers")?;
        // One word for each server of a run, which threads of their own look at.
        let end: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let thread = std::thread::Builder::new().name("bench-server".to_owned());
        let thread = thread.spawn(move || serve(&listener, &file, bytes, end))?;
        Ok(Server { address, end, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(Err(error)) = self.thread.take().and_then(|thread| thread.join().ok()) {
            eprintln!("unlade: the benchmark's server: {error:#}");
        }
    }
}

/// A connection of the server, and what of its answer is still to be sent.
struct Answering {
    socket: TcpStream,
    asked: Vec<u8>,
    offset: u64,
    left: usize,
}

fn serve(listener: &TcpListener, file: &File, bytes: usize, end: &AtomicBool) -> Result<()> {
    listener.set_nonblocking(true)?;
    let head = head(bytes);
    let mut all: Vec<Answering> = Vec::new();
    while !end.load(Ordering::Relaxed) {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        let wanted = |it: &Answering| if it.left > 0 { PollFlags::OUT } else { PollFlags::IN };
        fds.extend(all.iter().map(|it| PollFd::new(&it.socket, wanted(it))));
        poll(&mut fds, Some(&BEAT))?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut number = 0;
        all.retain_mut(|it| {
            number += 1;
            !ready[number] || it.go_on(&head, file, bytes).is_ok()
        });
        if ready[0]
            && all.len() < CONNECTIONS_MAX
            && let Ok((socket, _)) = listener.accept()
        {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            all.push(Answering { socket, asked: Vec::new(), offset: 0, left: 0 });
        }
    }
    Ok(())
}

impl Answering {
    /// Takes a request, and sends as much of the answer as the socket takes.
    fn go_on(&mut self, head: &str, file: &File, bytes: usize) -> Result<()> {
        if self.left == 0 {
            let mut more = [0; REQUEST_BYTES_MAX];
            let (got, _) = recv(&self.socket, &mut more, RecvFlags::empty())?;
            ensure!(got > 0, "the end");
            self.asked.extend_from_slice(&more[..got]);
            if !self.asked.ends_with(b"\r\n\r\n") {
                ensure!(self.asked.len() < REQUEST_BYTES_MAX, "a request that is too long");
                return Ok(());
            }
            self.asked.clear();
            send(&self.socket, head.as_bytes(), SendFlags::MORE | SendFlags::NOSIGNAL)?;
            (self.offset, self.left) = (0, bytes);
        }
        while self.left > 0 {
            match sendfile(&self.socket, file, Some(&mut self.offset), self.left) {
                Ok(sent) => self.left -= sent,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// A connection of the client.
struct Asking {
    socket: TcpStream,
    left: usize,
}

/// The result of one client.
#[derive(Debug, Clone, Copy)]
pub struct Got {
    pub responses: u64,
    pub elapsed_s: f64,
}

/// Connections to `to` that ask for one answer after the other.
pub struct Client {
    all: Vec<Asking>,
    answer_bytes: usize,
    discard: Vec<u8>,
}

impl Client {
    /// Connects, and checks one whole answer of each connection.
    ///
    /// # Errors
    /// No answer comes, or one with other bytes.
    pub fn connect(to: SocketAddr, connections: usize, bytes: usize) -> Result<Client> {
        let mut client =
            Client { all: Vec::new(), answer_bytes: 0, discard: vec![0; DISCARD_BYTES] };
        let expected = body(bytes);
        for _ in 0..connections {
            let mut socket = TcpStream::connect(to).context("connecting")?;
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.write_all(REQUEST)?;
            let answer = read_answer(&mut socket, bytes)?;
            ensure!(answer.ends_with(&expected), "an answer of {bytes} bytes has other bytes");
            // The proxy's head may have more fields than the server's, always the same.
            client.answer_bytes = answer.len();
            socket.set_nonblocking(true)?;
            client.all.push(Asking { socket, left: 0 });
        }
        Ok(client)
    }

    /// Asks on all connections for `window`, and until the last answers have come.
    ///
    /// # Errors
    /// A connection ends, or says nothing for long.
    pub fn run(&mut self, window: Duration) -> Result<Got> {
        let begin = Instant::now();
        let mut responses = 0;
        for it in &mut self.all {
            it.ask(self.answer_bytes)?;
        }
        while self.all.iter().any(|it| it.left > 0) {
            let wanted = |it: &Asking| if it.left > 0 { PollFlags::IN } else { PollFlags::empty() };
            let mut fds: Vec<PollFd<'_>> =
                self.all.iter().map(|it| PollFd::new(&it.socket, wanted(it))).collect();
            poll(&mut fds, Some(&BEAT))?;
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            for (it, _) in self.all.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
                if !it.discard(&mut self.discard)? {
                    continue;
                }
                responses += 1;
                if begin.elapsed() < window {
                    it.ask(self.answer_bytes)?;
                }
            }
            if begin.elapsed() > window + PATIENCE {
                bail!("answers did not come within {PATIENCE:?}");
            }
        }
        Ok(Got { responses, elapsed_s: begin.elapsed().as_secs_f64() })
    }
}

impl Asking {
    fn ask(&mut self, answer_bytes: usize) -> Result<()> {
        send(&self.socket, REQUEST, SendFlags::NOSIGNAL)?;
        self.left = answer_bytes;
        Ok(())
    }

    /// Throws away what there is of the answer; true at its end.
    fn discard(&mut self, room: &mut [u8]) -> Result<bool> {
        while self.left > 0 {
            let bytes = self.left.min(room.len());
            match recv(&self.socket, &mut room[..bytes], RecvFlags::TRUNC) {
                Ok((_, 0)) => bail!("a connection ended within an answer"),
                Ok((_, got)) => self.left -= got.min(bytes),
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

fn read_answer(socket: &mut TcpStream, bytes: usize) -> Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        let got = socket.read(&mut piece).context("waiting for an answer")?;
        ensure!(got > 0, "the connection ended");
        answer.extend_from_slice(&piece[..got]);
        let head = answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        match head {
            Some(head) if answer.len() == head + bytes => return Ok(answer),
            Some(head) if answer.len() > head + bytes => bail!("an answer is too long"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_and_server_agree() {
        for bytes in [0, 1, 100_000] {
            let server = Server::start(bytes).unwrap();
            let mut client = Client::connect(server.address, 3, bytes).unwrap();
            let got = client.run(Duration::from_millis(5)).unwrap();
            assert!(got.responses >= 3 && got.elapsed_s > 0.0);
        }
    }
}
