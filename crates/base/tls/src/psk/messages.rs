//! The five messages, written and read (RFC 8446 §4.1, §4.2, §4.3.1, §4.4.4).

use super::error::PskError;
use super::exchange::{GROUPS, Group};

pub(super) const CLIENT_HELLO: u8 = 1;
pub(super) const SERVER_HELLO: u8 = 2;
pub(super) const ENCRYPTED_EXTENSIONS: u8 = 8;
pub(super) const FINISHED: u8 = 20;

const SUPPORTED_GROUPS: u16 = 10;
const PRE_SHARED_KEY: u16 = 41;
const EARLY_DATA: u16 = 42;
const SUPPORTED_VERSIONS: u16 = 43;
const COOKIE: u16 = 44;
const PSK_MODES: u16 = 45;
const KEY_SHARE: u16 = 51;
const TLS13: u16 = 0x0304;
const PSK_DHE_KE: u8 = 1;

/// Most identities of a ClientHello that are examined.
const IDENTITIES_MAX: usize = 8;
/// The random of a ServerHello that is a HelloRetryRequest: SHA-256 of that name (§4.1.3).
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Reads fields; a field that is too short is a decode error.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], PskError> {
        let (head, rest) =
            self.0.split_at_checked(bytes).ok_or(PskError::decode("a message cut short"))?;
        self.0 = rest;
        Ok(head)
    }

    fn u8(&mut self) -> Result<u8, PskError> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, PskError> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// A vector with a one-byte length.
    fn short(&mut self) -> Result<&'a [u8], PskError> {
        let bytes = self.u8()?.into();
        self.take(bytes)
    }

    /// A vector with a two-byte length.
    fn long(&mut self) -> Result<&'a [u8], PskError> {
        let bytes = self.u16()?.into();
        self.take(bytes)
    }

    fn end(&self) -> Result<(), PskError> {
        if self.0.is_empty() { Ok(()) } else { Err(PskError::decode("bytes behind a message")) }
    }
}

/// Appends the output of `fill` after its length in two bytes.
fn long(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0, 0]);
    fill(out);
    let bytes = (out.len() - start - 2) as u16;
    out[start..start + 2].copy_from_slice(&bytes.to_be_bytes());
}

fn put(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn extension(out: &mut Vec<u8>, number: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    put(out, number);
    long(out, fill);
}

/// A message of this type whose body is the output of `fill`.
pub(super) fn message(kind: u8, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![kind, 0, 0, 0];
    fill(&mut out);
    let bytes = ((out.len() - 4) as u32).to_be_bytes();
    out[1..4].copy_from_slice(&bytes[1..]);
    out
}

/// The fields of this end's ClientHello.
pub(super) struct ClientHelloParams<'a> {
    pub(super) random: &'a [u8; 32],
    pub(super) suite: u16,
    pub(super) group: Group,
    pub(super) public: &'a [u8],
    pub(super) cookie: &'a [u8],
    pub(super) identity: &'a [u8],
    pub(super) binder_bytes: usize,
}

impl ClientHelloParams<'_> {
    /// The message with zeros for a binder, and the offset of the binders: the transcript for them
    /// ends there (§4.2.11.2).
    pub(super) fn write(&self) -> (Vec<u8>, usize) {
        let out = message(CLIENT_HELLO, |out| {
            out.extend_from_slice(&[3, 3]);
            out.extend_from_slice(self.random);
            out.push(0); // no session: no compatibility mode
            long(out, |out| put(out, self.suite));
            out.extend_from_slice(&[1, 0]); // no compression
            long(out, |out| self.extensions(out));
        });
        let binders = out.len() - (2 + 1 + self.binder_bytes);
        (out, binders)
    }

    fn extensions(&self, out: &mut Vec<u8>) {
        extension(out, SUPPORTED_VERSIONS, |out| {
            out.push(2);
            put(out, TLS13);
        });
        extension(out, SUPPORTED_GROUPS, |out| {
            long(out, |out| GROUPS.iter().for_each(|group| put(out, group.number())));
        });
        extension(out, KEY_SHARE, |out| {
            long(out, |out| {
                put(out, self.group.number());
                long(out, |out| out.extend_from_slice(self.public));
            });
        });
        if !self.cookie.is_empty() {
            extension(out, COOKIE, |out| long(out, |out| out.extend_from_slice(self.cookie)));
        }
        extension(out, PSK_MODES, |out| out.extend_from_slice(&[1, PSK_DHE_KE]));
        // Always the last extension.
        extension(out, PRE_SHARED_KEY, |out| {
            long(out, |out| {
                long(out, |out| out.extend_from_slice(self.identity));
                out.extend_from_slice(&[0; 4]); // an external key has no age
            });
            long(out, |out| {
                out.push(self.binder_bytes as u8);
                out.resize(out.len() + self.binder_bytes, 0);
            });
        });
    }
}

