//! Messages between clients and daemon. Each is one packet of a SOCK_SEQPACKET socket, with
//! little-endian numbers and a length that depends on its kind only.
//!
//! | kind | from | holds | descriptors |
//! |---|---|---|---|
//! | 1 HELLO | client | magic, version, class | |
//! | 2 SEGMENT | client | region, its bytes | the memfd |
//! | 3 QUEUE | client | | the memfd, an eventfd |
//! | 4 SOCKET | client | number | the TCP socket |
//! | 5 FORGET | client | number | |
//! | 129 WELCOME | daemon | limits, pid, epoch | |
//! | 130 ADDED | daemon | region | |
//! | 131 SERVED | daemon | | |
//! | 132 REFUSED | daemon | reason | |
//! | 133 PASSED | daemon | number | |
//! | 134 FORGOTTEN | daemon | number | |
//!
//! A client sends HELLO, then any number of SEGMENTs, QUEUE once, and further SEGMENTs, SOCKETs and
//! FORGETs. The daemon answers each message, in order. After REFUSED it closes the connection, except
//! for a SEGMENT whose region, or a SOCKET whose descriptor, it does not accept.

/// Version of the messages. A daemon serves only clients of its own version.
pub const VERSION: u16 = 2;
/// "UlCd": the first bytes of a HELLO.
const MAGIC: [u8; 4] = *b"UlCd";
/// Maximum length of a message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 40;
/// Maximum number of descriptors of a message.
pub const DESCRIPTORS_MAX: usize = 2;

/// Service class of a client. A client can only reduce its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// The client's whole weight.
    #[default]
    Normal = 0,
    /// A quarter of the client's weight.
    Background = 1,
}

/// Message from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Opens the connection.
    Hello {
        /// See [`VERSION`].
        version: u16,
        /// Requested service class.
        class: Class,
    },
    /// Shares a memory region.
    Segment {
        /// Number of the region, from 1.
        region: u16,
        /// Length of the region, in bytes.
        bytes: u64,
    },
    /// Requests service of its queue.
    Queue,
    /// Passes a socket, which tasks name by the number from then on.
    Socket {
        /// Number of the socket, from 1.
        socket: u16,
    },
    /// Has the daemon close its descriptor of a socket.
    Forget {
        /// Number of the socket.
        socket: u16,
    },
}

/// Message from the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Answer to HELLO.
    Welcome(Limits),
    /// The region is mapped.
    Added {
        /// Number of the region.
        region: u16,
    },
    /// The queue is served.
    Served,
    /// Refusal.
    Refused(Refusal),
    /// Tasks may name the socket.
    Passed {
        /// Number of the socket.
        socket: u16,
    },
    /// The daemon closes its descriptor.
    Forgotten {
        /// Number of the socket.
        socket: u16,
    },
}

/// Limits for a client, and the identity of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The daemon's version.
    pub version: u16,
    /// Maximum number of regions of a client.
    pub regions_max: u16,
    /// Maximum number of sockets of a client.
    pub sockets_max: u16,
    /// Process id of the daemon.
    pub pid: u32,
    /// Maximum number of bytes in all regions of a client.
    pub region_bytes_max: u64,
    /// Unique number of this run of the daemon.
    pub epoch: u64,
}

