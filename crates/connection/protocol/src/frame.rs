//! The control channel between balancer and server: length-prefixed, versioned frames.
//!
//! A frame on the wire is a 32-bit length (of the bytes that follow it), a type byte and the body.
//! Every frame about a connection contains its id and the epoch of its ownership; the state
//! machines ignore a frame of an older epoch as stale. Snapshots are transferred encoded, so that
//! a relay passes them on unchanged.
//!
//! ```text
//! balancer                         server
//!    │ HELLO ──────────────────────► │ ◄── HELLO, OWNED (connections it still owns)
//!    │ SCOPE (requests that stay) ─► │
//!    │ OFFER snapshot ─────────────► │ restores, goes live
//!    │ ◄───────────────────── READY  │        (or REFUSE)
//!    │ ◄──────────── UNREAD bytes   │ input that does not fit in the snapshot
//!    │ ◄──────────── RETURN snapshot │ next request belongs elsewhere, or idle
//! ```

use crate::snapshot::{EncodedSnapshot, SNAPSHOT_BYTES_MAX};
use std::net::SocketAddr;

use unlade_bytes::{DecodeError, Frames, Reader, Write};
use zeroize::Zeroizing;

/// Version of the protocol in this build; both ends must have the same. Version 2 has UNREAD, its
/// length in RETURN, and the excluded hosts of scopes.
pub const PROTOCOL_VERSION: u16 = 3;
/// Bytes in front of a frame's body: length and type.
pub const FRAME_HEADER_BYTES: usize = 5;
/// Most bytes of a frame behind its length field.
pub const FRAME_BYTES_MAX: usize = SNAPSHOT_BYTES_MAX + 4096;
/// Most bytes of one connection in UNREAD frames.
pub const UNREAD_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Most bytes in one UNREAD frame.
pub const UNREAD_PIECE_BYTES_MAX: usize = 1024 * 1024;
/// Version of the messages about records that a server seals for a balancer.
pub const SEALING_VERSION: u16 = 1;
/// Most bytes of the key of a connection.
pub const SEALING_KEY_BYTES_MAX: usize = 64;
/// Most bytes of a delegation.
pub const DELEGATION_BYTES_MAX: usize = 128;
/// Most bytes of a request whose response a server seals.
pub const SEALED_REQUEST_BYTES_MAX: usize = 128 * 1024;
/// Longest host or path prefix in a scope, bytes.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Most entries of a list in a frame.
pub const LIST_ENTRIES_MAX: usize = 1 << 20;
/// Most excluded hosts, excluded prefixes or ring members in a scope.
pub const SCOPE_ENTRIES_MAX: usize = 4096;

/// Identifies one connection between a balancer worker and its servers; unique per channel pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Counts the changes of ownership of one connection. A larger epoch is newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u32);

impl Epoch {
    /// Returns the next epoch.
    pub fn next(self) -> Epoch {
        Epoch(self.0.wrapping_add(1))
    }
}

/// Conditions under which a server may keep a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The scope that the following requests must be in to stay.
    pub scope: u32,
    /// Requests the server may answer before it must ask again; `u32::MAX` is no limit.
    pub requests_max: u32,
    /// Idle time after which the connection goes home, milliseconds.
    pub idle_return_ms: u32,
}

/// The requests that a server may answer without asking: one route of the balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The value of [`Terms::scope`].
    pub id: u32,
    /// Host of the route, lower case: a name, `*.` and a name for every host below it, or empty
    /// for any host.
    pub host: String,
    /// Names of the same form under it that belong to other routes.
    pub excluded_hosts: Vec<String>,
    /// Path prefix of the route.
    pub prefix: String,
    /// Longer prefixes under it that belong to other routes.
    pub excluded: Vec<String>,
    /// The pool's ring, if objects determine their server: members (name, weight) and the index of
    /// the receiver.
    pub ring: Option<(Vec<(String, u16)>, u16)>,
}

/// Work of a server on a connection under one adoption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests answered.
    pub requests: u32,
    /// Response body and head bytes sent to the client.
    pub sent_bytes: u64,
    /// Request bytes received from the client.
    pub received_bytes: u64,
}

