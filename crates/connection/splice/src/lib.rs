//! Direct return for unmodified servers: a response bypasses the balancer's sockets, because
//! packets of two TCP connections are translated into each other.
//!
//! Use it where a proxy has a client's connection and a connection to a server, both ordinary
//! sockets, and the packets of both pass a program (eBPF, a simulation). The server's host sends
//! segments of a response to the client itself; the client's acknowledgements come to the balancer,
//! which translates them for the server. Neither socket moves, and the server is unmodified.
//!
//! ```text
//!  client ──all segments──► balancer: Splice::receive_from_client ─┬─► client's socket (ClientFlow)
//!    ▲                                                     └─► server (acknowledgements)
//!    └──────── server's host: Rule::translate ◄── segments of the response
//!                        │ all others
//!                        └────► balancer: Splice::receive_from_server ─┬─► server's socket (ServerFlow)
//!                                                                      └─► client (bytes of the splice)
//! ```
//!
//! A byte of the response has a place in the client's stream, whichever way it takes: the numbers
//! of the two connections differ by a constant. So a rule may come late, be forgotten, or not exist:
//! the balancer sends segments of the response that come to it on to the client, as packets.
//!
//! 1. [`ClientFlow`] and [`ServerFlow`] are the state of the two connections; it outlives a
//!    response;
//! 2. [`Splice::begin`] gives a [`Rule`] for the server's host, or the reason why it is [`Unfit`];
//!    [`datagram`] takes it there;
//! 3. segments pass [`Splice`] while it exists, and [`splice`]'s functions otherwise;
//! 4. [`Splice::end`] lets both sockets skip the bytes that bypassed them.
//!
//! ```
//! use unlade_net::SeqNumber;
//! use unlade_net::packet::TcpFlags;
//! use unlade_splice::{ClientFlow, Opened, Segment, ServerFlow, Splice, Start};
//!
//! let mut client = ClientFlow::new(Opened {
//!     sent_end: SeqNumber(1000),
//!     received: SeqNumber(5),
//!     window_bytes: 60_000,
//!     scale: 0,
//!     receive_bytes: 60_000,
//!     receive_scale: 0,
//! });
//! let mut server = ServerFlow::new(SeqNumber(70), SeqNumber(9), 0);
//! let ack = |ack: u32| Segment {
//!     seq: SeqNumber(5),
//!     ack: SeqNumber(ack),
//!     flags: TcpFlags::ACK,
//!     window: 60_000,
//!     ..Segment::default()
//! };
//! unlade_splice::splice::receive_from_client(&mut client, &ack(1000)); // its window is known now
//!
//! // A response of 500 bytes goes to the client directly, from its first byte on.
//! let start = Start {
//!     next: SeqNumber(70),
//!     socket_next: SeqNumber(70),
//!     written_end: SeqNumber(1000),
//!     received: SeqNumber(5),
//!     request_end: SeqNumber(109),
//!     segment_bytes: 0,
//!     length_bytes: Some(500),
//!     expected_bytes: None,
//!     is_judged_here: false,
//!     is_sealed: false,
//! };
//! let (mut splice, rule) = Splice::begin(&mut client, &mut server, start, 0)?;
//!
//! // At the server's host: a segment of the server becomes one of the balancer.
//! let segment = Segment { seq: SeqNumber(70), payload_bytes: 500, ..ack(109) };
//! let direct = rule.translate(&segment, SeqNumber(570)).ok_or("not of this response")?;
//! assert_eq!((direct.seq, direct.ack), (SeqNumber(1000), SeqNumber(5)));
//!
//! // At the balancer: the client's acknowledgement becomes one for the server.
//! let arrived = splice.receive_from_client(&mut client, &mut server, &ack(1500), 0);
//! assert_eq!(arrived.server.map(|ack| ack.ack), Some(SeqNumber(570)));
//! assert!(splice.is_complete());
//! splice.end(&mut client, &mut server, SeqNumber(70), SeqNumber(1000), 0).map_err(|_| "busy")?;
//! assert_eq!(client.sent_end(), SeqNumber(1500)); // the socket's next byte has this number
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! No packet is parsed or written here, and nothing is addressed: that is the caller's task, and so
//! is the authentication of rules. A response of unknown length cannot end; the caller learns the
//! length ([`Splice::set_length`]). No I/O, no clock, no `unsafe`.
#![forbid(unsafe_code)]

mod client;
mod clock;
pub mod datagram;
pub mod head;
mod pooled;
pub mod raw;
mod rule;
pub mod segment;
pub mod splice;

pub use client::{ClientFlow, Opened};
pub use pooled::ServerFlow;
pub use rule::{HostRule, Rule, Sent};
pub use segment::Segment;
pub use splice::{Ended, FromServer, Splice, Start, Unfit};
