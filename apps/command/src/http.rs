//! One HTTP/1.1 request of a tool, bounded in time and size, on a connection of its own. Clients
//! that measure have their own code: see docs/decisions/0047-http-clients-and-servers.md.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
pub use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpStream;

/// Bounds of one request with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// From the connection attempt to the last byte of the answer.
    pub time: Duration,
    /// Bytes of the answer's body.
    pub body_bytes_max: usize,
}

impl Default for Bounds {
    /// Those of an admin endpoint: 10 s, 16 MiB.
    fn default() -> Bounds {
        Bounds { time: Duration::from_secs(10), body_bytes_max: 16 << 20 }
    }
}

/// An answer, of any status.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its header fields.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// The reason why there is no answer.
#[derive(Debug, Error)]
pub enum HttpError {
    /// Nothing accepts connections at the address.
    #[error("no connection to {address}")]
    Connect {
        /// The address.
        address: String,
        /// The system's error.
        #[source]
        error: std::io::Error,
    },
    /// The request cannot be sent, or the answer ends too early or is not HTTP/1.1.
    #[error("{address} breaks off")]
    Broken {
        /// The address.
        address: String,
        /// The error of the protocol.
        #[source]
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer is too long.
    #[error("the answer of {address} has more than {body_bytes_max} bytes")]
    TooLong {
        /// The address.
        address: String,
        /// The bound.
        body_bytes_max: usize,
    },
    /// The answer is not complete in time.
    #[error("{address} does not answer within {} s", time.as_secs())]
    Late {
        /// The address.
        address: String,
        /// The bound.
        time: Duration,
    },
    /// The answer has another status than 200.
    #[error("{address} answers {status} to {path}")]
    Status {
        /// The address.
        address: String,
        /// The path that was requested.
        path: String,
        /// The status.
        status: StatusCode,
    },
    /// The thread has no resources for the connection.
    #[error("no event loop for a connection")]
    Runtime(#[source] std::io::Error),
}

/// Sends `request`, which has a `Host` field, to `address` (`HOST:PORT`), and waits for the answer
/// on this thread.
///
/// # Errors
/// [`HttpError`], except [`HttpError::Status`].
pub fn exchange(
    address: &str,
    request: Request<Full<Bytes>>,
    bounds: Bounds,
) -> Result<Answer, HttpError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(HttpError::Runtime)?;
    let late = |_| HttpError::Late { address: address.to_owned(), time: bounds.time };
    let exchanged = exchanged(address, request, bounds.body_bytes_max);
    // The timer needs the runtime's context.
    runtime.block_on(async { tokio::time::timeout(bounds.time, exchanged).await }).map_err(late)?
}

async fn exchanged(
    address: &str,
    request: Request<Full<Bytes>>,
    body_bytes_max: usize,
) -> Result<Answer, HttpError> {
    let refused = |error| HttpError::Connect { address: address.to_owned(), error };
    let stream = TcpStream::connect(address).await.map_err(refused)?;
    stream.set_nodelay(true).map_err(refused)?;
    let broken = |error: Box<dyn std::error::Error + Send + Sync>| match error
        .downcast_ref::<LengthLimitError>()
    {
        Some(_) => HttpError::TooLong { address: address.to_owned(), body_bytes_max },
        None => HttpError::Broken { address: address.to_owned(), error },
    };
    let connected = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = connected.map_err(|error| broken(error.into()))?;
    // It ends with the runtime, at the latest.
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(|error| broken(error.into()))?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, body_bytes_max).collect().await.map_err(broken)?.to_bytes();
    Ok(Answer { status: head.status, headers: head.headers, body })
}

/// The body of the answer to a GET of `path`.
///
/// # Errors
/// [`HttpError`]; also for another status than 200.
pub fn get(address: SocketAddr, path: &str, bounds: Bounds) -> Result<Bytes, HttpError> {
    let address = address.to_string();
    let request = Request::get(path)
        .header("host", &address)
        .header("connection", "close")
        .body(Full::default())
        .map_err(|error| HttpError::Broken { address: address.clone(), error: error.into() })?;
    let answer = exchange(&address, request, bounds)?;
    match answer.status {
        StatusCode::OK => Ok(answer.body),
        status => Err(HttpError::Status { address, path: path.to_owned(), status }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A GET of a server that answers with `answer`, and then waits for `pause`.
    fn answered(answer: &'static str, pause: Duration, bounds: Bounds) -> Result<Bytes, HttpError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 4096];
            let count = stream.read(&mut head).unwrap();
            let head = String::from_utf8_lossy(&head[..count]).into_owned();
            stream.write_all(answer.as_bytes()).unwrap();
            std::thread::sleep(pause);
            head
        });
        let got = get(address, "/metrics", bounds);
        let head = server.join().unwrap();
        assert!(head.starts_with("GET /metrics HTTP/1.1\r\n"), "{head}");
        assert!(head.contains(&format!("host: {address}\r\n")), "{head}");
        got
    }

    const AT_ONCE: Duration = Duration::ZERO;

    #[test]
    fn bodies_come_whole_with_and_without_a_length() {
        let all = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nx\r\n\r\ny";
        assert_eq!(answered(all, AT_ONCE, Bounds::default()).unwrap(), "x\r\n\r\ny");
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n\
                       1\r\nc\r\n0\r\n\r\n";
        assert_eq!(answered(chunked, AT_ONCE, Bounds::default()).unwrap(), "abc");
        let to_the_end = "HTTP/1.1 200 OK\r\n\r\nabc";
        assert_eq!(answered(to_the_end, AT_ONCE, Bounds::default()).unwrap(), "abc");
    }

    #[test]
    fn an_error_says_what_is_wrong() {
        let answered = |answer, pause, bounds| answered(answer, pause, bounds).unwrap_err();
        let missing = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        let error = answered(missing, AT_ONCE, Bounds::default());
        assert!(error.to_string().contains("404 Not Found to /metrics"), "{error}");
        let short = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx";
        let error = answered(short, AT_ONCE, Bounds::default());
        assert!(matches!(error, HttpError::Broken { .. }), "{error:?}");
        assert!(matches!(answered("", AT_ONCE, Bounds::default()), HttpError::Broken { .. }));
        let small = Bounds { body_bytes_max: 8, ..Bounds::default() };
        let long = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123456789";
        assert!(matches!(answered(long, AT_ONCE, small), HttpError::TooLong { .. }));
        let brief = Bounds { time: Duration::from_millis(50), ..Bounds::default() };
        let error = answered("HTTP/1.1 200 OK\r\n", Duration::from_millis(500), brief);
        assert!(matches!(error, HttpError::Late { .. }), "{error:?}");
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = get(closed, "/", Bounds::default()).unwrap_err();
        assert!(matches!(error, HttpError::Connect { .. }), "{error:?}");
    }
}