macro_rules! closed_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vmeta])* $variant = $value,)* }

        impl $name {
            /// Every variant, in the order of their numbers.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            fn decode(value: u8) -> Result<$name, DecodeError> {
                match value {
                    $($value => Ok($name::$variant),)*
                    other => {
                        let value = other.into();
                        Err(DecodeError::Undefined { what: stringify!($name), value })
                    }
                }
            }
        }
    };
}

/// Bytes of a client's stream. TLS may have protected them: they are wiped when dropped, and not
/// shown by `Debug`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientBytes(Zeroizing<Vec<u8>>);

impl From<Vec<u8>> for ClientBytes {
    fn from(bytes: Vec<u8>) -> ClientBytes {
        ClientBytes(Zeroizing::new(bytes))
    }
}

impl core::ops::Deref for ClientBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl core::fmt::Debug for ClientBytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ClientBytes({} bytes)", self.len())
    }
}

impl ClientBytes {
    /// Appends bytes; wipes a smaller buffer that is replaced.
    pub fn append(&mut self, bytes: &[u8]) {
        if self.0.capacity() - self.0.len() < bytes.len() {
            let mut larger = Vec::with_capacity(2 * self.0.len() + bytes.len());
            larger.extend_from_slice(&self.0);
            self.0 = Zeroizing::new(larger);
        }
        self.0.extend_from_slice(bytes);
    }
}

closed_enum! {
    /// Reason why a server does not take an offered connection.
    RefuseReason {
        /// It holds as many connections as it may.
        Overloaded = 1,
        /// It is shutting down.
        Draining = 2,
        /// The snapshot could not be restored (the server's log has the reason).
        RestoreFailed = 3,
        /// The snapshot did not decode, or it names a foreign connection.
        BadSnapshot = 4,
        /// The virtual address is not configured on the server.
        AddressNotLocal = 5,
        /// The scope of the terms is unknown.
        UnknownScope = 6,
    }
}

closed_enum! {
    /// Reason why a server returns a connection.
    ReturnReason {
        /// The next request is out of scope or of another shard; it is in the snapshot.
        NextRequest = 1,
        /// All requests of the terms are answered; the next one is in the snapshot.
        TermsUsed = 2,
        /// No request came for the idle time.
        Idle = 3,
        /// The server drains.
        Draining = 4,
        /// The balancer recalled it.
        Recalled = 5,
    }
}

closed_enum! {
    /// The end of a connection at a server.
    CloseReason {
        /// The client closed it.
        ByClient = 1,
        /// The server closed it in order (Connection: close, error response, drain).
        ByServer = 2,
        /// It broke: reset, time-out, or a protocol error.
        Broken = 3,
    }
}

