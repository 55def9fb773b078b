//! Authentication of balancers that connect to the agent's address.
//!
//! Any host can connect. The number of connections that have not presented a balancer's certificate
//! and a HELLO is limited. At the limit, a new connection evicts an older one of the same address,
//! or one from an address that no balancer has used. Idle connections therefore cannot lock a
//! balancer out.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use unlade_channel::channel::{Channel, ChannelError};
use unlade_handoff_protocol::frame::Frame;
use unlade_metrics::{Event, Meter};

use crate::agent::{Arrival, Greeted, Inboxes, SealingArrival, Trusted};

/// Maximum number of connections that have not authenticated.
const GREETINGS_MAX: usize = 256;
/// The same for one address: enough for a balancer with many workers.
const GREETINGS_PER_ADDRESS_MAX: usize = 64;
/// Maximum number of remembered balancer addresses.
const KNOWN_MAX: usize = 256;
/// Pause before the next accept after a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// Table of the connections that are authenticating.
#[derive(Debug, Default)]
struct Greetings {
    /// Number and address of each connection, oldest first.
    places: VecDeque<(u64, IpAddr)>,
    /// Addresses of authenticated balancers, the latest last.
    known: VecDeque<IpAddr>,
    last: u64,
}

impl Greetings {
    /// Registers a connection. Returns its number, and the number of the connection that it evicts.
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

    /// Records the address of an authenticated balancer.
    fn note_balancer(&mut self, address: IpAddr) {
        self.known.retain(|known| *known != address);
        self.known.push_back(address);
        if self.known.len() > KNOWN_MAX {
            self.known.pop_front();
        }
    }
}

/// The authenticating connections and their tasks.
#[derive(Debug, Default)]
struct Greeter {
    greetings: RefCell<Greetings>,
    tasks: RefCell<HashMap<u64, AbortHandle>>,
}

/// Registration of one connection, removed on drop.
struct Registration {
    greeter: Rc<Greeter>,
    number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.greeter.greetings.borrow_mut().end(self.number);
        self.greeter.tasks.borrow_mut().remove(&self.number);
    }
}

impl Greeter {
    fn begin(self: &Rc<Greeter>, address: IpAddr, meter: &Meter) -> Registration {
        let (number, victim) = self.greetings.borrow_mut().begin(address);
        if let Some(victim) = victim {
            meter.add(Event::GreetingEvicted);
            let task = self.tasks.borrow_mut().remove(&victim);
            // Aborting the task closes the socket.
            task.inspect(AbortHandle::abort);
        }
        Registration { greeter: Rc::clone(self), number }
    }
}

