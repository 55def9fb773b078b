//! A host with one connection over a device: application, TLS and a TCP in user space.

use anyhow::{Context, Result};
use bytes::Bytes;
use std::net::SocketAddr;
use unlade_nic_engine::Stats;
use unlade_nic_engine::tls::Version;
use unlade_research_nic::driver::Driver;
use unlade_research_nic::queue::{HostQueue, QueueConfig};
use unlade_research_nic::stack::{Config, Stack};
use unlade_research_nic::tls::Mode;
use unlade_research_nic::tls::keys::Secrets;
use unlade_research_tcp::{Id, StackConfig, Time};
use unlade_tls::Cipher;
use zeroize::Zeroizing;

/// Source buffer of the application's writes, used again and again: iperf's message of 256 KiB.
const CONTENT_BYTES: usize = 256 << 10;
/// Bytes that the application writes at once: it waits until there is room for so many, as one does
/// that is woken by a low-water mark. Records that are written one by one as acknowledgements come
/// would leave in small segments.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes of a record beside its content, at most.
const OVERHEAD_BYTES: usize = 64;
/// TCP's buffers in each direction.
const BUFFER_BYTES: u32 = 1 << 20;

/// The party that handles records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Records {
    /// There are none: plain TCP.
    None,
    /// The host, with aws-lc, a record at once.
    Software,
    /// The device.
    Offload,
}

impl Records {
    /// All of them, in the order in which they take turns.
    pub const ALL: [Records; 3] = [Records::None, Records::Software, Records::Offload];

    /// Its name in results.
    pub fn mode(self) -> &'static str {
        match self {
            Records::None => "tcp",
            Records::Software => "aws-lc",
            Records::Offload => "offload",
        }
    }

    fn protection(self) -> Option<Mode> {
        match self {
            Records::None => None,
            Records::Software => Some(Mode::Software),
            Records::Offload => Some(Mode::Offload),
        }
    }
}

/// Both directions' keys, which are the same: TLS 1.3, AES-128-GCM.
pub fn secrets() -> Secrets {
    Secrets {
        version: Version::Tls13,
        cipher: Cipher::Aes128Gcm,
        key: Zeroizing::new(vec![7; 16]),
        iv: [9; 12],
        traffic_secret: None,
    }
}

/// Addresses of this host and of the far end.
pub fn addresses() -> (SocketAddr, SocketAddr) {
    (([10, 0, 0, 1], 40_000).into(), ([10, 0, 0, 2], 443).into())
}

/// A stack above the host's end of queues.
pub fn stack(queue: HostQueue) -> Stack {
    let connection = unlade_research_tcp::Config {
        receive_buffer_bytes: BUFFER_BYTES,
        send_buffer_bytes: BUFFER_BYTES,
        ..unlade_research_tcp::Config::default()
    };
    let config = Config {
        tcp: StackConfig::new(connection, [1; 16]),
        hardware: ([2; 6], [4; 6]),
        rx_batches: QueueConfig::default().rx_batches,
    };
    Stack::new(config, Driver::new(queue))
}

/// One end of a connection, and how far its application is.
pub struct Host {
    stack: Stack,
    id: Id,
    content: Bytes,
    record_bytes: usize,
    written: usize,
    read_bytes: usize,
}

impl Host {
    /// Has an established connection; records of `record_bytes` are written.
    pub fn new(stack: Stack, id: Id, record_bytes: usize) -> Host {
        let content = Bytes::from(vec![0x55; CONTENT_BYTES]);
        Host { stack, id, content, record_bytes, written: 0, read_bytes: 0 }
    }

    /// From now on there are records, where there are any.
    ///
    /// # Errors
    /// The stack refuses.
    pub fn secure(&mut self, records: Records) -> Result<()> {
        let Some(mode) = records.protection() else { return Ok(()) };
        let keys = || (secrets(), 0);
        self.stack.secure(self.id, mode, keys(), keys()).context("securing the connection")
    }

    /// Writes records until there are `until`, once there is room for a batch of them. Returns how
    /// many.
    pub fn write(&mut self, until: usize) -> usize {
        let batch = (BATCH_BYTES / self.record_bytes).max(1).min(until - self.written);
        if self.stack.write_room_bytes(self.id) < batch * (self.record_bytes + OVERHEAD_BYTES) {
            return 0;
        }
        for done in 0..batch {
            let at = self.written * self.record_bytes % CONTENT_BYTES;
            let content = self.content.slice(at..at + self.record_bytes);
            if self.stack.write(self.id, content).is_err() {
                return done;
            }
            self.written += 1;
        }
        batch
    }

    /// Reads all that there is, without a look at it. Returns how much.
    ///
    /// # Errors
    /// A record is not right.
    pub fn read(&mut self) -> Result<usize> {
        let before = self.read_bytes;
        while let Some(chunk) = self.stack.read(self.id).context("reading")? {
            self.read_bytes += chunk.as_ref().len();
        }
        Ok(self.read_bytes - before)
    }

    /// Runs pending work of TCP and the queues. Returns the amount.
    pub fn poll(&mut self, now_ns: u64) -> usize {
        self.stack.poll(Time::from_ns(now_ns))
    }

    /// When TCP wants to be asked again, where nothing comes.
    pub fn timeout_ns(&self) -> Option<u64> {
        self.stack.poll_timeout().map(|time| time.ns())
    }

    /// Returns true if all written bytes are acknowledged.
    pub fn is_acknowledged(&mut self) -> bool {
        let tcp = self.stack.tcp().get(self.id);
        tcp.is_some_and(|tcp| tcp.acknowledged() == tcp.send_end())
    }

    /// Bytes that were read.
    pub fn read_bytes(&self) -> usize {
        self.read_bytes
    }

    /// Records that were written.
    pub fn written(&self) -> usize {
        self.written
    }

    /// Outcome of records.
    pub fn stats(&self) -> &Stats {
        self.stack.stats()
    }
}