/// One message of the control channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// First frame in each direction.
    Hello {
        /// [`PROTOCOL_VERSION`] of the sender.
        version: u16,
        /// Random number of the sender's run (and worker): a restarted balancer has a new one, and
        /// none of the connections of the old one.
        instance: u64,
        /// The sender's name, for logs.
        name: String,
        /// Hardware address of the interface that carries redirected packets.
        mac: [u8; 6],
        /// How long connections survive without the channel, milliseconds (the smaller value
        /// holds).
        lease_ms: u32,
    },
    /// Server, behind its HELLO: the connections that it still owns from before.
    Owned(Vec<(ConnectionId, Epoch)>),
    /// Balancer: defines a scope for later terms.
    Scope(Scope),
    /// Balancer: take this connection.
    Offer {
        /// The connection.
        id: ConnectionId,
        /// The epoch that begins with READY.
        epoch: Epoch,
        /// The conditions.
        terms: Terms,
        /// Encoded [`crate::snapshot::Snapshot`].
        snapshot: EncodedSnapshot,
    },
    /// Server: restored and live; it owns the connection from now on.
    Ready {
        /// The connection.
        id: ConnectionId,
        /// The epoch of the offer.
        epoch: Epoch,
        /// Time spent in restoring the socket, nanoseconds.
        restore_tcp_ns: u32,
        /// Time spent in restoring the record layer, nanoseconds.
        restore_tls_ns: u32,
        /// Time for which the frame waited at the server for another one, nanoseconds.
        held_ns: u32,
    },
    /// Server: not taken; the balancer still owns it.
    Refuse {
        /// The connection.
        id: ConnectionId,
        /// The epoch of the offer.
        epoch: Epoch,
        /// The reason.
        reason: RefuseReason,
    },
    /// Balancer: return it at the next pause between requests.
    Recall {
        /// The connection.
        id: ConnectionId,
        /// The epoch of the adoption.
        epoch: Epoch,
    },
    /// Balancer: the connection has continued elsewhere; close it silently.
    Abandon {
        /// The connection.
        id: ConnectionId,
        /// The epoch of the adoption.
        epoch: Epoch,
    },
    /// Server, directly before RETURN: input of the connection that was read and decrypted, and
    /// that does not fit in the snapshot's plaintext. It follows that plaintext.
    Unread {
        /// The connection.
        id: ConnectionId,
        /// The epoch of the adoption.
        epoch: Epoch,
        /// Number of bytes in earlier frames; 0 starts anew.
        at_bytes: u32,
        /// At most [`UNREAD_PIECE_BYTES_MAX`].
        bytes: ClientBytes,
    },
    /// Server: returned; its socket is frozen and still exists.
    Return {
        /// The connection.
        id: ConnectionId,
        /// The epoch of the adoption.
        epoch: Epoch,
        /// The reason.
        reason: ReturnReason,
        /// Work under this adoption.
        usage: Usage,
        /// Bytes in the UNREAD frames directly before.
        unread_bytes: u32,
        /// Encoded [`crate::snapshot::Snapshot`].
        snapshot: EncodedSnapshot,
    },
    /// Server: the connection has ended.
    Closed {
        /// The connection.
        id: ConnectionId,
        /// The epoch of the adoption.
        epoch: Epoch,
        /// The kind of end.
        reason: CloseReason,
        /// Work under this adoption.
        usage: Usage,
    },
    /// Either side: requests a PONG.
    Ping(u64),
    /// Either side: answers a PING.
    Pong(u64),
    /// Server: it drains and accepts no more offers.
    Drain,
    /// Balancer, in place of HELLO: this connection has [`Frame::Seal`] in one direction only, and headers and
    /// records for clients, without frames and without this connection's TLS, in the other.
    Sealing {
        /// [`SEALING_VERSION`] of the sender.
        version: u16,
        /// Key of the proofs in the headers.
        key: ClientBytes,
    },
    /// Balancer: answer this request of a client, and seal the response with the client's keys.
    Seal {
        /// The client.
        client: SocketAddr,
        /// The address that it has connected to.
        service: SocketAddr,
        /// The header of a response of known length is to be a segment of its own.
        is_apart: bool,
        /// Encoded delegation of the records: version, suite, number of the next record, IV, key.
        delegation: ClientBytes,
        /// The request, head and body, as the client has sent it.
        request: ClientBytes,
    },
}

/// Type bytes of frames.
mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const OWNED: u8 = 2;
    pub(super) const SCOPE: u8 = 3;
    pub(super) const OFFER: u8 = 4;
    pub(super) const READY: u8 = 5;
    pub(super) const REFUSE: u8 = 6;
    pub(super) const RECALL: u8 = 9;
    pub(super) const ABANDON: u8 = 11;
    pub(super) const RETURN: u8 = 10;
    pub(super) const CLOSED: u8 = 14;
    pub(super) const PING: u8 = 15;
    pub(super) const PONG: u8 = 16;
    pub(super) const DRAIN: u8 = 17;
    pub(super) const UNREAD: u8 = 18;
    pub(super) const SEALING: u8 = 19;
    pub(super) const SEAL: u8 = 20;
}

impl Frame {
    /// Returns true if the frame contains secrets or may contain them.
    pub fn has_snapshot(&self) -> bool {
        matches!(
            self,
            Frame::Offer { .. }
                | Frame::Return { .. }
                | Frame::Unread { .. }
                | Frame::Sealing { .. }
                | Frame::Seal { .. }
        )
    }

