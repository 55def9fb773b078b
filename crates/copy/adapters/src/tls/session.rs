//! Client and server connections of rustls without internal buffers.

use rustls::CommonState;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::UnbufferedStatus;

/// An unbuffered connection of rustls, of a client or a server.
pub trait Session: sealed::Sealed {
    /// State type of rustls for this side.
    type Data;

    /// Calls `process_tls_records` of this side.
    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8])
    -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// State common to both sides.
    fn common(&self) -> &CommonState;
}

mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for UnbufferedClientConnection {}
impl sealed::Sealed for UnbufferedServerConnection {}

impl Session for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        records: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, ClientConnectionData> {
        self.process_tls_records(records)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

impl Session for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        records: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, ServerConnectionData> {
        self.process_tls_records(records)
    }

    fn common(&self) -> &CommonState {
        self
    }
}
