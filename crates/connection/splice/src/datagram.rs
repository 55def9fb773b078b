//! A rule as a datagram to the server's host.
//!
//! A program in the kernel reads it, so all fields have fixed places, and the authentication is
//! SipHash-2-4 with a key of 128 bits, which balancers and agents have in a file. A datagram can be
//! lost, late or doubled: see [`Rule`]. A replayed one is not newer than the rule that the host has,
//! or than the last one of an entry that the host removed.

use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use siphasher::sip::SipHasher24;
use thiserror::Error;
use unlade_net::{FlowKey, SeqNumber};

use crate::rule::Rule;
use crate::segment::Timestamps;

/// Bytes of a datagram: [`TAG_AT`] of content, and the tag.
pub const DATAGRAM_BYTES: usize = 152;
/// Place of the tag.
pub const TAG_AT: usize = 144;
/// First word of a datagram: `UNSP`, and the version of this format.
const MAGIC: u64 = 0x554e_5350_0000_0003;
const HAS_END: u16 = 1;
const HAS_CLOCK: u16 = 2;
const IS_IPV6: u16 = 4;
const HAS_GRANT: u16 = 8;
const GRANT_HAS_CLOCK: u16 = 16;
const AWAITS_HEAD: u16 = 32;
const FLAGS: u16 = HAS_END | HAS_CLOCK | IS_IPV6 | HAS_GRANT | GRANT_HAS_CLOCK | AWAITS_HEAD;

/// The key of one balancer at one agent.
#[derive(Clone)]
pub struct Key {
    /// Number by which the agent finds it.
    pub number: u32,
    /// The secret.
    pub secret: [u8; 16],
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A rule and its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Number of the datagram, larger than those of all earlier ones with the same key, and above 0:
    /// the sender's clock, in nanoseconds.
    pub counter: u64,
    /// The connection of the balancer (its client) to the server (its service).
    pub server: FlowKey,
    /// The connection of the client to the balancer.
    pub client: FlowKey,
    /// The rule.
    pub rule: Rule,
    /// The window that the server's socket gets with the rule.
    pub grant: Option<Grant>,
}

/// An acknowledgement of the balancer, which the server's host makes of the datagram when it has the
/// rule. Its number is [`Rule::request_end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Next byte that is expected of the server.
    pub ack: SeqNumber,
    /// Window field.
    pub window: u16,
    /// Timestamps, if the server's connection uses them.
    pub timestamps: Option<Timestamps>,
}

/// The reason why a datagram is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DatagramError {
    /// It has another length.
    #[error("{0} bytes instead of {DATAGRAM_BYTES}")]
    Length(usize),
    /// It is of another kind or version.
    #[error("another kind or version")]
    Magic,
    /// It is of another key, forged or damaged.
    #[error("the tag is wrong")]
    Tag,
    /// A flag has no meaning, or the unused part of an address is not zero.
    #[error("a field has an invalid value")]
    Field,
}

fn tag(secret: &[u8; 16], content: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(content);
    hasher.finish()
}

fn octets(address: SocketAddr) -> [u8; 16] {
    match address.ip() {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
    }
}