    /// Appends the frame, header included, to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u32(0);
        out.put_u8(self.kind());
        self.encode_body(out);
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    fn kind(&self) -> u8 {
        match self {
            Frame::Hello { .. } => kind::HELLO,
            Frame::Owned(_) => kind::OWNED,
            Frame::Scope(_) => kind::SCOPE,
            Frame::Offer { .. } => kind::OFFER,
            Frame::Ready { .. } => kind::READY,
            Frame::Refuse { .. } => kind::REFUSE,
            Frame::Recall { .. } => kind::RECALL,
            Frame::Abandon { .. } => kind::ABANDON,
            Frame::Unread { .. } => kind::UNREAD,
            Frame::Return { .. } => kind::RETURN,
            Frame::Closed { .. } => kind::CLOSED,
            Frame::Ping(_) => kind::PING,
            Frame::Pong(_) => kind::PONG,
            Frame::Drain => kind::DRAIN,
            Frame::Sealing { .. } => kind::SEALING,
            Frame::Seal { .. } => kind::SEAL,
        }
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        let connection = |out: &mut Vec<u8>, id: &ConnectionId, epoch: &Epoch| {
            out.put_u64(id.0);
            out.put_u32(epoch.0);
        };
        match self {
            Frame::Hello { version, instance, name, mac, lease_ms } => {
                out.put_u16(*version);
                out.put_u64(*instance);
                out.put_blob(name.as_bytes());
                out.extend_from_slice(mac);
                out.put_u32(*lease_ms);
            }
            Frame::Owned(list) => {
                out.put_u32(list.len() as u32);
                for (id, epoch) in list {
                    connection(out, id, epoch);
                }
            }
            Frame::Scope(scope) => encode_scope(scope, out),
            Frame::Offer { id, epoch, terms, snapshot } => {
                connection(out, id, epoch);
                encode_terms(terms, out);
                out.put_blob(snapshot);
            }
            Frame::Ready { id, epoch, restore_tcp_ns, restore_tls_ns, held_ns } => {
                connection(out, id, epoch);
                out.put_u32(*restore_tcp_ns);
                out.put_u32(*restore_tls_ns);
                out.put_u32(*held_ns);
            }
            Frame::Refuse { id, epoch, reason } => {
                connection(out, id, epoch);
                out.put_u8(*reason as u8);
            }
            Frame::Recall { id, epoch } | Frame::Abandon { id, epoch } => {
                connection(out, id, epoch)
            }
            Frame::Unread { id, epoch, at_bytes, bytes } => {
                connection(out, id, epoch);
                out.put_u32(*at_bytes);
                out.put_blob(bytes);
            }
            Frame::Return { id, epoch, reason, usage, unread_bytes, snapshot } => {
                connection(out, id, epoch);
                out.put_u8(*reason as u8);
                encode_usage(usage, out);
                out.put_u32(*unread_bytes);
                out.put_blob(snapshot);
            }
            Frame::Closed { id, epoch, reason, usage } => {
                connection(out, id, epoch);
                out.put_u8(*reason as u8);
                encode_usage(usage, out);
            }
            Frame::Ping(nonce) | Frame::Pong(nonce) => out.put_u64(*nonce),
            Frame::Drain => {}
            Frame::Sealing { version, key } => {
                out.put_u16(*version);
                out.put_blob(key);
            }
            Frame::Seal { client, service, is_apart, delegation, request } => {
                out.put_address(*client);
                out.put_address(*service);
                out.put_u8((*is_apart).into());
                out.put_blob(delegation);
                out.put_blob(request);
            }
        }
    }

    /// Decodes the frame at the front of `input`: returns the frame and the number of its bytes,
    /// or `None` if more input is needed.
    ///
    /// # Errors
    /// [`DecodeError`]: the channel cannot be resynchronised and must be closed.
    pub fn decode(input: &[u8]) -> Result<Option<(Frame, usize)>, DecodeError> {
        let Some((length, rest)) = input.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(DecodeError::TooLong { what: "frame", length, limit: FRAME_BYTES_MAX });
        }
        let Some(content) = rest.get(..length) else { return Ok(None) };
        let mut reader = Reader::new(content);
        let frame = decode_body(reader.u8()?, &mut reader)?;
        reader.finish()?;
        Ok(Some((frame, 4 + length)))
    }
}

