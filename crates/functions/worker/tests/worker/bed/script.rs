//! A store with scripted responses, one for each request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The reaction of the store to a request.
pub enum Answer {
    /// Sends this, and closes the connection if requested.
    Say(String, bool),
    /// Closes the connection.
    Hang,
}

/// A received request.
#[derive(Debug)]
pub struct Asked {
    pub head: String,
    pub body: Vec<u8>,
}

/// Creates a response with a body, and optional header lines.
pub fn response(status: u16, lines: &str, body: &str) -> Answer {
    let length = body.len();
    Answer::Say(
        format!("HTTP/1.1 {status} X\r\n{lines}content-length: {length}\r\n\r\n{body}"),
        false,
    )
}

/// Starts the store; returns its address and a receiver of its requests.
pub fn script(answers: Vec<Answer>) -> (SocketAddr, mpsc::Receiver<Asked>) {
    start(answers, |stream, answers, said| serve(BufReader::new(stream), answers, said))
}

/// The same; the receiver gets a value for each connection that the store has closed.
pub fn script_closing(answers: Vec<Answer>) -> (SocketAddr, mpsc::Receiver<()>) {
    let (told, closed) = mpsc::channel();
    let (address, _) = start(answers, move |stream, answers, said| {
        serve(BufReader::new(stream), answers, said);
        let _ = told.send(());
    });
    (address, closed)
}

/// The same over TLS, for `localhost`; also returns the certificate in PEM.
pub fn script_tls(answers: Vec<Answer>) -> (SocketAddr, mpsc::Receiver<Asked>, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, pem) = (made.cert.der().clone(), made.cert.pem());
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);
    let (address, asked) = start(answers, move |stream, answers, said| {
        let connection = rustls::ServerConnection::new(config.clone()).unwrap();
        serve(BufReader::new(rustls::StreamOwned::new(connection, stream)), answers, said);
    });
    (address, asked, pem)
}

/// Starts a store that responds to one request with these bytes and then stays silent; the
/// receiver gets a value when the peer has closed the connection.
pub fn halting(bytes: String) -> (SocketAddr, mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (said, closed) = mpsc::channel();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut stream = BufReader::new(stream);
        request(&mut stream).unwrap();
        stream.get_mut().write_all(bytes.as_bytes()).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
        let _ = said.send(());
    });
    (address, closed)
}

type Answers = std::vec::IntoIter<Answer>;

fn start(
    answers: Vec<Answer>,
    serve: impl Fn(TcpStream, &mut Answers, &mpsc::Sender<Asked>) + Send + 'static,
) -> (SocketAddr, mpsc::Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (said, asked) = mpsc::channel();
    std::thread::spawn(move || {
        let mut answers = answers.into_iter();
        // The thread ends with its last response, or with the process if a test fails earlier.
        while answers.len() > 0 {
            let Ok((stream, _)) = listener.accept() else { return };
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            serve(stream, &mut answers, &said);
        }
    });
    (address, asked)
}

fn serve(
    mut stream: BufReader<impl Read + Write>,
    answers: &mut Answers,
    said: &mpsc::Sender<Asked>,
) {
    while let Some(asked) = request(&mut stream) {
        let _ = said.send(asked);
        match answers.next() {
            Some(Answer::Say(text, close)) => {
                let writer = stream.get_mut();
                let written = writer.write_all(text.as_bytes()).and_then(|()| writer.flush());
                if written.is_err() || close {
                    return;
                }
            }
            Some(Answer::Hang) | None => return,
        }
    }
}

fn request(stream: &mut impl BufRead) -> Option<Asked> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
    stream.read_exact(&mut body).ok()?;
    Some(Asked { head, body })
}
