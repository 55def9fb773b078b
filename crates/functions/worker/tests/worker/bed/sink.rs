//! A store that accepts or refuses large bodies: one plan for each request, in order.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

/// The reaction to a request.
pub struct Plan {
    /// True if the store asks for the body.
    pub continues: bool,
    /// Number of bytes of the body that are read; all of them if absent.
    pub takes: Option<usize>,
    /// Signals the arrival of the head, and waits before it reads the body.
    pub waits: Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>,
    /// The response; if absent the connection is reset.
    pub says: Option<String>,
}

impl Plan {
    /// Accepts the whole body.
    pub fn take() -> Plan {
        Plan { continues: true, takes: None, waits: None, says: Some(answer(200, "")) }
    }

    /// Responds with an object.
    pub fn object(body: &str) -> Plan {
        let length = body.len();
        let says = format!("HTTP/1.1 200 X\r\ncontent-length: {length}\r\n\r\n{body}");
        Plan { says: Some(says), ..Plan::take() }
    }

    /// Accepts a number of bytes, then sends a response, if there is one.
    pub fn stop(bytes: usize, says: Option<String>) -> Plan {
        Plan { takes: Some(bytes), says, ..Plan::take() }
    }

    /// Responds without asking for the body.
    pub fn refuse(says: String) -> Plan {
        Plan { continues: false, takes: Some(0), waits: None, says: Some(says) }
    }
}

/// A response that is an error, or empty.
pub fn answer(status: u16, code: &str) -> String {
    let body = match code {
        "" => String::new(),
        code => format!("<Error><Code>{code}</Code><Message>no</Message></Error>"),
    };
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\netag: \"e\"\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// A received request.
#[derive(Debug)]
pub struct Seen {
    pub head: String,
    /// The received part of the body, in its encoding.
    pub body: Vec<u8>,
    /// The announced length.
    pub announced: usize,
}

impl Seen {
    /// The value of a header field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    /// The data of a complete body in chunks.
    pub fn decoded(&self) -> Vec<u8> {
        assert_eq!(self.body.len(), self.announced, "the body did not come whole");
        let (mut rest, mut data) = (self.body.as_slice(), Vec::new());
        loop {
            let end = rest.windows(2).position(|two| two == b"\r\n").unwrap();
            let line = std::str::from_utf8(&rest[..end]).unwrap();
            let digits = line.split(';').next().unwrap();
            let bytes = usize::from_str_radix(digits, 16).unwrap();
            if bytes == 0 {
                return data;
            }
            data.extend_from_slice(&rest[end + 2..end + 2 + bytes]);
            rest = &rest[end + 2 + bytes + 2..];
        }
    }
}

/// Starts the store. A thread serves each connection; it ends with its requests or with the
/// process.
pub fn sink(plans: Vec<Plan>) -> (SocketAddr, mpsc::Receiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (said, seen) = mpsc::channel();
    let plans = std::sync::Arc::new(std::sync::Mutex::new(plans.into_iter()));
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let (plans, said) = (plans.clone(), said.clone());
            std::thread::spawn(move || {
                let next = || plans.lock().unwrap().next();
                serve(stream, next, &said);
            });
        }
    });
    (address, seen)
}

fn serve(stream: TcpStream, next: impl Fn() -> Option<Plan>, said: &mpsc::Sender<Seen>) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut stream = BufReader::new(stream);
    while let Some(head) = head(&mut stream) {
        let Some(plan) = next() else { return };
        let mut seen = Seen { head, body: Vec::new(), announced: 0 };
        seen.announced = seen.field("content-length").map_or(0, |length| length.parse().unwrap());
        if plan.continues && seen.field("expect").is_some() {
            stream.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        }
        if let Some((came, waits)) = plan.waits {
            let _ = came.send(());
            let _ = waits.recv();
        }
        let due = plan.takes.unwrap_or(seen.announced).min(seen.announced);
        let came = (&mut stream).take(due as u64).read_to_end(&mut seen.body);
        let is_whole = came.is_ok_and(|came| came == due);
        let goes_on = plan.takes.is_none();
        let _ = said.send(seen);
        match plan.says {
            Some(text) if is_whole => {
                // All of the body may have been sent by now: the connection would stay open.
                let text = match goes_on {
                    true => text,
                    false => text.replacen("\r\n", "\r\nConnection: close\r\n", 1),
                };
                if stream.get_mut().write_all(text.as_bytes()).is_err() || !goes_on {
                    // Unread data would reset the connection, and discard the response.
                    let _ = stream.get_ref().shutdown(std::net::Shutdown::Write);
                    let _ = std::io::copy(&mut stream, &mut std::io::sink());
                    return;
                }
            }
            _ => {
                let socket = socket2::SockRef::from(stream.get_ref());
                let _ = socket.set_linger(Some(Duration::ZERO));
                return;
            }
        }
    }
}

fn head(stream: &mut impl BufRead) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    Some(head)
}
