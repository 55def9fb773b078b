//! Passes records in the clear to the kernel's socket: each is announced to the engine before the
//! kernel can send it.

use std::sync::Arc;

use bytes::Bytes;
use unlade_net::SeqNumber;
use unlade_nic_engine::software::sent::Full;
use unlade_tls::RecordLayer;

use super::flow::Flow;
use super::static_state;
use super::tx_records::SplitRecord;

/// Bytes of a record's header.
const HEADER_BYTES: usize = 5;

/// The sending direction of an offloaded connection.
pub struct Writer {
    flow: Arc<Flow>,
    generation: u32,
    /// Bytes that were written to the socket, or are about to be.
    written: u64,
    /// True if all of them were acknowledged at the last check, and none were announced since.
    is_acknowledged: bool,
}

impl Writer {
    /// Creates a writer; `written` bytes were written before.
    pub fn new(flow: Arc<Flow>, written: u64) -> Writer {
        Writer { flow, generation: 0, written, is_acknowledged: false }
    }

    /// Announces the records of `bytes`, which are whole ones; they are to be written to the
    /// socket at once. Returns the number of announced bytes: fewer than there are if too much is
    /// unacknowledged.
    pub fn announce(&mut self, bytes: &Bytes) -> usize {
        self.is_acknowledged = false;
        let mut tx = self.flow.tx();
        let mut done = 0;
        while let Some(header) = bytes.get(done..done + HEADER_BYTES) {
            let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
            let end = (done + HEADER_BYTES + length).min(bytes.len());
            if tx.push(bytes.slice(done..end)).is_err() {
                break;
            }
            done = end;
        }
        self.written += done as u64;
        done
    }

    /// Announces a record in several buffers; it is to be written to the socket at once. Returns
    /// false if too much is unacknowledged: retry when more is acknowledged.
    pub fn announce_split(&mut self, record: &SplitRecord) -> bool {
        self.is_acknowledged = false;
        let mut tx = self.flow.tx();
        let announced = !tx.is_crowded() && tx.push_split(record.clone()).is_ok();
        if announced {
            self.written += record.bytes() as u64;
        }
        announced
    }

    /// Waits until a file that is being sent is found changed: nothing more will arrive.
    pub async fn broken(&self) {
        self.flow.broken().await;
    }

    /// Returns true if a file that was being sent was found changed.
    pub fn is_broken(&self) -> bool {
        self.flow.tx().is_broken()
    }

    /// Switches to the layer's key, if that has changed: all records that were built before have
    /// been announced.
    ///
    /// # Errors
    /// [`Full`]: retry when more is acknowledged, and before any other record.
    pub fn follow_key(&mut self, layer: &RecordLayer) -> Result<(), Full> {
        let (_, generation) = layer.generations();
        if generation != self.generation {
            let (_, keys) = layer.device_keys().ok_or(Full)?;
            let tls = static_state(&keys).ok_or(Full)?;
            self.flow.tx().change_key(tls)?;
            self.generation = generation;
        }
        Ok(())
    }

    /// Returns true if all that was written was acknowledged at the last check, and nothing was
    /// announced since: the kernel has nothing left to send.
    pub fn is_acknowledged(&self) -> bool {
        self.is_acknowledged
    }

    /// The sequence number of the next byte to write.
    pub fn end(&self) -> SeqNumber {
        self.flow.tx().seq(self.written)
    }

    /// The connection.
    pub fn flow(&self) -> &Arc<Flow> {
        &self.flow
    }

    /// Notes that this number of announced bytes is not acknowledged, or not yet written.
    pub fn acknowledge(&mut self, unacknowledged_bytes: u64) {
        self.is_acknowledged = unacknowledged_bytes == 0;
        let arrived = self.written.saturating_sub(unacknowledged_bytes);
        self.flow.tx().acknowledge(arrived);
    }
}
