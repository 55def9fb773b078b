//! From a connection to the agent's address to a balancer that is known.
//!
//! Anyone can connect. Until a connection has shown a balancer's certificate and said HELLO it is
//! one of a limited number; a new one takes the place of an older one of the same address, or of
//! one whose address no balancer has had. So connections that say nothing keep no balancer out.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use meter::{Event, Meter};
use service::channel::{Channel, ChannelError};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use wire::frame::Frame;

use crate::agent::{Greeted, Inboxes};

/// Connections that have not authenticated.
const GREETINGS_MAX: usize = 256;
/// Of one address: enough for a balancer with many workers.
const GREETINGS_PER_ADDRESS_MAX: usize = 64;
/// Addresses of balancers that are remembered.
const KNOWN_MAX: usize = 256;
/// Before descriptors are asked for again.
const PAUSE: Duration = Duration::from_millis(10);

/// Which connections are being greeted.
#[derive(Debug, Default)]
struct Greetings {
    /// Oldest first.
    places: VecDeque<(u64, IpAddr)>,
    /// Addresses from which balancers came, the latest last.
    known: VecDeque<IpAddr>,
    last: u64,
}

impl Greetings {
    /// Gives a connection a place: its number, and that of the connection that has to go for it.
    fn begin(&mut self, address: IpAddr) -> (u64, Option<u64>) {
        let victim = self.victim(address);
        if let Some(victim) = victim {
            self.end(victim);
        }
        self.last += 1;
        self.places.push_back((self.last, address));
        (self.last, victim)
    }

    fn victim(&self, address: IpAddr) -> Option<u64> {
        let mut same = self.places.iter().filter(|(_, other)| *other == address);
        if same.clone().count() >= GREETINGS_PER_ADDRESS_MAX {
            return same.next().map(|(number, _)| *number);
        }
        if self.places.len() < GREETINGS_MAX {
            return None;
        }
        let stranger = self.places.iter().find(|(_, other)| !self.known.contains(other));
        stranger.or(self.places.front()).map(|(number, _)| *number)
    }

    fn end(&mut self, number: u64) {
        self.places.retain(|(known, _)| *known != number);
    }

    /// A balancer came from this address.
    fn note_balancer(&mut self, address: IpAddr) {
        self.known.retain(|known| *known != address);
        self.known.push_back(address);
        if self.known.len() > KNOWN_MAX {
            self.known.pop_front();
        }
    }
}

/// The greetings and the tasks that perform them.
#[derive(Debug, Default)]
struct Greeter {
    greetings: RefCell<Greetings>,
    tasks: RefCell<HashMap<u64, AbortHandle>>,
}

/// One connection's place; it is free when this is dropped.
struct Place {
    greeter: Rc<Greeter>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.greeter.greetings.borrow_mut().end(self.number);
        self.greeter.tasks.borrow_mut().remove(&self.number);
    }
}

impl Greeter {
    fn begin(self: &Rc<Greeter>, address: IpAddr, meter: &Meter) -> Place {
        let (number, victim) = self.greetings.borrow_mut().begin(address);
        if let Some(victim) = victim {
            meter.add(Event::GreetingEvicted);
            let task = self.tasks.borrow_mut().remove(&victim);
            // Its socket closes as the task is dropped.
            task.inspect(AbortHandle::abort);
        }
        Place { greeter: Rc::clone(self), number }
    }
}

/// Greets balancers until the task is dropped. `tls` demands a balancer's certificate.
pub(crate) async fn greet(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    inboxes: Inboxes,
    meter: Arc<Meter>,
) {
    let (inboxes, greeter) = (Rc::new(inboxes), Rc::new(Greeter::default()));
    loop {
        let Ok((tcp, peer)) = listener.accept().await else {
            // Out of descriptors, most likely: wait for some to be freed.
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let place = greeter.begin(peer.ip(), &meter);
        let number = place.number;
        let (tls, inboxes, meter) = (Arc::clone(&tls), Rc::clone(&inboxes), Arc::clone(&meter));
        let task = tokio::task::spawn_local(async move {
            match greet_one(tcp, tls).await {
                Ok(greeted) => {
                    place.greeter.greetings.borrow_mut().note_balancer(peer.ip());
                    drop(place);
                    let worker = (greeted.instance % inboxes.len() as u64) as usize;
                    let _ = inboxes[worker].send(greeted).await;
                }
                Err(error) => {
                    let untrusted = error.is_untrusted();
                    meter.add(if untrusted { Event::PeerUntrusted } else { Event::FrameRefused });
                    tracing::warn!(%peer, %error, "balancer refused");
                }
            }
        });
        greeter.tasks.borrow_mut().insert(number, task.abort_handle());
    }
}

async fn greet_one(
    tcp: TcpStream,
    tls: Arc<rustls::ServerConfig>,
) -> Result<Greeted, ChannelError> {
    let mut channel = Channel::accept(tcp, tls).await?;
    let identity = channel.peer_identity();
    let identity = identity.ok_or(ChannelError::Protocol("a peer without a certificate"))?;
    match channel.receive().await? {
        Frame::Hello { instance, name, mac, lease_ms, .. } => {
            Ok(Greeted { channel: channel.detach()?, identity, instance, name, mac, lease_ms })
        }
        _ => Err(ChannelError::Protocol("the first frame is not HELLO")),
    }
}
