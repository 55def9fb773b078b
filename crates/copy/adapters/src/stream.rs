//! A socket that is read while the service receives from it: [`Read`] for TLS and other protocols
//! (`SSL_read` of Copier, SOSP 2025, §6.2.3).

use std::io::{self, Read};

use unlade_copy::{CopyError, Inbound};

use crate::source::{reach, step_for};

/// Reads from a socket as [`Inbound`] receives.
///
/// It is what `rustls::Connection::read_tls` and every other function that takes a [`Read`] reads
/// from: the bytes of a record are waited for just before it is opened, while those of the next are
/// being received.
#[derive(Debug)]
pub struct Stream {
    inbound: Inbound,
    at: usize,
    /// Bytes of which it is known that they are there.
    synced: usize,
    /// The socket's bytes are no longer those that the peer sent next.
    broken: Option<CopyError>,
}

impl Stream {
    /// Reads what `inbound` has, and then what it receives.
    pub fn new(inbound: Inbound) -> Stream {
        Stream { inbound, at: 0, synced: 0, broken: None }
    }

    /// Bytes that were received, or are on their way, and were not read yet.
    pub fn buffered(&self) -> usize {
        self.inbound.len() - self.at
    }

    /// What it reads from.
    pub fn inbound(&self) -> &Inbound {
        &self.inbound
    }

    /// Bytes that are there and not read; none at the end of the stream. Receives where all is
    /// read.
    ///
    /// # Errors
    /// The socket's, and of a receive that failed.
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
            // At once, so that it learns when its bytes are used.
            self.broken = self.inbound.consume(self.at).err();
            (self.at, self.synced) = (0, 0);
        }
    }
}
