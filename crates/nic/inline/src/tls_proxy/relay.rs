//! Relay between a TLS connection and a plain one, in both directions, until both have ended.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::stream::{Opened, TlsReader, TlsWriter};

/// How long the peer may take to acknowledge the last bytes.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the end of a connection with an error may take.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);

/// Byte counts of a relayed connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Bytes from the TLS peer to the plain one.
    pub inward_bytes: u64,
    /// Bytes from the plain peer to the TLS one.
    pub outward_bytes: u64,
}

/// Relays until both directions have ended, or one has failed.
///
/// # Errors
/// The first failure of either side; pending output to the TLS peer, such as an alert, has been
/// sent.
pub async fn relay(opened: Opened, plain: TcpStream) -> io::Result<Relayed> {
    let Opened { mut reader, mut writer, plaintext, .. } = opened;
    plain.set_nodelay(true)?;
    let (mut plain_reader, mut plain_writer) = plain.into_split();
    let done = tokio::try_join!(
        inward(&mut reader, &mut plain_writer, plaintext),
        outward(&mut writer, &mut plain_reader),
    );
    match done {
        Ok((inward_bytes, outward_bytes)) => {
            // The device is needed until the last byte has arrived.
            let _ = tokio::time::timeout(ACK_TIMEOUT, writer.wait_acknowledged()).await;
            Ok(Relayed { inward_bytes, outward_bytes })
        }
        Err(error) => {
            // Sends the alert, if one is due; then the peer has time to read it.
            let lingering = async {
                writer.end().await;
                reader.linger(LINGER_TIMEOUT).await;
                // The device need not keep the connection's name for long then.
                let _ = writer.wait_acknowledged().await;
            };
            let _ = tokio::time::timeout(LINGER_TIMEOUT, lingering).await;
            Err(error)
        }
    }
}

async fn inward(
    reader: &mut TlsReader,
    plain: &mut OwnedWriteHalf,
    mut plaintext: Vec<u8>,
) -> io::Result<u64> {
    let mut bytes = 0;
    loop {
        plain.write_all(&plaintext).await?;
        bytes += plaintext.len() as u64;
        plaintext.clear();
        if reader.read(&mut plaintext).await? == 0 {
            plain.shutdown().await?;
            return Ok(bytes);
        }
    }
}

async fn outward(writer: &mut TlsWriter, plain: &mut OwnedReadHalf) -> io::Result<u64> {
    let mut bytes = 0;
    loop {
        tokio::select! {
            ready = plain.ready(Interest::READABLE) => { ready?; }
            () = writer.owed() => {
                writer.write_owed().await?;
                continue;
            }
        }
        let mut ended = false;
        let sent = writer
            .write_with(|places| match plain.try_read_vectored(places) {
                Ok(0) => {
                    ended = true;
                    Ok(0)
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                read => read,
            })
            .await?;
        bytes += sent as u64;
        if ended {
            writer.close().await?;
            return Ok(bytes);
        }
    }
}