/// Reason of a refusal; the numbers are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u16)]
pub enum Refusal {
    /// The versions differ.
    #[error("the copy daemon has another protocol version; use the same build")]
    Version = 1,
    /// The user is not permitted.
    #[error("this user may not use the copy daemon; see [allow] in its configuration")]
    NotAllowed = 2,
    /// The maximum number of clients is connected.
    #[error("the copy daemon has reached its limit of clients; copy without it")]
    Full = 3,
    /// The message is invalid, or invalid at this time.
    #[error("the copy daemon received an invalid message; this is a bug of the client library")]
    Protocol = 4,
    /// The region's file is not a sealed memfd of the given length.
    #[error("the region's file is not a sealed memfd of that length")]
    Region = 5,
    /// The client has too many regions, or this one is too large.
    #[error("the region is beyond what a client may share; see the daemon's limits")]
    RegionLimit = 6,
    /// The queue's memory is invalid.
    #[error("the queue's memory has another layout than the daemon expects; use the same build")]
    Queue = 7,
    /// The doorbell is not an eventfd.
    #[error("the doorbell is not an eventfd")]
    Doorbell = 8,
    /// The daemon has no memory or descriptors left.
    #[error("the copy daemon lacks memory or descriptors")]
    Exhausted = 9,
    /// The daemon is stopping.
    #[error("the copy daemon is about to end")]
    Stopping = 10,
    /// The descriptor is of another kind.
    #[error("the descriptor is not a connected TCP socket; use it without the copy daemon")]
    Socket = 11,
    /// The client has passed too many sockets, or the number is in use.
    #[error("the socket is beyond what a client may pass; see the daemon's sockets_max")]
    SocketLimit = 12,
    /// The TCP socket has no connection.
    #[error("the socket is not connected, or its connection is closed; connect it, then pass it")]
    Unconnected = 13,
}

/// All refusals, in the order of their numbers.
const REFUSALS: [Refusal; 13] = [
    Refusal::Version,
    Refusal::NotAllowed,
    Refusal::Full,
    Refusal::Protocol,
    Refusal::Region,
    Refusal::RegionLimit,
    Refusal::Queue,
    Refusal::Doorbell,
    Refusal::Exhausted,
    Refusal::Stopping,
    Refusal::Socket,
    Refusal::SocketLimit,
    Refusal::Unconnected,
];

/// Error in a message, caused by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message is empty, or its kind is not valid from this peer.
    #[error("a message of kind {0:?} does not exist in this direction")]
    Kind(Option<u8>),
    /// The length does not match the kind.
    #[error("a message of kind {kind} has {bytes} bytes; it must have {expected}")]
    Length {
        /// Kind of the message.
        kind: u8,
        /// Length of the message.
        bytes: usize,
        /// Expected length.
        expected: usize,
    },
    /// A field has an invalid value.
    #[error("a message of kind {kind} has a field with an invalid value")]
    Field {
        /// Kind of the message.
        kind: u8,
    },
}

/// An encoded message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    bytes: [u8; MESSAGE_BYTES_MAX],
    len: usize,
}

impl Encoded {
    fn new(kind: u8) -> Encoded {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        bytes[0] = kind;
        Encoded { bytes, len: 1 }
    }

    fn with(mut self, field: &[u8]) -> Encoded {
        self.bytes[self.len..self.len + field.len()].copy_from_slice(field);
        self.len += field.len();
        self
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Reader for the fields of a message, in order.
struct Fields<'b> {
    kind: u8,
    rest: &'b [u8],
}

impl<'b> Fields<'b> {
    /// Checks that the length matches the kind; `expected(kind)` is the number of bytes in the
    /// fields.
    fn of(
        message: &'b [u8],
        expected: impl Fn(u8) -> Option<usize>,
    ) -> Result<Fields<'b>, MessageError> {
        let (&kind, rest) = message.split_first().ok_or(MessageError::Kind(None))?;
        let expected = 1 + expected(kind).ok_or(MessageError::Kind(Some(kind)))?;
        match message.len() == expected {
            true => Ok(Fields { kind, rest }),
            false => Err(MessageError::Length { kind, bytes: message.len(), expected }),
        }
    }

    fn wrong(&self) -> MessageError {
        MessageError::Field { kind: self.kind }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (field, rest) = self.rest.split_first_chunk::<N>().ok_or(self.wrong())?;
        self.rest = rest;
        Ok(*field)
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, MessageError> {
        self.take().map(u64::from_le_bytes)
    }
}

const HELLO: u8 = 1;
const SEGMENT: u8 = 2;
const QUEUE: u8 = 3;
const SOCKET: u8 = 4;
const FORGET: u8 = 5;
const WELCOME: u8 = 129;
const ADDED: u8 = 130;
const SERVED: u8 = 131;
const REFUSED: u8 = 132;
const PASSED: u8 = 133;
const FORGOTTEN: u8 = 134;

impl Request {
    /// Returns a HELLO of this version.
    pub fn hello(class: Class) -> Request {
        Request::Hello { version: VERSION, class }
    }

