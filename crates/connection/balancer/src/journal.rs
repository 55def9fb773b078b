//! Records which connections are away or moving, for the process that starts after this one is
//! killed.
//!
//! A connection that is being frozen, or that waits as a snapshot for its next server, has no
//! socket that would send a FIN or RST: the kernel closes a socket in repair mode silently.
//! Therefore every flow is recorded, in memory that outlives the process, from before it is frozen
//! until it is home or over. The next balancer sends a probe to the recorded clients: their
//! answers meet no socket, and get the kernel's RST.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use unlade_net::packet::{Direction, Segment, TcpFlags};
use unlade_net::{FlowKey, SeqNumber};
use unlade_sys::raw;
use unlade_sys::shared::SharedWords;

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
    free: Mutex<Vec<u32>>,
}

/// A recorded flow; its entry is freed when the value is dropped.
#[derive(Debug)]
pub(crate) struct JournalEntry {
    journal: Arc<Journal>,
    entry: u32,
}

impl Journal {
    /// Opens the journal of at most `flows_max` flows, and returns the flows that a killed process
    /// left in it.
    ///
    /// # Errors
    /// The file's error; [`io::ErrorKind::WouldBlock`] if another balancer has it.
    pub(crate) fn open(path: &Path, flows_max: u32) -> io::Result<(Arc<Journal>, Vec<FlowKey>)> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        // The previous process may have had a larger limit.
        let held = std::fs::metadata(path).map_or(0, |file| file.len() as usize / size_of::<u64>());
        let words = SharedWords::open(path, held.max(flows_max as usize * ENTRY_WORDS))?;
        let mut found = Vec::new();
        for entry in words.words().chunks_exact(ENTRY_WORDS) {
            found.extend(read(entry));
            entry[FAMILY].store(0, Ordering::Release);
        }
        let free = Mutex::new((0..flows_max).rev().collect());
        Ok((Arc::new(Journal { words, free }), found))
    }

    /// Records a flow; returns `None` if there is no room.
    pub(crate) fn note(self: &Arc<Self>, flow: &FlowKey) -> Option<JournalEntry> {
        let entry = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        let words = self.entry(entry);
        let ports = u64::from(flow.client.port()) << 16 | u64::from(flow.service.port());
        words[PORTS].store(ports, Ordering::Relaxed);
        for (at, address) in [(CLIENT, flow.client), (SERVICE, flow.service)] {
            for (word, bytes) in words[at..].iter().zip(bytes(address.ip()).chunks_exact(8)) {
                let bytes: [u8; 8] = bytes.try_into().unwrap_or_default();
                word.store(u64::from_be_bytes(bytes), Ordering::Relaxed);
            }
        }
        // Stored last: it makes the entry valid.
        words[FAMILY].store(if flow.is_ipv6() { 6 } else { 4 }, Ordering::Release);
        Some(JournalEntry { journal: Arc::clone(self), entry })
    }

    fn entry(&self, number: u32) -> &[AtomicU64] {
        let first = number as usize * ENTRY_WORDS;
        &self.words.words()[first..first + ENTRY_WORDS]
    }
}

impl Drop for JournalEntry {
    fn drop(&mut self) {
        self.journal.entry(self.entry)[FAMILY].store(0, Ordering::Release);
        self.journal.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.entry);
    }
}

fn bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
    }
}

/// Returns the flow of an entry; `None` if it is empty or invalid.
fn read(entry: &[AtomicU64]) -> Option<FlowKey> {
    let word = |at: usize| entry[at].load(Ordering::Acquire);
    let address = |at: usize, port: u64| {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&word(at).to_be_bytes());
        bytes[8..].copy_from_slice(&word(at + 1).to_be_bytes());
        let ip: IpAddr = match word(FAMILY) {
            4 => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
            6 => Ipv6Addr::from(bytes).into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, port as u16))
    };
    let ports = word(PORTS);
    Some(FlowKey::new(address(CLIENT, ports >> 16)?, address(SERVICE, ports)?))
}

/// Sends a probe to a client whose connection is gone, so that the kernel resets the answer: a
/// segment outside of the window is acknowledged (RFC 9293 §3.10.7.4). Of two sequence numbers
/// half the space apart one is outside.
pub(crate) fn probe(flow: FlowKey) -> io::Result<()> {
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
    use unlade_net::FlowKey;

    fn flow(client: &str, service: &str) -> FlowKey {
        FlowKey::new(client.parse().unwrap(), service.parse().unwrap())
    }

    #[test]
    fn what_was_noted_and_not_dropped_is_found_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/lb.journal");
        let flows =
            [flow("10.0.0.9:40001", "10.0.0.1:80"), flow("[fd00::9]:65535", "[fd00::1]:443")];
        let (journal, found) = Journal::open(&path, 3).unwrap();
        assert!(found.is_empty());
        let first = journal.note(&flows[0]).unwrap();
        let second = journal.note(&flows[0]).unwrap();
        let third = journal.note(&flows[1]).unwrap();
        assert!(journal.note(&flows[1]).is_none(), "there is no more room");
        drop(second);
        assert!(Journal::open(&path, 3).is_err(), "another balancer has it");
        // The file that a killed process leaves.
        let left = dir.path().join("left.journal");
        std::fs::copy(&path, &left).unwrap();
        drop((first, third, journal));
        assert!(Journal::open(&path, 3).unwrap().1.is_empty());
        let path = left;
        let (journal, found) = Journal::open(&path, 1).unwrap();
        assert_eq!(found, flows);
        assert_eq!(journal.words.words().len(), 3 * ENTRY_WORDS);
        drop(journal);
        assert!(Journal::open(&path, 1).unwrap().1.is_empty());
    }
}
