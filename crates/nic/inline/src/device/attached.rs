//! The device behind the interface [`unlade_tls::device`], for runtimes that use only that.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use unlade_metrics::OpenMetrics;
use unlade_net::FlowKey;
use unlade_nic_engine::Tls;
use unlade_tls::device::{self, Halves, Keys, Opening, Pending, Refused, Sealing};
use unlade_tls::{Received, RecordError, RecordLayer};

use super::channel::Device;
use super::flow::Receiving;
use super::flow_table::Offer;
use super::reader::Reader;
use super::static_state;
use super::writer::Writer;
use crate::tls_proxy::metrics;

/// A device whose engine runs, and the interface in front of it.
pub struct Attached {
    device: Device,
    interface: String,
}

impl Attached {
    /// `interface` is the TAP device of the engine of `device`.
    pub fn new(device: Device, interface: &str) -> Attached {
        Attached { device, interface: interface.to_owned() }
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attached {{ interface: {}, .. }}", self.interface)
    }
}

impl device::Device for Attached {
    fn interface(&self) -> &str {
        &self.interface
    }

    fn create(&self, offer: device::Offer) -> Pending<Result<Halves, Refused>> {
        let device = self.device.clone();
        Box::pin(async move { create(device, offer).await })
    }

    fn add_metrics(&self, text: &mut OpenMetrics) {
        metrics::add_device(text, &self.device.counters());
    }
}

async fn create(device: Device, offer: device::Offer) -> Result<Halves, Refused> {
    let device::Offer { name, begin, read, write, unopened_bytes, written_bytes, read_bytes } =
        offer;
    let state =
        |keys: &Keys| -> Result<Tls, Refused> { static_state(keys).ok_or(Refused::Unsupported) };
    let (sending, receiving, ours) = (state(&write)?, state(&read)?, state(&read)?);
    // The part of a record that is present and unopened was delivered as it came.
    let offset = read_bytes.checked_sub(unopened_bytes).ok_or(Refused::Unsupported)?;
    let number = read.number();
    let asked = Offer {
        name,
        begin,
        sent_bytes: written_bytes,
        sent_number: write.number(),
        sending,
        receiving: Receiving { tls: receiving, offset, number, read: read_bytes },
    };
    let flow = device.create(asked).await?;
    let reader = Reader::new(flow.clone(), ours, offset, number, read_bytes);
    let writer = Writer::new(flow, written_bytes);
    Ok(Halves {
        opening: Box::new(Receive { reader, device: device.clone() }),
        sealing: Box::new(Send { writer, device, name }),
    })
}

/// The receiving direction.
struct Receive {
    reader: Reader,
    device: Device,
}

impl fmt::Debug for Receive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receive")
    }
}

impl Receive {
    fn count(&mut self) {
        let (stats, doubtful) = self.reader.take_stats();
        self.device.add_software(&stats, doubtful);
    }
}

impl Opening for Receive {
    fn receive_read(
        &mut self,
        layer: &mut RecordLayer,
        bytes: &[u8],
        plaintext: &mut Vec<u8>,
    ) -> Result<Received, RecordError> {
        let received = self.reader.receive_read(layer, bytes, plaintext);
        self.count();
        received
    }

    fn receive(
        &mut self,
        layer: &mut RecordLayer,
        bytes: &[u8],
        plaintext: &mut Vec<u8>,
    ) -> Result<Received, RecordError> {
        let received = self.reader.receive(layer, bytes, plaintext);
        self.count();
        received
    }

    fn unopened(&self) -> Option<Vec<u8>> {
        self.reader.unopened().map(<[u8]>::to_vec)
    }
}

/// The sending direction.
struct Send {
    writer: Writer,
    device: Device,
    name: FlowKey,
}

impl fmt::Debug for Send {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Send {{ {} }}", self.name)
    }
}

impl Drop for Send {
    /// The runtime drops the connection, and writes nothing more.
    fn drop(&mut self) {
        if self.writer.is_acknowledged() {
            self.writer.flow().spend();
        }
    }
}

impl Sealing for Send {
    fn announce(&mut self, records: &Bytes) -> usize {
        self.writer.announce(records)
    }

    fn follow_key(&mut self, layer: &RecordLayer) -> bool {
        self.writer.follow_key(layer).is_ok()
    }

    fn acknowledge(&mut self, unacknowledged_bytes: u64) {
        self.writer.acknowledge(unacknowledged_bytes);
    }

    fn release(&mut self) -> Pending<bool> {
        let (device, name) = (self.device.clone(), self.name);
        let (flow, end) = (Arc::clone(self.writer.flow()), self.writer.end());
        Box::pin(async move { device.release(name, flow, end).await })
    }
}
