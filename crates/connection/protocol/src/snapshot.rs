//! The state of one established connection between two owners.
//!
//! A snapshot contains the state that TCP_REPAIR returns (negotiated options, sequence numbers,
//! windows, queues), the TLS record state where there is TLS, and the bytes that the previous
//! owner has read but not consumed. It is versioned, checksummed (CRC32C) and size-capped. TLS
//! secrets inside are zeroised when the value is dropped; an encoded snapshot must be sent over an
//! encrypted channel only.

use zeroize::{Zeroize, Zeroizing};

use unlade_bytes::{DecodeError, Reader, Write};
pub use unlade_net::state::{
    Congestion, DirectionSecrets, NegotiatedOptions, QUEUE_BYTES_MAX, SocketOptions, TcpSnapshot,
    TlsSnapshot, Windows,
};
use unlade_net::{FlowKey, SeqNumber};

/// First bytes of an encoded snapshot: "ULSN".
const MAGIC: u32 = 0x554c_534e;
/// The layout that this build writes and reads.
pub const SNAPSHOT_VERSION: u16 = 1;
/// Most bytes of an encoded snapshot.
pub const SNAPSHOT_BYTES_MAX: usize = 4 * QUEUE_BYTES_MAX + 4096;
/// Longest traffic secret (SHA-384).
const SECRET_BYTES_MAX: usize = 48;
/// Longest AEAD key (AES-256, ChaCha20).
const KEY_BYTES_MAX: usize = 32;
/// Longest name of a congestion control algorithm (TCP_CA_NAME_MAX of Linux).
const CONGESTION_NAME_BYTES_MAX: usize = 16;

/// The state of a whole connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The transport.
    pub tcp: TcpSnapshot,
    /// The TLS record layer, if there is one.
    pub tls: Option<TlsSnapshot>,
    /// Bytes of the application stream read from the transport and not consumed.
    pub plaintext: Vec<u8>,
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // Decrypted bytes are as secret as the keys.
        if self.tls.is_some() {
            self.plaintext.zeroize();
        }
    }
}

/// An encoded [`Snapshot`]. It may contain secrets and requests: it is wiped when dropped, and not
/// shown by `Debug`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EncodedSnapshot(Zeroizing<Vec<u8>>);

impl From<Vec<u8>> for EncodedSnapshot {
    fn from(bytes: Vec<u8>) -> EncodedSnapshot {
        EncodedSnapshot(Zeroizing::new(bytes))
    }
}

impl core::ops::Deref for EncodedSnapshot {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl core::fmt::Debug for EncodedSnapshot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "EncodedSnapshot({} bytes)", self.len())
    }
}

impl Snapshot {
    /// Returns true if it contains secrets: then only an encrypted channel may carry it.
    pub fn has_secrets(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the encoding.
    pub fn encoded(&self) -> EncodedSnapshot {
        // The buffer must not grow: the memory of a smaller one would not be wiped.
        let queues = self.tcp.receive_queue.len() + self.tcp.send_queue.len();
        let undecrypted = self.tls.as_ref().map_or(0, |tls| tls.ciphertext.len());
        let mut bytes = Vec::with_capacity(1024 + queues + undecrypted + self.plaintext.len());
        self.encode(&mut bytes);
        EncodedSnapshot::from(bytes)
    }

    /// Appends the encoding to `out`: magic, version, body length, body, CRC32C of all of these.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u32(MAGIC);
        out.put_u16(SNAPSHOT_VERSION);
        out.put_u32(0);
        let body = out.len();
        encode_tcp(&self.tcp, out);
        match &self.tls {
            None => out.put_u8(0),
            Some(tls) => {
                out.put_u8(1);
                encode_tls(tls, out);
            }
        }
        out.put_blob(&self.plaintext);
        let length = (out.len() - body) as u32;
        out[body - 4..body].copy_from_slice(&length.to_be_bytes());
        let sum = crc32c::crc32c(&out[start..]);
        out.put_u32(sum);
    }

