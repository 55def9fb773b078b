//! Position of a program in a TCP stream, by the kernel's counters. They outlive every process that
//! has used the socket: another one finds out how many bytes a killed process took or gave.

use std::io;
use std::os::fd::AsFd;

use crate::info::{STATE_CLOSE_WAIT, STATE_ESTABLISHED, TcpInfo};
use crate::sockopt;

/// States between a FIN of this side and that of the peer: FIN_WAIT1, FIN_WAIT2.
const STATES_HALF_CLOSED: [u8; 2] = [4, 5];
/// Maximum number of attempts to read two counters between two segments.
const ATTEMPTS_MAX: usize = 64;

/// Returns the number of bytes that were taken out of a TCP stream by all receives so far, except
/// urgent ones. `None` if the kernel's counters do not give it: the connection is closed or reset, or
/// the counters changed all the time.
///
/// # Errors
/// The kernel's; for a socket of another kind, too.
pub fn received_bytes(socket: &impl AsFd) -> io::Result<Option<u64>> {
    let mut before = TcpInfo::of(socket)?;
    for _ in 0..ATTEMPTS_MAX {
        // Counts a FIN in the queue as no byte, in contrast to the counter of received bytes.
        let queued = rustix::io::ioctl_fionread(socket)?;
        let info = TcpInfo::of(socket)?;
        let is_steady = (info.state, info.bytes_received) == (before.state, before.bytes_received);
        if !is_steady {
            before = info;
            continue;
        }
        let fin = match info.state {
            STATE_ESTABLISHED => 0,
            state if STATES_HALF_CLOSED.contains(&state) => 0,
            STATE_CLOSE_WAIT => 1,
            _ => return Ok(None),
        };
        return Ok(info.bytes_received.checked_sub(fin + queued));
    }
    Ok(None)
}

/// Returns the number of bytes that a TCP socket has accepted from all sends so far, plus a constant
/// of the connection. `None` as for [`received_bytes`], and after a shutdown of this side.
///
/// # Errors
/// As for [`received_bytes`].
pub fn sent_bytes(socket: &impl AsFd) -> io::Result<Option<u64>> {
    let mut before = TcpInfo::of(socket)?;
    for _ in 0..ATTEMPTS_MAX {
        let waiting = sockopt::unacknowledged_bytes(socket)?;
        let info = TcpInfo::of(socket)?;
        if (info.state, info.bytes_acked) != (before.state, before.bytes_acked) {
            before = info;
            continue;
        }
        let is_open = [STATE_ESTABLISHED, STATE_CLOSE_WAIT].contains(&info.state);
        return Ok(is_open.then(|| info.bytes_acked + waiting));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn the_counters_follow_every_byte() {
        unlade_testkit::cases(20, |random| {
            let (mut client, mut server) = pair();
            let base = [sent_bytes(&client), sent_bytes(&server)].map(|it| it.unwrap().unwrap());
            let (mut sent, mut taken) = (0, 0);
            for _ in 0..50 {
                let bytes = random.below(20_000_usize);
                client.write_all(&vec![1; bytes]).unwrap();
                sent += bytes as u64;
                assert_eq!(sent_bytes(&client).unwrap(), Some(base[0] + sent));
                let most = random.below(20_000_usize).min((sent - taken) as usize);
                let mut buffer = vec![0; most];
                server.read_exact(&mut buffer).unwrap();
                taken += most as u64;
                assert_eq!(received_bytes(&server).unwrap(), Some(taken));
            }
            // The FIN is no byte, neither in the queue nor behind it. It comes when the bytes before it
            // have room.
            let most = (sent - taken).saturating_sub(1000);
            server.read_exact(&mut vec![0; most as usize]).unwrap();
            taken += most;
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(sent_bytes(&client).unwrap(), None);
            while TcpInfo::of(&server).unwrap().state != STATE_CLOSE_WAIT {
                std::thread::yield_now();
            }
            assert_eq!(received_bytes(&server).unwrap(), Some(taken));
            let mut rest = Vec::new();
            server.read_to_end(&mut rest).unwrap();
            assert_eq!(rest.len() as u64, sent - taken);
            assert_eq!(received_bytes(&server).unwrap(), Some(sent));
            assert_eq!(received_bytes(&client).unwrap(), Some(0));
            server.write_all(b"back").unwrap();
            assert_eq!(sent_bytes(&server).unwrap(), Some(base[1] + 4));
        });
    }

    #[test]
    fn a_reset_connection_has_no_position() {
        let (client, mut server) = pair();
        server.write_all(b"unread").unwrap();
        rustix::net::sockopt::set_socket_linger(&server, Some(std::time::Duration::ZERO)).unwrap();
        drop(server);
        while TcpInfo::of(&client).unwrap().state == STATE_ESTABLISHED {
            std::thread::yield_now();
        }
        assert_eq!(received_bytes(&client).unwrap(), None);
        assert_eq!(sent_bytes(&client).unwrap(), None);
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(received_bytes(&one).is_err());
    }
}
