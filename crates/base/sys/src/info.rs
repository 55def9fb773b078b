//! TCP_INFO: the kernel's view of one connection (linux/tcp.h, `struct tcp_info`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::sockopt;

pub use crate::sockopt::STATE_CLOSE;

/// `tcpi_state` of an established connection.
pub const STATE_ESTABLISHED: u8 = 1;
/// `tcpi_state` of a connection whose peer has sent FIN.
pub const STATE_CLOSE_WAIT: u8 = 8;

const OPTION_TIMESTAMPS: u8 = 1;
const OPTION_SACK: u8 = 2;
const OPTION_WSCALE: u8 = 4;
const OPTION_ECN: u8 = 8;

/// The leading part of `struct tcp_info`, in the kernel's layout; times in the kernel's units.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TcpInfo {
    /// Connection state, [`STATE_ESTABLISHED`] and others.
    pub state: u8,
    ca_state: u8,
    retransmits: u8,
    probes: u8,
    backoff: u8,
    options: u8,
    wscale: u8,
    bits: u8,
    rto_us: u32,
    ato_us: u32,
    /// Segment size in use towards the peer, bytes.
    pub snd_mss_bytes: u32,
    rcv_mss: u32,
    /// Segments sent and not acknowledged.
    pub unacked_segments: u32,
    sacked: u32,
    lost: u32,
    retrans: u32,
    fackets: u32,
    /// Milliseconds since data was last sent.
    pub last_data_sent_ms: u32,
    last_ack_sent: u32,
    /// Milliseconds since data was last received.
    pub last_data_recv_ms: u32,
    last_ack_recv: u32,
    pmtu: u32,
    rcv_ssthresh: u32,
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    rttvar: u32,
    /// Slow-start threshold, segments.
    pub snd_ssthresh_segments: u32,
    /// Congestion window, segments.
    pub snd_cwnd_segments: u32,
    advmss: u32,
    reordering: u32,
    rcv_rtt: u32,
    rcv_space: u32,
    /// Retransmitted segments over the connection's life.
    pub total_retrans: u32,
    pacing_rate: u64,
    max_pacing_rate: u64,
    /// Bytes acknowledged by the peer.
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    segs_out: u32,
    /// Segments received, pure acknowledgements included.
    pub segs_in: u32,
    /// Bytes written and never sent.
    pub notsent_bytes: u32,
    min_rtt: u32,
}

// SAFETY: repr(C), only integers; the u64 fields start at byte 104, so there is no padding (the
// assertion below pins the size).
unsafe impl sockopt::Plain for TcpInfo {}
const _: () = assert!(size_of::<TcpInfo>() == 152);

/// [`TcpInfo`] and the fields that newer kernels append.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct LongTcpInfo {
    info: TcpInfo,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_us: u64,
}

// SAFETY: repr(C), only integers and a struct of integers; `info` has 152 bytes, so the u64
// fields start at bytes 160 and 168, and there is no padding (the assertion below pins the size).
unsafe impl sockopt::Plain for LongTcpInfo {}
const _: () = assert!(size_of::<LongTcpInfo>() == 176);

/// The time during which the connection has had unacknowledged data in flight, as the kernel
/// counts it (in ticks of its clock). `None` on a kernel older than 4.10.
pub fn busy(socket: &impl AsFd) -> Option<std::time::Duration> {
    let (info, length) =
        sockopt::get::<LongTcpInfo>(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO).ok()?;
    (length >= size_of::<LongTcpInfo>()).then(|| std::time::Duration::from_micros(info.busy_us))
}

impl TcpInfo {
    /// Reads the information of a TCP socket.
    ///
    /// # Errors
    /// The kernel's, or `Unsupported` on a kernel older than 4.6, which lacks the last fields.
    pub fn of(socket: &impl AsFd) -> io::Result<TcpInfo> {
        TcpInfo::of_fd(socket.as_fd())
    }

    pub(crate) fn of_fd(fd: BorrowedFd<'_>) -> io::Result<TcpInfo> {
        let (info, length) = sockopt::get::<TcpInfo>(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
        if length < size_of::<TcpInfo>() {
            let why = "this kernel's TCP_INFO is too short; Linux 4.6 or newer is needed";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(info)
    }

    /// Returns true if timestamps were negotiated.
    pub fn has_timestamps(&self) -> bool {
        self.options & OPTION_TIMESTAMPS != 0
    }

    /// Returns true if selective acknowledgements were negotiated.
    pub fn has_sack(&self) -> bool {
        self.options & OPTION_SACK != 0
    }

    /// Returns true if ECN was negotiated.
    pub fn has_ecn(&self) -> bool {
        self.options & OPTION_ECN != 0
    }

    /// (shift of the peer's windows, shift of ours), if window scaling was negotiated.
    pub fn window_scale(&self) -> Option<(u8, u8)> {
        (self.options & OPTION_WSCALE != 0).then_some((self.wscale & 0xf, self.wscale >> 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_loopback_connection_is_established_with_the_usual_options() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let info = TcpInfo::of(&client).unwrap();
        assert_eq!(info.state, STATE_ESTABLISHED);
        assert!(info.snd_mss_bytes > 500);
        assert!(info.segs_in >= 1);
    }
}
