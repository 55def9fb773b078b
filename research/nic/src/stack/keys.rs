//! Key updates of a connection in use.

use unlade_research_tcp::Id;

use super::{Stack, WriteError};
use crate::driver::DriverError;
use crate::tls::send::{CONTENT_BYTES_MAX, Change};

impl Stack {
    /// Changes the keys for sending (RFC 8446 §4.6.3); `request`: the peer is to change its keys
    /// too.
    ///
    /// # Errors
    /// [`WriteError`]; the keys are unchanged, unless the connection has ended.
    pub fn update_keys(&mut self, id: Id, request: bool) -> Result<(), WriteError> {
        if self.write_room_bytes(id) < CONTENT_BYTES_MAX {
            return Err(WriteError::Full);
        }
        let connection = self.connection(id).ok_or(WriteError::Closed)?;
        if connection.tx.is_full() {
            return Err(DriverError::Keys.into());
        }
        let flow = connection.flow;
        let (record, change) = connection.change(request)?;
        if let Some((Change { key, start, .. }, protocol)) = change {
            connection.tx.add(key, start)?;
            if let (Some(flow), Some(protocol)) = (flow, protocol) {
                self.driver.create_tx(flow, protocol, (start, 0), key)?;
            }
        }
        self.send(id, record)
    }
}
