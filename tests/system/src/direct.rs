//! Labs whose servers' hosts send responses to the client directly.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::Lab;
use crate::counters::Metrics;

/// Time limit of a wait.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The host with the defaults of direct return.
pub const HOST: &str = "direct.objects.lab";
/// Responses that were direct.
pub const RETURNS: &str = "unlade_lb_direct_returns_total";

/// Starts a lab with one server and its agent. Nothing is handed over.
pub fn lab() -> Lab {
    let args = ["--servers", "1", "--objects", "small", "--fronts", "offload"];
    Lab::up(&[&args[..], &["--lb-workers", "1", "--direct-return", "--offload", "off"]].concat())
}

/// Returns a counter of the balancer.
pub fn count(lab: &Lab, sample: &str) -> u64 {
    Metrics::read(lab, "lb").get(sample)
}

/// Connects from the client's network, with a receive buffer of so many bytes (0: the usual one).
///
/// # Panics
/// The balancer does not accept.
pub fn connect(lab: &Lab, buffer_bytes: usize) -> TcpStream {
    connect_with(lab, |socket| {
        if buffer_bytes > 0 {
            socket.set_recv_buffer_size(buffer_bytes).unwrap();
        }
    })
}

/// Connects from the client's network by a socket that was set before.
///
/// # Panics
/// As for [`connect`].
pub fn connect_with(lab: &Lab, set: impl FnOnce(&Socket) + Send) -> TcpStream {
    let [v4, _] = lab.virtual_ips();
    let open = || {
        lab.enter("client");
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        set(&socket);
        socket.connect_timeout(&SocketAddr::new(v4, 80).into(), PATIENCE).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    std::thread::scope(|scope| scope.spawn(open).join().unwrap())
}

/// Requests an object, and compares the response's body.
///
/// # Panics
/// The response is another one.
pub fn ask(lab: &Lab, stream: &mut TcpStream, object: &str) {
    ask_host(lab, stream, HOST, object);
}

/// Requests an object of a host, and compares the response's body.
///
/// # Panics
/// As for [`ask`].
pub fn ask_host(lab: &Lab, stream: &mut TcpStream, host: &str, object: &str) {
    request(stream, host, object);
    receive(lab, stream, object);
}

/// Requests an object of a host.
///
/// # Panics
/// The connection is broken.
pub fn request(stream: &mut TcpStream, host: &str, object: &str) {
    let request = format!("GET /{object} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
}

/// Receives the head of a response.
///
/// # Panics
/// The connection is broken.
pub fn receive_head(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    head
}

/// Receives a response, and compares its body with an object.
///
/// # Panics
/// The response is another one.
pub fn receive(lab: &Lab, stream: &mut TcpStream, object: &str) {
    let head = receive_head(stream);
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    let expected = std::fs::read(lab.dir().join("objects").join(object)).unwrap();
    let mut body = vec![0; expected.len()];
    stream.read_exact(&mut body).unwrap();
    assert!(body == expected, "{object}: other bytes");
}
