//! A socket that is read while the service receives from it: implements [`Read`] for TLS and other
//! protocols (`SSL_read` of Copier, SOSP 2025, §6.2.3).

use std::io::{self, Read};

use unlade_copy::{CopyError, Inbound};

use crate::source::{reach, step_for};

/// Reads from a socket through [`Inbound`].
///
/// Use it with `rustls::Connection::read_tls` and any other function that takes a [`Read`]. The
/// bytes of a record are waited for just before it is decrypted, while those of the next record
/// are being received.
#[derive(Debug)]
pub struct Stream {
    inbound: Inbound,
    at: usize,
    /// End of the bytes that are known to be received.
    synced: usize,
    /// A receive failed, so the socket's next bytes are not what the peer sent next.
    broken: Option<CopyError>,
}

impl Stream {
    /// Creates a stream of what `inbound` has received and will receive.
    pub fn new(inbound: Inbound) -> Stream {
        Stream { inbound, at: 0, synced: 0, broken: None }
    }

    /// Number of bytes that were received or are being received, and were not read yet.
    pub fn buffered(&self) -> usize {
        self.inbound.len() - self.at
    }

    /// The underlying receiver.
    pub fn inbound(&self) -> &Inbound {
        &self.inbound
    }

    /// Available bytes that were not read; empty at the end of the stream. Receives if all are
    /// read.
    ///
    /// # Errors
    /// The socket's error, or that of a failed receive.
    fn fill(&mut self) -> io::Result<&[u8]> {
        if let Some(error) = self.broken {
            return Err(error.into());
        }
        if self.at == self.inbound.len() && self.inbound.receive()? == 0 {
            return Ok(&[]);
        }
        if self.synced <= self.at {
            let len = self.inbound.len();
            let step = step_for(len);
            let first = len.min((self.at / step + 1) * step);
            let waited = self.inbound.sync(self.at..first).map(|_| ());
            waited.inspect_err(|error| self.broken = Some(*error))?;
            self.synced = reach(&self.inbound, first, len, step);
        }
        let ready = self.inbound.sync(self.at..self.synced);
        Ok(ready.inspect_err(|error| self.broken = Some(*error))?)
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let ready = self.fill()?;
        let count = ready.len().min(out.len());
        out[..count].copy_from_slice(&ready[..count]);
        io::BufRead::consume(self, count);
        Ok(count)
    }
}

impl io::BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.fill()
    }

    fn consume(&mut self, count: usize) {
        self.at = self.synced.min(self.at + count);
        if self.at == self.inbound.len() && self.broken.is_none() {
            // Immediately, so that `Inbound` measures when its bytes were used.
            self.broken = self.inbound.consume(self.at).err();
            (self.at, self.synced) = (0, 0);
        }
    }
}
