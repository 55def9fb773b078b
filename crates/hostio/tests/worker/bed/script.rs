//! A store that answers what it is told to, one answer a request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

/// What the store does with a request.
pub enum Answer {
    /// Says this, and closes the connection where asked.
    Say(String, bool),
    /// Closes the connection.
    Hang,
}

/// A request as it came.
#[derive(Debug)]
pub struct Asked {
    pub head: String,
    pub body: Vec<u8>,
}

/// A response with a body, and perhaps header lines.
pub fn response(status: u16, lines: &str, body: &str) -> Answer {
    let length = body.len();
    Answer::Say(
        format!("HTTP/1.1 {status} X\r\n{lines}content-length: {length}\r\n\r\n{body}"),
        false,
    )
}

/// Starts the store; requests are told in the order in which they came.
pub fn script(answers: Vec<Answer>) -> (SocketAddr, mpsc::Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (said, asked) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answers = answers.into_iter();
        // It ends with its last answer; the process ends it where a test fails before.
        while answers.len() > 0 {
            let Ok((stream, _)) = listener.accept() else { return };
            serve(stream, &mut answers, &said);
        }
    });
    (address, asked)
}

fn serve(
    stream: TcpStream,
    answers: &mut impl Iterator<Item = Answer>,
    said: &mpsc::Sender<Asked>,
) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(asked) = request(&mut reader) {
        let _ = said.send(asked);
        match answers.next() {
            Some(Answer::Say(text, close)) => {
                if writer.write_all(text.as_bytes()).is_err() || close {
                    return;
                }
            }
            Some(Answer::Hang) | None => return,
        }
    }
}

fn request(reader: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { head, body })
}
