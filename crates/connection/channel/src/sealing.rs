//! Connections on which a server's agent seals responses for a balancer's clients.
//!
//! ```text
//!  balancer ── SEALING (key of the proofs), SEAL (request, keys), by mutual TLS ──► agent
//!           ◄── header of a piece with a proof, records of the client, as they are ───
//! ```
//! TLS protects one direction only. The other one has records that are sealed for the client, so that their
//! bytes can go on to it without a change: through the balancer's process, its kernel, or past it.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, Connection};
use tokio::io::Interest;
use tokio::net::TcpStream;
use unlade_handoff_protocol::frame::{Deframer, Frame, SEALING_VERSION};
use unlade_tls::RecordError;
use unlade_tls::piece::{Piece, PieceProof};
use zeroize::Zeroize as _;

use crate::channel::{Channel, ChannelError, READ_BYTES, Transport};

/// The balancer's end of a connection: it encrypts frames.
pub struct SealingSender {
    tls: Connection,
    plain: Vec<u8>,
    proof: PieceProof,
}

impl std::fmt::Debug for SealingSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealingSender")
    }
}

impl SealingSender {
    /// Connects to a server's agent, and says what the connection is for. The socket is to be written with
    /// what [`SealingSender::encrypt`] returns, and read without TLS.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub async fn connect(
        address: SocketAddr,
        name: ServerName<'static>,
        config: Arc<ClientConfig>,
    ) -> Result<(TcpStream, SealingSender), ChannelError> {
        let mut channel = Channel::connect(address, name, config).await?;
        let key = PieceProof::random_key().map_err(std::io::Error::from)?;
        let frame = Frame::Sealing { version: SEALING_VERSION, key: key.to_vec().into() };
        channel.send(&frame).await?;
        let (tcp, tls, _) = channel.into_parts();
        Ok((tcp, SealingSender { tls, plain: Vec::new(), proof: PieceProof::new(&key) }))
    }

    /// Reads the header of a piece at the front of what came; `None`: it is not complete.
    ///
    /// # Errors
    /// [`RecordError::Piece`]: the connection, and that of the client, are to be reset.
    pub fn read(&mut self, input: &[u8]) -> Result<Option<Piece>, RecordError> {
        self.proof.read(input)
    }

    /// Appends the frame, encrypted, to `out`. All of it has to be written: otherwise the connection is of no
    /// use any more.
    ///
    /// # Errors
    /// [`ChannelError::Io`]: TLS refuses to encrypt.
    pub fn encrypt(&mut self, frame: &Frame, out: &mut Vec<u8>) -> Result<(), ChannelError> {
        frame.encode(&mut self.plain);
        let written = self.tls.writer().write_all(&self.plain);
        self.plain.zeroize();
        written?;
        while self.tls.wants_write() {
            self.tls.write_tls(out)?;
        }
        Ok(())
    }
}

/// The agent's end of a connection: it decrypts frames.
pub struct SealingReceiver {
    tls: Connection,
    deframer: Deframer,
    buffer: Box<[u8]>,
}

impl std::fmt::Debug for SealingReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealingReceiver")
    }
}

/// A connection at the agent.
#[derive(Debug)]
pub struct Opened {
    /// The socket, which is to be written without TLS.
    pub tcp: TcpStream,
    /// Reads the socket.
    pub receiver: SealingReceiver,
    /// Makes the headers of pieces.
    pub proof: PieceProof,
}

impl SealingReceiver {
    /// Takes a channel apart whose first frame was SEALING with this key.
    ///
    /// # Errors
    /// [`ChannelError::Protocol`]: the key has another length.
    pub fn open(channel: Channel, key: &[u8]) -> Result<Opened, ChannelError> {
        let key = key.try_into().map_err(|_| ChannelError::Protocol("a key of another length"))?;
        let (tcp, tls, deframer) = channel.into_parts();
        let buffer = vec![0; READ_BYTES].into_boxed_slice();
        let receiver = SealingReceiver { tls, deframer, buffer };
        Ok(Opened { tcp, receiver, proof: PieceProof::new(key) })
    }

    /// Receives the next frame; `None` if the balancer has closed the connection between two. Cancel-safe.
    ///
    /// # Errors
    /// [`ChannelError`]: the connection is to be closed.
    pub async fn receive(&mut self, tcp: &TcpStream) -> Result<Option<Frame>, ChannelError> {
        loop {
            if let Some(frame) = self.deframer.next_frame()? {
                return Ok(Some(frame));
            }
            tcp.ready(Interest::READABLE).await?;
            match self.tls.read_tls(&mut Transport(tcp)) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            }
            let state = self.tls.process_new_packets()?;
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let room = left.min(self.buffer.len());
                let taken = self.tls.reader().read(&mut self.buffer[..room])?;
                self.deframer.push(&self.buffer[..taken]);
                self.buffer[..taken].zeroize();
                left -= taken;
            }
            if state.peer_has_closed() {
                return Ok(None);
            }
        }
    }
}
