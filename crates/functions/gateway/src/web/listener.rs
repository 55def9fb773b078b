//! The connections of callers that speak plain HTTP: accepted, limited, drained.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use unlade_metrics::FnHttpEnd;

use super::answer::answer;
use super::request::{Ended, HEAD_BYTES_MAX, Web};
use super::stream::Timed;

/// Bytes of a head at which the server stops to read; it may have read some more.
const BUFFER_BYTES_MAX: usize = HEAD_BYTES_MAX;
/// Most connections beyond the limit that are told about it at a time; more are closed.
const REFUSALS_MAX: usize = 64;
/// Time in which a refused client has to take its response.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// The response to a connection beyond the limit.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
                      content-length: 33\r\nconnection: close\r\n\r\n\
                      {\"message\":\"Service Unavailable\"}";
/// Pause after a failed accept (descriptors exhausted), so as not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves connections until it is dropped; connections in progress continue.
pub async fn serve(web: Rc<Web>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(web.host.config.urls_connections_max));
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if let Ok(place) = places.clone().try_acquire_owned() {
            let web = web.clone();
            tokio::task::spawn_local(async move {
                let _place = place;
                converse(web, stream, peer).await;
            });
            continue;
        }
        web.count(FnHttpEnd::Full);
        if let Ok(place) = refusals.clone().try_acquire_owned() {
            tokio::task::spawn_local(async move {
                let _place = place;
                let _ = tokio::time::timeout(REFUSAL_TIMEOUT, refuse(stream)).await;
            });
        }
    }
}

/// Tells a client that there are too many, and waits until it has closed: bytes that nobody has read would
/// reset the connection, and with it the response.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    stream.write_all(FULL).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

async fn converse(web: Rc<Web>, stream: TcpStream, peer: SocketAddr) {
    let _ = stream.set_nodelay(true);
    let limit = web.host.config.urls_timeout;
    let (mut ending, own) = (web.ending.clone(), web.clone());
    let service = service_fn(move |request| {
        let web = web.clone();
        async move {
            // A request that was begun continues, even if its caller has disconnected.
            let work = tokio::task::spawn_local(answer(web.clone(), request, peer));
            let failed = |_| {
                web.count(FnHttpEnd::Unavailable);
                Ended::message(500, FnHttpEnd::Unavailable, "Internal Server Error").reply
            };
            Ok::<_, Infallible>(work.await.unwrap_or_else(failed))
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limit).max_buf_size(BUFFER_BYTES_MAX);
    let stream = TokioIo::new(Timed::new(stream, limit));
    let mut connection = std::pin::pin!(builder.serve_connection(stream, service));
    let served = tokio::select! {
        biased;
        _ = async { ending.wait_for(|is_ending| *is_ending).await.is_ok() } => {
            // The current request is answered, and no further one.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        served = connection.as_mut() => served,
    };
    if let Err(error) = served {
        // The server has answered it: the head is no HTTP, or too long.
        if error.is_parse() {
            own.count(FnHttpEnd::Invalid);
        }
        tracing::debug!(%error, %peer, "a connection");
    }
}