/// The fields of a client's ClientHello.
pub(super) struct ClientHello<'a> {
    pub(super) session: &'a [u8],
    pub(super) suites: Vec<u16>,
    pub(super) groups: Vec<u16>,
    pub(super) shares: Vec<(u16, &'a [u8])>,
    pub(super) identities: Vec<&'a [u8]>,
    pub(super) binders: Vec<&'a [u8]>,
    /// Number of bytes before the binders.
    pub(super) binders_at: usize,
    versions: &'a [u8],
    modes: &'a [u8],
    early_data: bool,
}

impl<'a> ClientHello<'a> {
    /// Reads the whole message, header included.
    pub(super) fn read(whole: &'a [u8]) -> Result<ClientHello<'a>, PskError> {
        let mut fields = Fields(whole);
        fields.take(4 + 2 + 32)?;
        let session = fields.short()?;
        if session.len() > 32 {
            return Err(PskError::decode("a session identifier above 32 bytes"));
        }
        let suites = numbers(fields.long()?)?;
        let compression = fields.short()?;
        if compression != [0] {
            return Err(PskError::illegal("compression"));
        }
        let mut hello = ClientHello {
            session,
            suites,
            groups: Vec::new(),
            shares: Vec::new(),
            identities: Vec::new(),
            binders: Vec::new(),
            binders_at: 0,
            versions: &[],
            modes: &[],
            early_data: false,
        };
        // A client of an older version may end the message here.
        if fields.0.is_empty() {
            return Err(PskError::Incompatible("the client does not speak TLS 1.3"));
        }
        let mut extensions = Fields(fields.long()?);
        fields.end()?;
        let mut seen = Vec::new();
        while !extensions.0.is_empty() {
            let number = extensions.u16()?;
            let content = extensions.long()?;
            if seen.contains(&number) {
                return Err(PskError::illegal("an extension twice"));
            }
            seen.push(number);
            if number == PRE_SHARED_KEY && !extensions.0.is_empty() {
                return Err(PskError::illegal("pre_shared_key is not the last extension"));
            }
            hello.extension(number, content, whole.len())?;
        }
        hello.judge()?;
        Ok(hello)
    }

    fn extension(
        &mut self,
        number: u16,
        content: &'a [u8],
        whole_bytes: usize,
    ) -> Result<(), PskError> {
        let mut fields = Fields(content);
        match number {
            SUPPORTED_VERSIONS => self.versions = fields.short()?,
            SUPPORTED_GROUPS => self.groups = numbers(fields.long()?)?,
            PSK_MODES => self.modes = fields.short()?,
            EARLY_DATA => self.early_data = true,
            KEY_SHARE => {
                let mut shares = Fields(fields.long()?);
                while !shares.0.is_empty() {
                    let group = shares.u16()?;
                    self.shares.push((group, shares.long()?));
                }
            }
            PRE_SHARED_KEY => {
                let mut identities = Fields(fields.long()?);
                while !identities.0.is_empty() {
                    self.identities.push(identities.long()?);
                    identities.take(4)?;
                }
                self.binders_at = whole_bytes - fields.0.len();
                let mut binders = Fields(fields.long()?);
                while !binders.0.is_empty() {
                    self.binders.push(binders.short()?);
                }
            }
            _ => return Ok(()),
        }
        fields.end()
    }

    fn judge(&self) -> Result<(), PskError> {
        if !self.versions.chunks(2).any(|version| version == TLS13.to_be_bytes()) {
            return Err(PskError::Incompatible("the client does not speak TLS 1.3"));
        }
        if self.identities.is_empty() {
            return Err(PskError::Incompatible("the client offers no pre-shared key"));
        }
        if self.identities.len() != self.binders.len() || self.identities.len() > IDENTITIES_MAX {
            return Err(PskError::illegal("keys and binders that do not match, or too many"));
        }
        if !self.modes.contains(&PSK_DHE_KE) {
            return Err(PskError::Incompatible("the client wants keys without an exchange"));
        }
        if self.early_data {
            return Err(PskError::Incompatible("the client sends data before the handshake"));
        }
        Ok(())
    }
}

fn numbers(list: &[u8]) -> Result<Vec<u16>, PskError> {
    if !list.len().is_multiple_of(2) {
        return Err(PskError::decode("a list of odd length"));
    }
    Ok(list.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect())
}

/// The content of a ServerHello.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServerHello<'a> {
    /// Accepted, with the server's key share.
    Agreed { group: u16, public: &'a [u8], selected: Option<u16> },
    /// Retry, with this group or this cookie.
    Retry { group: Option<u16>, cookie: &'a [u8] },
}

impl<'a> ServerHello<'a> {
    /// Parses the whole message, header included; `suite` is the only offered suite.
    pub(super) fn read(whole: &'a [u8], suite: u16) -> Result<ServerHello<'a>, PskError> {
        let mut fields = Fields(whole);
        fields.take(4 + 2)?;
        let retry = fields.take(32)? == RETRY_RANDOM;
        if !fields.short()?.is_empty() {
            return Err(PskError::illegal("a session that was not asked for"));
        }
        if fields.u16()? != suite {
            return Err(PskError::illegal("a cipher suite that was not offered"));
        }
        if fields.u8()? != 0 {
            return Err(PskError::illegal("compression"));
        }
        if fields.0.is_empty() {
            return Err(PskError::Peer { what: "a version before TLS 1.3", alert: 70 });
        }
        let mut extensions = Fields(fields.long()?);
        fields.end()?;
        let (mut version, mut share, mut selected) = (None, None, None);
        let mut cookie: &[u8] = &[];
        while !extensions.0.is_empty() {
            let number = extensions.u16()?;
            let mut content = Fields(extensions.long()?);
            match number {
                SUPPORTED_VERSIONS if version.is_none() => version = Some(content.u16()?),
                KEY_SHARE if share.is_none() => {
                    let group = content.u16()?;
                    share = Some((group, if retry { &[][..] } else { content.long()? }));
                }
                PRE_SHARED_KEY if !retry && selected.is_none() => selected = Some(content.u16()?),
                COOKIE if retry && cookie.is_empty() => cookie = content.long()?,
                _ => {
                    let what = "an extension twice, or that was not offered";
                    return Err(PskError::Peer { what, alert: 110 });
                }
            }
            content.end()?;
        }
        if version != Some(TLS13) {
            return Err(PskError::Peer { what: "a version before TLS 1.3", alert: 70 });
        }
        match (retry, share) {
            (true, share) => Ok(ServerHello::Retry { group: share.map(|share| share.0), cookie }),
            (false, Some((group, public))) => Ok(ServerHello::Agreed { group, public, selected }),
            (false, None) => Err(PskError::Peer { what: "no key share", alert: 109 }),
        }
    }

    /// Writes the message.
    pub(super) fn write(&self, random: &[u8; 32], session: &[u8], suite: u16) -> Vec<u8> {
        message(SERVER_HELLO, |out| {
            out.extend_from_slice(&[3, 3]);
            out.extend_from_slice(match self {
                ServerHello::Agreed { .. } => random,
                ServerHello::Retry { .. } => &RETRY_RANDOM,
            });
            out.push(session.len() as u8);
            out.extend_from_slice(session);
            put(out, suite);
            out.push(0);
            long(out, |out| {
                extension(out, SUPPORTED_VERSIONS, |out| put(out, TLS13));
                self.extensions(out);
            });
        })
    }

    fn extensions(&self, out: &mut Vec<u8>) {
        match self {
            ServerHello::Agreed { group, public, selected } => {
                extension(out, KEY_SHARE, |out| {
                    put(out, *group);
                    long(out, |out| out.extend_from_slice(public));
                });
                if let Some(selected) = selected {
                    extension(out, PRE_SHARED_KEY, |out| put(out, *selected));
                }
            }
            ServerHello::Retry { group, cookie } => {
                if let Some(group) = group {
                    extension(out, KEY_SHARE, |out| put(out, *group));
                }
                if !cookie.is_empty() {
                    extension(out, COOKIE, |out| long(out, |out| out.extend_from_slice(cookie)));
                }
            }
        }
    }
}

/// Checks EncryptedExtensions: a server may only answer requested extensions (§4.2), and here that
/// can only be its preferred groups.
pub(super) fn check_encrypted_extensions(whole: &[u8]) -> Result<(), PskError> {
    let mut fields = Fields(whole);
    fields.take(4)?;
    let mut extensions = Fields(fields.long()?);
    fields.end()?;
    while !extensions.0.is_empty() {
        let number = extensions.u16()?;
        extensions.long()?;
        if number != SUPPORTED_GROUPS {
            return Err(PskError::Peer { what: "an extension that was not offered", alert: 110 });
        }
    }
    Ok(())
}

/// Empty EncryptedExtensions.
pub(super) fn encrypted_extensions() -> Vec<u8> {
    message(ENCRYPTED_EXTENSIONS, |out| put(out, 0))
}