/// Encodes a datagram. Both connections have addresses of one family.
pub fn encode(datagram: &Datagram, key: &Key) -> [u8; DATAGRAM_BYTES] {
    let Datagram { counter, server, client, rule, grant } = datagram;
    let mut flags = if server.is_ipv6() { IS_IPV6 } else { 0 };
    flags |= if rule.end.is_some() { HAS_END } else { 0 };
    flags |= if rule.clock.is_some() { HAS_CLOCK } else { 0 };
    flags |= if rule.awaits_head { AWAITS_HEAD } else { 0 };
    let timestamps = grant.and_then(|grant| grant.timestamps);
    flags |= if grant.is_some() { HAS_GRANT } else { 0 };
    flags |= if timestamps.is_some() { GRANT_HAS_CLOCK } else { 0 };
    let (grant_ack, grant_window) = grant.map_or((0, 0), |grant| (grant.ack.0, grant.window));
    let times = timestamps.map_or((0, 0), |times| (times.value, times.echo));
    let (offset, echo) = rule.clock.unwrap_or_default();
    let end = rule.end.unwrap_or_default();
    let words = [rule.first.0, end.0, rule.request_end.0, rule.delta, rule.ack.0, offset, echo];
    // The order of outgoing segments of the server: its own address first.
    let ends = [server.service, server.client, client.service, client.client];
    let mut out = [0; TAG_AT];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        out[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&MAGIC.to_be_bytes());
    put(&counter.to_be_bytes());
    put(&key.number.to_be_bytes());
    put(&flags.to_be_bytes());
    put(&rule.window.to_be_bytes());
    words.iter().for_each(|word| put(&word.to_be_bytes()));
    ends.iter().for_each(|end| put(&end.port().to_be_bytes()));
    put(&grant_ack.to_be_bytes());
    ends.iter().for_each(|end| put(&octets(*end)));
    put(&times.0.to_be_bytes());
    put(&times.1.to_be_bytes());
    put(&grant_window.to_be_bytes());
    sealed(&out, key)
}

/// Returns a datagram with the tag of its content.
pub fn sealed(content: &[u8; TAG_AT], key: &Key) -> [u8; DATAGRAM_BYTES] {
    let mut out = [0; DATAGRAM_BYTES];
    out[..TAG_AT].copy_from_slice(content);
    out[TAG_AT..].copy_from_slice(&tag(&key.secret, content).to_be_bytes());
    out
}

/// Decodes a datagram of this key.
///
/// # Errors
/// [`DatagramError`]
pub fn decode(bytes: &[u8], key: &Key) -> Result<Datagram, DatagramError> {
    let content: &[u8; DATAGRAM_BYTES] =
        bytes.try_into().map_err(|_| DatagramError::Length(bytes.len()))?;
    let mut reader = Reader(content);
    if reader.number(8) != MAGIC {
        return Err(DatagramError::Magic);
    }
    let found = u64::from_be_bytes(*content[TAG_AT..].first_chunk().unwrap_or(&[0; 8]));
    let counter = reader.number(8);
    if reader.number(4) != u64::from(key.number) || found != tag(&key.secret, &content[..TAG_AT]) {
        return Err(DatagramError::Tag);
    }
    let (flags, window) = (reader.number(2) as u16, reader.number(2) as u16);
    if flags & !FLAGS != 0 {
        return Err(DatagramError::Field);
    }
    let [first, end, request_end, delta, ack, offset, echo] =
        std::array::from_fn(|_| reader.number(4) as u32);
    let ports: [u16; 4] = std::array::from_fn(|_| reader.number(2) as u16);
    let grant_ack = reader.number(4) as u32;
    let mut ends = [None; 4];
    for (end, port) in ends.iter_mut().zip(ports) {
        *end = reader.address(flags & IS_IPV6 != 0).map(|ip| SocketAddr::new(ip, port));
    }
    let [Some(server), Some(balancer), Some(service), Some(client)] = ends else {
        return Err(DatagramError::Field);
    };
    let [value, grant_echo] = std::array::from_fn(|_| reader.number(4) as u32);
    let grant_window = reader.number(2) as u16;
    if reader.number(6) != 0 {
        return Err(DatagramError::Field);
    }
    let grant = (flags & HAS_GRANT != 0).then_some(Grant {
        ack: SeqNumber(grant_ack),
        window: grant_window,
        timestamps: (flags & GRANT_HAS_CLOCK != 0)
            .then_some(Timestamps { value, echo: grant_echo }),
    });
    let rule = Rule {
        first: SeqNumber(first),
        end: (flags & HAS_END != 0).then_some(SeqNumber(end)),
        request_end: SeqNumber(request_end),
        delta,
        ack: SeqNumber(ack),
        window,
        clock: (flags & HAS_CLOCK != 0).then_some((offset, echo)),
        awaits_head: flags & AWAITS_HEAD != 0,
    };
    let (server, client) = (FlowKey::new(balancer, server), FlowKey::new(client, service));
    Ok(Datagram { counter, server, client, rule, grant })
}

