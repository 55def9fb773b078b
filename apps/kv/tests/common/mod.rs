//! A server in a thread, and a client that speaks the protocol byte by byte.
#![allow(dead_code)]

pub mod requests;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use unlade_kv::run::{Mode, run};
use unlade_kv::{Config, Limits};

/// A running server; it ends when this value is dropped.
pub struct Running {
    pub address: SocketAddr,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

pub fn start_with(mode: Mode, limits: Limits) -> Running {
    let (stop, stopped) = UnixStream::pair().unwrap();
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = Config { listen, limits, allows_debug: true };
        run(mode, &config, stopped.as_fd(), |address| tell.send(address).unwrap()).unwrap();
    });
    Running { address: told.recv().unwrap(), stop: Some(stop), thread: Some(thread) }
}

/// Runs a test with each of the builds.
pub fn each(test: impl Fn(&Running)) {
    for mode in [Mode::Sync, Mode::Alone, Mode::Service] {
        println!("{mode:?}");
        test(&start_with(mode, Limits::default()));
    }
}

impl Running {
    pub fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client { stream }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

pub struct Client {
    pub stream: TcpStream,
}

pub fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Client {
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).unwrap();
        byte[0]
    }

    /// Reads one answer as raw bytes.
    pub fn answer(&mut self) -> Vec<u8> {
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n") {
            answer.push(self.byte());
        }
        let number = || -> i64 { String::from_utf8_lossy(&answer[1..]).trim().parse().unwrap() };
        match answer[0] {
            b'$' | b'=' if number() >= 0 => {
                let mut value = vec![0; number() as usize + 2];
                self.stream.read_exact(&mut value).unwrap();
                answer.extend_from_slice(&value);
            }
            b'*' | b'~' | b'>' => {
                for _ in 0..number() {
                    answer.extend(self.answer());
                }
            }
            b'%' => {
                for _ in 0..2 * number() {
                    answer.extend(self.answer());
                }
            }
            // Attributes precede the answer.
            b'|' => {
                for _ in 0..2 * number() + 1 {
                    answer.extend(self.answer());
                }
            }
            _ => {}
        }
        answer
    }

    pub fn ask(&mut self, words: &[&[u8]]) -> Vec<u8> {
        self.send(&request(words));
        self.answer()
    }

    /// Sends a line, and returns the answer as text.
    pub fn text(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        String::from_utf8(self.ask(&words)).unwrap()
    }

    /// Waits for the connection's end, and returns the bytes before it.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A reset counts as the end.
        let _ = self.stream.read_to_end(&mut rest);
        rest
    }
}

/// Returns the answer to a `GET` of this value.
pub fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed) as u8).collect()
}
