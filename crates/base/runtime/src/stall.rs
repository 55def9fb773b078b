//! Waits for space in a socket's send buffer while its peer acknowledges data.
//!
//! The amount of a response in the buffer does not show whether a client is slow: the buffer
//! accepts more only when a third of it is free. The amount that the client has acknowledged does.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use unlade_sys::info::TcpInfo;

/// Waits until `tcp` accepts more data.
///
/// # Errors
/// `TimedOut` if the peer has acknowledged nothing for `limit`; the socket's.
pub(crate) async fn writable(tcp: &TcpStream, limit: Option<Duration>) -> io::Result<()> {
    let Some(limit) = limit else { return tcp.writable().await };
    let mut acked_bytes = TcpInfo::of(tcp)?.bytes_acked;
    loop {
        match timeout(limit, tcp.writable()).await {
            Ok(ready) => return ready,
            Err(_) => {
                let now_bytes = TcpInfo::of(tcp)?.bytes_acked;
                if now_bytes == acked_bytes {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                acked_bytes = now_bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    const LIMIT: Duration = Duration::from_secs(1);

    /// A socket whose buffer is full, and its peer.
    async fn full() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (peer, _) = listener.accept().await.unwrap();
        let room = [0; 64 * 1024];
        while timeout(LIMIT, tcp.writable()).await.is_ok() {
            let _ = tcp.try_write(&room);
        }
        (tcp, peer)
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (tcp, _peer) = full().await;
        let begin = Instant::now();
        let error = writable(&tcp, Some(LIMIT)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begin.elapsed() >= LIMIT);
    }

    #[tokio::test]
    async fn a_peer_that_takes_a_little_is_waited_for() {
        let (tcp, mut peer) = full().await;
        let reader = tokio::spawn(async move {
            // Slower than the buffer's thresholds, faster than the limit.
            let mut piece = vec![0; 64 * 1024];
            while let Ok(1..) = peer.read(&mut piece).await {
                tokio::time::sleep(LIMIT / 8).await;
            }
        });
        writable(&tcp, Some(LIMIT)).await.unwrap();
        // The rest of the data would take as long.
        reader.abort();
    }
}