fn decode_body(kind: u8, reader: &mut Reader<'_>) -> Result<Frame, DecodeError> {
    if let kind::HELLO = kind {
        let version = reader.u16()?;
        if version != PROTOCOL_VERSION {
            return Err(DecodeError::Version(version));
        }
        let instance = reader.u64()?;
        let name = reader.text("name", TEXT_BYTES_MAX)?;
        let (mac, lease_ms) = (reader.mac()?, reader.u32()?);
        return Ok(Frame::Hello { version, instance, name, mac, lease_ms });
    }
    match kind {
        kind::OWNED => return decode_owned(reader),
        kind::SCOPE => return Ok(Frame::Scope(decode_scope(reader)?)),
        kind::PING => return Ok(Frame::Ping(reader.u64()?)),
        kind::PONG => return Ok(Frame::Pong(reader.u64()?)),
        kind::DRAIN => return Ok(Frame::Drain),
        kind::SEALING => {
            let version = reader.u16()?;
            if version != SEALING_VERSION {
                return Err(DecodeError::Version(version));
            }
            let key = reader.blob("key", SEALING_KEY_BYTES_MAX)?.to_vec().into();
            return Ok(Frame::Sealing { version, key });
        }
        kind::SEAL => return decode_seal(reader),
        _ => {}
    }
    let (id, epoch) = (ConnectionId(reader.u64()?), Epoch(reader.u32()?));
    let snapshot = |reader: &mut Reader<'_>| {
        let bytes = reader.blob("snapshot", SNAPSHOT_BYTES_MAX)?;
        Ok::<_, DecodeError>(EncodedSnapshot::from(bytes.to_vec()))
    };
    Ok(match kind {
        kind::OFFER => {
            let terms = decode_terms(reader)?;
            Frame::Offer { id, epoch, terms, snapshot: snapshot(reader)? }
        }
        kind::READY => {
            let (restore_tcp_ns, restore_tls_ns) = (reader.u32()?, reader.u32()?);
            Frame::Ready { id, epoch, restore_tcp_ns, restore_tls_ns, held_ns: reader.u32()? }
        }
        kind::REFUSE => Frame::Refuse { id, epoch, reason: RefuseReason::decode(reader.u8()?)? },
        kind::RECALL => Frame::Recall { id, epoch },
        kind::ABANDON => Frame::Abandon { id, epoch },
        kind::UNREAD => {
            let at_bytes = reader.u32()?;
            let content = reader.blob("unread bytes", UNREAD_PIECE_BYTES_MAX)?.to_vec().into();
            Frame::Unread { id, epoch, at_bytes, bytes: content }
        }
        kind::RETURN => {
            let reason = ReturnReason::decode(reader.u8()?)?;
            let (usage, unread_bytes) = (decode_usage(reader)?, reader.u32()?);
            Frame::Return { id, epoch, reason, usage, unread_bytes, snapshot: snapshot(reader)? }
        }
        kind::CLOSED => {
            let reason = CloseReason::decode(reader.u8()?)?;
            Frame::Closed { id, epoch, reason, usage: decode_usage(reader)? }
        }
        other => {
            return Err(DecodeError::Undefined { what: "frame type", value: other.into() });
        }
    })
}

fn decode_seal(reader: &mut Reader<'_>) -> Result<Frame, DecodeError> {
    let (client, service) = (reader.address()?, reader.address()?);
    let is_apart = reader.bool("a header apart")?;
    let delegation = reader.blob("delegation", DELEGATION_BYTES_MAX)?.to_vec().into();
    let request = reader.blob("request", SEALED_REQUEST_BYTES_MAX)?.to_vec().into();
    Ok(Frame::Seal { client, service, is_apart, delegation, request })
}

fn decode_owned(reader: &mut Reader<'_>) -> Result<Frame, DecodeError> {
    let count = entries(reader, "owned connections", LIST_ENTRIES_MAX)?;
    // Each entry takes 12 bytes: no memory is allocated for a count beyond the input.
    let mut list = Vec::with_capacity(count.min(reader.rest() / 12));
    for _ in 0..count {
        list.push((ConnectionId(reader.u64()?), Epoch(reader.u32()?)));
    }
    Ok(Frame::Owned(list))
}