/// The bytes that are not read yet.
struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn take(&mut self, count: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number(&mut self, bytes: usize) -> u64 {
        self.take(bytes).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Returns an address; `None` if the rest behind an IPv4 address is not zero.
    fn address(&mut self, is_ipv6: bool) -> Option<IpAddr> {
        let bytes: [u8; 16] = *self.take(16).first_chunk()?;
        if is_ipv6 {
            return Some(Ipv6Addr::from(bytes).into());
        }
        let (v4, rest) = bytes.split_first_chunk::<4>()?;
        rest.iter().all(|byte| *byte == 0).then(|| Ipv4Addr::from(*v4).into())
    }
}

#[cfg(test)]
mod tests {
    use unlade_testkit::{Random, cases};

    use super::*;

    fn end(random: &mut Random, is_ipv6: bool) -> SocketAddr {
        let port = random.next() as u16;
        let ip = match is_ipv6 {
            true => {
                IpAddr::V6((u128::from(random.next()) << 64 | u128::from(random.next())).into())
            }
            false => IpAddr::V4((random.next() as u32).into()),
        };
        SocketAddr::new(ip, port)
    }

    fn datagram(random: &mut Random) -> Datagram {
        let is_ipv6 = random.below(2u32) == 0;
        let flow = |random: &mut Random| FlowKey::new(end(random, is_ipv6), end(random, is_ipv6));
        let word = |random: &mut Random| random.next() as u32;
        Datagram {
            counter: random.next(),
            server: flow(random),
            client: flow(random),
            rule: Rule {
                first: SeqNumber(word(random)),
                end: (random.below(2u32) == 0).then(|| SeqNumber(word(random))),
                request_end: SeqNumber(word(random)),
                delta: word(random),
                ack: SeqNumber(word(random)),
                window: random.next() as u16,
                clock: (random.below(2u32) == 0).then(|| (word(random), word(random))),
                awaits_head: random.below(2u32) == 0,
            },
            grant: (random.below(2u32) == 0).then(|| Grant {
                ack: SeqNumber(word(random)),
                window: random.next() as u16,
                timestamps: (random.below(2u32) == 0)
                    .then(|| Timestamps { value: word(random), echo: word(random) }),
            }),
        }
    }

    #[test]
    fn a_datagram_comes_back_and_a_changed_bit_is_noticed() {
        cases(500, |random| {
            let key = Key { number: random.next() as u32, secret: [random.next() as u8; 16] };
            let sent = datagram(random);
            let mut bytes = encode(&sent, &key);
            assert_eq!(decode(&bytes, &key), Ok(sent));
            let other = Key { secret: [!key.secret[0]; 16], ..key };
            assert_eq!(decode(&bytes, &other), Err(DatagramError::Tag));
            bytes[random.below(DATAGRAM_BYTES as u64) as usize] ^= 1 << random.below(8u32);
            let changed = decode(&bytes, &key);
            assert!(
                matches!(changed, Err(DatagramError::Tag | DatagramError::Magic)),
                "{changed:?}"
            );
            let count = random.below(DATAGRAM_BYTES as u64) as usize;
            assert_eq!(decode(&bytes[..count], &key), Err(DatagramError::Length(count)));
        });
    }

    /// The test vector of the reference implementation (Aumasson and Bernstein, 2012, appendix A).
    #[test]
    fn the_tag_is_siphash_2_4() {
        let secret: [u8; 16] = std::array::from_fn(|at| at as u8);
        let message: [u8; 15] = std::array::from_fn(|at| at as u8);
        assert_eq!(tag(&secret, &message), 0xa129_ca61_49be_45e5);
    }
}