/// Accepts and authenticates balancers until the task is dropped. `trusted` requires a balancer's
/// certificate.
pub(crate) async fn greet(
    listener: TcpListener,
    trusted: Trusted,
    inboxes: Inboxes,
    meter: Arc<Meter>,
) {
    let (inboxes, greeter) = (Rc::new(inboxes), Rc::new(Greeter::default()));
    loop {
        let Ok((tcp, peer)) = listener.accept().await else {
            // Most likely the process has no descriptors left: wait until some are freed.
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let place = greeter.begin(peer.ip(), &meter);
        let number = place.number;
        let tls = Arc::clone(&trusted.borrow().server);
        let (inboxes, meter) = (Rc::clone(&inboxes), Arc::clone(&meter));
        let task = tokio::task::spawn_local(async move {
            match greet_one(tcp, tls).await {
                Ok(arrival) => {
                    place.greeter.greetings.borrow_mut().note_balancer(peer.ip());
                    let turn = place.number;
                    drop(place);
                    let number = match &arrival {
                        Arrival::Handoff(greeted) => greeted.instance,
                        Arrival::Sealing(_) => turn,
                    };
                    let worker = (number % inboxes.len() as u64) as usize;
                    let _ = inboxes[worker].send(arrival).await;
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
) -> Result<Arrival, ChannelError> {
    let mut channel = Channel::accept(tcp, tls).await?;
    let identity = channel.peer_identity();
    let identity = identity.ok_or(ChannelError::Protocol("a peer without a certificate"))?;
    match channel.receive().await? {
        Frame::Hello { instance, name, mac, lease_ms, .. } => {
            let channel = channel.detach()?;
            Ok(Arrival::Handoff(Greeted { channel, identity, instance, name, mac, lease_ms }))
        }
        Frame::Sealing { key, .. } => {
            Ok(Arrival::Sealing(SealingArrival { channel: channel.detach()?, key }))
        }
        _ => Err(ChannelError::Protocol("the first frame is not HELLO")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::path::Path;

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose,
        IsCa, KeyPair, SanType,
    };
    use tokio::sync::mpsc::Receiver;
    use tokio::sync::watch;
    use tokio::task::LocalSet;
    use unlade_channel::role::{BALANCER_ROLE, Balancers};
    use unlade_channel::trust;
    use unlade_channel::trust::{ServerTrust, TrustFiles};
    use unlade_handoff_protocol::frame::PROTOCOL_VERSION;
    use unlade_metrics::Role;

    use super::*;
    use crate::agent::Greeted;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    #[test]
    fn the_oldest_stranger_makes_room() {
        let mut greetings = Greetings::default();
        let known = address(200);
        greetings.note_balancer(known);
        let (balancer, _) = greetings.begin(known);
        let mut begin = |at: usize| greetings.begin(address(1 + (at / 50) as u8));
        let first: Vec<_> = (1..GREETINGS_MAX).map(&mut begin).collect();
        assert!(first.iter().all(|(_, victim)| victim.is_none()));
        // The balancer's connection is the oldest.
        assert_eq!(begin(GREETINGS_MAX).1, Some(first[0].0));
        assert_eq!(begin(GREETINGS_MAX + 50).1, Some(first[1].0));
        greetings.end(balancer);
        assert_eq!(greetings.begin(address(100)).1, None);
    }

    #[test]
    fn one_address_has_only_so_many_places() {
        let mut greetings = Greetings::default();
        let (other, _) = greetings.begin(address(1));
        let own: Vec<_> =
            (0..GREETINGS_PER_ADDRESS_MAX + 2).map(|_| greetings.begin(address(2))).collect();
        assert_eq!(own[GREETINGS_PER_ADDRESS_MAX].1, Some(own[0].0));
        assert_eq!(own[GREETINGS_PER_ADDRESS_MAX + 1].1, Some(own[1].0));
        assert!(greetings.places.iter().any(|(number, _)| *number == other));
    }

    #[test]
    fn if_all_are_known_the_oldest_makes_room() {
        let mut greetings = Greetings::default();
        (0..8).for_each(|last| greetings.note_balancer(address(last)));
        let begun: Vec<_> =
            (0..=GREETINGS_MAX).map(|at| greetings.begin(address((at % 8) as u8))).collect();
        assert_eq!(begun[GREETINGS_MAX].1, Some(begun[0].0));
        // The oldest addresses are forgotten first.
        (0..=KNOWN_MAX).for_each(|at| greetings.note_balancer(Ipv4Addr::from(at as u32).into()));
        assert_eq!(greetings.known.len(), KNOWN_MAX);
    }

    /// A pool's CA and certificates in a directory.
    struct Pool {
        directory: tempfile::TempDir,
        authority: CertifiedIssuer<'static, KeyPair>,
    }

    impl Pool {
        fn new() -> Pool {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(DnType::CommonName, "pool");
            let authority =
                CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join("ca.crt"), authority.pem()).unwrap();
            Pool { directory, authority }
        }

        /// Issues a certificate with both key usages, and a role if there is one.
        fn member(&self, name: &str, role: Option<&str>) -> TrustFiles {
            let mut params = CertificateParams::new(vec![format!("{name}.lab")]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
            if let Some(role) = role {
                params.subject_alt_names.push(SanType::URI(role.try_into().unwrap()));
            }
            params.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &self.authority).unwrap();
            let path = |end: &str| self.directory.path().join(format!("{name}.{end}"));
            std::fs::write(path("crt"), certificate.pem()).unwrap();
            std::fs::write(path("key"), key.serialize_pem()).unwrap();
            let ca = Path::new(self.directory.path()).join("ca.crt");
            TrustFiles { ca, certificate: path("crt"), key: path("key") }
        }
    }

    /// Starts a greeter with the configured `balancers`; returns its address and its output.
    async fn greeter(
        pool: &Pool,
        balancers: &[&str],
    ) -> (SocketAddr, Receiver<Arrival>, Arc<Meter>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let balancers = Balancers::named(balancers).unwrap();
        let gatekeeper = ServerTrust::load(&pool.member("server", None), &balancers).unwrap();
        let (_, trusted) = watch::channel(Arc::new(gatekeeper));
        let meter = Arc::new(Meter::for_role(Role::Backend));
        let (senders, mut receivers) = crate::agent::inboxes(1);
        tokio::task::spawn_local(greet(listener, trusted, senders, Arc::clone(&meter)));
        (address, receivers.remove(0), meter)
    }

    /// Connects and sends HELLO; the agent keeps the channel or closes it.
    async fn connect(to: SocketAddr, files: &TrustFiles) -> Result<Channel, ChannelError> {
        let config = trust::client_config(files).unwrap();
        let mut channel = Channel::connect(to, trust::server_name(to.ip()), config).await?;
        let (version, name) = (PROTOCOL_VERSION, "lb".to_owned());
        let hello = Frame::Hello { version, instance: 7, name, mac: [0; 6], lease_ms: 1 };
        channel.send(&hello).await?;
        Ok(channel)
    }

    /// Returns the next channel.
    async fn greeted(inbox: &mut Receiver<Arrival>) -> Greeted {
        match inbox.recv().await.unwrap() {
            Arrival::Handoff(greeted) => greeted,
            Arrival::Sealing(_) => panic!("a connection for sealing"),
        }
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn idle_strangers_do_not_keep_a_balancer_out() {
        run(async {
            let pool = Pool::new();
            let (to, mut inbox, meter) = greeter(&pool, &[]).await;
            let mut idle = Vec::new();
            for at in 0..GREETINGS_MAX + 50 {
                let socket = tokio::net::TcpSocket::new_v4().unwrap();
                let from = Ipv4Addr::new(127, 0, 1, (at / 50) as u8 + 1);
                socket.bind((from, 0).into()).unwrap();
                idle.push(socket.connect(to).await.unwrap());
            }
            let files = pool.member("lb", Some(BALANCER_ROLE));
            let _channel = connect(to, &files).await.unwrap();
            let greeted = greeted(&mut inbox).await;
            assert_eq!((greeted.instance, greeted.name.as_str()), (7, "lb"));
            assert!(meter.value(Event::GreetingEvicted) > 0);
        });
    }

    #[test]
    fn a_member_without_the_role_is_no_balancer() {
        run(async {
            let pool = Pool::new();
            let (to, mut inbox, meter) = greeter(&pool, &[]).await;
            for role in [None, Some("unlade://role/server")] {
                // A TLS 1.3 client sees the alert when it reads.
                let told = match connect(to, &pool.member("s1", role)).await {
                    Ok(mut channel) => channel.receive().await.map(drop),
                    Err(error) => Err(error),
                };
                assert!(told.as_ref().is_err_and(ChannelError::is_untrusted), "{told:?}");
            }
            assert_eq!(meter.value(Event::PeerUntrusted), 2);
            let _channel = connect(to, &pool.member("lb", Some(BALANCER_ROLE))).await.unwrap();
            let first = greeted(&mut inbox).await;
            // A renewed certificate is the same peer; another name is another peer.
            let _again = connect(to, &pool.member("lb", Some(BALANCER_ROLE))).await.unwrap();
            assert!(greeted(&mut inbox).await.identity == first.identity);
            let _other = connect(to, &pool.member("lb2", Some(BALANCER_ROLE))).await.unwrap();
            assert!(greeted(&mut inbox).await.identity != first.identity);
        });
    }

    #[test]
    fn a_configured_name_makes_a_balancer_without_the_role() {
        run(async {
            let pool = Pool::new();
            let (to, mut inbox, meter) = greeter(&pool, &["lb.lab"]).await;
            let _channel = connect(to, &pool.member("lb", None)).await.unwrap();
            greeted(&mut inbox).await;
            let told = match connect(to, &pool.member("lb2", Some(BALANCER_ROLE))).await {
                Ok(mut channel) => channel.receive().await.map(drop),
                Err(error) => Err(error),
            };
            assert!(told.as_ref().is_err_and(ChannelError::is_untrusted), "{told:?}");
            assert_eq!(meter.value(Event::PeerUntrusted), 1);
        });
    }
}