    /// Decodes exactly one snapshot.
    ///
    /// # Errors
    /// Any [`DecodeError`]; no content of `input` is used before its length and checksum are
    /// verified.
    pub fn decode(input: &[u8]) -> Result<Snapshot, DecodeError> {
        if input.len() > SNAPSHOT_BYTES_MAX {
            let (length, limit) = (input.len(), SNAPSHOT_BYTES_MAX);
            return Err(DecodeError::TooLong { what: "snapshot", length, limit });
        }
        let (content, sum) = input.split_last_chunk::<4>().ok_or(DecodeError::Truncated)?;
        let mut reader = Reader::new(content);
        let magic = reader.u32()?;
        if magic != MAGIC {
            return Err(DecodeError::Undefined { what: "snapshot magic", value: magic.into() });
        }
        let version = reader.u16()?;
        if version != SNAPSHOT_VERSION {
            return Err(DecodeError::Version(version));
        }
        let length = reader.u32()? as usize;
        if length != reader.rest() {
            return Err(DecodeError::Truncated);
        }
        if crc32c::crc32c(content) != u32::from_be_bytes(*sum) {
            return Err(DecodeError::Checksum);
        }
        let tcp = decode_tcp(&mut reader)?;
        let tls = reader.bool("TLS present")?.then(|| decode_tls(&mut reader)).transpose()?;
        let plaintext = reader.blob("plaintext", QUEUE_BYTES_MAX)?.to_vec();
        reader.finish()?;
        Ok(Snapshot { tcp, tls, plaintext })
    }
}

const FLAG_WSCALE: u8 = 1;
const FLAG_SACK: u8 = 2;
const FLAG_TIMESTAMP: u8 = 4;
const FLAG_PEER_CLOSED: u8 = 8;
const FLAG_ECN: u8 = 16;
const FLAG_NODELAY: u8 = 32;
const FLAG_KEEPALIVE: u8 = 64;

fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

fn encode_tcp(tcp: &TcpSnapshot, out: &mut Vec<u8>) {
    let (options, socket) = (&tcp.options, &tcp.socket);
    out.put_address(tcp.flow.client);
    out.put_address(tcp.flow.service);
    out.put_u8(
        flag(options.window_scale.is_some(), FLAG_WSCALE)
            | flag(options.sack, FLAG_SACK)
            | flag(options.timestamp.is_some(), FLAG_TIMESTAMP)
            | flag(tcp.peer_closed, FLAG_PEER_CLOSED)
            | flag(options.ecn, FLAG_ECN)
            | flag(socket.nodelay, FLAG_NODELAY)
            | flag(socket.keepalive_s.is_some(), FLAG_KEEPALIVE),
    );
    out.put_u16(options.mss_bytes);
    let (send_scale, receive_scale) = options.window_scale.unwrap_or_default();
    out.put_u8(send_scale);
    out.put_u8(receive_scale);
    out.put_u32(options.timestamp.unwrap_or_default());
    let windows = &tcp.windows;
    let (idle, interval, probes) = socket.keepalive_s.unwrap_or_default();
    for value in [
        tcp.send_seq.0,
        tcp.receive_seq.0,
        windows.snd_wl1,
        windows.snd_wnd,
        windows.max_window,
        windows.rcv_wnd,
        windows.rcv_wup,
        tcp.congestion.cwnd_segments,
        tcp.congestion.ssthresh_segments,
        tcp.congestion.rtt_us,
        tcp.congestion.idle_ms,
        socket.user_timeout_ms,
        idle,
        interval,
        probes,
        tcp.segments_in,
    ] {
        out.put_u32(value);
    }
    out.put_blob(tcp.congestion.algorithm.as_bytes());
    out.put_blob(&tcp.send_queue);
    out.put_blob(&tcp.receive_queue);
}

