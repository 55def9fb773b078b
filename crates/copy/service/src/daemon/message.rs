//! What clients and daemon say to each other: one message a packet of a SOCK_SEQPACKET socket,
//! its numbers little-endian, its length fixed by its kind.
//!
//! | kind | from | holds | descriptors |
//! |---|---|---|---|
//! | 1 HELLO | client | magic, version, class | |
//! | 2 SEGMENT | client | region, its bytes | the memfd |
//! | 3 QUEUE | client | | the memfd, an eventfd |
//! | 129 WELCOME | daemon | limits, pid, epoch | |
//! | 130 ADDED | daemon | region | |
//! | 131 SERVED | daemon | | |
//! | 132 REFUSED | daemon | reason | |
//!
//! A client says HELLO, then SEGMENT as often as it likes, QUEUE once, and SEGMENT again. The
//! daemon answers each, in order; after REFUSED it closes, unless it was a SEGMENT whose region it
//! does not take.

/// Version of the messages. A daemon serves clients of its own version only.
pub const VERSION: u16 = 1;
/// "UlCd": what a HELLO starts with.
const MAGIC: [u8; 4] = *b"UlCd";
/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = 40;
/// Most descriptors that come with a message.
pub const DESCRIPTORS_MAX: usize = 2;

/// How a client wants to be served beside others of the same weight. It can only be modest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// With its whole weight.
    #[default]
    Normal = 0,
    /// With a quarter of it.
    Background = 1,
}

/// What a client says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Who is there.
    Hello {
        /// See [`VERSION`].
        version: u16,
        /// How to be served.
        class: Class,
    },
    /// Shares memory.
    Segment {
        /// Its number, from 1.
        region: u16,
        /// Its length.
        bytes: u64,
    },
    /// Has its queue served.
    Queue,
}

/// What the daemon says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To HELLO.
    Welcome(Limits),
    /// The region is mapped.
    Added {
        /// Its number.
        region: u16,
    },
    /// The queue is served.
    Served,
    /// No.
    Refused(Refusal),
}

/// What a client may ask for, and whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The daemon's version.
    pub version: u16,
    /// Regions of a client.
    pub regions_max: u16,
    /// The daemon's process.
    pub pid: u32,
    /// Bytes of all regions of a client.
    pub region_bytes_max: u64,
    /// A number that this run of the daemon has to itself.
    pub epoch: u64,
}

/// Why the daemon refuses; the numbers are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u16)]
pub enum Refusal {
    /// Another version.
    #[error("the copy daemon speaks another version; use the same build")]
    Version = 1,
    /// The user is not among those allowed.
    #[error("this user may not use the copy daemon; see [allow] in its configuration")]
    NotAllowed = 2,
    /// As many clients as there may be.
    #[error("the copy daemon has as many clients as it may; copy without it")]
    Full = 3,
    /// A message that makes no sense, or not now.
    #[error("the copy daemon did not understand; this is a mistake of the client library")]
    Protocol = 4,
    /// A region's file cannot be relied on.
    #[error("the region's file is no sealed memfd of that length")]
    Region = 5,
    /// Too many regions, or too large.
    #[error("the region is beyond what a client may share; see the daemon's limits")]
    RegionLimit = 6,
    /// The queue's memory is none.
    #[error("the queue's memory is not what the daemon understands; use the same build")]
    Queue = 7,
    /// The doorbell is no eventfd.
    #[error("the doorbell is no eventfd")]
    Doorbell = 8,
    /// The machine has no more.
    #[error("the copy daemon lacks memory or descriptors")]
    Exhausted = 9,
    /// The daemon ends.
    #[error("the copy daemon is about to end")]
    Stopping = 10,
}

/// All refusals, in the order of their numbers.
const REFUSALS: [Refusal; 10] = [
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
];

/// What is wrong with a message: the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// No bytes, or a kind that the peer may not send.
    #[error("a message of kind {0:?} does not exist in this direction")]
    Kind(Option<u8>),
    /// Too short or too long for its kind.
    #[error("a message of kind {kind} has {bytes} bytes; it must have {expected}")]
    Length {
        /// Its kind.
        kind: u8,
        /// How long it is.
        bytes: usize,
        /// How long it must be.
        expected: usize,
    },
    /// A value that a field cannot have.
    #[error("a message of kind {kind} has a field that makes no sense")]
    Field {
        /// Its kind.
        kind: u8,
    },
}

