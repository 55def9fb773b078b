//! A caller: one connection, one request at a time.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long an answer may take: a machine that is emulated may boot for two minutes.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Longest head of an answer, and most fields in it.
const HEAD_BYTES_MAX: usize = 64 * 1024;
const FIELDS_MAX: usize = 64;
/// Longest body of an answer: the state of very many instances.
const BODY_BYTES_MAX: usize = 64 << 20;

/// A connection that is made when it is needed.
#[derive(Debug)]
pub struct Caller {
    address: SocketAddr,
    stream: Option<TcpStream>,
}

/// The response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// From before the request's first byte to after the answer's last one.
    pub took: Duration,
}

impl Answer {
    /// A header field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        fields.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

impl Caller {
    pub fn new(address: SocketAddr) -> Caller {
        Caller { address, stream: None }
    }

    /// Connects, where it is not connected, or no more: a server ends what was idle for long.
    ///
    /// # Errors
    /// There is no listener.
    pub fn connect(&mut self) -> Result<()> {
        if self.stream.as_ref().is_some_and(has_ended) {
            self.stream = None;
        }
        if self.stream.is_none() {
            let stream = TcpStream::connect_timeout(&self.address, TIMEOUT)
                .with_context(|| format!("connecting to {}", self.address))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            self.stream = Some(stream);
        }
        Ok(())
    }

    /// Asks; the time to connect is not part of what it took.
    ///
    /// # Errors
    /// There is no answer, or none of HTTP/1.1 with a length.
    pub fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Answer> {
        self.connect()?;
        let Some(mut stream) = self.stream.take() else { bail!("no connection") };
        let answer = ask(&mut stream, self.address, method, path, body)
            .with_context(|| format!("{method} {path}"))?;
        let closes = answer.field("connection").is_some_and(|it| it.eq_ignore_ascii_case("close"));
        self.stream = (!closes).then_some(stream);
        Ok(answer)
    }
}

/// Returns true if the peer has ended a connection on which no answer is due.
fn has_ended(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let is_open = matches!(&peeked, Err(error) if error.kind() == ErrorKind::WouldBlock);
    !is_open || stream.set_nonblocking(false).is_err()
}

fn ask(
    stream: &mut TcpStream,
    host: SocketAddr,
    method: &str,
    path: &str,
    body: &[u8],
) -> Result<Answer> {
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    let begin = Instant::now();
    stream.write_all(&request)?;
    let mut bytes = Vec::new();
    loop {
        if let Some((mut answer, head_bytes, length)) = head(&bytes)? {
            if length > BODY_BYTES_MAX {
                bail!("an answer of {length} bytes");
            }
            while bytes.len() < head_bytes + length {
                more(stream, &mut bytes)?;
            }
            answer.took = begin.elapsed();
            answer.body = bytes.split_off(head_bytes);
            return Ok(answer);
        }
        if bytes.len() > HEAD_BYTES_MAX {
            bail!("the answer's head is too long");
        }
        more(stream, &mut bytes)?;
    }
}

fn more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Result<()> {
    let mut piece = [0; 16 * 1024];
    let count = stream.read(&mut piece)?;
    if count == 0 {
        bail!("the connection ended within an answer");
    }
    bytes.extend_from_slice(&piece[..count]);
    Ok(())
}

/// The answer without its body, the bytes of its head, and of its body.
fn head(bytes: &[u8]) -> Result<Option<(Answer, usize, usize)>> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(head_bytes) = parsed.parse(bytes)? else { return Ok(None) };
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let fields = parsed.headers.iter().map(|it| (it.name.to_owned(), text(it.value))).collect();
    let status = parsed.code.unwrap_or_default();
    let answer = Answer { status, fields, body: Vec::new(), took: Duration::ZERO };
    let length = match answer.field("content-length") {
        Some(length) => length.trim().parse().context("the answer's Content-Length")?,
        None if status == 204 => 0,
        None => bail!("the answer has no Content-Length"),
    };
    Ok(Some((answer, head_bytes, length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn answers_follow_each_other_on_one_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for body in ["one", ""] {
                let mut piece = [0; 4096];
                let count = stream.read(&mut piece).unwrap();
                assert!(piece[..count].ends_with(b"\r\n\r\n{}"));
                let text = format!(
                    "HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                for part in text.as_bytes().chunks(7) {
                    stream.write_all(part).unwrap();
                }
            }
        });
        let mut caller = Caller::new(address);
        let first = caller.ask("POST", "/a", b"{}").unwrap();
        assert_eq!((first.status, first.body.as_slice()), (200, b"one".as_slice()));
        assert_eq!(first.field("x-a"), Some("b"));
        assert!(caller.ask("POST", "/a", b"{}").unwrap().body.is_empty());
        server.join().unwrap();
        assert!(caller.ask("POST", "/a", b"{}").is_err(), "it has gone");
    }

    #[test]
    fn a_connection_that_was_ended_is_made_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (say, said) = std::sync::mpsc::channel();
        let server = std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]).unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
                drop(stream);
                say.send(()).unwrap();
            }
        });
        let mut caller = Caller::new(address);
        for _ in 0..2 {
            assert_eq!(caller.ask("GET", "/a", b"").unwrap().status, 200);
            said.recv().unwrap();
        }
        server.join().unwrap();
    }

    #[test]
    fn an_answer_without_a_length_is_refused() {
        assert!(head(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n").is_err());
        assert!(head(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n").is_err());
        assert!(head(b"HTTP/1.1 200 OK\r\nContent-").unwrap().is_none());
        assert_eq!(head(b"HTTP/1.1 204 No\r\n\r\n").unwrap().unwrap().2, 0);
    }
}