fn decode_tcp(reader: &mut Reader<'_>) -> Result<TcpSnapshot, DecodeError> {
    let (client, service) = (reader.address()?, reader.address()?);
    if client.is_ipv4() != service.is_ipv4() {
        return Err(DecodeError::Undefined { what: "mixed address families", value: 0 });
    }
    let flags = reader.u8()?;
    let mss_bytes = reader.u16()?;
    let (send_scale, receive_scale) = (reader.u8()?, reader.u8()?);
    // RFC 7323 §2.3: a shift above 14 is an error.
    for shift in [send_scale, receive_scale] {
        if shift > 14 {
            return Err(DecodeError::Undefined { what: "window scale", value: shift.into() });
        }
    }
    let timestamp = reader.u32()?;
    let mut word = || reader.u32();
    let (send_seq, receive_seq) = (SeqNumber(word()?), SeqNumber(word()?));
    let windows = Windows {
        snd_wl1: word()?,
        snd_wnd: word()?,
        max_window: word()?,
        rcv_wnd: word()?,
        rcv_wup: word()?,
    };
    let (cwnd_segments, ssthresh_segments, rtt_us, idle_ms) = (word()?, word()?, word()?, word()?);
    let user_timeout_ms = word()?;
    let keepalive = (word()?, word()?, word()?);
    let segments_in = word()?;
    let algorithm = reader.text("congestion control", CONGESTION_NAME_BYTES_MAX)?;
    let send_queue = reader.blob("send queue", QUEUE_BYTES_MAX)?.to_vec();
    let receive_queue = reader.blob("receive queue", QUEUE_BYTES_MAX)?.to_vec();
    Ok(TcpSnapshot {
        flow: FlowKey::new(client, service),
        options: NegotiatedOptions {
            mss_bytes,
            window_scale: (flags & FLAG_WSCALE != 0).then_some((send_scale, receive_scale)),
            sack: flags & FLAG_SACK != 0,
            timestamp: (flags & FLAG_TIMESTAMP != 0).then_some(timestamp),
            ecn: flags & FLAG_ECN != 0,
        },
        send_seq,
        receive_seq,
        send_queue,
        receive_queue,
        windows,
        congestion: Congestion { cwnd_segments, ssthresh_segments, rtt_us, idle_ms, algorithm },
        socket: SocketOptions {
            keepalive_s: (flags & FLAG_KEEPALIVE != 0).then_some(keepalive),
            user_timeout_ms,
            nodelay: flags & FLAG_NODELAY != 0,
        },
        segments_in,
        peer_closed: flags & FLAG_PEER_CLOSED != 0,
    })
}

fn encode_tls(tls: &TlsSnapshot, out: &mut Vec<u8>) {
    out.put_u16(tls.version);
    out.put_u16(tls.suite);
    for direction in [&tls.read, &tls.write] {
        out.put_blob(&direction.key);
        out.extend_from_slice(&direction.iv);
        out.put_u64(direction.sequence);
        out.put_blob(&direction.traffic_secret);
    }
    out.put_blob(&tls.ciphertext);
}