    /// Returns the number of descriptors that the message carries.
    pub fn descriptors(&self) -> usize {
        match self {
            Request::Hello { .. } | Request::Forget { .. } => 0,
            Request::Segment { .. } | Request::Socket { .. } => 1,
            Request::Queue => 2,
        }
    }

    /// Encodes the message.
    pub fn encode(&self) -> Encoded {
        match *self {
            Request::Hello { version, class } => {
                Encoded::new(HELLO).with(&MAGIC).with(&version.to_le_bytes()).with(&[class as u8])
            }
            Request::Segment { region, bytes } => {
                Encoded::new(SEGMENT).with(&region.to_le_bytes()).with(&bytes.to_le_bytes())
            }
            Request::Queue => Encoded::new(QUEUE),
            Request::Socket { socket } => Encoded::new(SOCKET).with(&socket.to_le_bytes()),
            Request::Forget { socket } => Encoded::new(FORGET).with(&socket.to_le_bytes()),
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`MessageError`] if the bytes are not a valid message.
    pub fn decode(message: &[u8]) -> Result<Request, MessageError> {
        let mut fields = Fields::of(message, |kind| match kind {
            HELLO => Some(7),
            SEGMENT => Some(10),
            QUEUE => Some(0),
            SOCKET | FORGET => Some(2),
            _ => None,
        })?;
        match fields.kind {
            HELLO => {
                if fields.take::<4>()? != MAGIC {
                    return Err(fields.wrong());
                }
                let version = fields.u16()?;
                let class = match fields.take()? {
                    [0] => Class::Normal,
                    [1] => Class::Background,
                    _ => return Err(fields.wrong()),
                };
                Ok(Request::Hello { version, class })
            }
            SEGMENT => Ok(Request::Segment { region: fields.u16()?, bytes: fields.u64()? }),
            SOCKET => Ok(Request::Socket { socket: fields.u16()? }),
            FORGET => Ok(Request::Forget { socket: fields.u16()? }),
            _ => Ok(Request::Queue),
        }
    }
}

impl Reply {
    /// Encodes the message.
    pub fn encode(&self) -> Encoded {
        match *self {
            Reply::Welcome(limits) => Encoded::new(WELCOME)
                .with(&limits.version.to_le_bytes())
                .with(&limits.regions_max.to_le_bytes())
                .with(&limits.sockets_max.to_le_bytes())
                .with(&limits.pid.to_le_bytes())
                .with(&limits.region_bytes_max.to_le_bytes())
                .with(&limits.epoch.to_le_bytes()),
            Reply::Added { region } => Encoded::new(ADDED).with(&region.to_le_bytes()),
            Reply::Served => Encoded::new(SERVED),
            Reply::Refused(why) => Encoded::new(REFUSED).with(&(why as u16).to_le_bytes()),
            Reply::Passed { socket } => Encoded::new(PASSED).with(&socket.to_le_bytes()),
            Reply::Forgotten { socket } => Encoded::new(FORGOTTEN).with(&socket.to_le_bytes()),
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`MessageError`] if the bytes are not a valid message.
    pub fn decode(message: &[u8]) -> Result<Reply, MessageError> {
        let mut fields = Fields::of(message, |kind| match kind {
            WELCOME => Some(26),
            ADDED | REFUSED | PASSED | FORGOTTEN => Some(2),
            SERVED => Some(0),
            _ => None,
        })?;
        match fields.kind {
            WELCOME => Ok(Reply::Welcome(Limits {
                version: fields.u16()?,
                regions_max: fields.u16()?,
                sockets_max: fields.u16()?,
                pid: fields.u32()?,
                region_bytes_max: fields.u64()?,
                epoch: fields.u64()?,
            })),
            ADDED => Ok(Reply::Added { region: fields.u16()? }),
            PASSED => Ok(Reply::Passed { socket: fields.u16()? }),
            FORGOTTEN => Ok(Reply::Forgotten { socket: fields.u16()? }),
            REFUSED => {
                let number = fields.u16()?;
                let known = REFUSALS.into_iter().find(|refusal| *refusal as u16 == number);
                known.map(Reply::Refused).ok_or(fields.wrong())
            }
            _ => Ok(Reply::Served),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn class() -> impl Strategy<Value = Class> {
        prop_oneof![Just(Class::Normal), Just(Class::Background)]
    }

    fn request() -> impl Strategy<Value = Request> {
        prop_oneof![
            (any::<u16>(), class()).prop_map(|(version, class)| Request::Hello { version, class }),
            (any::<u16>(), any::<u64>())
                .prop_map(|(region, bytes)| Request::Segment { region, bytes }),
            Just(Request::Queue),
            any::<u16>().prop_map(|socket| Request::Socket { socket }),
            any::<u16>().prop_map(|socket| Request::Forget { socket }),
        ]
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let limits = (any::<(u16, u16, u16, u32)>(), any::<(u64, u64)>());
        prop_oneof![
            limits.prop_map(|((version, regions_max, sockets_max, pid), (bytes, epoch))| {
                let region_bytes_max = bytes;
                let limits =
                    Limits { version, regions_max, sockets_max, pid, region_bytes_max, epoch };
                Reply::Welcome(limits)
            }),
            any::<u16>().prop_map(|region| Reply::Added { region }),
            any::<u16>().prop_map(|socket| Reply::Passed { socket }),
            any::<u16>().prop_map(|socket| Reply::Forgotten { socket }),
            Just(Reply::Served),
            (0..REFUSALS.len()).prop_map(|at| Reply::Refused(REFUSALS[at])),
        ]
    }

    proptest! {
        #[test]
        fn messages_are_decoded_as_encoded(request in request(), reply in reply()) {
            prop_assert_eq!(Request::decode(request.encode().as_slice()), Ok(request));
            prop_assert_eq!(Reply::decode(reply.encode().as_slice()), Ok(reply));
            // A request is never a valid reply.
            prop_assert!(Reply::decode(request.encode().as_slice()).is_err());
            prop_assert!(Request::decode(reply.encode().as_slice()).is_err());
        }

        #[test]
        fn any_bytes_are_understood_in_one_way_or_not_at_all(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            kind in prop_oneof![0u8..8, 126u8..136],
        ) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            if let Ok(request) = Request::decode(&bytes) {
                let encoded = request.encode();
                prop_assert_eq!(encoded.as_slice(), &bytes);
            }
            if let Ok(reply) = Reply::decode(&bytes) {
                let encoded = reply.encode();
                prop_assert_eq!(encoded.as_slice(), &bytes);
            }
        }
    }

    #[test]
    fn a_byte_more_or_less_is_refused() {
        let hello = Request::hello(Class::Normal).encode();
        let bytes = hello.as_slice();
        assert_eq!(Request::decode(&[]), Err(MessageError::Kind(None)));
        assert_eq!(Request::decode(&[9]), Err(MessageError::Kind(Some(9))));
        let length = |bytes| Err(MessageError::Length { kind: HELLO, bytes, expected: 8 });
        assert_eq!(Request::decode(&bytes[..7]), length(7));
        assert_eq!(Request::decode(&[bytes, &[0]].concat()), length(9));
        let magic = [&[HELLO][..], b"UlCe", &bytes[5..]].concat();
        assert_eq!(Request::decode(&magic), Err(MessageError::Field { kind: HELLO }));
        let reason = [REFUSED, 14, 0];
        assert_eq!(Reply::decode(&reason), Err(MessageError::Field { kind: REFUSED }));
    }
}
