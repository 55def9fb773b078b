//! Both sides of a connection, as rustls drives them without buffers of its own.

use rustls::CommonState;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::UnbufferedStatus;

/// An unbuffered connection of rustls: a client's or a server's.
pub trait Session: sealed::Sealed {
    /// What rustls keeps for that side.
    type Data;

    /// `process_tls_records` of that side.
    fn process<'c, 'i>(&'c mut self, records: &'i mut [u8])
    -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// What both sides have.
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
