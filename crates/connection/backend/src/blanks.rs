//! Sockets of connections that were given back, for the next adoptions.

use std::cell::{Cell, RefCell};

use unlade_net::state::TcpSnapshot;
use unlade_sys::repair::{self, Blank, RepairError, Restored};

use crate::returned::Frozen;

/// Maximum number of sockets that a worker keeps.
const BLANKS_MAX: usize = 64;

/// Sockets without a connection, the last used at the end.
#[derive(Debug, Default)]
pub(crate) struct Blanks {
    kept: RefCell<Vec<Blank>>,
    /// One was used since the last [`Blanks::expire`].
    used: Cell<bool>,
}

impl Blanks {
    /// Keeps the socket of a returned connection, or closes it silently.
    pub(crate) fn keep(&self, frozen: Frozen) {
        let Frozen { stream, known, .. } = frozen;
        let mut kept = self.kept.borrow_mut();
        if stream.is_bound() || kept.len() >= BLANKS_MAX {
            return;
        }
        let blank =
            stream.into_parts().tcp.into_std().and_then(|tcp| Blank::of(tcp.into(), &known));
        kept.extend(blank.ok());
    }

    /// Restores a connection, with a kept socket if one fits.
    ///
    /// # Errors
    /// [`RepairError`].
    pub(crate) fn restore(
        &self,
        tcp: &TcpSnapshot,
        on_connect: impl FnOnce(),
    ) -> Result<Restored, RepairError> {
        let mut kept = self.kept.borrow_mut();
        match kept.iter().rposition(|blank| blank.fits(tcp)) {
            Some(at) => {
                self.used.set(true);
                kept.swap_remove(at).restore(tcp, on_connect)
            }
            None => repair::restore(tcp, on_connect),
        }
    }

    /// Closes the sockets if none was used since the last call.
    pub(crate) fn expire(&self) {
        if !self.used.replace(false) {
            self.kept.borrow_mut().clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use unlade_net::FlowKey;
    use unlade_net::state::SocketOptions;
    use unlade_runtime::Stream;
    use unlade_sys::repair::{Accept, Known};

    use super::*;

    /// The state of a connection to `listener` whose socket is closed; `None` without the capability.
    fn moved(listener: &TcpListener) -> Option<(TcpStream, Known, TcpSnapshot)> {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, peer) = listener.accept().unwrap();
        let known = Known {
            flow: FlowKey::new(peer, server.local_addr().unwrap()),
            socket: SocketOptions { nodelay: true, ..SocketOptions::default() },
            mss_bytes: None,
            algorithm: String::new(),
        };
        if let Err(error) = repair::freeze(&server) {
            println!("skipped: {error}");
            return None;
        }
        let snapshot = repair::snapshot(&server, &known, Accept::Established).unwrap();
        Some((client, known, snapshot))
    }

    #[tokio::test]
    async fn a_socket_serves_again_or_expires() {
        let blanks = Blanks::default();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let give_back = || {
            let (client, known, returned) = moved(&listener)?;
            let restored = blanks.restore(&returned, || ()).unwrap().activate().unwrap();
            let stream = tokio::net::TcpStream::from_std(restored.into()).unwrap();
            repair::freeze(&stream).unwrap();
            blanks.keep(Frozen { stream: Stream::plain(stream), known, returned });
            Some(client)
        };
        let Some(_first) = give_back() else { return };
        assert_eq!((blanks.kept.borrow().len(), blanks.used.get()), (1, false));
        let _second = give_back();
        assert_eq!((blanks.kept.borrow().len(), blanks.used.get()), (1, true), "it served again");
        blanks.expire();
        assert_eq!(blanks.kept.borrow().len(), 1);
        blanks.expire();
        assert_eq!(blanks.kept.borrow().len(), 0);
    }
}
