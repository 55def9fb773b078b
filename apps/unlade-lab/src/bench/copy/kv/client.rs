//! Clients of a key-value server: each sends one request, reads the answer, checks its bytes, and
//! sends the next.

use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use unlade_testkit::Random;

/// Keys that requests are about, all of one length.
pub const KEYS: usize = 64;
/// A server that says nothing for so long is out of order.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    Set,
    Get,
}

impl Ask {
    pub fn name(self) -> &'static str {
        match self {
            Ask::Set => "set",
            Ask::Get => "get",
        }
    }
}

/// A connection, and the bytes that it sends and expects.
pub struct Client {
    stream: TcpStream,
    /// A request for each key; of a `SET` with its value.
    sets: Vec<Vec<u8>>,
    gets: Vec<Vec<u8>>,
    /// The answer to each `GET`.
    answers: Vec<Vec<u8>>,
    input: Vec<u8>,
    next: usize,
}

impl Client {
    /// Connects to a server. Values depend on the key alone, so that clients may share keys.
    ///
    /// # Errors
    /// There is no server.
    pub fn connect(address: SocketAddr, bytes: usize, seed: u64) -> Result<Client> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT).context("asking the server")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let (mut sets, mut gets, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..KEYS {
            let mut value = vec![0; bytes];
            Random::new(seed ^ number as u64).fill(&mut value);
            let key = format!("key:{number:08}");
            let head = |words: usize, name: &str| {
                format!("*{words}\r\n$3\r\n{name}\r\n${}\r\n{key}\r\n", key.len()).into_bytes()
            };
            let mut answer = format!("${bytes}\r\n").into_bytes();
            answer.extend_from_slice(&value);
            answer.extend_from_slice(b"\r\n");
            let mut set = head(3, "SET");
            set.extend_from_slice(&answer);
            sets.push(set);
            gets.push(head(2, "GET"));
            answers.push(answer);
        }
        let input = vec![0; bytes + 64];
        Ok(Client { stream, sets, gets, answers, input, next: 0 })
    }

    /// Gives every key its value.
    ///
    /// # Errors
    /// The server's.
    pub fn fill(&mut self) -> Result<()> {
        (0..KEYS).try_for_each(|_| self.ask(Ask::Set).map(drop))
    }

    /// One request: from before its first byte is sent until the last byte of the answer is read.
    ///
    /// # Errors
    /// The server does not answer, or with other bytes.
    pub fn ask(&mut self, ask: Ask) -> Result<Duration> {
        self.next = (self.next + 1) % KEYS;
        let ok: &[u8] = b"+OK\r\n";
        let (request, expected) = match ask {
            Ask::Set => (&self.sets[self.next], ok),
            Ask::Get => (&self.gets[self.next], self.answers[self.next].as_slice()),
        };
        let begin = Instant::now();
        self.stream.write_all(request)?;
        let mut have = 0;
        while have < expected.len() {
            match self.stream.read(&mut self.input[have..])? {
                0 => bail!("the server closed the connection"),
                count => have += count,
            }
        }
        let took = begin.elapsed();
        ensure!(&self.input[..have] == expected, "the server answered with other bytes");
        Ok(took)
    }

    /// Asks for as long as that, and appends what each request took in microseconds.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn ask_for(&mut self, ask: Ask, window: Duration, took_us: &mut Vec<f64>) -> Result<()> {
        let until = Instant::now() + window;
        while Instant::now() < until {
            took_us.push(self.ask(ask)?.as_nanos() as f64 / 1e3);
        }
        Ok(())
    }
}