fn entries(
    reader: &mut Reader<'_>,
    what: &'static str,
    limit: usize,
) -> Result<usize, DecodeError> {
    let length = reader.u32()? as usize;
    match length <= limit {
        true => Ok(length),
        false => Err(DecodeError::TooLong { what, length, limit }),
    }
}

fn encode_terms(terms: &Terms, out: &mut Vec<u8>) {
    out.put_u32(terms.scope);
    out.put_u32(terms.requests_max);
    out.put_u32(terms.idle_return_ms);
}

fn decode_terms(reader: &mut Reader<'_>) -> Result<Terms, DecodeError> {
    let (scope, requests_max, idle_return_ms) = (reader.u32()?, reader.u32()?, reader.u32()?);
    Ok(Terms { scope, requests_max, idle_return_ms })
}

fn encode_usage(usage: &Usage, out: &mut Vec<u8>) {
    out.put_u32(usage.requests);
    out.put_u64(usage.sent_bytes);
    out.put_u64(usage.received_bytes);
}

fn decode_usage(reader: &mut Reader<'_>) -> Result<Usage, DecodeError> {
    let (requests, sent_bytes, received_bytes) = (reader.u32()?, reader.u64()?, reader.u64()?);
    Ok(Usage { requests, sent_bytes, received_bytes })
}

fn encode_scope(scope: &Scope, out: &mut Vec<u8>) {
    out.put_u32(scope.id);
    out.put_blob(scope.host.as_bytes());
    out.put_u32(scope.excluded_hosts.len() as u32);
    for host in &scope.excluded_hosts {
        out.put_blob(host.as_bytes());
    }
    out.put_blob(scope.prefix.as_bytes());
    out.put_u32(scope.excluded.len() as u32);
    for prefix in &scope.excluded {
        out.put_blob(prefix.as_bytes());
    }
    out.put_u8(scope.ring.is_some().into());
    if let Some((members, own)) = &scope.ring {
        out.put_u16(*own);
        out.put_u32(members.len() as u32);
        for (name, weight) in members {
            out.put_blob(name.as_bytes());
            out.put_u16(*weight);
        }
    }
}

fn decode_scope(reader: &mut Reader<'_>) -> Result<Scope, DecodeError> {
    let id = reader.u32()?;
    let host = reader.text("scope host", TEXT_BYTES_MAX)?;
    let count = entries(reader, "excluded hosts", SCOPE_ENTRIES_MAX)?;
    let mut excluded_hosts = Vec::new();
    for _ in 0..count {
        excluded_hosts.push(reader.text("excluded host", TEXT_BYTES_MAX)?);
    }
    let prefix = reader.text("scope prefix", TEXT_BYTES_MAX)?;
    let count = entries(reader, "excluded prefixes", SCOPE_ENTRIES_MAX)?;
    let mut excluded = Vec::new();
    for _ in 0..count {
        excluded.push(reader.text("excluded prefix", TEXT_BYTES_MAX)?);
    }
    let ring = match reader.bool("ring present")? {
        false => None,
        true => {
            let own = reader.u16()?;
            let count = entries(reader, "ring members", SCOPE_ENTRIES_MAX)?;
            let mut members = Vec::new();
            for _ in 0..count {
                members.push((reader.text("ring member", TEXT_BYTES_MAX)?, reader.u16()?));
            }
            Some((members, own))
        }
    };
    Ok(Scope { id, host, excluded_hosts, prefix, excluded, ring })
}

/// Splits received bytes into frames. A frame may be a snapshot, with secrets: decoded bytes are
/// zeroised.
#[derive(Debug)]
pub struct Deframer(Frames);

impl Default for Deframer {
    fn default() -> Deframer {
        Deframer(Frames::secret())
    }
}

impl Deframer {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.push(bytes);
    }

    /// Returns the next complete frame, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`DecodeError`]: the channel must be closed.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, DecodeError> {
        self.0.next_with(Frame::decode)
    }
}

#[cfg(test)]
mod tests;
