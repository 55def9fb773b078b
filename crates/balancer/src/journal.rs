//! Which connection each worker is freezing, for whoever starts after this process is killed.
//!
//! Between freeze and snapshot a socket is in repair mode, and the kernel closes it silently if the
//! process dies: its client would wait for ever, and nobody else knows of it. So the worker notes
//! the flow, in memory that outlives the process, for those microseconds. A worker freezes one
//! connection at a time, so it needs one entry. The next balancer asks the clients it finds there
//! to prove themselves: their answers meet no socket, and get the kernel's RST.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use linux::raw;
use linux::shared::SharedWords;
use wire::packet::{Direction, Segment, TcpFlags};
use wire::{FlowKey, SeqNumber};

/// Words of an entry: family, both ports, two addresses of two words.
const ENTRY_WORDS: usize = 6;
const FAMILY: usize = 0;
const PORTS: usize = 1;
const CLIENT: usize = 2;
const SERVICE: usize = 4;

/// The journal of a balancer.
#[derive(Debug)]
pub(crate) struct Journal {
    words: SharedWords,
}

/// One worker's entry.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    journal: Arc<Journal>,
    worker: usize,
}

impl Journal {
    /// Opens the journal of `workers` workers, and returns the flows that the process before was
    /// killed with.
    ///
    /// # Errors
    /// The file's; [`io::ErrorKind::WouldBlock`] where another balancer has it.
    pub(crate) fn open(path: &Path, workers: usize) -> io::Result<(Arc<Journal>, Vec<FlowKey>)> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        // The process before may have had more workers.
        let held = std::fs::metadata(path).map_or(0, |file| file.len() as usize / size_of::<u64>());
        let words = SharedWords::open(path, held.max(workers * ENTRY_WORDS))?;
        let mut found = Vec::new();
        for entry in words.words().chunks_exact(ENTRY_WORDS) {
            found.extend(read(entry));
            entry[FAMILY].store(0, Ordering::Release);
        }
        Ok((Arc::new(Journal { words }), found))
    }

    pub(crate) fn entry(self: &Arc<Self>, worker: usize) -> Entry {
        Entry { journal: Arc::clone(self), worker }
    }
}

impl Entry {
    fn words(&self) -> &[AtomicU64] {
        let first = self.worker * ENTRY_WORDS;
        self.journal.words.words().get(first..first + ENTRY_WORDS).unwrap_or_default()
    }

    /// From now on the flow's client would not hear of this process's death.
    pub(crate) fn begin(&self, flow: &FlowKey) {
        let words = self.words();
        if words.is_empty() {
            return;
        }
        let ports = u64::from(flow.client.port()) << 16 | u64::from(flow.service.port());
        words[PORTS].store(ports, Ordering::Relaxed);
        for (at, address) in [(CLIENT, flow.client), (SERVICE, flow.service)] {
            for (word, octets) in words[at..].iter().zip(octets(address.ip()).chunks_exact(8)) {
                let octets: [u8; 8] = octets.try_into().unwrap_or_default();
                word.store(u64::from_be_bytes(octets), Ordering::Relaxed);
            }
        }
        // Last: with it the entry counts.
        words[FAMILY].store(if flow.is_ipv6() { 6 } else { 4 }, Ordering::Release);
    }

    /// It would again.
    pub(crate) fn end(&self) {
        if let Some(family) = self.words().first() {
            family.store(0, Ordering::Release);
        }
    }
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&ip.octets());
            octets
        }
    }
}

/// The flow of an entry; nothing where it is empty, or not one of ours.
fn read(entry: &[AtomicU64]) -> Option<FlowKey> {
    let word = |at: usize| entry[at].load(Ordering::Acquire);
    let address = |at: usize, port: u64| {
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&word(at).to_be_bytes());
        octets[8..].copy_from_slice(&word(at + 1).to_be_bytes());
        let ip: IpAddr = match word(FAMILY) {
            4 => Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into(),
            6 => Ipv6Addr::from(octets).into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, port as u16))
    };
    let ports = word(PORTS);
    Some(FlowKey::new(address(CLIENT, ports >> 16)?, address(SERVICE, ports)?))
}

/// Asks a client whose connection is gone for an answer that the kernel resets: a segment out of
/// every window is acknowledged (RFC 9293 §3.10.7.4). Of two numbers half the space apart one is.
pub(crate) fn ask(flow: FlowKey) -> io::Result<()> {
    for seq in [0, 1 << 31] {
        let reset = Segment::reset(flow, Direction::ToClient, SeqNumber(seq));
        let probe = Segment { flags: TcpFlags::ACK, ..reset };
        raw::send_packet(&probe.ip_packet().map_err(io::Error::other)?, flow.client.ip())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{ENTRY_WORDS, Journal};
    use wire::FlowKey;

    fn flow(client: &str, service: &str) -> FlowKey {
        FlowKey::new(client.parse().unwrap(), service.parse().unwrap())
    }

    #[test]
    fn what_was_begun_and_not_ended_is_found_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/lb.journal");
        let flows =
            [flow("10.0.0.9:40001", "10.0.0.1:80"), flow("[fd00::9]:65535", "[fd00::1]:443")];
        let (journal, found) = Journal::open(&path, 3).unwrap();
        assert!(found.is_empty());
        journal.entry(0).begin(&flows[0]);
        journal.entry(1).begin(&flows[0]);
        journal.entry(1).end();
        journal.entry(2).begin(&flows[1]);
        // Beyond the workers there is nothing, and no harm.
        journal.entry(3).begin(&flows[1]);
        assert!(Journal::open(&path, 3).is_err(), "another balancer has it");
        drop(journal);
        let (journal, found) = Journal::open(&path, 1).unwrap();
        assert_eq!(found, flows);
        assert_eq!(journal.words.words().len(), 3 * ENTRY_WORDS);
        drop(journal);
        assert!(Journal::open(&path, 1).unwrap().1.is_empty());
    }
}