/// A message as bytes.
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

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The fields of a message, one after the other.
struct Fields<'b> {
    kind: u8,
    rest: &'b [u8],
}

impl<'b> Fields<'b> {
    /// Of a message whose kind has fields of `expected(kind)` bytes.
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
const WELCOME: u8 = 129;
const ADDED: u8 = 130;
const SERVED: u8 = 131;
const REFUSED: u8 = 132;

impl Request {
    /// A HELLO of this version.
    pub fn hello(class: Class) -> Request {
        Request::Hello { version: VERSION, class }
    }

    /// How many descriptors come with it.
    pub fn descriptors(&self) -> usize {
        match self {
            Request::Hello { .. } => 0,
            Request::Segment { .. } => 1,
            Request::Queue => 2,
        }
    }

    /// As bytes.
    pub fn encode(&self) -> Encoded {
        match *self {
            Request::Hello { version, class } => {
                Encoded::new(HELLO).with(&MAGIC).with(&version.to_le_bytes()).with(&[class as u8])
            }
            Request::Segment { region, bytes } => {
                Encoded::new(SEGMENT).with(&region.to_le_bytes()).with(&bytes.to_le_bytes())
            }
            Request::Queue => Encoded::new(QUEUE),
        }
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`MessageError`], whatever the bytes.
    pub fn decode(message: &[u8]) -> Result<Request, MessageError> {
        let mut fields = Fields::of(message, |kind| match kind {
            HELLO => Some(7),
            SEGMENT => Some(10),
            QUEUE => Some(0),
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
            _ => Ok(Request::Queue),
        }
    }
}

impl Reply {
    /// As bytes.
    pub fn encode(&self) -> Encoded {
        match *self {
            Reply::Welcome(limits) => Encoded::new(WELCOME)
                .with(&limits.version.to_le_bytes())
                .with(&limits.regions_max.to_le_bytes())
                .with(&limits.pid.to_le_bytes())
                .with(&limits.region_bytes_max.to_le_bytes())
                .with(&limits.epoch.to_le_bytes()),
            Reply::Added { region } => Encoded::new(ADDED).with(&region.to_le_bytes()),
            Reply::Served => Encoded::new(SERVED),
            Reply::Refused(why) => Encoded::new(REFUSED).with(&(why as u16).to_le_bytes()),
        }
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`MessageError`], whatever the bytes.
    pub fn decode(message: &[u8]) -> Result<Reply, MessageError> {
        let mut fields = Fields::of(message, |kind| match kind {
            WELCOME => Some(24),
            ADDED | REFUSED => Some(2),
            SERVED => Some(0),
            _ => None,
        })?;
        match fields.kind {
            WELCOME => Ok(Reply::Welcome(Limits {
                version: fields.u16()?,
                regions_max: fields.u16()?,
                pid: fields.u32()?,
                region_bytes_max: fields.u64()?,
                epoch: fields.u64()?,
            })),
            ADDED => Ok(Reply::Added { region: fields.u16()? }),
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
        ]
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let limits = (any::<(u16, u16, u32)>(), any::<(u64, u64)>());
        prop_oneof![
            limits.prop_map(|((version, regions_max, pid), (region_bytes_max, epoch))| {
                Reply::Welcome(Limits { version, regions_max, pid, region_bytes_max, epoch })
            }),
            any::<u16>().prop_map(|region| Reply::Added { region }),
            Just(Reply::Served),
            (0..REFUSALS.len()).prop_map(|at| Reply::Refused(REFUSALS[at])),
        ]
    }

    proptest! {
        #[test]
        fn what_is_said_is_understood(request in request(), reply in reply()) {
            prop_assert_eq!(Request::decode(request.encode().as_slice()), Ok(request));
            prop_assert_eq!(Reply::decode(reply.encode().as_slice()), Ok(reply));
            // Nobody takes the one for the other.
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
        let reason = [REFUSED, 11, 0];
        assert_eq!(Reply::decode(&reason), Err(MessageError::Field { kind: REFUSED }));
    }
}