fn decode_tls(reader: &mut Reader<'_>) -> Result<TlsSnapshot, DecodeError> {
    let version = reader.u16()?;
    if !matches!(version, 0x0303 | 0x0304) {
        return Err(DecodeError::Undefined { what: "TLS version", value: version.into() });
    }
    let suite = reader.u16()?;
    let mut direction = || -> Result<DirectionSecrets, DecodeError> {
        let key = reader.blob("AEAD key", KEY_BYTES_MAX)?.to_vec();
        let mut iv = [0; 12];
        iv.copy_from_slice(reader.bytes(12)?);
        let sequence = reader.u64()?;
        let traffic_secret = reader.blob("traffic secret", SECRET_BYTES_MAX)?.to_vec();
        Ok(DirectionSecrets { key, iv, sequence, traffic_secret })
    };
    let (read, write) = (direction()?, direction()?);
    let ciphertext = reader.blob("ciphertext", QUEUE_BYTES_MAX)?.to_vec();
    Ok(TlsSnapshot { version, suite, read, write, ciphertext })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use proptest::prelude::*;

    fn any_snapshot() -> impl Strategy<Value = Snapshot> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..200);
        let words = proptest::array::uniform20(any::<u32>());
        (words, bytes(), bytes(), bytes(), any::<u8>(), any::<bool>(), any::<bool>()).prop_map(
            |(w, send_queue, receive_queue, plaintext, flags, tls, v6)| {
                let address = |ip: u32, port: u32| {
                    let ip: std::net::IpAddr = match v6 {
                        false => ip.to_be_bytes().into(),
                        true => [0x2001, 0xdb8, 0, 0, 0, 0, 1, ip as u16].into(),
                    };
                    std::net::SocketAddr::new(ip, port as u16)
                };
                let secrets = |sequence: u32, length: usize| DirectionSecrets {
                    key: vec![sequence as u8; length],
                    iv: [sequence as u8; 12],
                    sequence: sequence.into(),
                    traffic_secret: vec![7; length],
                };
                Snapshot {
                    tcp: TcpSnapshot {
                        flow: FlowKey::new(address(w[0], w[1]), address(w[2], w[3])),
                        options: NegotiatedOptions {
                            mss_bytes: w[5] as u16,
                            window_scale: (flags & 1 != 0)
                                .then_some(((w[6] % 15) as u8, (w[7] % 15) as u8)),
                            sack: flags & 2 != 0,
                            timestamp: (flags & 4 != 0).then_some(w[8]),
                            ecn: flags & 16 != 0,
                        },
                        send_seq: SeqNumber(w[9]),
                        receive_seq: SeqNumber(w[10]),
                        send_queue,
                        receive_queue,
                        windows: Windows {
                            snd_wl1: w[11],
                            snd_wnd: w[12],
                            max_window: w[13],
                            rcv_wnd: w[14],
                            rcv_wup: w[15],
                        },
                        congestion: Congestion {
                            cwnd_segments: w[16],
                            ssthresh_segments: w[17],
                            rtt_us: w[18],
                            idle_ms: w[19],
                            algorithm: "cubic".into(),
                        },
                        socket: SocketOptions {
                            keepalive_s: (flags & 32 != 0).then_some((1, 2, 3)),
                            user_timeout_ms: 5,
                            nodelay: flags & 64 != 0,
                        },
                        segments_in: w[0],
                        peer_closed: flags & 128 != 0,
                    },
                    tls: tls.then(|| TlsSnapshot {
                        version: 0x0304,
                        suite: 0x1301,
                        read: secrets(w[1], 16),
                        write: secrets(w[2], 32),
                        ciphertext: plaintext.clone(),
                    }),
                    plaintext,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(snapshot in any_snapshot()) {
            let mut bytes = Vec::new();
            snapshot.encode(&mut bytes);
            prop_assert_eq!(Snapshot::decode(&bytes).unwrap(), snapshot);
        }

        #[test]
        fn a_clock_that_is_set_forward_keeps_its_unit(
            mut snapshot in any_snapshot(), passed_us in 0u64..30_000_000,
        ) {
            let before = snapshot.tcp.options.timestamp;
            snapshot.tcp.set_clock_forward(Duration::from_micros(passed_us));
            if let (Some(before), Some(after)) = (before, snapshot.tcp.options.timestamp) {
                let unit_us = if before & 1 == 0 { 1000 } else { 1 };
                prop_assert_eq!(after & 1, before & 1);
                let ticks = u64::from(after.wrapping_sub(before));
                let due = passed_us / unit_us;
                prop_assert!((due..=due + 1).contains(&ticks), "{} for {}", ticks, due);
            }
        }

        #[test]
        fn a_changed_byte_is_noticed(
            snapshot in any_snapshot(), at in any::<prop::sample::Index>(), by in 1u8..,
        ) {
            let mut bytes = Vec::new();
            snapshot.encode(&mut bytes);
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            prop_assert!(Snapshot::decode(&bytes).is_err());
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Snapshot::decode(&bytes);
            // A valid envelope, so that the decoders of the content are reached.
            let mut sealed = Vec::new();
            sealed.put_u32(MAGIC);
            sealed.put_u16(SNAPSHOT_VERSION);
            sealed.put_blob(&bytes);
            let sum = crc32c::crc32c(&sealed);
            sealed.put_u32(sum);
            let _ = Snapshot::decode(&sealed);
        }
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let secrets = DirectionSecrets {
            key: vec![0xab; 16],
            iv: [0xcd; 12],
            sequence: 9,
            traffic_secret: vec![0xef; 32],
        };
        assert_eq!(format!("{secrets:?}"), "DirectionSecrets { sequence: 9, .. }");
    }
}
