//! Messages of Protocol Buffers, received and decoded: the second begins with the first bytes of
//! the first.

use super::uses::{Paper, SIZES, Way, case, compare, heading, service, timed};
use super::wire_pair::pair;
use crate::bench::record::Sink;
use anyhow::{Result, ensure};
use prost::Message;
use std::hint::black_box;
use std::io::{Read, Write};
use std::sync::Arc;
use unlade_copy::{Copier, Inbound};

const PAPER: Paper = Paper { least_percent: 4.0, most_percent: 33.0 };

/// A record such as services send each other.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(sint64, repeated, tag = "3")]
    values: Vec<i64>,
    #[prost(bytes = "vec", tag = "4")]
    payload: Vec<u8>,
}

/// Many of them.
#[derive(Clone, PartialEq, Message)]
struct Batch {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

/// Payload bytes of an entry: few beside its fields, or most of it.
const KINDS: [(&str, usize); 2] = [("fields", 24), ("strings", 1024)];

fn batch(payload: usize, bytes: usize) -> Batch {
    let mut batch = Batch::default();
    let mut left = bytes;
    while left > 0 {
        let id = batch.entries.len() as u64;
        let entry = Entry {
            id,
            name: format!("entry-{id}"),
            values: (0..8).map(|n| (id as i64) * 1000 - n * n * 77).collect(),
            payload: vec![b'x'; payload.min(left)],
        };
        left = left.saturating_sub(entry.encoded_len() + 3);
        batch.entries.push(entry);
    }
    batch
}

/// Measures receiving and decoding.
///
/// # Errors
/// The service's, the sockets', or the sink's.
pub fn run(quick: bool, sink: &mut Sink) -> Result<()> {
    heading("protobuf, received and decoded", PAPER)?;
    for (kind, payload) in KINDS {
        for bytes in SIZES {
            let message = batch(payload, bytes).encode_to_vec();
            measure(kind, bytes, &message, if quick { 11 } else { 21 }, sink)?;
        }
    }
    Ok(())
}

fn measure(kind: &str, bytes: usize, message: &[u8], rounds: usize, sink: &mut Sink) -> Result<()> {
    let service = service()?;
    let copier = Arc::new(Copier::new(service.attach()?));
    let (mut sender, mut receiver) = pair()?;
    let mut buffer = vec![0u8; message.len()];
    let without = move || {
        sender.write_all(message)?;
        let (took, batch) = timed(|| {
            receiver.read_exact(&mut buffer)?;
            Ok(Batch::decode(&buffer[..])?)
        })?;
        black_box(batch);
        Ok(took)
    };
    let (mut sender, receiver) = pair()?;
    let mut inbound = Inbound::new(copier, receiver, message.len());
    let with = move || {
        sender.write_all(message)?;
        let (took, batch) = timed(|| {
            while inbound.len() < message.len() {
                ensure!(inbound.receive()? > 0, "the stream ended");
            }
            let batch = unlade_copy_adapters::decode::<Batch>(&inbound)?;
            inbound.consume(message.len())?;
            Ok(batch)
        })?;
        black_box(batch);
        Ok(took)
    };
    let ways = vec![Way::new("sync", without), Way::new("offload", with).served(&service)];
    let label = format!("{kind} {}", unlade_config::ByteSize(bytes as u64));
    compare(&case("protobuf", kind, bytes), &label, rounds, PAPER, ways, sink)
}
